"""A run's dynamics as one record: what was recorded, what its kept states give when replayed, and their summary."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from fedwmsam.analysis.alignment import COSINES, Care, mean_of
from fedwmsam.analysis.echo import autocorrelation, flips, oscillation, straightness
from fedwmsam.analysis.recording import Recorder
from fedwmsam.analysis.replay import Past
from fedwmsam.analysis.training_surface import length
from fedwmsam.analysis.watching import MOMENTS
from fedwmsam.engine.records import Record, read_lines
from fedwmsam.settings.config import RECORDABLE
from fedwmsam.training.task import calm_torch

THOROUGH = Care(sample=3000, ascents=1, clients=None)
STATES = 10
SUCCESSIVE = 3
"""Rounds that are replayed from each kept state, if all they read is known."""
QUARTER = 4
"""Early is the first quarter of the rounds, late the last."""
FILE = "dynamics.json"
RESTLESS = ("accuracy", "loss", "similarity", "alpha")
"""Columns of the metrics whose fluctuation is worth a number."""
PATHS: dict[str, tuple[str | int, ...]] = {
    **{name: ("alignment", name, "mean") for name in (*COSINES, "radius")},
    **{f"{name}_{moment}": ("alignment", name, moment) for name in COSINES for moment in MOMENTS},
    "update_norm": ("drift", "norm", "mean"),
    "update_norm_spread": ("drift", "norm", "spread"),
    "distance": ("drift", "distance", "mean"),
    "to_mean": ("drift", "to_mean", "mean"),
    "to_mean_spread": ("drift", "to_mean", "spread"),
    "pairs": ("drift", "pairs", "mean"),
    "coherence": ("drift", "coherence"),
    "similarity": ("drift", "scalars", "similarity", "mean"),
    "similarity_spread": ("drift", "scalars", "similarity", "spread"),
    "global_norm": ("echo", "norm"),
    "lag_1": ("echo", "lags", 0),
    "lag_2": ("echo", "lags", 1),
    "flips": ("echo", "flips"),
    "straightness": ("echo", "straightness"),
    "carried": ("echo", "carried", "mean"),
}
"""A number of the summary, and where a line has it."""


def dynamics(folder: Path, states: int = STATES, care: Care = THOROUGH) -> Record:
    """Everything the run's folder can tell; writes nothing."""
    with calm_torch():
        past = Past.of(folder)
        chosen = spread_out(past.kept(), states)
        recorded = {line["round"]: line for line in read_lines(folder / "recordings.jsonl")}
        lines = dict(recorded)
        for line in replayed(past, chosen, care):
            lines[line["round"]] = merged(recorded.get(line["round"], {}), line)
        ending = last_rounds(past)
    ordered = [lines[round] for round in sorted(lines)]
    return {
        "method": past.config.method, "seed": past.config.seed, "rounds": len(past.rows),
        "recorded": len(recorded), "replayed": chosen, "sample": care.sample, "ascents": care.ascents,
        "not_as_it_was": past.strangers, "last_rounds": ending, "restless": restless(past.rows),
        "summary": {name: summarise(of_period(ordered, len(past.rows), name)) for name in ("early", "late")},
        "lines": ordered,
    }  # fmt: skip


def merged(recorded: Record, replayed: Record) -> Record:
    """A replay measures with more care; but only a recording knows all the updates before."""
    return recorded | replayed | {"echo": replayed["echo"] | recorded.get("echo", {})}


def spread_out(rounds: Sequence[int], count: int) -> list[int]:
    """So many of them, the first and the last included."""
    if len(rounds) <= count:
        return list(rounds)
    return sorted({rounds[round(place * (len(rounds) - 1) / max(count - 1, 1))] for place in range(count)})


def replayed(past: Past, chosen: Sequence[int], care: Care) -> Iterator[Record]:
    """The line of each chosen round, and those of the rounds right after it, where they can be known."""
    kept = past.kept()
    thorough = Recorder(RECORDABLE, 1, past.config.seed, care)
    brief = Recorder(("echo",), 10**12, past.config.seed, care)
    for round in chosen:
        state = past.state(round)
        found = past.repeat(state, thorough)
        following = kept[kept.index(round) + 1 :][:1]
        for later in following:
            way = length(past.state(later).server["w"] - state.server["w"])
            found.line["echo"]["straightness"] = straightness(way, [found.line["echo"]["norm"]], later - round)
        yield found.line
        rest = min(SUCCESSIVE - 1, len(past.rows) - found.after.round)
        for repeated in past.chain(found.after, rest, brief, found.trail):
            yield repeated.line


def last_rounds(past: Past) -> Record | None:
    """Successive updates at the end of a run that is over, from its older checkpoint; every method has that."""
    state = past.last_checkpoint()
    if state is None:
        return None
    models = [state.server["w"]]
    models += [repeated.after.server["w"] for repeated in past.chain(state, len(past.rows) - state.round)]
    updates = [after - before for before, after in pairwise(models)]
    if len(updates) < 2:
        return None
    way, norms = length(models[-1] - models[0]), [length(update) for update in updates]
    turned = [flips(after, before) for before, after in pairwise(updates)]
    return {
        "first": state.round + 1, "last": state.round + len(updates),
        "autocorrelation": autocorrelation(updates, len(updates) - 1), "flips": mean_of(turned),
        "straightness": straightness(way, norms, len(updates)), "norm": sum(norms) / len(norms),
    }  # fmt: skip


def restless(rows: Sequence[Record]) -> Record:
    """How the metrics fluctuate late in the run."""
    late = of_period(rows, len(rows), "late")
    found = {name: [row[name] for row in late if row.get(name) is not None] for name in RESTLESS}
    return {name: oscillation(values) for name, values in found.items() if values}


def of_period(lines: Sequence[Record], rounds: int, period: str) -> list[Record]:
    if period == "early":
        return [line for line in lines if QUARTER * line["round"] <= rounds]
    return [line for line in lines if QUARTER * line["round"] > (QUARTER - 1) * rounds]


def summarise(lines: Sequence[Record]) -> Record:
    """The mean of everything over these lines, over those that have it."""
    paths: dict[str, tuple[str | int, ...]] = dict(PATHS)
    for line in lines:
        kept = line.get("drift", {})
        paths |= {f"server {name}": ("drift", "server", name) for name in kept.get("server", {})}
        paths |= {f"client {name}": ("drift", "memory", name, "mean") for name in kept.get("memory", {})}
    return {name: mean_of([pick(line, path) for line in lines]) for name, path in paths.items()}


def pick(line: Record, path: Sequence[str | int]) -> float | None:
    value: Any = line
    for key in path:
        inside = key in value if isinstance(value, dict) else isinstance(value, list) and int(key) < len(value)
        if not inside:
            return None
        value = value[key]
    return float(value) if isinstance(value, int | float) else None
