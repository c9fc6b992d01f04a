"""Sharpness and the step of the fresh gradient: tables and plots of docs/results/sharpness.md.

A local step of a method with momentum is η (α g + (1 − α) m): αη is the part of it that the fresh
gradient g takes, and α is 1 where there is no momentum. Every kept run whose flatness was measured
is a point.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any

import numpy as np
from sections import PageSection, compare_command, load_run_specs, load_runs
from tuned import chosen_specs

from fedwmsam.analysis.flatness import read_last_flatness
from fedwmsam.comparison.grid import RunSpec, config_fingerprint
from fedwmsam.engine.records import Record
from fedwmsam.report.plots import PlotSpec, add_legend, legend_height, line_style
from fedwmsam.report.runs import LoadedRun, add_averaged_model_runs
from fedwmsam.report.summary import make_goal, score_run
from fedwmsam.report.text_tables import TextTable, number_cell
from fedwmsam.statistics import t_quantile

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLANS = (
    "fashion-mnist-seeds.toml",
    "candidates.toml",
    "tuning-step-size.toml",
    "eight-seeds.toml",
    "sharpness-alpha.toml",
    "sharpness-radius.toml",
)
TUNED_PLANS = ("tuning-decay.toml", "tuning-radius.toml", "eight-seeds-tuned.toml")
"""Plans whose runs have the step sizes that were chosen."""
FEWEST_STEPS = 3
"""Different steps αη that a method must have been run with before a power of it is fitted."""


@dataclass(frozen=True)
class Point:
    """A run, the step of its last round and the sharpness of its last model."""

    method: str
    config: Record
    rate: float
    """η of the last round."""
    weight: float
    """α of the last round; 1 without momentum."""
    sharpness: float
    """λ₁, the largest eigenvalue of the Hessian of the training loss."""
    accuracy: float
    """Mean of the last ten test accuracies."""
    is_average: bool = False
    """Whether this is the averaged model (the twin) of the run, which nobody trains on."""

    @property
    def step(self) -> float:
        """Return αη, the step that the fresh gradient takes."""
        return self.weight * self.rate

    @property
    def product(self) -> float:
        """Return λ₁ · αη/2, which is 1 where gradient descent with the step αη loses its hold."""
        return self.sharpness * self.step / 2


def measured_specs() -> list[RunSpec]:
    """Return the runs of the plans whose flatness is measured, each one once."""
    specs = [*chain.from_iterable(map(load_run_specs, PLANS))]
    specs += chain.from_iterable(map(chosen_specs, TUNED_PLANS))
    return list({config_fingerprint(spec.config): spec for spec in specs}.values())


def read_points(runs: Iterable[LoadedRun]) -> list[Point]:
    """Return the points of the runs whose flatness was measured, by method and step."""
    points = chain.from_iterable(map(run_points, runs))
    return sorted(points, key=lambda point: (point.method, point.step, point.sharpness))


def run_points(run: LoadedRun) -> Iterator[Point]:
    """Yield the points of a run and of its averaged model, where their flatness was measured."""
    for model in add_averaged_model_runs([run]):
        for _, measured in read_last_flatness(model):
            record = run.round_records[measured.round - 1]
            yield Point(
                run.config["method"],
                run.config,
                run.config["lr"] * run.config["lr_decay"] ** (measured.round - 1),
                float(record.get("alpha", run.config.get("alpha", 1.0))),
                measured.pooled.eigenvalues[0],
                score_run(model, make_goal("accuracy")).tail,
                model.is_averaged_model,
            )


def is_objective(point: Point) -> bool:
    """Return whether weight decay was part of the objective, as it is by default."""
    return bool(point.config["weight_decay_mode"] == "objective")


# Tables


def law_table(points: Sequence[Point]) -> TextTable:
    """Return how far λ₁ · αη/2 is the same for all runs, and with which power λ₁ follows αη."""
    kept = [point for point in points if is_objective(point) and not point.is_average]
    rows = [law_row(method, list(group)) for method, group in by_method(kept)]
    rows.append(law_row("all", kept))
    header = ("method", "runs", "αη", "λ₁", "λ₁ · αη/2: median", "range", "power of αη", "R²")
    notes = (
        "αη and λ₁: smallest to largest, α and η of the last round. Power: of the line through log "
        "λ₁ against log αη, with its 95 % interval (Student's t; runs with a common seed are not "
        "independent, so it is too narrow). −1 would be λ₁ = constant/(αη).",
        f"R² of η alone, over all runs: {squared_correlation(kept, lambda point: point.rate):.2f}.",
    )
    return TextTable("Sharpness and the step of the fresh gradient", header, tuple(rows), notes)


def by_method(points: Sequence[Point]) -> Iterable[tuple[str, Iterator[Point]]]:
    """Return the points of each method, which must stand in the order of the methods."""
    return groupby(points, key=lambda point: point.method)


def law_row(name: str, points: Sequence[Point]) -> tuple[str, ...]:
    """Return the row of these points; without a fit where αη hardly varies."""
    steps = [point.step for point in points]
    sharpness = [point.sharpness for point in points]
    products = [point.product for point in points]
    fit = ("", "")
    if len({round(step, 4) for step in steps}) >= FEWEST_STEPS:
        power, error = fit_power(points)
        r_squared = squared_correlation(points, lambda point: point.step)
        fit = (f"{power:.2f} ± {error:.2f}", f"{r_squared:.2f}")
    return (
        name,
        str(len(points)),
        f"{min(steps):.2g} to {max(steps):.2g}",
        f"{min(sharpness):.3g} to {max(sharpness):.3g}",
        f"{np.median(products):.2f}",
        f"{min(products):.2f} to {max(products):.2f}",
        *fit,
    )


def fit_power(points: Sequence[Point]) -> tuple[float, float]:
    """Return the slope of log λ₁ against log αη by least squares, and half its 95 % interval."""
    x = np.log([point.step for point in points])
    y = np.log([point.sharpness for point in points])
    slope, offset = np.polyfit(x, y, 1)
    residuals = y - slope * x - offset
    freedom = len(points) - 2
    error = np.sqrt((residuals @ residuals) / freedom / ((x - x.mean()) ** 2).sum())
    return float(slope), float(t_quantile(0.975, freedom) * error)


def squared_correlation(points: Sequence[Point], quantity: Callable[[Point], float]) -> float:
    """Return R² between the logarithms of λ₁ and of a quantity."""
    x = np.log([quantity(point) for point in points])
    y = np.log([point.sharpness for point in points])
    return float(np.corrcoef(x, y)[0, 1] ** 2)


def varied_table(runs: Sequence[LoadedRun], title: str, key: str) -> list[TextTable]:
    """Return λ₁ and λ₁ · αη/2 by seed, a row for each value of the key; nothing without runs."""
    groups: dict[tuple[str, str], list[Point]] = {}
    for point in read_points(runs):
        if not point.is_average:
            value = format(point.config.get(key, 0.0), "g")
            groups.setdefault((point.method, value), []).append(point)
    rows = []
    for (method, value), group in sorted(groups.items()):
        group.sort(key=lambda point: int(point.config["seed"]))
        rows.append(
            (
                method,
                value,
                ", ".join(str(point.config["seed"]) for point in group),
                ", ".join(f"{point.step:.2g}" for point in group),
                ", ".join(f"{point.sharpness:.3g}" for point in group),
                ", ".join(f"{point.product:.2f}" for point in group),
                ", ".join(number_cell(point.accuracy) for point in group),
            )
        )
    header = ("method", key, "seeds", "αη", "λ₁", "λ₁ · αη/2", "test accuracy")
    return [TextTable(title, header, tuple(rows))] if rows else []


# Pictures


def sharpness_plots(runs: Sequence[LoadedRun]) -> list[PlotSpec]:
    """Return the pictures of λ₁ against 2/(αη) and of accuracy against λ₁."""
    points = read_points(runs)
    models = [point for point in points if not point.is_average]
    tuned = [point for point in points if is_tuning(point)]
    methods = list(dict.fromkeys(point.method for point in points))
    height = 2.6 + legend_height([*methods, "λ₁ = 2/(αη)"])
    return [
        ("every-run", height, lambda figure: draw_law(models, methods, figure)),
        ("and-accuracy", height, lambda figure: draw_accuracy(tuned, methods, figure)),
    ]


def is_tuning(point: Point) -> bool:
    """Return whether this is a run in which the step size was varied and nothing else."""
    config = point.config
    usual = {"weight_decay": 1e-3, "rho": 0.01, "alpha": 0.1, "similarity": "personalized"}
    is_usual = all(config.get(key, value) == value for key, value in usual.items())
    return config["rounds"] == 150 and is_objective(point) and is_usual


HOLLOW = {"markerfacecolor": "none", "markeredgewidth": 0.6}


def draw_law(points: Sequence[Point], methods: Sequence[str], figure: "Figure") -> None:
    """Draw λ₁ of each run against 2/(αη); hollow: weight decay beside the step, as published."""
    axes = figure.subplots()
    for method, group in by_method(points):
        style = point_style(method, methods)
        for point in group:
            hollow = {} if is_objective(point) else HOLLOW
            axes.plot(2 / point.step, point.sharpness, **style | hollow)
        axes.plot([], [], label=method, **style)
    steps = [point.step for point in points]
    ends = [2 / max(steps), 2 / min(steps)]
    axes.plot(ends, ends, color="#999999", linewidth=0.8, label="λ₁ = 2/(αη)")
    axes.set(xscale="log", yscale="log", xlabel="2/(αη), last round", ylabel="λ₁, last model")
    axes.grid(True)
    add_legend(figure, axes, "every run a point; hollow: decay as published")


def draw_accuracy(points: Sequence[Point], methods: Sequence[str], figure: "Figure") -> None:
    """Draw the test accuracy of each run of the step-size grid against its λ₁; hollow: averages.

    FedWMSAM-plus returns an average already, so its twin, an average of averages, is left out.
    """
    axes = figure.subplots()
    for method, group in by_method(points):
        style = point_style(method, methods)
        for point in group:
            if not point.is_average or method != "fedwmsam-plus":
                hollow = HOLLOW if point.is_average else {}
                axes.plot(point.sharpness, point.accuracy, **style | hollow)
        axes.plot([], [], label=method, **style)
    axes.set(xscale="log", xlabel="λ₁, last model", ylabel="test accuracy, mean of last ten")
    axes.grid(True)
    add_legend(figure, axes, "every run a point; hollow: its averaged twin")


def point_style(method: str, methods: Sequence[str]) -> dict[str, Any]:
    """Return how the points of a method look."""
    return line_style(methods.index(method)) | {"linestyle": "", "markersize": 3.0}


# Sections of the page

SPECS = measured_specs()
ALPHAS = load_run_specs("sharpness-alpha.toml")
RADII = load_run_specs("sharpness-radius.toml")
ZERO_RADIUS = [
    spec
    for spec in load_run_specs("tuning-step-size.toml")
    if (spec.config.method, spec.config.lr) == ("fedavg", 0.1)
]
"""FedAvg is FedSAM with ρ = 0."""
LAW = PageSection(
    lambda runs: [law_table(read_points(load_runs(SPECS, runs)))],
    run_specs=SPECS,
    make_plots=sharpness_plots,
    shown_plots=("every-run", "and-accuracy"),
)
BY_ALPHA = PageSection(
    lambda runs: varied_table(load_runs(ALPHAS, runs), "Fixed α, step size 0.1", "alpha"),
    compare_command("sharpness-alpha.toml"),
    ALPHAS,
)
BY_RADIUS = PageSection(
    lambda runs: varied_table(
        load_runs([*ZERO_RADIUS, *RADII], runs), "FedSAM, step size 0.1; FedAvg is ρ = 0", "rho"
    ),
    compare_command("sharpness-radius.toml"),
    RADII,
)
