"""Flatness of a model: curvature and sharpness of its loss, with the error of each number.

from fedwmsam.analysis.flatness import measure_flatness

flatness = measure_flatness(model, x, y)
flatness.eigenvalues[0], flatness.trace, flatness.sharpness

`measure_flatness` takes any module and any data; `run_flatness` measures the models of a saved run,
for all clients together and for single ones, and keeps the results in the run's folder.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from fedwmsam import rng
from fedwmsam.analysis.hessian import MonteCarloEstimate, estimate_trace, largest_eigenvalues
from fedwmsam.analysis.loss_surface import (
    LossSurface,
    client_samples,
    draw_clients,
    draw_sample,
    pool_clients,
)
from fedwmsam.analysis.saved_run import AnalysisCache, SavedRun, read_analysis_cache
from fedwmsam.analysis.sharpness import LossIncrease, measure_sharpness
from fedwmsam.data.adapter import make_data_adapter
from fedwmsam.engine.records import Record
from fedwmsam.errors import InputError, printable
from fedwmsam.files import own_folder
from fedwmsam.report.plots import COLOURS, PlotSpec, add_legend, legend_height, line_style
from fedwmsam.report.runs import LoadedRun
from fedwmsam.report.summary import ResultTable
from fedwmsam.report.text_tables import MISSING, TextTable, spread_cell
from fedwmsam.settings.options import option, validate_fields
from fedwmsam.statistics import mean_spread
from fedwmsam.training.objectives import MetricFunction, make_objective
from fedwmsam.training.task import Task, deterministic_torch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ReportProgress = Callable[[str], None]
"""A function that is told what is being computed, to show it to the user."""


@dataclass(frozen=True)
class FlatnessConfig:
    """Which measures of flatness are computed, and how thoroughly."""

    eigenvalues: int = option(5, "largest eigenvalues of the Hessian", low=1, high=100)
    probes: int = option(30, "random vectors for the trace", low=1, high=10**6)
    rho: tuple[float, ...] = (0.01, 0.05, 0.1)
    """Radii of the plain balls in which the loss increase is measured."""
    adaptive_rho: tuple[float, ...] = (0.1, 0.5, 1.0)
    """Radii of the adaptive (weight-scaled) balls, in units of the weights."""
    steps: int = option(10, "steps of ascent from each start", low=1, high=10**4)
    directions: int = option(20, "random directions for the average rise", low=1, high=10**6)
    seed: int = option(0, "key of what is drawn", low=0, high=2**62)

    def __post_init__(self) -> None:
        """Sort the radii; raise InputError if a value is out of range."""
        validate_fields("", self)
        for name in ("rho", "adaptive_rho"):
            radii = getattr(self, name)
            wrong = [radius for radius in radii if not 0 < radius < float("inf")]
            if wrong:
                raise InputError(f"{name} holds {wrong[0]!r}; a radius must be a number above 0.")
            object.__setattr__(self, name, tuple(sorted(set(map(float, radii)))))


@dataclass(frozen=True)
class Flatness:
    """Curvature and sharpness of one loss at one model."""

    loss: float
    gradient_norm: float
    eigenvalues: tuple[float, ...]
    """The largest eigenvalues of the Hessian in falling order; the first is λ_max."""
    residuals: tuple[float, ...]
    """Error bounds: some eigenvalue of the Hessian is no further away than this."""
    converged: bool
    """Whether all eigenvalues converged."""
    trace: MonteCarloEstimate
    """Trace of the Hessian."""
    trace_is_exact: bool
    sharpness: tuple[LossIncrease, ...]
    """Loss increase within each plain ball."""
    adaptive: tuple[LossIncrease, ...]
    """Loss increase within each adaptive (weight-scaled) ball."""
    samples: int
    """Number of samples the loss is the mean of."""
    of: int
    """Number of samples they were drawn from."""
    batch_size: int
    parameters: int
    """Number of weights."""

    def record(self) -> Record:
        """Return the measurements as a JSON record, which `from_record` reads."""
        return asdict(self) | {
            "trace": self.trace._asdict(),
            "sharpness": [increase._asdict() for increase in self.sharpness],
            "adaptive": [increase._asdict() for increase in self.adaptive],
        }


def measure_flatness(
    model: nn.Module,
    inputs: Any,
    targets: Any,
    *,
    loss: str | MetricFunction = "classification",
    samples: int | None = 5000,
    batch_size: int = 1000,
    say: ReportProgress = lambda _: None,
    **config: Any,
) -> Flatness:
    """Measure the flatness of any module on any data, and leave the module as it is.

    Measured is the mean `loss` over at most so many samples (None: all), without dropout or
    augmentation. `say` is called with what is being computed. Further keyword arguments are the
    fields of `FlatnessConfig`: eigenvalues, probes, rho, adaptive_rho, steps, directions, seed.
    Raise InputError if one is out of range.
    """
    if (samples is not None and samples < 1) or batch_size < 1:
        raise InputError(
            f"samples and batch_size must be at least 1, not {samples} and {batch_size}."
        )
    flatness_config = FlatnessConfig(**config)
    with deterministic_torch():
        task = Task(model, make_objective(loss))
        data = make_data_adapter(task).to_samples((inputs, targets), "The data")
        sample = draw_sample(
            data, samples, batch_size, rng.derive_seed(flatness_config.seed, "global sample")
        )
        surface = LossSurface(task, sample)
        return flatness_at(surface, task.initial_weights, flatness_config, say)


def flatness_at(
    surface: LossSurface,
    w: Tensor,
    config: FlatnessConfig,
    report_progress: ReportProgress = lambda _: None,
) -> Flatness:
    """Measure the flatness of a loss surface at w.

    The task must already have the model's buffers.
    """
    sample = surface.sample
    gradient, loss = surface.gradient(w)
    report_progress("eigenvalues")
    product = partial(surface.hessian_vector_product, w)
    spectrum = largest_eigenvalues(product, w, config.eigenvalues, config.seed)
    report_progress("trace")
    trace, trace_is_exact = estimate_trace(product, w, config.probes, config.seed, spectrum)
    measure = partial(
        measure_sharpness,
        surface,
        w,
        steps=config.steps,
        directions=config.directions,
        seed=config.seed,
        hints=[spectrum.vectors[0]],
    )
    report_progress("sharpness")
    plain = measure(config.rho)
    report_progress("adaptive sharpness")
    adaptive = measure(config.adaptive_rho, adaptive=True)
    return Flatness(
        loss=loss,
        gradient_norm=float(torch.linalg.vector_norm(gradient)),
        eigenvalues=tuple(map(float, spectrum.values)),
        residuals=tuple(map(float, spectrum.residuals)),
        converged=spectrum.converged,
        trace=trace,
        trace_is_exact=trace_is_exact,
        sharpness=plain,
        adaptive=adaptive,
        samples=sample.count,
        of=sample.total,
        batch_size=sample.batch_size,
        parameters=surface.size,
    )


def from_record(record: Mapping[str, Any]) -> Flatness:
    """Return the flatness that `Flatness.record` wrote; values that were not finite become NaN."""
    values = {**record}
    for name in ("loss", "gradient_norm"):
        values[name] = float_or_nan(values[name])
    for name in ("eigenvalues", "residuals"):
        values[name] = tuple(map(float_or_nan, values[name]))
    for name in ("sharpness", "adaptive"):
        values[name] = tuple(LossIncrease(**floats(increase)) for increase in values[name])
    values["trace"] = MonteCarloEstimate(**floats(values["trace"]))
    return Flatness(**values)


def floats(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the record with its values as floats, NaN for those that are none."""
    return {key: float_or_nan(value) for key, value in record.items()}


