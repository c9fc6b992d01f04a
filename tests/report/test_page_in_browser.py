"""The page of a comparison in a real browser, by mouse and by keyboard."""

import csv
import itertools
import math
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from helpers.browser import start_browser
from helpers.run_folders import write_run

from fedwmsam.page.page import write_page
from fedwmsam.report.runs import add_averaged_model_runs, find_runs
from fedwmsam.report.series import compute_curve
from fedwmsam.report.summary import Comparison, make_goal, summarise

pytestmark = pytest.mark.slow
playwright = pytest.importorskip(
    "playwright.sync_api", reason="the package playwright is not installed"
)
METHODS = (
    "fedavg",
    "fedavgm",
    "fedcm",
    "feddyn",
    "fedgamma",
    "fedprox",
    "fedsam",
    "fedwmsam",
    "mofedsam",
    "scaffold",
)
SELECT = "(menu, value) => { menu.value = value; menu.dispatchEvent(new Event('change')); }"
"""Choose an option of a menu that may be hidden."""
Open = Callable[..., Any]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with start_browser() as started:
        yield started


@pytest.fixture
def show(browser: Any) -> Iterator[Open]:
    """Open a page file; whatever it complains about or fetches makes the test fail."""
    contexts = []
    problems = []
    urls = []

    def open_page(path: Path, width: int = 1280, scheme: str = "light") -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: urls.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_selector(".plot svg", state="attached")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []
    assert {url for url in urls if not url.startswith("data:")} == {urls[0]}


def synthetic(folder: Path, methods: int, rounds: int, seeds: int) -> Comparison:
    """Return made-up curves of the usual shape, with every column that a run may have."""
    draw = np.random.default_rng(0)
    for number, method in enumerate(METHODS[:methods]):
        for seed in range(seeds):
            climb = 1 - np.exp(-np.arange(1, rounds + 1) / (8 + 4 * number))
            accuracy = 0.1 + (0.75 - 0.01 * number) * climb + draw.normal(0, 0.02, rounds)
            noisy = {
                name: draw.normal(1, 0.1, rounds).tolist()
                for name in ("loss", "train_loss", "update_norm", "similarity")
            }
            fractions = {
                "worst_client_accuracy": 0.7 * accuracy,
                "tenth_percentile_accuracy": 0.9 * accuracy,
            }
            columns = noisy | {name: values.tolist() for name, values in fractions.items()}
            columns |= {
                "alpha": (0.1 + 0.5 * climb).tolist(),
                "lr": (0.1 * 0.998 ** np.arange(rounds)).tolist(),
            }
            rng = np.random.default_rng(seed)
            counts = [1 + rng.multinomial(50, rng.dirichlet([0.1] * 10)) for _ in range(20)]
            data = {
                "class_counts": np.array(counts).tolist(),
                "class_names": [f"class {kind}" for kind in range(10)],
            }
            write_run(
                folder / f"{method}-{seed}",
                accuracy.tolist(),
                columns=columns,
                data=data,
                method=method,
                seed=seed,
                partition_hash=f"p{seed}",
                clients=20,
                client_accuracy=(accuracy[-1] * rng.uniform(0.5, 1.1, 20)).tolist(),
            )
    return summarise(
        find_runs([folder])[0], make_goal("accuracy", targets=(0.84, 0.5)), baseline="fedavg"
    )


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Comparison]:
    folder = tmp_path_factory.mktemp("small")
    comparison = synthetic(folder / "runs", methods=4, rounds=30, seeds=3)
    return write_page(folder / "page.html", comparison), comparison


def chart(page: Any) -> Any:
    """Return the first figure: all columns over the rounds."""
    return page.locator("figure.chart").first


def lines(figure: Any) -> list[str]:
    return [line.get_attribute("data-label") for line in figure.locator("path.line").all()]


def values(figure: Any) -> list[str]:
    return list(figure.locator("li:not([hidden]) .value").all_text_contents())


