"""Flatness and clusters as tables: of single runs, and of rows of a report over their seeds."""

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from fedwmsam.analysis.flatness import Flatness
from fedwmsam.analysis.hessian import Estimate
from fedwmsam.analysis.landscape import Landscape
from fedwmsam.analysis.run_flatness import AVERAGED_FILE, FILE, RoundFlatness, read_flatness
from fedwmsam.analysis.run_landscape import RunLandscape
from fedwmsam.analysis.statistics import Numbers, mean_spread
from fedwmsam.engine.records import Record
from fedwmsam.errors import InputError
from fedwmsam.report.runs import Run
from fedwmsam.report.sheets import NOTHING, Sheet, spread_cell
from fedwmsam.report.tables import Table

Named = tuple[str, RoundFlatness]
RISES = (
    "Largest: found by ascent within the distance ρ, so the true one may be larger; average: over random directions of "
    "length ρ, ± standard error. The adaptive ball follows the weights' sizes. Lower is flatter.",
)


def digits(value: float) -> str:
    return NOTHING if math.isnan(value) else f"{value:.4g}"


def with_error(estimate: Estimate) -> str:
    return digits(estimate.value) + ("" if math.isnan(estimate.error) else f" ± {estimate.error:.2g}")


# Single runs


def flatness_sheets(named: Sequence[Named], settings: Record) -> list[Sheet]:
    """Curvature, and rises if any were wanted."""
    return [curvature_sheet(named, settings), *(sheet for sheet in [rise_sheet(named)] if sheet.rows)]


def curvature_sheet(named: Sequence[Named], settings: Record) -> Sheet:
    count = max(len(one.all.eigenvalues) for _, one in named)
    header = ("run", "round", "loss", "‖gradient‖", *(f"λ{subscript(n)}" for n in range(1, count + 1)), "trace")
    single = any(one.clients for _, one in named)
    header += ("λ₁ of single clients", "their trace") if single else ()
    rows = []
    for name, one in named:
        found = one.all
        values = [digits(value) for value in found.eigenvalues]
        rows.append((
            name, str(one.round), digits(found.loss), digits(found.gradient_norm),
            *values, *([NOTHING] * (count - len(values))), with_error(found.trace),
            *((over_clients(one, largest), over_clients(one, whole_trace)) if single else ()),
        ))  # fmt: skip
    return Sheet("Curvature", header, tuple(rows), tuple(curvature_notes(named, settings)))


def curvature_notes(named: Sequence[Named], settings: Record) -> Iterator[str]:
    found = named[0][1].all
    yield (
        f"All clients: {found.samples:,} of {found.of:,} training samples, each counting alike, in batches of "
        f"{found.batch_size:,}; without augmentation, dropout and weight decay; seed {settings['seed']}."
    )
    probes = settings["probes"]
    error = f"± standard error of {probes} random probes" if probes > 1 else "of one random probe, its error unknown"
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


def rise_sheet(named: Sequence[Named]) -> Sheet:
    """A row for each ball."""
    single = any(one.clients for _, one in named)
    header = ("run", "round", "ball", "ρ", "largest rise", "average rise", *(["largest, single clients"] * single))
    rows = tuple(
        (
            name, str(one.round), ball, f"{rise.rho:g}", digits(rise.worst),
            with_error(Estimate(rise.average, rise.average_error)),
            *([over_clients(one, worst(kind, place))] * single),
        )
        for name, one in named
        for kind, ball in (("sharpness", "plain"), ("adaptive", "adaptive"))
        for place, rise in enumerate(getattr(one.all, kind))
    )  # fmt: skip
    return Sheet("Rise of the loss near the model", header, rows, RISES)


def over_clients(one: RoundFlatness, value: Callable[[Flatness], float]) -> str:
    values = [value(client) for client in one.clients.values()]
    return f"{np.mean(values):.4g} ({min(values):.3g} to {max(values):.3g})" if values else NOTHING


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


# Rows of a report


Measured = tuple[Record, RoundFlatness]
"""With which settings, and what was found."""


def measured(run: Run, averaged: bool = False) -> list[Measured]:
    """What is known of a run's last measured model, or averaged twin; nothing if none was measured."""
    path = run.path / "analysis" / (AVERAGED_FILE if averaged or run.is_twin else FILE)
    if not path.exists():
        return []
    settings, rounds = read_flatness(path)
    return [(settings, one) for one in list(rounds)[-1:]]


def measured_rows(table: Table, complain: Callable[[str], None], averaged: bool = False) -> dict[str, list[Measured]]:
    """Each row's, over those of its seeds that were measured; rows without any are left out."""
    found: dict[str, list[Measured]] = {}
    for row in table.rows:
        for score in row.scores:
            try:
                found.setdefault(row.label, []).extend(measured(score.run, averaged))
            except InputError as error:
                complain(f"{row.label}, seed {score.run.seed}: {error}")
    return {label: of for label, of in found.items() if of}