def float_or_nan(value: object) -> float:
    """Return a number as a float, and NaN for anything else (JSON has null instead of NaN)."""
    return float(value) if isinstance(value, int | float) else float("nan")


# Flatness of saved runs


FLATNESS_FILE = "flatness.json"
"""File with the flatness of a run's models."""
AVERAGED_FLATNESS_FILE = "flatness-averaged.json"
"""File with the flatness of a run's averaged models (the twins)."""


@dataclass(frozen=True)
class SampleConfig:
    """Which samples and single clients of a run are measured."""

    samples: int | None = 5000
    """Most samples of all clients' training data, and of each single client's; None: all."""
    clients: int | None = 10
    """Number of clients that are measured one by one; None: all."""
    batch_size: int = 1000


@dataclass(frozen=True)
class RoundFlatness:
    """Flatness of a run's model after so many rounds."""

    round: int
    pooled: Flatness
    """Flatness of the loss over all clients' samples together."""
    clients: dict[int, Flatness]
    """Flatness of the losses of single clients."""

    def record(self) -> Record:
        """Return the measurements as a JSON record, without the round."""
        return {
            "global": self.pooled.record(),
            "clients": [
                {"client": client} | flatness.record() for client, flatness in self.clients.items()
            ],
        }


def run_flatness(
    run: SavedRun,
    rounds: list[int],
    config: FlatnessConfig,
    sample_config: SampleConfig,
    folder: Path,
    report_progress: ReportProgress = lambda _: None,
    averaged: bool = False,
) -> list[RoundFlatness]:
    """Return the flatness of a run's models after these rounds, or of its averaged models.

    What the folder holds already, measured with the same settings, is read instead of measured.
    Each round is written as soon as it is measured.
    """
    cache = AnalysisCache(
        folder / (AVERAGED_FLATNESS_FILE if averaged else FLATNESS_FILE),
        asdict(config) | asdict(sample_config),
    )
    missing = [round for round in rounds if round not in cache]
    if missing:
        with deterministic_torch():
            pooled_surface, client_surfaces = make_surfaces(run, sample_config, config.seed)
            for round in missing:
                w, _ = run.load(round, averaged)
                measured = measure_round(
                    round, w, pooled_surface, client_surfaces, config, report_progress
                )
                cache.put(round, measured.record())
    return [parse_round(cache.path, cache.records[round]) for round in rounds]


