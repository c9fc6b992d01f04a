"""Is this model flat? Curvature and sharpness of a loss at a model, with the error of each number.

from fedwmsam.analysis.flatness import measure_flatness

found = measure_flatness(model, x, y)
found.eigenvalues[0], found.trace, found.sharpness
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
from fedwmsam.errors import InputError
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
"""Takes what is being computed, for whoever waits."""


@dataclass(frozen=True)
class FlatnessConfig:
    """What is measured, and how thoroughly."""

    eigenvalues: int = option(5, "largest eigenvalues of the Hessian", low=1, high=100)
    probes: int = option(30, "random vectors for the trace", low=1, high=10**6)
    rho: tuple[float, ...] = (0.01, 0.05, 0.1)
    """Radii of the ball in which the loss may rise."""
    adaptive_rho: tuple[float, ...] = (0.1, 0.5, 1.0)
    """Radii of the ball that follows the weights, in their unit."""
    steps: int = option(10, "steps of ascent from each start", low=1, high=10**4)
    directions: int = option(20, "random directions for the average rise", low=1, high=10**6)
    seed: int = option(0, "key of what is drawn", low=0, high=2**62)

    def __post_init__(self) -> None:
        validate_fields("", self)
        for name in ("rho", "adaptive_rho"):
            radii = getattr(self, name)
            wrong = [radius for radius in radii if not 0 < radius < float("inf")]
            if wrong:
                raise InputError(f"{name} holds {wrong[0]!r}; a radius must be a number above 0.")
            object.__setattr__(self, name, tuple(sorted(set(map(float, radii)))))


@dataclass(frozen=True)
class Flatness:
    """Of one loss at one model."""

    loss: float
    gradient_norm: float
    eigenvalues: tuple[float, ...]
    """The largest of the Hessian, falling; the first is λ_max."""
    residuals: tuple[float, ...]
    """An eigenvalue of the Hessian is no further away than this."""
    converged: bool
    trace: MonteCarloEstimate
    trace_is_exact: bool
    sharpness: tuple[LossIncrease, ...]
    adaptive: tuple[LossIncrease, ...]
    samples: int
    of: int
    """What they were drawn from."""
    batch_size: int
    parameters: int

    def record(self) -> Record:
        """For a file."""
        return asdict(self) | {
            "trace": self.trace._asdict(),
            "sharpness": [rise._asdict() for rise in self.sharpness],
            "adaptive": [rise._asdict() for rise in self.adaptive],
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
    **wanted: Any,
) -> Flatness:
    """Of any module on any data: the mean `loss` over (at most) so many samples, without dropout or augmentation.

    The model itself is left as it is. What else can be wanted is in `Wanted`: eigenvalues, rho, seed …
    """
    if (samples is not None and samples < 1) or batch_size < 1:
        raise InputError(
            f"samples and batch_size must be at least 1, not {samples} and {batch_size}."
        )
    known = FlatnessConfig(**wanted)
    with deterministic_torch():
        task = Task(model, make_objective(loss))
        data = make_data_adapter(task).samples((inputs, targets), "The data")
        sample = draw_sample(
            data, samples, batch_size, rng.derive_seed(known.seed, "global sample")
        )
        return flatness_at(LossSurface(task, sample), task.initial_weights, known, say)


def flatness_at(
    surface: LossSurface, w: Tensor, wanted: FlatnessConfig, say: ReportProgress = lambda _: None
) -> Flatness:
    """Of a loss surface at w; the caller has put the model's buffers in place."""
    sample = surface.sample
    gradient, loss = surface.gradient(w)
    say("eigenvalues")
    along = partial(surface.product, w)
    spectrum = largest_eigenvalues(along, w, wanted.eigenvalues, wanted.seed)
    say("trace")
    estimate, exact = estimate_trace(along, w, wanted.probes, wanted.seed, spectrum)
    climb = partial(
        measure_sharpness,
        surface,
        w,
        steps=wanted.steps,
        directions=wanted.directions,
        seed=wanted.seed,
        hints=[spectrum.vectors[0]],
    )
    say("sharpness")
    plain = climb(wanted.rho)
    say("adaptive sharpness")
    return Flatness(
        loss=loss,
        gradient_norm=float(torch.linalg.vector_norm(gradient)),
        eigenvalues=tuple(map(float, spectrum.values)),
        residuals=tuple(map(float, spectrum.residuals)),
        converged=spectrum.converged,
        trace=estimate,
        trace_is_exact=exact,
        sharpness=plain,
        adaptive=climb(wanted.adaptive_rho, adaptive=True),
        samples=sample.count,
        of=sample.total,
        batch_size=sample.batch_size,
        parameters=surface.size,
    )


