"""The page of a comparison, without a browser: its content, and that nothing in it does harm."""

import base64
import hashlib
import json
import os
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from helpers.run_folders import write_run

from fedwmsam import toml
from fedwmsam.errors import InputError
from fedwmsam.page import analyses
from fedwmsam.page.figures import FigureData
from fedwmsam.page.page import render_page, sections_of_table
from fedwmsam.page.provenance import rerun_command
from fedwmsam.report.runs import LoadedRun, add_averaged_model_runs, find_runs, read_run
from fedwmsam.report.series import compute_curve
from fedwmsam.report.summary import Comparison, make_goal, summarise
from fedwmsam.report.text_tables import TextTable, make_text_tables
from fedwmsam.settings.config import RunConfig, resolve_config

Cli = Callable[..., Any]
NASTY = """</script><script>alert(1)</script><img src=x onerror=alert('1')>"&<!--{{ 7 * 7 }}"""


class Reader(HTMLParser):
    """The tags of a page, and the text within each kind of them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.open: list[str] = []
        self.tables: list[list[list[str]]] = []
        """The rows of each table, with its title as the first."""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "input", "img"):
            self.open.append(tag)
        self.texts.setdefault(tag, []).append("")
        if tag == "table":
            self.tables.append([])
        elif tag in ("caption", "tr"):
            self.tables[-1].append([""] if tag == "caption" else [])
        elif tag in ("th", "td"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        for tag in set(self.open):
            self.texts[tag][-1] += data
        if self.open and {"caption", "th", "td"} & set(self.open):
            self.tables[-1][-1][-1] += data

    @property
    def numbers(self) -> dict[str, Any]:
        return dict(json.loads(self.texts["script"][0]))


def compared(folder: Path, baseline: str | None = None, **goal: Any) -> Comparison:
    return summarise(find_runs([folder])[0], make_goal(**({"metric": "accuracy"} | goal)), baseline)


def read(comparison: Comparison) -> Reader:
    return Reader(render_page(comparison))


@pytest.fixture
def two_methods(tmp_path: Path) -> Path:
    """Two methods over two seeds; the second method also runs a seed that diverges."""
    data = {"class_counts": [[3, 0], [1, 2], [0, 4]], "class_names": ["cat", "dog"]}
    for seed in range(2):
        common: dict[str, Any] = {
            "seed": seed,
            "data": data,
            "partition_hash": f"p{seed}",
            "clients": 3,
        }
        common["client_accuracy"] = [0.9, 0.2 + seed / 10, 0.7]
        alpha = {"alpha": [0.1, 0.2, 0.3], "worst_client_accuracy": [0.1, 0.1, 0.2 + seed / 10]}
        write_run(tmp_path / f"a{seed}", [0.5, 0.6, 0.7 + seed / 10], **common)
        write_run(
            tmp_path / f"b{seed}", [0.4, 0.8, 0.9], method="fedwmsam", columns=alpha, **common
        )
    write_run(
        tmp_path / "b2",
        [0.4],
        seed=2,
        method="fedwmsam",
        clients=3,
        rounds=3,
        status="diverged at round 2",
    )
    return tmp_path


def test_the_page_holds_every_cell_and_remark_of_the_report(two_methods: Path) -> None:
    comparison = compared(two_methods, baseline="fedavg", targets=(0.8, 0.95))
    page = read(comparison)
    cells = set(page.texts["td"] + page.texts["th"])
    notes = set(page.texts["li"])
    for text_table in make_text_tables(comparison):
        for row in text_table.rows:
            assert set(row) <= cells
        assert set(text_table.notes) <= notes
    assert page.texts["h1"] == ["Accuracy of fedavg and fedwmsam"]
    assert (
        "2 configurations over 2 seeds: 4 runs, 1 run not counted, for the reasons given below."
        in page.texts["p"]
    )
    assert page.texts["h2"] == [
        "Results",
        "Over the rounds",
        "How α adapts",
        "The clients served worst",
        "Accuracy by client",
        "Differences to fedavg",
        "Costs",
        "Partition",
        "Settings",
        "Making the runs again",
        "Environment",
    ]


def test_a_page_with_averaged_twins_as_rows_counts_and_repeats_each_run_once(
    tmp_path: Path,
) -> None:
    for seed in (0, 1):
        columns = {"averaged_accuracy": [0.6, 0.7]}
        write_run(tmp_path / str(seed), [0.5, 0.6], seed=seed, twin=8.0, columns=columns)
    page = read(summarise(add_averaged_model_runs(find_runs([tmp_path])[0])))
    assert "2 configurations over 2 seeds: 2 runs, all counted." in page.texts["p"]
    assert {"fedavg", "fedavg averaged twin=8"} <= set(page.texts["th"])
    (commands,) = page.texts["code"]
    assert commands.count("fedwmsam run") == 2 and "--twin 8.0" in commands
    assert not any("twin=8, seed" in note for note in page.texts["li"]), "it is no run of its own"


def test_a_table_of_another_kind_does_not_end_up_under_the_differences(
    two_methods: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    comparison = compared(two_methods, baseline="fedavg", targets=(0.8,))
    (table,) = comparison.tables
    other = TextTable("of another kind", ("method",), (("fedavg",),))
    text_tables = [other, *make_text_tables(comparison), other]
    monkeypatch.setattr("fedwmsam.page.page.make_text_tables", lambda *_: text_tables)
    shown_kinds = {}
    for section in sections_of_table(table, comparison, False, FigureData()):
        shown_kinds[section.name] = [shown.kind for shown in section.sortable_tables]
    assert shown_kinds["results"] == ["results"]
    assert shown_kinds["differences"] == ["differences"]
    assert shown_kinds["costs"] == ["other", "target costs"], "the first is the cost of the runs"


def test_links_lead_to_sections_and_names_are_there_once(two_methods: Path) -> None:
    write_run(two_methods / "other", [0.5], partition="iid")
    page = read(compared(two_methods))
    names = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    links = [str(attributes["href"])[1:] for tag, attributes in page.tags if tag == "a"]
    assert len(names) == len(set(names)) and links and set(links) <= set(names)
    titles = [table.title for table in compared(two_methods).tables]
    assert page.texts["h2"][:2] == titles and page.texts["h3"].count("Results") == 2


def test_nothing_that_people_named_becomes_markup(tmp_path: Path) -> None:
    data = {"class_counts": [[1, 1]], "class_names": [NASTY, "b"], "group_names": [NASTY]}
    names: dict[str, Any] = {
        "dataset": NASTY,
        "model": NASTY,
        "data_dir": NASTY,
        "clients": 1,
        "data": data,
    }
    columns = {NASTY: [0.1, 0.2]}
    write_run(tmp_path / "a", [0.5, 0.6], columns=columns, **names)
    write_run(tmp_path / "b", [0.5, 0.6], columns=columns, augmentation="paper", **names)
    write_run(tmp_path / "<script>", [0.5], rounds=2, status=None, seed=1, **names)
    page = read(compared(tmp_path))
    assert [tag for tag, _ in page.tags].count("script") == 2 and "img" not in page.texts
    for _, attributes in page.tags:
        assert not any(name.startswith("on") for name in attributes)
    assert not page.open, "every tag is closed"
    assert NASTY in page.texts["option"][0] + page.texts["option"][1]  # the column
    assert any(NASTY in text for text in page.texts["td"])
    assert any("/<script>)" in text for text in page.texts["li"])
    assert page.numbers["maps"][0][0]["classes"][0] == NASTY
    assert NASTY in page.numbers["charts"][0][0]["y"]


def test_a_name_in_an_attribute_stays_in_it(tmp_path: Path) -> None:
    write_run(
        tmp_path / "a", [0.5, 0.6], columns={NASTY: [0.1, 0.2]}, method="fedsam", dataset=NASTY
    )
    folder = tmp_path / "a" / "analysis"
    folder.mkdir()
    (folder / 'x"><b>.png').write_bytes(b"an image")
    page = read(compared(tmp_path))
    values: list[str | None] = []
    for _, attributes in page.tags:
        values += attributes.values()
    assert NASTY in values, "the column, as an option"
    assert 'fedsam, seed 0: x"><b>' in values and "b" not in page.texts, "the image's name"


def test_the_data_block_cannot_be_ended_from_inside(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.5, 0.6], columns={"</script><!--": [0.1, 0.2]})
    _, _, rest = render_page(compared(tmp_path)).partition(
        '<script type="application/json" id="numbers">'
    )
    block, _, _ = rest.partition("<")
    assert rest[len(block) :].startswith("</script>")
    assert "</script><!--" in json.loads(block)["charts"][0][0]["y"]


def test_bytes_that_are_no_characters_are_spelled_out(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"un\xff")
    folder.mkdir()
    (folder / "config.toml").write_text("= =")
    text = render_page(compared(tmp_path))
    assert text.encode() and rf"{tmp_path}/un\udcff" in Reader(text).texts["th"]


def test_a_choice_of_one_is_not_offered(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.5, 0.6])
    page = read(compared(tmp_path))
    # A label, its words and its menu follow each other.
    menus = zip(page.tags, page.tags[2:], strict=False)
    hidden = {
        menu["data-control"]: "hidden" in label
        for (_, label), (tag, menu) in menus
        if tag == "select"
    }
    assert hidden == {"column": True, "axis": False, "window": False, "spread": False}


def test_the_page_fetches_nothing_and_allows_its_own_script_only(two_methods: Path) -> None:
    text = render_page(compared(two_methods))
    page = Reader(text)
    # The only URL is a name, not an address.
    assert set(re.findall(r"https?://[^\"\s]+", text)) == {"http://www.w3.org/2000/svg"}
    assert not [attributes for _, attributes in page.tags if "src" in attributes]
    (policy,) = (attributes["content"] for _, attributes in page.tags if "http-equiv" in attributes)
    digest = base64.b64encode(hashlib.sha256(page.texts["script"][1].encode()).digest()).decode()
    assert policy and policy.startswith("default-src 'none'")
    assert f"script-src 'sha256-{digest}'" in policy


def test_the_same_runs_give_the_same_page(two_methods: Path) -> None:
    assert render_page(compared(two_methods)) == render_page(compared(two_methods))


def test_the_curves_are_those_of_the_runs_in_five_digits(tmp_path: Path) -> None:
    write_run(
        tmp_path / "a0", [0.123456789, ..., None, 123456.7], columns={"lr": [0.1, 0.2, 0.3, 0.4]}
    )
    write_run(tmp_path / "a1", [0.5, ..., 0.25, 1.0], seed=1, columns={"lr": [0.1, 0.2, 0.3, 0.4]})
    comparison = compared(tmp_path)
    (row,) = read(comparison).numbers["charts"][0]
    assert row["y"]["accuracy"] == {
        "runs": [[0.12346, None, 123460], [0.5, 0.25, 1]],
        "n": 2,
        "at": [1, 3, 4],
    }
    assert row["y"]["lr"] == {"runs": [[0.1, 0.2, 0.3, 0.4]], "n": 2}  # alike, so told once
    # The loss never changes; bytes and backprops are axes.
    assert list(row["y"]) == ["accuracy", "lr"]
    curve = compute_curve(comparison.tables[0].rows[0], "accuracy", "bytes")
    assert curve is not None and row["x"]["bytes"][0] == pytest.approx(curve.x[0] / 1e6)
    assert row["x"]["seconds"] == [2, 4, 6, 8] and row["x"]["backprops"] == [7, 14, 21, 28]


def test_costs_that_no_run_knows_are_no_axis(tmp_path: Path) -> None:
    (write_run(tmp_path / "a", [0.5, 0.6]) / "timings.jsonl").unlink()
    page = read(compared(tmp_path))
    assert "seconds" not in page.numbers["charts"][0][0]["x"]
    assert "training seconds" not in page.texts["option"] and "backprops" in page.texts["option"]


def test_lines_keep_the_style_of_their_row_when_others_have_no_numbers(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.5], rounds=2, status=None)
    write_run(tmp_path / "b", [0.5, 0.6], method="scaffold")
    (row,) = read(compared(tmp_path)).numbers["charts"][0]
    assert row["label"] == "scaffold" and row["colour"] == 1 and row["dash"]


def test_runs_without_numbers_still_make_a_page(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [], rounds=2, status=None)
    page = read(compared(tmp_path))
    assert page.numbers == {"charts": [], "maps": []}
    assert "0 of 1 (1 no round done)" in page.texts["td"]
    (tmp_path / "a" / "config.toml").write_text("= =")
    page = read(compared(tmp_path))
    assert page.texts["h2"] == ["Runs that cannot be read", "Environment"]
    assert str(tmp_path / "a") in page.texts["th"]


def test_sweeps_are_drawn_over_the_option(tmp_path: Path) -> None:
    for rho in (0.01, 0.1, 0.5):
        write_run(tmp_path / str(rho), [rho], method="fedsam", rho=rho)
    page = read(compared(tmp_path))
    assert page.numbers["charts"][1][0]["x"] == {"rho": [0.01, 0.1, 0.5]}
    assert page.numbers["charts"][1][0]["y"]["tail"]["mean"] == [0.01, 0.1, 0.5]
    assert "Sensitivity to rho" in page.texts["h2"]


# Clients


def cells_of(page: Reader, title: str) -> list[list[str]]:
    """Return the rows of the table with that title."""
    ((_, *rows),) = (table for table in page.tables if table[0][0] == title)
    return rows


def test_clients_are_sorted_for_each_seed_before_seeds_are_averaged(tmp_path: Path) -> None:
    """Who is worst differs between the seeds; of eleven clients the 10% quantile is the second."""
    accuracies = [0.9, 0.1, 0.3, 0.2, 0.4, 0.5, 0.6, 0.65, 0.7, 0.8, 0.85]
    write_run(tmp_path / "a0", [0.5], client_accuracy=accuracies)
    shifted = [value + 0.1 for value in accuracies[::-1]]
    write_run(tmp_path / "a1", [0.5], seed=1, client_accuracy=shifted)
    write_run(tmp_path / "b0", [0.5], method="scaffold", client_accuracy=[None, 0.25, 0.5, None])
    page = read(compared(tmp_path))
    head, fedavg, scaffold = cells_of(page, "Accuracy over the clients, mean over the seeds")
    assert head == ["method", "worst", "10%", "lower quartile", "median", "upper quartile", "best"]
    assert fedavg == [
        "fedavg",
        *(f"{mean:.4f} ± 0.0707" for mean in (0.15, 0.25, 0.4, 0.65, 0.8, 0.95)),
    ]
    assert scaffold == ["scaffold", "0.2500", "0.2750", "0.3125", "0.3750", "0.4375", "0.5000"]
    assert any("no test samples" in text for text in page.texts["li"])
    first, second = page.numbers["charts"][1]
    assert first["x"]["share"] == [n / 100 for n in range(101)]
    low, high = first["y"]["accuracy"]["runs"]
    assert low[::10] == sorted(accuracies) and high[::10] == pytest.approx(sorted(shifted))
    assert second["colour"] == 1 and second["y"]["accuracy"]["n"] == 1


def test_a_hundred_thousand_clients_take_no_more_space_than_a_hundred(tmp_path: Path) -> None:
    sizes = []
    for count in (100, 100_000):
        accuracies = [n % 997 / 1000 for n in range(count)]
        path = write_run(tmp_path / str(count) / "a", [0.5], client_accuracy=accuracies)
        assert len(read_run(path).client_accuracies) == count
        sizes.append(len(render_page(compared(tmp_path / str(count)))))
    assert sizes[1] < sizes[0] + 1000


def test_runs_that_kept_no_client_accuracies_are_left_out_and_named(tmp_path: Path) -> None:
    columns = {"worst_client_accuracy": [0.2]}
    write_run(tmp_path / "a0", [0.5], columns=columns, client_accuracy=[0.25, 0.75])
    for seed in (1, 2):
        write_run(tmp_path / f"a{seed}", [0.5], columns=columns, seed=seed)
    write_run(tmp_path / "b0", [0.5], columns=columns, method="scaffold")
    page = read(compared(tmp_path))
    _, fedavg, scaffold = cells_of(page, "Accuracy over the clients, mean over the seeds")
    assert fedavg[1] == "0.2500" and scaffold == ["scaffold", *"––––––"]
    notes = [text for text in page.texts["li"] if "clients.json" in text]
    assert len(notes) == 2 and notes[0].startswith("fedavg, seeds 1, 2: left out here")
    assert [row["label"] for row in page.numbers["charts"][1]] == ["fedavg"]
    (tmp_path / "a0" / "clients.json").unlink()
    page = read(compared(tmp_path))
    assert "Accuracy by client" in page.texts["h2"] and len(page.numbers["charts"]) == 1


def test_a_twin_has_no_row_among_the_clients_and_no_advice_to_resume(tmp_path: Path) -> None:
    columns = {"averaged_accuracy": [0.6]}
    for seed, accuracies in enumerate(([0.25, 0.75], None)):
        folder = tmp_path / str(seed)
        write_run(folder, [0.5], columns=columns, seed=seed, twin=8.0, client_accuracy=accuracies)
    runs = add_averaged_model_runs(find_runs([tmp_path])[0])
    page = read(summarise(runs))
    _, *rows = cells_of(page, "Accuracy over the clients, mean over the seeds")
    assert [row[0] for row in rows] == ["fedavg"]
    notes = [text for text in page.texts["li"] if "clients.json" in text]
    assert len(notes) == 1 and notes[0].startswith("fedavg, seed 1: left out here")
    assert sum("trained model only" in text for text in page.texts["li"]) == 1


def test_runs_that_look_at_no_client_have_no_such_section(tmp_path: Path) -> None:
    write_run(tmp_path / "a0", [0.5])
    assert "Accuracy by client" not in read(compared(tmp_path)).texts["h2"]


def test_clients_with_names_have_a_column_each_however_they_are_numbered(tmp_path: Path) -> None:
    names = ["amazon", "dslr", NASTY, "held out"]
    for seed, order in enumerate(([0, 1, 2, 3], [2, 0, 1, 3])):
        accuracies = [(0.5, 0.6, 0.7, None)[n] for n in order]
        data = {"group_names": [names[n] for n in order]}
        write_run(
            tmp_path / str(seed),
            [0.5],
            seed=seed,
            data=data,
            partition="natural",
            client_accuracy=accuracies,
        )
    page = read(compared(tmp_path))
    head, line = cells_of(page, "Accuracy of each client, mean over the seeds")
    assert head == ["method", *names[:3]]
    assert line == ["fedavg", "0.5000 ± 0.0000", "0.6000 ± 0.0000", "0.7000 ± 0.0000"]
    assert any("own group" in text for text in page.texts["p"])


def test_many_clients_or_clients_without_names_have_no_column_each(tmp_path: Path) -> None:
    names = [f"speaker {n}" for n in range(13)]
    write_run(
        tmp_path / "many" / "a", [0.5], data={"group_names": names}, client_accuracy=[0.5] * 13
    )
    write_run(
        tmp_path / "nameless" / "a", [0.5], data={"group_names": []}, client_accuracy=[0.5] * 3
    )
    for folder in tmp_path.iterdir():
        titles = read(compared(folder)).texts["caption"]
        assert "Accuracy of each client, mean over the seeds" not in titles


def test_partitions_are_told_apart_by_their_hash_and_large_ones_shown_in_part(
    tmp_path: Path,
) -> None:
    counts = [[client % 3, 1] for client in range(300)]
    for seed, name in enumerate(("p", "p", "q")):
        data = {"class_counts": counts}
        write_run(
            tmp_path / str(seed), [0.5, 0.6], seed=seed, partition_hash=name, data=data, clients=300
        )
    page = read(compared(tmp_path))
    assert [len(heatmap["counts"]) for heatmap in page.numbers["maps"][0]] == [200, 200]
    assert [text for text in page.texts["option"] if text in ("0, 1", "2")] == ["0, 1", "2"]
    assert any("The first 200 of 300 clients" in text for text in page.texts["figcaption"])
    assert "1 / 2 / 3" in page.texts["td"]  # samples of a client


@pytest.mark.parametrize(
    "counts", ["x", [[1], [1, 2]], [[1.5, "x"]], [[-1, 2]], [[0, 0]], [3], {"a": 1}, [[2**62] * 4]]
)
def test_a_run_whose_class_counts_are_none_is_damaged(tmp_path: Path, counts: Any) -> None:
    write_run(tmp_path / "a", [0.5, 0.6], data={"class_counts": counts})
    page = read(compared(tmp_path))
    assert "Partition" not in page.texts["h2"]
    assert any("data.json: class_counts must be" in text for text in page.texts["li"])


@pytest.mark.parametrize("counts", [None, []])
def test_a_partition_that_is_not_described_is_left_out(tmp_path: Path, counts: Any) -> None:
    write_run(tmp_path / "a", [0.5, 0.6], data={"class_counts": counts})
    page = read(compared(tmp_path))
    assert "Partition" not in page.texts["h2"] and "0.5500" in page.texts["td"]


def test_images_of_analyses_are_on_the_page_or_named(
    two_methods: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = two_methods / "a0" / "analysis"
    folder.mkdir()
    (folder / "landscape-round-3.png").write_bytes(b"an image")
    (folder / "embedding-round-3.svg").write_bytes(b"<svg/>")
    (folder / "landscape-plane-round-3.pdf").write_bytes(b"on paper only")
    scores = [{"by": "class", "of": "features", "silhouette": 0.25, "davies_bouldin": 1.5}]
    embedding = {"settings": {}, "rounds": [{"round": 3, "scores": scores}]}
    (folder / "embedding.json").write_text(json.dumps(embedding))
    text = render_page(compared(two_methods))
    for kind, content in (("image/png", b"an image"), ("image/svg+xml", b"<svg/>")):
        assert f"data:{kind};base64,{base64.b64encode(content).decode()}" in text
    assert 'alt="fedavg, seed 0: landscape round 3"' in text
    assert "landscape-plane-round-3.pdf" in text
    rows = list(chain.from_iterable(Reader(text).tables))
    assert ["fedavg, seed 0", "3", "0.25", "1.5"] in rows
    monkeypatch.setattr(analyses, "MAX_EMBEDDED_BYTES", 8)
    text = render_page(compared(two_methods))
    assert "data:image/svg" in text and "data:image/png" not in text and "Not shown" in text


def test_settings_say_what_differs_and_what_does_not(two_methods: Path) -> None:
    page = read(compared(two_methods))
    lines = page.texts["tr"]
    assert any(line.startswith("clients3number of clients") for line in lines)
    assert "lr0.1local step size in the first round" in lines
    (head,) = (line for line in lines if line.startswith("methodseeds") and "rho" in line)
    assert "adapt_rate" in head and "lr_decay" not in head
    assert not any(line.startswith("rho") for line in lines)


# Commands


def configuration_of(monkeypatch: pytest.MonkeyPatch, cli: Cli, text: str) -> dict[str, Any]:
    """Return the configuration that `fedwmsam run` reads from a command."""
    configs: list[RunConfig] = []
    monkeypatch.setattr(
        "fedwmsam.commands.run.start_run", lambda config, *_: configs.append(config)
    )
    name, *arguments = shlex.split(text)
    outcome = cli(*arguments)
    assert name == "fedwmsam" and outcome.code == 0, outcome.err
    return configs[0].to_flat_dict()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"method": "fedavg", "rounds": 20, "seed": 7},
        {"preset": "paper", "dataset": "fashion-mnist", "rho": 0.05},
        {"preset": "tuned", "method": "fedgloss", "rounds": 10000, "lr": 0.1, "beta": 1.5},
        {
            "method": "fedwmsam",
            "correction": "none",
            "alpha": 0.1 + 0.2,
            "clip_norm": "none",
            "sampling": "bernoulli",
        },
        {
            "method": "scaffold",
            "dataset": "/data/o'brien $HOME",
            "model": "my.nets:make",
            "partition": "shards:2",
            "augmentation": "paper",
            "clients": 7,
            "participation": 1 / 3,
            "clients_per_round": 2,
            "rounds": 3,
            "local_epochs": 2,
            "batch_size": 11,
            "lr": 1e-5,
            "weight_decay_mode": "sgd",
            "workers": 0,
            "seed": 3,
            "validation": 0.1,
            "target_accuracy": 0.9,
            "checkpoint_every": 5,
            "data_dir": '"; rm -rf x #',
            "patience": 4,
            "lr_decay": 1.0,
            "weight_decay": 0.0,
            "evaluate_every": 2,
            "time_budget": 60.0,
            "averaging": "size",
            "device": "cuda",
            "keep_states": 5,
            "track": "wandb:a b,tensorboard",
        },
    ],
)
def test_the_command_of_a_run_has_its_configuration(
    monkeypatch: pytest.MonkeyPatch, cli: Cli, tmp_path: Path, settings: dict[str, Any]
) -> None:
    run = read_run(write_run(tmp_path / "a", [0.5], **({"method": "fedwmsam"} | settings)))
    expected = resolve_config(toml.load(tmp_path / "a" / "config.toml")).to_flat_dict()
    assert configuration_of(monkeypatch, cli, rerun_command(run)) == expected


def test_a_command_says_only_what_differs(tmp_path: Path) -> None:
    run = read_run(
        write_run(tmp_path / "a", [0.5], method="fedsam", preset="paper", rho=0.2, rounds=500)
    )
    assert rerun_command(run) == "fedwmsam run --method fedsam --preset paper --set rho=0.2"


def test_runs_of_fit_and_of_unknown_methods_have_no_command(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="fit"):
        rerun_command(LoadedRun(tmp_path, config={"method": "fedavg", "seed": 0}))
    with pytest.raises(InputError, match="newest"):
        rerun_command(
            LoadedRun(tmp_path, config={"dataset": "digits", "method": "newest", "seed": 0})
        )
    run = read_run(write_run(tmp_path / "a", [0.5]))
    with pytest.raises(InputError, match="later_setting"):
        rerun_command(replace(run, config=run.config | {"later_setting": 1}))


def test_the_page_lists_the_commands_and_why_there_is_none(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.5], model="x\nrm -rf y", seed=1)
    write_run(tmp_path / "b", [0.5], model="x\nrm -rf y", seed=2, status="diverged at round 1")
    path = (
        write_run(tmp_path / "c", [0.5], model="x\nrm -rf y", augmentation="paper") / "config.toml"
    )
    path.write_text(path.read_text() + "later_setting = 1\n")
    page = read(compared(tmp_path))
    (block,) = page.texts["code"]
    words = shlex.split(block, comments=True)
    assert words.count("fedwmsam") == 2 and "rm" not in words and "# diverged:\n" in block
    assert any("later_setting" in text for text in page.texts["li"])


def test_a_line_break_in_a_label_does_not_begin_a_command(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.5])
    comparison = compared(tmp_path)
    (table,) = comparison.tables
    renamed = replace(table, rows=(replace(table.rows[0], label="x\nrm -rf y"),))
    (block,) = read(replace(comparison, tables=(renamed,))).texts["code"]
    assert block.startswith("# x rm -rf y\nfedwmsam run")


def test_a_page_of_runs_of_fit_says_that_their_data_are_not_recorded(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", [0.5, 0.6]) / "config.toml"
    lines = path.read_text().splitlines(keepends=True)
    unrecorded = ("dataset", "partition", "model")
    path.write_text("".join(line for line in lines if not line.startswith(unrecorded)))
    page = read(compared(tmp_path))
    assert "pre" not in page.texts and any("made by fit()" in text for text in page.texts["li"])


# The command line


def test_report_writes_the_page(cli: Cli, two_methods: Path) -> None:
    out = two_methods / "new" / "page.html"
    done = cli("report", two_methods, "--targets", "0.8", "--paper-columns", "--html", out)
    assert done.code == 0 and f"Written: {out}" in done.out, done.err
    page = Reader(out.read_text(encoding="utf-8"))
    assert "best on test (selected on test)" in page.texts["th"]
    assert "Cost of reaching a target accuracy" in page.texts["caption"]
    again = cli("report", two_methods, "--html", two_methods)
    assert again.code == 2 and "Cannot write" in again.err


@pytest.mark.parametrize("quiet", [False, True])
def test_compare_writes_the_page(
    cli: Cli, two_methods: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, quiet: bool
) -> None:
    folders = [two_methods / name for name in ("a0", "a1", "b0", "b1")]
    monkeypatch.setattr("fedwmsam.comparison.comparison.run_comparison", lambda *_: folders)
    out = tmp_path / "page.html"
    words = [
        "--methods",
        "fedavg,fedwmsam",
        "--seeds",
        "2",
        "--baseline",
        "fedavg",
        "--out",
        tmp_path / "out",
    ]
    done = cli("compare", *words, "--html", out, *(["--quiet"] if quiet else []))
    assert done.code == 0, done.err
    assert (f"Written: {out}" in done.out) is not quiet
    assert "Differences to fedavg" in Reader(out.read_text(encoding="utf-8")).texts["h2"]