def make_surfaces(
    run: SavedRun, sample_config: SampleConfig, seed: int
) -> tuple[LossSurface, dict[int, LossSurface]]:
    """Return the loss surface of all clients' samples, and those of some single clients."""
    clients = run.experiment.clients
    task = run.task
    most = sample_config.samples
    batch_size = sample_config.batch_size
    pooled_sample = draw_sample(
        pool_clients(clients), most, batch_size, rng.derive_seed(seed, "global sample")
    )
    chosen = draw_clients(len(clients), sample_config.clients, seed)
    samples = client_samples(clients, chosen, most, batch_size, seed)
    client_surfaces = {
        client: LossSurface(task, sample) for client, sample in zip(chosen, samples, strict=True)
    }
    return LossSurface(task, pooled_sample), client_surfaces


def measure_round(
    round: int,
    w: Tensor,
    pooled_surface: LossSurface,
    client_surfaces: dict[int, LossSurface],
    config: FlatnessConfig,
    report_progress: ReportProgress,
) -> RoundFlatness:
    """Measure the flatness at w for all clients together and for each single one.

    Of single clients only the largest eigenvalue is computed.
    """
    pooled = flatness_at(
        pooled_surface,
        w,
        config,
        lambda what: report_progress(f"round {round}, all clients: {what}"),
    )
    clients = {}
    for number, (client, surface) in enumerate(client_surfaces.items(), start=1):
        report_progress(f"round {round}, client {number} of {len(client_surfaces)}")
        clients[client] = flatness_at(surface, w, replace(config, eigenvalues=1))
    return RoundFlatness(round, pooled, clients)


def parse_round(path: Path, record: Record) -> RoundFlatness:
    """Return the flatness in a round's record.

    Raise InputError, naming the path, if the record is damaged.
    """
    try:
        clients = {}
        for client_record in record["clients"]:
            values = dict(client_record)
            client = values.pop("client")
            clients[client] = from_record(values)
        return RoundFlatness(record["round"], from_record(record["global"]), clients)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"{path} is damaged ({printable(error)}); remove it and analyse again."
        ) from error


def read_flatness(path: Path) -> tuple[Record, Iterator[RoundFlatness]]:
    """Return the settings of a flatness file, and its rounds in rising order."""
    settings, records = read_analysis_cache(path)
    return settings, (parse_round(path, records[round]) for round in sorted(records))


NamedFlatness = tuple[str, RoundFlatness]
"""A run's name and the flatness of one of its models."""
INCREASE_NOTES = (
    "Largest: found by ascent within the distance ρ, so the true one may be larger; average: over "
    "random directions of length ρ, ± standard error. The adaptive ball follows the weights' "
    "sizes. Lower is flatter.",
)


def four_digit_cell(value: float) -> str:
    """Return a value with four significant digits, and a dash for NaN."""
    return MISSING if math.isnan(value) else f"{value:.4g}"


def estimate_cell(estimate: MonteCarloEstimate) -> str:
    """Return an estimate with its standard error, if that is known."""
    error = "" if math.isnan(estimate.error) else f" ± {estimate.error:.2g}"
    return four_digit_cell(estimate.value) + error


# Tables of single runs


def flatness_tables(named: Sequence[NamedFlatness], settings: Record) -> list[TextTable]:
    """Return a table of curvature, and one of loss increases if any radius was measured."""
    tables = [curvature_table(named, settings)]
    increases = increase_table(named)
    if increases.rows:
        tables.append(increases)
    return tables