def from_record(record: Mapping[str, Any]) -> Flatness:
    """What `record` wrote; what was not finite is NaN again."""
    values = {**record}
    for name in ("eigenvalues", "residuals"):
        values[name] = tuple(map(float_or_nan, values[name]))
    for name in ("sharpness", "adaptive"):
        values[name] = tuple(
            LossIncrease(**{key: float_or_nan(value) for key, value in rise.items()})
            for rise in values[name]
        )
    values["trace"] = MonteCarloEstimate(
        **{key: float_or_nan(value) for key, value in values["trace"].items()}
    )
    return Flatness(
        **values | {key: float_or_nan(values[key]) for key in ("loss", "gradient_norm")}
    )


def float_or_nan(value: object) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")


# Of a run's models


FLATNESS_FILE, AVERAGED_FLATNESS_FILE = "flatness.json", "flatness-averaged.json"
"""Of a run's models, and of their averaged twins."""


@dataclass(frozen=True)
class SampleConfig:
    """Which samples, of whom."""

    samples: int | None = 5000
    """At most so many of all clients' training samples, and of each client's own; None: all."""
    clients: int | None = 10
    """So many clients are measured one by one; None: all."""
    batch_size: int = 1000


@dataclass(frozen=True)
class RoundFlatness:
    """A run's model after so many rounds."""

    round: int
    all: Flatness
    clients: dict[int, Flatness]

    def record(self) -> Record:
        return {
            "global": self.all.record(),
            "clients": [
                {"client": client} | found.record() for client, found in self.clients.items()
            ],
        }


def run_flatness(
    run: SavedRun,
    rounds: list[int],
    wanted: FlatnessConfig,
    scope: SampleConfig,
    place: Path,
    say: ReportProgress = lambda _: None,
    averaged: bool = False,
) -> list[RoundFlatness]:
    """Measured, or read from `place` if it was measured like that before; each round is kept there at once.

    `averaged`: of the averaged twins instead of the models.
    """
    archive = AnalysisCache(
        place / (AVERAGED_FLATNESS_FILE if averaged else FLATNESS_FILE),
        asdict(wanted) | asdict(scope),
    )
    missing = [round for round in rounds if round not in archive]
    if missing:
        with deterministic_torch():
            everyone, single = surfaces(run, scope, wanted.seed)
            for round in missing:
                w, _ = run.load(round, averaged)
                archive.put(round, at_round(round, w, everyone, single, wanted, say).record())
    return [round_from(archive.path, archive.found[round]) for round in rounds]


def surfaces(
    run: SavedRun, scope: SampleConfig, seed: int
) -> tuple[LossSurface, dict[int, LossSurface]]:
    """Of the loss of everybody, and of some clients' losses."""
    clients, size, task = run.experiment.clients, scope.batch_size, run.task
    everyone = draw_sample(
        pool_clients(clients), scope.samples, size, rng.derive_seed(seed, "global sample")
    )
    chosen = draw_clients(len(clients), scope.clients, seed)
    own = client_samples(clients, chosen, scope.samples, size, seed)
    return LossSurface(task, everyone), {
        client: LossSurface(task, sample) for client, sample in zip(chosen, own, strict=True)
    }