def expected(
    comparison: Comparison, column: str, round: int, window: int = 1, x_axis: str = "rounds"
) -> list[str]:
    """Return what the legend must say: the curves of the report's plots, in four digits."""
    texts = []
    for row in comparison.tables[0].rows:
        curve = compute_curve(row, column, x_axis, window)
        if curve:
            texts.append(f"{curve.mean[round - 1]:.4f} ± {curve.deviation[round - 1]:.4f}")
    return texts


def close(shown: list[str], wanted: list[str]) -> bool:
    """Return whether the texts have the same values but for one in the fourth decimal.

    The page holds five digits of each seed.
    """
    assert len(shown) == len(wanted)
    shown_values = " ± ".join(shown).split(" ± ")
    wanted_values = " ± ".join(wanted).split(" ± ")
    return all(
        math.isclose(float(value), float(other), abs_tol=1.5e-4)
        for value, other in zip(shown_values, wanted_values, strict=True)
    )


def test_a_switch_takes_a_line_away_and_back(show: Open, small: tuple[Path, Comparison]) -> None:
    figure = chart(show(small[0]))
    assert lines(figure) == list(METHODS[:4]) and figure.locator("path.band").count() == 4
    figure.get_by_label("fedcm").hover()
    assert figure.locator("path.line.faint").count() == 3
    figure.get_by_label("fedcm").uncheck()
    assert lines(figure) == ["fedavg", "fedavgm", "feddyn"] and values(figure)[2] == ""
    figure.get_by_role("button", name="None").click()
    assert lines(figure) == []
    figure.get_by_role("button", name="All").click()
    assert lines(figure) == list(METHODS[:4])


def test_the_legend_reads_the_curves_off(show: Open, small: tuple[Path, Comparison]) -> None:
    path, comparison = small
    figure = chart(show(path))
    assert close(values(figure), expected(comparison, "accuracy", 30))
    figure.get_by_label("Show").select_option("worst client accuracy")
    assert close(values(figure), expected(comparison, "worst_client_accuracy", 30))
    figure.get_by_label("Smoothing").select_option("mean of last 10")
    assert close(values(figure), expected(comparison, "worst_client_accuracy", 30, window=10))
    figure.get_by_label("Against").select_option("MB down + up")
    assert close(values(figure), expected(comparison, "worst_client_accuracy", 30, window=10))
    figure.locator(".plot").scroll_into_view_if_needed()
    plot = figure.locator(".plot").bounding_box()
    figure.page.mouse.move(plot["x"] + plot["width"] - 40, plot["y"] + 100)
    moved = values(figure)
    figure.page.mouse.move(plot["x"] + plot["width"] / 2, plot["y"] + 100)
    assert values(figure) != moved


def test_spread_zoom_and_table_follow_the_controls(
    show: Open, small: tuple[Path, Comparison]
) -> None:
    path, comparison = small
    figure = chart(show(path))
    figure.get_by_label("Spread").select_option("each seed")
    assert figure.locator("path.seed").count() == 12 and figure.locator("path.band").count() == 0
    figure.get_by_label("Spread").select_option("none")
    assert figure.locator("path.seed").count() == 0
    before = figure.locator("path.line").first.get_attribute("d")
    figure.get_by_label("Zoom past the start").check()
    assert figure.locator("path.line").first.get_attribute("d") != before
    figure.get_by_text("As a table").click()
    playwright.expect(figure.locator("tbody tr")).to_have_count(30)  # filled after the click
    assert close(
        figure.locator("tbody tr").last.locator("td").all_text_contents(),
        expected(comparison, "accuracy", 30),
    )
    figure.get_by_label("fedcm").uncheck()
    assert figure.locator("thead th").all_text_contents() == [
        "round",
        "fedavg",
        "fedavgm",
        "feddyn",
    ]


def test_the_chart_is_read_with_the_keyboard(show: Open, small: tuple[Path, Comparison]) -> None:
    path, comparison = small
    page = show(path)
    figure = chart(page)
    figure.get_by_label("Zoom past the start").focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "plot"
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert close(values(figure), expected(comparison, "accuracy", 28))
    spoken = figure.locator("[aria-live]").text_content()
    assert spoken.startswith("round 28: fedavg 0.") and spoken.count(";") == 3
    page.keyboard.press("Home")
    assert figure.locator(".plot").get_attribute("aria-valuetext") == "round 1"
    page.keyboard.press("PageUp")
    assert figure.locator(".plot").get_attribute("aria-valuenow") == "4"
    page.keyboard.press("Tab")  # to the first switch
    page.keyboard.press("Space")
    assert lines(figure) == ["fedavgm", "fedcm", "feddyn"]