def curvature_table(named: Sequence[NamedFlatness], settings: Record) -> TextTable:
    """Return a table of loss, gradient norm, eigenvalues and trace, one row per run and round."""
    count = max(len(measured.pooled.eigenvalues) for _, measured in named)
    has_clients = any(measured.clients for _, measured in named)
    header = (
        "run",
        "round",
        "loss",
        "‖gradient‖",
        *(f"λ{subscript(number)}" for number in range(1, count + 1)),
        "trace",
    )
    if has_clients:
        header += ("λ₁ of single clients", "their trace")
    rows = []
    for name, measured in named:
        pooled = measured.pooled
        eigenvalues = [four_digit_cell(value) for value in pooled.eigenvalues]
        row = [
            name,
            str(measured.round),
            four_digit_cell(pooled.loss),
            four_digit_cell(pooled.gradient_norm),
            *eigenvalues,
            *([MISSING] * (count - len(eigenvalues))),
            estimate_cell(pooled.trace),
        ]
        if has_clients:
            row += [
                clients_cell(measured, top_eigenvalue),
                clients_cell(measured, trace_value),
            ]
        rows.append(tuple(row))
    return TextTable("Curvature", header, tuple(rows), tuple(curvature_notes(named, settings)))


def curvature_notes(named: Sequence[NamedFlatness], settings: Record) -> Iterator[str]:
    """Yield the notes of the table of curvature: samples, probes, clients and convergence."""
    pooled = named[0][1].pooled
    yield (
        f"All clients: {pooled.samples:,} of {pooled.of:,} training samples, each counting alike, "
        f"in batches of {pooled.batch_size:,}; "
        f"without augmentation, dropout and weight decay; seed {settings['seed']}."
    )
    yield f"Trace: {trace_note(pooled, settings['probes'])}; {pooled.parameters:,} weights."
    clients: list[Flatness] = []
    for _, measured in named:
        clients += measured.clients.values()
    if clients:
        sizes = [client.samples for client in clients]
        yield (
            f"Single clients: {len(named[0][1].clients)} of them, "
            f"{min(sizes):,} to {max(sizes):,} samples each; mean (lowest to highest). "
            "Over all clients, if they have as many samples each, the mean λ₁ is never below the "
            "λ₁ of their common loss."
        )
    every = [*(measured.pooled for _, measured in named), *clients]
    if not all(flatness.converged for flatness in every):
        yield (
            "Some eigenvalues did not converge; the file says how far off each may be (residuals)."
        )


def trace_note(flatness: Flatness, probes: int) -> str:
    """Return how exact the trace is, in words."""
    if flatness.trace_is_exact:
        return "exact"
    if probes > 1:
        return f"± standard error of {probes} random probes"
    return "of one random probe, its error unknown"


def increase_table(named: Sequence[NamedFlatness]) -> TextTable:
    """Return a table of loss increases, one row per run, round and ball."""
    has_clients = any(measured.clients for _, measured in named)
    header = ["run", "round", "ball", "ρ", "largest rise", "average rise"]
    if has_clients:
        header.append("largest, single clients")
    rows = []
    for name, measured in named:
        for kind, ball in (("sharpness", "plain"), ("adaptive", "adaptive")):
            for index, increase in enumerate(getattr(measured.pooled, kind)):
                average = MonteCarloEstimate(increase.average, increase.average_error)
                row = [
                    name,
                    str(measured.round),
                    ball,
                    f"{increase.rho:g}",
                    four_digit_cell(increase.worst),
                    estimate_cell(average),
                ]
                if has_clients:
                    row.append(clients_cell(measured, worst_increase(kind, index)))
                rows.append(tuple(row))
    return TextTable("Rise of the loss near the model", tuple(header), tuple(rows), INCREASE_NOTES)


def clients_cell(measured: RoundFlatness, value: Callable[[Flatness], float]) -> str:
    """Return mean and range of a value over the single clients, a dash if there are none."""
    values = [value(client) for client in measured.clients.values()]
    return f"{np.mean(values):.4g} ({min(values):.3g} to {max(values):.3g})" if values else MISSING


def top_eigenvalue(flatness: Flatness) -> float:
    """Return the largest eigenvalue of the Hessian."""
    return flatness.eigenvalues[0]


def trace_value(flatness: Flatness) -> float:
    """Return the trace of the Hessian, without its error."""
    return flatness.trace.value


