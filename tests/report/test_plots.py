"""Plots of a report: which there are, and that nothing in them is cut off or hidden."""

import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.run_folders import write_run

from fedwmsam.errors import InputError
from fedwmsam.report import plots
from fedwmsam.report.runs import add_averaged_model_runs, find_runs
from fedwmsam.report.summary import Comparison, make_goal, summarise

pytest.importorskip("matplotlib")


def climbing(seed: int, rounds: int, top: float) -> list[float]:
    noise = np.random.default_rng(seed).normal(0, 0.02, rounds)
    return list(top * (1 - np.exp(-np.arange(1, rounds + 1) / (rounds / 5))) + noise)


def write_all(folder: Path, rounds: int = 12) -> Path:
    """Three methods over two seeds, a sweep of rho and an ablation, with a schedule."""
    variants: list[dict[str, Any]] = [{"method": "fedavg"}, {"method": "scaffold"}]
    variants += [{"method": "fedwmsam", "rho": rho} for rho in (0.01, 0.05, 0.2)]
    variants += [{"method": "fedwmsam", "correction": "none", "perturbation": "momentum"}]
    variants += [{"method": "fedwmsam", "correction": "none"}]
    for number, settings in enumerate(variants):
        for seed in (0, 1):
            columns = {"loss": [2 - value for value in climbing(seed, rounds, 1.5)]}
            if settings["method"] == "fedwmsam":
                columns["alpha"] = climbing(seed, rounds, 0.3)
            values = climbing(10 * number + seed, rounds, 0.6 + number / 20)
            write_run(folder / f"{number}-{seed}", values, seed=seed, columns=columns, **settings)
    return folder


def comparison(folder: Path, *targets: float) -> Comparison:
    return summarise(find_runs([folder])[0], make_goal("accuracy", targets))


ALL_PLOTS = {
    "accuracy-over-rounds",
    "loss-over-rounds",
    "alpha-over-rounds",
    "accuracy-over-bytes",
    "accuracy-over-seconds",
    "rounds-to-target",
    "sensitivity-rho",
    "ablation-fedwmsam",
}