def test_clients_are_read_from_the_worst_served_to_the_best(
    show: Open, small: tuple[Path, Comparison]
) -> None:
    path, comparison = small
    page = show(path)
    figure = page.locator("section", has=page.locator("#by-client-1")).locator("figure.chart")

    def wanted(share: float) -> list[str]:
        """Return, without the page's code, what the run folders say seed by seed."""
        texts = []
        for row in comparison.tables[0].rows:
            values = [np.quantile(score.run.client_accuracies, share) for score in row.scores]
            texts.append(f"{np.mean(values):.4f} ± {np.std(values, ddof=1):.4f}")
        return texts

    assert figure.locator(".position").text_content() == "At share of clients 0"
    assert close(values(figure), wanted(0)) and figure.locator("path.band").count() == 4
    figure.locator(".plot").focus()
    for key in ("PageUp", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    spoken = figure.locator("[aria-live]").text_content()
    assert spoken.startswith("share of clients 0.12: fedavg 0.")
    assert close(values(figure), wanted(0.12))
    page.keyboard.press("End")
    assert close(values(figure), wanted(1))
    figure.get_by_label("Spread").select_option("each seed")
    assert figure.locator("path.seed").count() == 12
    figure.get_by_label("fedcm").uncheck()
    assert lines(figure) == ["fedavg", "fedavgm", "feddyn"]
    figure.get_by_text("As a table").click()
    playwright.expect(figure.locator("tbody tr")).to_have_count(101)  # filled after the click
    assert figure.locator("thead th").all_text_contents() == [
        "share of clients",
        "fedavg",
        "fedavgm",
        "feddyn",
    ]


def test_the_map_is_read_with_the_keyboard_and_the_mouse(
    show: Open, small: tuple[Path, Comparison]
) -> None:
    path, comparison = small
    page = show(path)
    figure = page.locator("figure.partition")
    plot = page.locator(".map")
    counts = comparison.tables[0].rows[0].scores[0].run.data["class_counts"]
    plot.focus()
    page.keyboard.press("ArrowRight")
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    wanted = f"client 1, class class 3: {counts[1][3]} of {sum(counts[1])} samples"
    assert figure.locator(".readout").text_content().startswith(wanted)
    plot.hover(position={"x": plot.bounding_box()["width"] - 8, "y": 60})
    assert figure.locator(".readout").text_content().startswith("client 19, class class 0:")
    figure.get_by_text("As a table").click()
    playwright.expect(figure.locator("tbody tr")).to_have_count(20)  # filled after the click
    cells = figure.locator("tbody tr").nth(1).locator("td").all_text_contents()
    assert cells == [*map(str, counts[1]), str(sum(counts[1]))]
    before = plot.inner_html()
    figure.get_by_label("Seed").select_option("1")
    assert plot.inner_html() != before


def test_headers_sort_by_number_and_by_name(show: Open, small: tuple[Path, Comparison]) -> None:
    page = show(small[0])
    table = page.locator("table.sortable", has_text="reached by")
    names = table.locator("tbody th")
    rounds = table.locator("tbody td:nth-child(4)")

    def numbers() -> list[float]:
        """Return the rounds to the target; rows that never reached it must come last."""
        *others, last = rounds.all_text_contents()
        assert last == "not reached"
        return [float(text.split(" ")[0]) for text in others if text != last]

    original = names.all_text_contents()
    head = table.locator("thead th").nth(3)
    head.get_by_role("button").focus()
    page.keyboard.press("Enter")
    ascending = numbers()
    assert head.get_attribute("aria-sort") == "ascending"
    assert ascending == sorted(ascending) and len(set(ascending)) > 3
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "descending" and numbers() == ascending[::-1]
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "none" and names.all_text_contents() == original
    table.locator("thead button").first.click()
    assert names.all_text_contents() == sorted(original) != original


def test_the_commands_can_be_copied(show: Open, small: tuple[Path, Comparison]) -> None:
    page = show(small[0])
    page.locator("button.copy").click()
    playwright.expect(page.locator("button.copy")).to_have_text(re.compile("Copied|Selected"))
    assert page.evaluate("getSelection().toString()").count("fedwmsam run") == 12


@pytest.mark.parametrize("width", [380, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_fault_is_found_by_axe(
    show: Open, small: tuple[Path, Comparison], width: int, scheme: str
) -> None:
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed"
    )
    page = show(small[0], width, scheme)
    for summary in page.locator("summary").all():
        summary.click()
    assert axe.Axe().run(page).response["violations"] == []


def test_a_narrow_window_does_not_scroll_sideways(
    show: Open, small: tuple[Path, Comparison]
) -> None:
    page = show(small[0], width=380)
    for summary in page.locator("summary").all():
        summary.click()
    assert page.evaluate("document.documentElement.scrollWidth") == 380
    wide = [
        frame
        for frame in page.locator(".frame").all()
        if frame.evaluate("e => e.scrollWidth > e.clientWidth")
    ]
    assert len(wide) > 3 and {frame.get_attribute("tabindex") for frame in wide} == {"0"}
    page.set_viewport_size({"width": 1280, "height": 900})
    # There is nothing to scroll any more.
    playwright.expect(page.locator(".frame").first).not_to_have_attribute("tabindex", "0")


def test_a_dark_page_is_dark(show: Open, small: tuple[Path, Comparison]) -> None:
    def brightness(page: Any, css_property: str) -> float:
        colour = page.evaluate(f"getComputedStyle(document.documentElement).{css_property}")
        return float(np.mean([float(part) for part in colour.strip("rgb()").split(",")]))

    light = show(small[0])
    dark = show(small[0], scheme="dark")
    assert brightness(light, "backgroundColor") > 220 > 80 > brightness(light, "color")
    assert brightness(dark, "backgroundColor") < 60 < 180 < brightness(dark, "color")


def test_awkward_numbers_are_drawn_without_complaint(show: Open, tmp_path: Path) -> None:
    """One evaluation, values that are not finite, almost equal or huge, and unknown costs."""
    huge = [1e30, None, -1e30]
    columns = {"x": huge, "y": [None, 0.1, None], "z": [0.1, 0.1 + 1e-16, 0.1]}
    write_run(tmp_path / "a0", [..., ..., 0.5], columns=columns)
    columns = {"x": huge, "y": [0.2, None, 0.1], "z": [0.1] * 3}
    write_run(tmp_path / "a1", [..., ..., 0.5], seed=1, columns=columns)
    columns = {"only": [1, 2, 3]}
    path = write_run(tmp_path / "b", [..., ..., 0.6], method="scaffold", columns=columns)
    (path / "timings.jsonl").unlink()
    write_run(tmp_path / "short", [0.5], method="fedsam", rounds=1, client_accuracy=[0.5, None])
    comparison = summarise(find_runs([tmp_path])[0], make_goal("accuracy"))
    page = show(write_page(tmp_path / "page.html", comparison))
    drawings = 0
    for figure in page.locator("figure.chart").all():
        figure.get_by_text("As a table").click()
        names = ("column", "axis", "spread", "window")
        menus = [figure.locator(f'[data-control="{name}"]') for name in names]
        choices = [option_values(menu) for menu in menus]
        windows = ["5"] if choices.pop() else []  # the chart of the clients has no smoothing
        for chosen in itertools.product(*choices):
            for menu, value in zip(menus, [*chosen, *windows], strict=False):
                menu.evaluate(SELECT, value)
            assert "NaN" not in figure.inner_html() and "Infinity" not in figure.inner_html()
            drawings += 1
    assert drawings > 50


def option_values(menu: Any) -> list[str]:
    return [option.get_attribute("value") for option in menu.locator("option").all()]


def test_a_large_comparison_is_small_enough_and_opens(
    show: Open, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ten methods, 500 rounds, three seeds."""
    comparison = synthetic(tmp_path / "runs", methods=10, rounds=500, seeds=3)
    start = time.perf_counter()
    path = write_page(tmp_path / "page.html", comparison)
    writing_seconds = time.perf_counter() - start
    start = time.perf_counter()
    page = show(path)
    opening_seconds = time.perf_counter() - start
    size = path.stat().st_size / 1e6
    with capsys.disabled():
        print(
            f"\n10 methods × 500 rounds × 3 seeds: {size:.2f} MB, "
            f"made in {writing_seconds:.1f} s, opened in {opening_seconds:.1f} s"
        )
    assert size < 2 and opening_seconds < 30
    assert lines(chart(page)) == list(METHODS)


# Files, the verdict, and a page that is watched


def test_every_table_and_picture_is_saved_as_a_file(
    show: Open, small: tuple[Path, Comparison]
) -> None:
    page = show(small[0])
    tables = page.locator("main table:visible")
    results = page.locator(
        "section", has=page.get_by_role("heading", name="Results", exact=True)
    ).last
    with page.expect_download() as saved:
        results.get_by_role("button", name="as CSV").first.click()
    assert saved.value.suggested_filename == "results-accuracy.csv"
    rows = list(csv.reader(saved.value.path().read_text().splitlines()))
    assert rows[0][:2] == ["method", "seeds"] and len(rows) == 5 and "(best)" not in str(rows)
    assert page.get_by_role("button", name="as CSV").count() >= tables.count() > 3
    figure = chart(page)
    figure.get_by_label("fedcm").uncheck()
    with page.expect_download() as saved:
        figure.get_by_role("button", name="as SVG").click()
    drawn = ElementTree.parse(saved.value.path()).getroot()
    words = [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert "fedavg" in words and "fedcm" not in words
    assert "var(" not in ElementTree.tostring(drawn, "unicode")
    with page.expect_download() as saved:
        figure.get_by_role("button", name="as PNG").click()
    assert saved.value.path().read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    with page.expect_download() as saved:
        page.locator("figure.forest").get_by_role("button", name="as SVG").click()
    assert b"fedcm" in saved.value.path().read_bytes()


def do_overlap(box: dict[str, float], other: dict[str, float]) -> bool:
    """Return whether two rectangles of the page have a pixel in common."""
    is_apart = (
        box["right"] <= other["left"]
        or other["right"] <= box["left"]
        or box["bottom"] <= other["top"]
        or other["bottom"] <= box["top"]
    )
    return not is_apart


def overlapping_texts(frame: Any) -> int:
    """Return how many pairs of texts in a picture have a pixel in common."""
    boxes = frame.locator("text").evaluate_all("texts => texts.map(e => e.getBoundingClientRect())")
    return sum(do_overlap(box, other) for box, other in itertools.combinations(boxes, 2))


def test_on_a_phone_names_break_between_words_and_differences_have_space(
    show: Open, tmp_path: Path
) -> None:
    for method, seed in itertools.product(("fedlesam-d", "fedwmsam-plus"), (0, 1)):
        columns = {"averaged_accuracy": [0.6, 0.7 + seed / 10]}
        settings: dict[str, Any] = {"method": method, "seed": seed, "twin": 8.0}
        write_run(tmp_path / f"{method}-{seed}", [0.5, 0.6], columns=columns, **settings)
    runs = add_averaged_model_runs(find_runs([tmp_path])[0])
    page = show(write_page(tmp_path / "page.html", summarise(runs)), width=380)
    lines_of_words = page.locator("tbody th .word").evaluate_all(
        "words => words.map(word => word.getClientRects().length)"
    )
    assert set(lines_of_words) == {1}
    names = page.locator("table").first.locator("tbody th").all_text_contents()
    assert names[1] == "fedlesam-d averaged twin=8"
    assert overlapping_texts(page.locator("figure.forest")) == 0


@pytest.mark.parametrize("width", [1400, 380])
def test_the_verdict_and_the_differences_fit(
    show: Open, small: tuple[Path, Comparison], width: int
) -> None:
    page = show(small[0], width=width)
    assert "fedavg is ahead of fedavgm by" in page.locator(".verdict").inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    frame = page.locator("figure.forest .frame")
    assert frame.locator("circle").count() == 3
    assert frame.evaluate("e => e.scrollWidth <= e.clientWidth && e.scrollHeight <= e.clientHeight")
    assert overlapping_texts(frame) == 0
    if width == 1400:
        cut = page.locator("main .frame:visible").evaluate_all(
            "frames => frames.filter((frame) => frame.scrollWidth > frame.clientWidth + 1).length"
        )
        assert cut == 0


def test_a_watched_page_comes_back_as_the_reader_left_it(
    browser: Any, small: tuple[Path, Comparison], tmp_path: Path
) -> None:
    """It is written anew while it is open, shows what is new, and keeps place and choices."""
    _, comparison = small
    path = write_page(tmp_path / "page.html", comparison, watch=1.0)
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.goto(path.as_uri())
    figure = chart(page)
    figure.get_by_label("Show").select_option("loss")
    figure.get_by_label("fedcm").uncheck()
    page.evaluate("scrollTo(0, 700)")
    fewer = replace(comparison.tables[0], rows=comparison.tables[0].rows[:3])
    write_page(path, replace(comparison, tables=(fewer,)), watch=0)
    figure.locator("fieldset li").nth(3).wait_for(state="detached")
    page.wait_for_selector(".plot svg", state="attached")
    assert figure.get_by_label("Show").input_value() == "loss"
    assert not figure.get_by_label("fedcm").is_checked()
    # What stands above has become shorter, for which browsers make up.
    assert abs(page.evaluate("scrollY") - 700) < 150
    assert page.locator(".watched").count() == 0
    context.close()


def test_the_pictures_of_a_pivot_share_their_axes_and_are_saved(show: Open, tmp_path: Path) -> None:
    for method, level in (("fedavg", 0.5), ("fedcm", 0.7)):
        for partition in ("iid", "dirichlet:0.1"):
            write_run(
                tmp_path / "runs" / f"{method}-{partition[0]}",
                [level * share for share in (0.2, 0.6, 1.0)],
                method=method,
                partition=partition,
                partition_hash=partition,
            )
    comparison = summarise(find_runs([tmp_path / "runs"])[0], make_goal("accuracy"))
    page = show(write_page(tmp_path / "page.html", comparison))
    pictures = page.locator(".multiples .pictures > div")
    assert pictures.locator(".axis-title").all_text_contents() == ["dirichlet:0.1", "iid"]
    for picture in pictures.all():
        assert picture.locator("polyline").count() == 2
        assert "0.70" in picture.locator("text").all_text_contents()
    with page.expect_download() as saved:
        pictures.first.get_by_role("button", name="as SVG").click()
    assert b"FedCM" in saved.value.path().read_bytes()


def test_a_page_follows_a_comparison_that_goes_on(browser: Any, tmp_path: Path) -> None:
    """Two processes as in two terminals: one trains, the other writes the page that is open."""
    program = [sys.executable, "-m", "fedwmsam"]
    runs = ["compare", "--methods", "fedavg,fedcm", "--seeds", "2", "--rounds", "120"]
    comparison = subprocess.Popen(
        [*program, *runs, "--jobs", "1", "--out", "c", "-q"], cwd=tmp_path
    )
    watcher = None
    try:
        wait_for(lambda: list(tmp_path.glob("c/*/metrics.jsonl")))
        watcher = subprocess.Popen(
            [*program, "report", "c", "--html", "page.html", "--watch"],
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
        )
        wait_for((tmp_path / "page.html").exists)
        page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
        page.goto((tmp_path / "page.html").as_uri())
        assert "Runs are going on" in page.locator(".watched").inner_text()
        page.locator("nav").evaluate("nav => nav.dataset.seen = 'before'")
        page.locator("nav[data-seen]").wait_for(state="detached", timeout=60_000)
        assert comparison.wait(timeout=120) == 0 and watcher.wait(timeout=60) == 0
        page.locator(".watched").wait_for(state="detached", timeout=60_000)
        assert "4 runs, all counted" in " ".join(page.locator("header").inner_text().split())
    finally:
        for process in filter(None, (comparison, watcher)):
            process.kill()


def wait_for(condition: Callable[[], Any], seconds: float = 60) -> None:
    """Wait until the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)