def worst_increase(kind: str, index: int) -> Callable[[Flatness], float]:
    """Return a function that gives the largest increase of this kind at this radius' index."""

    def value(flatness: Flatness) -> float:
        return float(getattr(flatness, kind)[index].worst)

    return value


def subscript(number: int) -> str:
    """Return a number in subscript digits."""
    return "".join(chr(ord("₀") + int(digit)) for digit in str(number))


# Tables over the seeds


MeasuredFlatness = tuple[Record, RoundFlatness]
"""The settings of a measurement and its result."""


def read_last_flatness(run: LoadedRun, averaged: bool = False) -> list[MeasuredFlatness]:
    """Return the flatness of the last model that was measured, or of its averaged model.

    The list has one entry, or none if nothing was measured.
    """
    averaged = averaged or run.is_averaged_model
    name = AVERAGED_FLATNESS_FILE if averaged else FLATNESS_FILE
    path = own_folder(run.path / "analysis") / name
    if not path.exists():
        return []
    settings, rounds = read_flatness(path)
    return [(settings, measured) for measured in list(rounds)[-1:]]


def measured_rows(
    table: ResultTable, complain: Callable[[str], None], averaged: bool = False
) -> dict[str, list[MeasuredFlatness]]:
    """Return, by label, the measurements of each row's seeds; rows without any are left out.

    `complain` is called with a message for each file that cannot be read.
    """
    measurements: dict[str, list[MeasuredFlatness]] = {}
    for row in table.rows:
        for score in row.scores:
            try:
                measured = read_last_flatness(score.run, averaged)
                measurements.setdefault(row.label, []).extend(measured)
            except InputError as error:
                complain(f"{row.label}, seed {score.run.seed}: {error}")
    return {label: measured for label, measured in measurements.items() if measured}


def seeds_table(table: ResultTable) -> TextTable | None:
    """Return a table of flatness over the seeds of each row, None if it was never measured."""
    notes: list[str] = []
    rows = measured_rows(table, notes.append)
    if not rows:
        return None
    averaged_rows: dict[str, list[MeasuredFlatness]] = {}
    if not any(score.run.is_averaged_model for score in table.scores):
        averaged_rows = measured_rows(table, notes.append, averaged=True)
    measurements: list[MeasuredFlatness] = []
    for measured in (*rows.values(), *averaged_rows.values()):
        measurements += measured
    example = measurements[0][1].pooled
    radii = {
        "sharpness": [increase.rho for increase in example.sharpness],
        "adaptive": [increase.rho for increase in example.adaptive],
    }
    header = (
        "method",
        "seeds",
        "round",
        "loss",
        "λ₁",
        "trace",
        "λ₁ of single clients",
        *(f"rise within ρ = {rho:g}" for rho in radii["sharpness"]),
        *(f"adaptive, ρ = {rho:g}" for rho in radii["adaptive"]),
    )
    if averaged_rows:
        header += ("λ₁ of the average",)
    cells = []
    for label, measured in rows.items():
        row = [label, str(len(measured)), *seeds_cells(measured, radii)]
        if averaged_rows:
            row.append(top_eigenvalue_cell(averaged_rows.get(label, [])))
        cells.append(tuple(row))
    notes += seeds_notes(measurements)
    return TextTable(
        "Flatness of the last model that was measured", header, tuple(cells), tuple(notes)
    )


def seeds_notes(measurements: Sequence[MeasuredFlatness]) -> Iterator[str]:
    """Yield the notes of a table over the seeds, among them what does not compare."""
    if len({str(settings) for settings, _ in measurements}) > 1:
        yield (
            "Not all were measured with the same settings (samples, seed, radii …): "
            "those do not compare."
        )
    if len({measured.round for _, measured in measurements}) > 1:
        yield "Not all were measured after the same number of rounds: those do not compare."
    yield (
        "λ₁: largest eigenvalue of the Hessian of the training loss. A rise is the largest found "
        "within the distance ρ; the adaptive ball follows the weights' sizes. Lower is flatter."
    )
    first = measurements[0][1]
    yield (
        f"On {first.pooled.samples:,} of {first.pooled.of:,} training samples and "
        f"{len(first.clients)} single clients; "
        "mean ± standard deviation (n − 1) over the seeds."
    )