def at_round(
    round: int,
    w: Tensor,
    everyone: LossSurface,
    single: dict[int, LossSurface],
    wanted: FlatnessConfig,
    say: ReportProgress,
) -> RoundFlatness:
    together = flatness_at(
        everyone, w, wanted, lambda what: say(f"round {round}, all clients: {what}")
    )
    clients = {}
    for place, (client, surface) in enumerate(single.items(), start=1):
        say(f"round {round}, client {place} of {len(single)}")
        clients[client] = flatness_at(surface, w, replace(wanted, eigenvalues=1))
    return RoundFlatness(round, together, clients)


def round_from(path: Path, record: Record) -> RoundFlatness:
    try:
        clients = {
            one["client"]: from_record({k: v for k, v in one.items() if k != "client"})
            for one in record["clients"]
        }
        return RoundFlatness(record["round"], from_record(record["global"]), clients)
    except (KeyError, TypeError) as error:
        raise InputError(f"{path} is damaged ({error}); remove it and analyse again.") from error


def read_flatness(path: Path) -> tuple[Record, Iterator[RoundFlatness]]:
    """A file's settings, and its rounds, rising."""
    settings, found = read_analysis_cache(path)
    return settings, (round_from(path, found[round]) for round in sorted(found))


Named = tuple[str, RoundFlatness]
RISES = (
    "Largest: found by ascent within the distance ρ, so the true one may be larger; average: over random directions of "
    "length ρ, ± standard error. The adaptive ball follows the weights' sizes. Lower is flatter.",
)


def digits(value: float) -> str:
    return MISSING if math.isnan(value) else f"{value:.4g}"


def with_error(estimate: MonteCarloEstimate) -> str:
    return digits(estimate.value) + (
        "" if math.isnan(estimate.error) else f" ± {estimate.error:.2g}"
    )


# Tables of single runs


def flatness_sheets(named: Sequence[Named], settings: Record) -> list[TextTable]:
    """Curvature, and rises if any were wanted."""
    return [
        curvature_sheet(named, settings),
        *(sheet for sheet in [rise_sheet(named)] if sheet.rows),
    ]


def curvature_sheet(named: Sequence[Named], settings: Record) -> TextTable:
    count = max(len(one.all.eigenvalues) for _, one in named)
    header = (
        "run",
        "round",
        "loss",
        "‖gradient‖",
        *(f"λ{subscript(n)}" for n in range(1, count + 1)),
        "trace",
    )
    single = any(one.clients for _, one in named)
    header += ("λ₁ of single clients", "their trace") if single else ()
    rows = []
    for name, one in named:
        found = one.all
        values = [digits(value) for value in found.eigenvalues]
        rows.append(
            (
                name,
                str(one.round),
                digits(found.loss),
                digits(found.gradient_norm),
                *values,
                *([MISSING] * (count - len(values))),
                with_error(found.trace),
                *((over_clients(one, largest), over_clients(one, whole_trace)) if single else ()),
            )
        )
    return TextTable("Curvature", header, tuple(rows), tuple(curvature_notes(named, settings)))


def curvature_notes(named: Sequence[Named], settings: Record) -> Iterator[str]:
    found = named[0][1].all
    yield (
        f"All clients: {found.samples:,} of {found.of:,} training samples, each counting alike, in batches of "
        f"{found.batch_size:,}; without augmentation, dropout and weight decay; seed {settings['seed']}."
    )
    probes = settings["probes"]
    error = (
        f"± standard error of {probes} random probes"
        if probes > 1
        else "of one random probe, its error unknown"
    )
    yield f"Trace: {'exact' if found.trace_is_exact else error}; {found.parameters:,} weights."
    clients = [client for _, one in named for client in one.clients.values()]
    if clients:
        sizes = [client.samples for client in clients]
        yield (
            f"Single clients: {len(named[0][1].clients)} of them, {min(sizes):,} to {max(sizes):,} samples each; mean "
            "(lowest to highest). Over all clients, if they have as many samples each, the mean λ₁ is never below the "
            "λ₁ of their common loss."
        )
    if not all(one.converged for _, entry in named for one in (entry.all, *entry.clients.values())):
        yield "Some eigenvalues did not converge; the file says how far off each may be (residuals)."