def seeds_sheet(table: Table) -> Sheet | None:
    """Flatness over the seeds, None if it was never measured."""
    notes: list[str] = []
    rows = measured_rows(table, notes.append)
    if not rows:
        return None
    twins = (
        {} if any(score.run.is_twin for score in table.scores) else measured_rows(table, notes.append, averaged=True)
    )
    known = [one for found in (*rows.values(), *twins.values()) for one in found]
    example = known[0][1].all
    radii = {kind: [rise.rho for rise in getattr(example, kind)] for kind in ("sharpness", "adaptive")}
    header = (
        "method", "seeds", "round", "loss", "λ₁", "trace", "λ₁ of single clients",
        *(f"rise within ρ = {rho:g}" for rho in radii["sharpness"]),
        *(f"adaptive, ρ = {rho:g}" for rho in radii["adaptive"]), *(["λ₁ of the average"] if twins else []),
    )  # fmt: skip
    cells = tuple(
        (
            label, str(len(found)), *seeds_cells([one for _, one in found], radii),
            *([largest_cell([one for _, one in twins.get(label, [])])] if twins else []),
        )
        for label, found in rows.items()
    )  # fmt: skip
    if len({str(settings) for settings, _ in known}) > 1:
        notes.append("Not all were measured with the same settings (samples, seed, radii …): those do not compare.")
    if len({one.round for _, one in known}) > 1:
        notes.append("Not all were measured after the same number of rounds: those do not compare.")
    notes += [
        "λ₁: largest eigenvalue of the Hessian of the training loss. A rise is the largest found within the distance "
        "ρ; the adaptive ball follows the weights' sizes. Lower is flatter.",
        f"On {example.samples:,} of {example.of:,} training samples and {len(known[0][1].clients)} single clients; "
        "mean ± standard deviation (n − 1) over the seeds.",
    ]
    return Sheet("Flatness of the last model that was measured", header, cells, tuple(notes))


def seeds_cells(found: Sequence[RoundFlatness], radii: dict[str, list[float]]) -> Iterator[str]:
    def cell(value: Callable[[RoundFlatness], float]) -> str:
        return spread_cell(mean_spread([value(one) for one in found]))

    yield ", ".join(map(str, sorted({one.round for one in found})))
    yield cell(lambda one: one.all.loss)
    yield cell(lambda one: one.all.eigenvalues[0])
    yield cell(lambda one: one.all.trace.value)
    single = all(one.clients for one in found)
    yield cell(lambda one: float(np.mean([c.eigenvalues[0] for c in one.clients.values()]))) if single else NOTHING
    for kind, wanted in radii.items():
        for rho in wanted:
            yield cell(lambda one, kind=kind, rho=rho: rise_at(one.all, kind, rho))  # type: ignore[misc]


def largest_cell(found: Sequence[RoundFlatness]) -> str:
    return spread_cell(mean_spread([one.all.eigenvalues[0] for one in found])) if found else NOTHING


def rise_at(found: Flatness, kind: str, rho: float) -> float:
    return next((rise.worst for rise in getattr(found, kind) if rise.rho == rho), math.nan)


# Landscapes


def landscape_sheet(name: str, found: RunLandscape) -> Sheet:
    """What a slice shows, in a few numbers."""
    landscape = found.landscape
    rows = tuple(
        (whose, digits(at_model(landscape, losses)), digits(float(np.nanmin(losses))), digits(float(np.nanmax(losses))))
        for whose, losses in landscape.losses.items()
    )
    notes = [
        f"{found.samples:,} of {found.of:,} training samples, each counting alike; axes: "
        + "; ".join(
            f"{axis} (1 is {length:.3g} in weight space)"
            for axis, length in zip(landscape.axes, landscape.lengths, strict=True)
        )
        + "."
    ]
    if landscape.barrier is not None:
        notes.append(
            f"Between the two models the loss rises by at most {landscape.barrier:.4g} above the straight line "
            "between their losses."
        )
    title = f"Loss on a {'line' if landscape.y is None else 'plane'} through {name}, round {found.round}"
    return Sheet(title, ("loss of", "at the model", "lowest", "highest"), rows, tuple(notes))


def at_model(landscape: Landscape, losses: Numbers) -> float:
    """At the point nearest to the model, which an even number of points leaves out."""
    column = int(np.abs(landscape.x).argmin())
    return float(losses[column] if landscape.y is None else losses[int(np.abs(landscape.y).argmin()), column])


# Clusters


def cluster_sheet(named: Sequence[tuple[str, Record]], notes: Sequence[str] = ()) -> Sheet:
    """Silhouette and Davies–Bouldin index of embeddings."""
    kinds = list(dict.fromkeys((score["by"], score["of"]) for _, one in named for score in one["scores"]))
    header = ["run", "round"]
    for by, of in kinds:
        header += [f"by {by}, {of}: silhouette", "Davies–Bouldin"]
    rows = []
    for name, one in named:
        scores = {(score["by"], score["of"]): score for score in one["scores"]}
        cells = [
            digits(scores[kind][figure]) if kind in scores else NOTHING
            for kind in kinds
            for figure in ("silhouette", "davies_bouldin")
        ]
        rows.append((name, str(one["round"]), *cells))
    said = (
        "Silhouette: −1 to 1, more is better. Davies–Bouldin: from 0, less is better. Compare those of the features: "
        "t-SNE makes clusters look better than they are.",
    )
    return Sheet("Clusters before the last layer", tuple(header), tuple(rows), (*notes, *said))