def seeds_cells(
    measurements: Sequence[MeasuredFlatness], radii: dict[str, list[float]]
) -> Iterator[str]:
    """Yield a row's cells: the rounds, then mean and deviation over the seeds of each measure."""
    seeds = [measured for _, measured in measurements]

    def cell(value: Callable[[RoundFlatness], float]) -> str:
        return spread_cell(mean_spread([value(measured) for measured in seeds]))

    yield ", ".join(map(str, sorted({measured.round for measured in seeds})))
    yield cell(lambda measured: measured.pooled.loss)
    yield cell(lambda measured: top_eigenvalue(measured.pooled))
    yield cell(lambda measured: trace_value(measured.pooled))
    has_clients = all(measured.clients for measured in seeds)
    yield cell(mean_client_eigenvalue) if has_clients else MISSING
    for kind, rhos in radii.items():
        for rho in rhos:
            yield cell(partial(worst_increase_within, kind=kind, rho=rho))


def mean_client_eigenvalue(measured: RoundFlatness) -> float:
    """Return the mean over the single clients of their largest eigenvalue."""
    return float(np.mean(client_eigenvalues(measured)))


def worst_increase_within(measured: RoundFlatness, kind: str, rho: float) -> float:
    """Return the largest increase of all clients' loss within ρ, NaN if it was not measured."""
    increases = getattr(measured.pooled, kind)
    return next((increase.worst for increase in increases if increase.rho == rho), math.nan)


def top_eigenvalue_cell(measurements: Sequence[MeasuredFlatness]) -> str:
    """Return mean and deviation of the largest eigenvalue, a dash without measurements."""
    values = [top_eigenvalue(measured.pooled) for _, measured in measurements]
    return spread_cell(mean_spread(values)) if values else MISSING


# Plots over the rounds


def flatness_plots(measurements: Sequence[RoundFlatness], prefix: str = "") -> list[PlotSpec]:
    """Return plots of a run's flatness over its rounds, none if there is only one round.

    The names of the plots' files begin with the prefix.
    """
    if len(measurements) < 2:
        return []
    labels = ["all clients"]
    if measurements[0].clients:
        labels.append("mean of single clients")
    plots: list[PlotSpec] = [
        (
            f"{prefix}largest-eigenvalue-over-rounds",
            2.0 + legend_height(labels),
            partial(draw_eigenvalues, measurements),
        )
    ]
    radius_labels = [radius_label(increase.rho) for increase in measurements[0].pooled.sharpness]
    if radius_labels:
        plots.append(
            (
                f"{prefix}sharpness-over-rounds",
                2.0 + legend_height(radius_labels),
                partial(draw_increases, measurements),
            )
        )
    return plots


def draw_eigenvalues(measurements: Sequence[RoundFlatness], figure: "Figure") -> None:
    """Draw the largest eigenvalue over the rounds, of all clients' loss and of single clients'."""
    axes = figure.add_subplot()
    rounds = [measured.round for measured in measurements]
    eigenvalues = [top_eigenvalue(measured.pooled) for measured in measurements]
    axes.plot(rounds, eigenvalues, label="all clients", **line_style(0))
    has_clients = bool(measurements[0].clients)
    if has_clients:
        values = np.array([client_eigenvalues(measured) for measured in measurements])
        axes.plot(rounds, values.mean(axis=1), label="mean of single clients", **line_style(1))
        low, high = np.quantile(values, [0.1, 0.9], axis=1)
        axes.fill_between(rounds, low, high, color=COLOURS[1], alpha=0.2, linewidth=0)
    axes.set(xlabel="round", ylabel="largest eigenvalue", ylim=(0, None))
    axes.grid()
    add_legend(figure, axes, "band: 10 to 90 % of the clients" if has_clients else "")


def client_eigenvalues(measured: RoundFlatness) -> list[float]:
    """Return the largest eigenvalue of each single client's loss."""
    return [top_eigenvalue(client) for client in measured.clients.values()]


def draw_increases(measurements: Sequence[RoundFlatness], figure: "Figure") -> None:
    """Draw the largest increase of all clients' loss over the rounds, one line per radius."""
    axes = figure.add_subplot()
    rounds = [measured.round for measured in measurements]
    for number, increase in enumerate(measurements[0].pooled.sharpness):
        values = [measured.pooled.sharpness[number].worst for measured in measurements]
        axes.plot(rounds, values, label=radius_label(increase.rho), **line_style(number))
    axes.set(xlabel="round", ylabel="largest rise of the loss", ylim=(0, None))
    axes.grid()
    add_legend(figure, axes, "all clients' loss")


def radius_label(rho: float) -> str:
    """Return the legend's entry of a radius."""
    return f"within ρ = {rho:g}"