def test_every_plot_the_runs_support_is_written(tmp_path: Path) -> None:
    result = comparison(write_all(tmp_path / "runs"), 0.5, 0.7)
    paths = plots.save_comparison_plots(result, tmp_path / "new" / "plots")
    assert {path.name for path in paths} == {f"{name}.png" for name in ALL_PLOTS}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def test_what_the_runs_lack_is_not_drawn(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs" / "a", [0.1, 0.5])
    (run / "timings.jsonl").unlink()
    paths = plots.save_comparison_plots(comparison(tmp_path / "runs"), tmp_path)
    assert {path.stem for path in paths} == {
        "accuracy-over-rounds",
        "loss-over-rounds",
        "accuracy-over-bytes",
    }


def test_several_tables_have_plots_of_their_own(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "a", [0.1, 0.5])
    write_run(tmp_path / "runs" / "b", [0.1, 0.5, 0.6])
    write_run(tmp_path / "runs" / "c", [0.1], status=None, rounds=9)
    write_run(tmp_path / "runs" / "d", [0.1], dataset="/far/away" * 40)
    paths = plots.save_comparison_plots(comparison(tmp_path / "runs"), tmp_path)
    names = {path.stem for path in paths}
    assert len(names) == 12
    assert "accuracy-over-rounds-digits-dirichlet-0.1-mlp-20-clients-3-rounds" in names


@pytest.mark.parametrize(("format", "start"), [("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_the_same_runs_give_the_same_bytes(tmp_path: Path, format: str, start: bytes) -> None:
    write_run(tmp_path / "runs" / "a", [0.1, 0.5])
    result = comparison(tmp_path / "runs", 0.4)
    paths = plots.save_comparison_plots(result, tmp_path / "first", format)
    other_paths = plots.save_comparison_plots(result, tmp_path / "second", format)
    assert len(paths) == 5 and all(path.suffix == f".{format}" for path in paths)
    for path, other_path in zip(paths, other_paths, strict=True):
        assert path.read_bytes() == other_path.read_bytes()
        assert path.read_bytes().startswith(start)


def figures(result: Comparison) -> Iterator[tuple[str, Any]]:
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context(plots.STYLE):
        for name, height, draw in plots.comparison_plots(result):
            figure = Figure(figsize=(plots.WIDTH, height), layout="constrained")
            FigureCanvasAgg(figure)
            draw(figure)
            figure.canvas.draw()
            yield name, figure


def texts(figure: Any) -> list[Any]:
    from matplotlib.text import Text

    return [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]


@pytest.mark.parametrize("rounds", [12, 60])
def test_no_word_is_cut_off_and_no_legend_covers_the_axes(tmp_path: Path, rounds: int) -> None:
    count = 0
    for name, figure in figures(comparison(write_all(tmp_path, rounds), 0.5, 0.7, 1.0)):
        (axes,) = figure.axes
        for text in texts(figure):
            if is_in_view(axes, text):
                box = text.get_window_extent()
                assert box.x0 >= -1 and box.x1 <= figure.bbox.x1 + 1, (name, text.get_text())
                assert box.y0 >= -1 and box.y1 <= figure.bbox.y1 + 1, (name, text.get_text())
        for legend in figure.legends:
            assert not legend.get_window_extent().overlaps(axes.get_window_extent()), name
        assert axes.get_window_extent().height > 0.25 * figure.bbox.height, name
        count += 1
    assert count == len(ALL_PLOTS)


def is_in_view(axes: Any, text: Any) -> bool:
    """Return whether a text is drawn: tick labels beyond an axis' limits exist, but are not."""
    hidden = []
    for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        low, high = sorted(limits)
        for value, label in zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=True):
            if not low <= value <= high:
                hidden.append(label)
    return text not in hidden


@pytest.mark.filterwarnings("error")
def test_few_and_long_names_fit_too(tmp_path: Path) -> None:
    """Matplotlib warns where a plot is too small for its words."""
    for number, correction in enumerate(("none", "mean_gradient")):
        settings = {"perturbation": "momentum", "similarity": "disagreement"} if number else {}
        write_run(
            tmp_path / "two" / f"{number}",
            [0.5],
            method="fedwmsam",
            correction=correction,
            **settings,
        )
    write_run(tmp_path / "one" / "a", [0.5])
    for folder, count in (("one", 5), ("two", 6)):
        assert len(list(figures(comparison(tmp_path / folder, 0.4)))) == count


def test_tick_labels_do_not_touch_each_other(tmp_path: Path) -> None:
    for name, figure in figures(comparison(write_all(tmp_path, 60), 0.5)):
        (axes,) = figure.axes
        shown = [
            label
            for label in axes.get_xticklabels(which="both")
            if label.get_text() and is_in_view(axes, label)
        ]
        boxes = sorted((label.get_window_extent() for label in shown), key=lambda box: box.x0)
        assert all(left.x1 < right.x0 for left, right in pairwise(boxes)), name


def test_curves_differ_without_colour_too() -> None:
    styles = [plots.line_style(number) for number in range(40)]
    dashes_and_markers = [(str(style["linestyle"]), style["marker"]) for style in styles]
    colours = [style["color"] for style in styles]
    assert len(set(zip(colours, dashes_and_markers, strict=True))) == 40
    assert len(set(dashes_and_markers[:8])) == 8


def test_a_method_and_its_average_have_one_colour_and_the_average_is_dashed(
    tmp_path: Path,
) -> None:
    methods = ("fedavg", "fedcm", "fedprox", "fedsam", "scaffold", "fedwmsam")
    for method in methods:
        columns = {"averaged_accuracy": [0.6, 0.7]}
        write_run(tmp_path / method, [0.5, 0.6], columns=columns, method=method, twin=8.0)
    runs = add_averaged_model_runs(find_runs([tmp_path])[0])
    result = summarise(runs, make_goal("accuracy"))
    figure = dict(figures(result))["accuracy-over-rounds"]
    lines = {line.get_label(): line for line in figure.axes[0].get_lines()}
    assert len({line.get_color() for line in lines.values()}) == len(methods)
    for method in methods:
        trained = lines[method]
        average = lines[f"{method} averaged twin=8"]
        assert (trained.get_color(), trained.get_marker()) == (
            average.get_color(),
            average.get_marker(),
        )
        assert (trained.get_linestyle(), average.get_linestyle()) == ("-", "--")


def test_many_methods_and_their_averages_all_look_different(tmp_path: Path) -> None:
    for number in range(20):
        columns = {"averaged_accuracy": [0.6]}
        write_run(tmp_path / f"{number}", [0.5], columns=columns, lr=0.1 + number, twin=8.0)
    runs = add_averaged_model_runs(find_runs([tmp_path])[0])
    rows = summarise(runs, make_goal("accuracy")).tables[0].rows
    assert len(rows) == 40 and len(set(map(str, plots.row_styles(rows)))) == 40


def test_a_seed_that_did_not_reach_the_target_is_told_in_the_plot(tmp_path: Path) -> None:
    for seed, top in enumerate((0.9, 0.5)):
        write_run(tmp_path / f"{seed}", [0.1, *[top] * 10], seed=seed)
    figure = dict(figures(comparison(tmp_path, 0.8, 0.95)))["rounds-to-target"]
    words = [text.get_text() for text in texts(figure)]
    assert "10 (1 of 2 seeds)" in words and "not reached" in words
    assert "rounds (mean of last 10)" in words


def test_without_matplotlib_it_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "a", [0.5])
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"matplotlib.*--plots.*fedwmsam\[plot\]"):
        plots.save_comparison_plots(comparison(tmp_path), tmp_path)


def test_without_matplotlib_a_report_writes_no_other_file_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Any
) -> None:
    write_run(tmp_path / "a", [0.5])
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    files = ("--csv", tmp_path / "a.csv", "--html", tmp_path / "a.html")
    outcome = cli("report", tmp_path / "a", *files, "--plots", tmp_path / "plots")
    assert outcome.code == 2 and "fedwmsam[plot]" in outcome.err
    assert {path.name for path in tmp_path.iterdir()} == {"a"}