def rise_sheet(named: Sequence[Named]) -> TextTable:
    """A row for each ball."""
    single = any(one.clients for _, one in named)
    header = (
        "run",
        "round",
        "ball",
        "ρ",
        "largest rise",
        "average rise",
        *(["largest, single clients"] * single),
    )
    rows = tuple(
        (
            name,
            str(one.round),
            ball,
            f"{rise.rho:g}",
            digits(rise.worst),
            with_error(MonteCarloEstimate(rise.average, rise.average_error)),
            *([over_clients(one, worst(kind, place))] * single),
        )
        for name, one in named
        for kind, ball in (("sharpness", "plain"), ("adaptive", "adaptive"))
        for place, rise in enumerate(getattr(one.all, kind))
    )
    return TextTable("Rise of the loss near the model", header, rows, RISES)


def over_clients(one: RoundFlatness, value: Callable[[Flatness], float]) -> str:
    values = [value(client) for client in one.clients.values()]
    return f"{np.mean(values):.4g} ({min(values):.3g} to {max(values):.3g})" if values else MISSING


def largest(found: Flatness) -> float:
    return found.eigenvalues[0]


def whole_trace(found: Flatness) -> float:
    return found.trace.value


def worst(kind: str, place: int) -> Callable[[Flatness], float]:
    def value(found: Flatness) -> float:
        return float(getattr(found, kind)[place].worst)

    return value


def subscript(number: int) -> str:
    return "".join(chr(ord("₀") + int(digit)) for digit in str(number))


# Tables over the seeds


MeasuredFlatness = tuple[Record, RoundFlatness]
"""With which settings, and what was found."""


def read_last_flatness(run: LoadedRun, averaged: bool = False) -> list[MeasuredFlatness]:
    """What is known of a run's last measured model, or averaged twin; nothing if none was measured."""
    path = (
        run.path
        / "analysis"
        / (AVERAGED_FLATNESS_FILE if averaged or run.is_twin else FLATNESS_FILE)
    )
    if not path.exists():
        return []
    settings, rounds = read_flatness(path)
    return [(settings, one) for one in list(rounds)[-1:]]


def measured_rows(
    table: ResultTable, complain: Callable[[str], None], averaged: bool = False
) -> dict[str, list[MeasuredFlatness]]:
    """Each row's, over those of its seeds that were measured; rows without any are left out."""
    found: dict[str, list[MeasuredFlatness]] = {}
    for row in table.rows:
        for score in row.scores:
            try:
                found.setdefault(row.label, []).extend(read_last_flatness(score.run, averaged))
            except InputError as error:
                complain(f"{row.label}, seed {score.run.seed}: {error}")
    return {label: of for label, of in found.items() if of}


def seeds_sheet(table: ResultTable) -> TextTable | None:
    """Flatness over the seeds, None if it was never measured."""
    notes: list[str] = []
    rows = measured_rows(table, notes.append)
    if not rows:
        return None
    twins = (
        {}
        if any(score.run.is_twin for score in table.scores)
        else measured_rows(table, notes.append, averaged=True)
    )
    known = [one for found in (*rows.values(), *twins.values()) for one in found]
    example = known[0][1].all
    radii = {
        kind: [rise.rho for rise in getattr(example, kind)] for kind in ("sharpness", "adaptive")
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
        *(["λ₁ of the average"] if twins else []),
    )
    cells = tuple(
        (
            label,
            str(len(found)),
            *seeds_cells([one for _, one in found], radii),
            *([largest_cell([one for _, one in twins.get(label, [])])] if twins else []),
        )
        for label, found in rows.items()
    )
    if len({str(settings) for settings, _ in known}) > 1:
        notes.append(
            "Not all were measured with the same settings (samples, seed, radii …): those do not compare."
        )
    if len({one.round for _, one in known}) > 1:
        notes.append("Not all were measured after the same number of rounds: those do not compare.")
    notes += [
        "λ₁: largest eigenvalue of the Hessian of the training loss. A rise is the largest found within the distance "
        "ρ; the adaptive ball follows the weights' sizes. Lower is flatter.",
        f"On {example.samples:,} of {example.of:,} training samples and {len(known[0][1].clients)} single clients; "
        "mean ± standard deviation (n − 1) over the seeds.",
    ]
    return TextTable("Flatness of the last model that was measured", header, cells, tuple(notes))


def seeds_cells(found: Sequence[RoundFlatness], radii: dict[str, list[float]]) -> Iterator[str]:
    def cell(value: Callable[[RoundFlatness], float]) -> str:
        return spread_cell(mean_spread([value(one) for one in found]))

    yield ", ".join(map(str, sorted({one.round for one in found})))
    yield cell(lambda one: one.all.loss)
    yield cell(lambda one: one.all.eigenvalues[0])
    yield cell(lambda one: one.all.trace.value)
    single = all(one.clients for one in found)
    yield (
        cell(lambda one: float(np.mean([c.eigenvalues[0] for c in one.clients.values()])))
        if single
        else MISSING
    )
    for kind, wanted in radii.items():
        for rho in wanted:
            yield cell(lambda one, kind=kind, rho=rho: rise_at(one.all, kind, rho))  # type: ignore[misc]


def largest_cell(found: Sequence[RoundFlatness]) -> str:
    return spread_cell(mean_spread([one.all.eigenvalues[0] for one in found])) if found else MISSING


def rise_at(found: Flatness, kind: str, rho: float) -> float:
    return next((rise.worst for rise in getattr(found, kind) if rise.rho == rho), math.nan)


# Pictures over the rounds


def flatness_pictures(found: Sequence[RoundFlatness], prefix: str = "") -> list[PlotSpec]:
    """One round is a number, not a picture; the names of the pictures' files begin with the prefix."""
    if len(found) < 2:
        return []
    names = ["all clients", "mean of single clients"] if found[0].clients else ["all clients"]
    pictures: list[PlotSpec] = [
        (
            f"{prefix}largest-eigenvalue-over-rounds",
            2.0 + legend_height(names),
            partial(draw_eigenvalues, found),
        )
    ]
    radii = [rise_name(rise.rho) for rise in found[0].all.sharpness]
    if radii:
        pictures.append(
            (
                f"{prefix}sharpness-over-rounds",
                2.0 + legend_height(radii),
                partial(draw_rises, found),
            )
        )
    return pictures


def draw_eigenvalues(found: Sequence[RoundFlatness], figure: "Figure") -> None:
    axes = figure.add_subplot()
    rounds = [one.round for one in found]
    axes.plot(
        rounds, [one.all.eigenvalues[0] for one in found], label="all clients", **line_style(0)
    )
    if found[0].clients:
        values = np.array(
            [[client.eigenvalues[0] for client in one.clients.values()] for one in found]
        )
        axes.plot(rounds, values.mean(axis=1), label="mean of single clients", **line_style(1))
        low, high = np.quantile(values, [0.1, 0.9], axis=1)
        axes.fill_between(rounds, low, high, color=COLOURS[1], alpha=0.2, linewidth=0)
    axes.set(xlabel="round", ylabel="largest eigenvalue", ylim=(0, None))
    axes.grid()
    add_legend(figure, axes, "band: 10 to 90 % of the clients" if found[0].clients else "")


def draw_rises(found: Sequence[RoundFlatness], figure: "Figure") -> None:
    axes = figure.add_subplot()
    for number, rise in enumerate(found[0].all.sharpness):
        values = [one.all.sharpness[number].worst for one in found]
        axes.plot(
            [one.round for one in found], values, label=rise_name(rise.rho), **line_style(number)
        )
    axes.set(xlabel="round", ylabel="largest rise of the loss", ylim=(0, None))
    axes.grid()
    add_legend(figure, axes, "all clients' loss")


def rise_name(rho: float) -> str:
    return f"within ρ = {rho:g}"
