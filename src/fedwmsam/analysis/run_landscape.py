"""The loss around a run's model, or on the way to another run's."""

import csv
import io
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedwmsam.analysis.flatness import Say
from fedwmsam.analysis.landscape import EVERYBODY, Landscape, landscape
from fedwmsam.analysis.results import write_json
from fedwmsam.analysis.run_flatness import Scope, surfaces
from fedwmsam.analysis.saved import SavedRun
from fedwmsam.engine.checkpoint import replacing
from fedwmsam.errors import InputError
from fedwmsam.training.task import calm_torch


@dataclass(frozen=True)
class RunLandscape:
    name: str
    """Of its files."""
    landscape: Landscape
    round: int
    samples: int
    of: int
    files: list[Path]


def run_landscape(
    run: SavedRun, round: int, scope: Scope, other: SavedRun | None, place: Path, *, seed: int, plane: bool,
    say: Say = lambda _: None, **options: Any,
) -> RunLandscape:  # fmt: skip
    """On this run's data; the other's model is its last one."""
    with calm_torch():
        everyone, single = surfaces(run, scope, seed)
        model, end = run.load(round), None
        if other is not None:
            if other.task.layout != run.task.layout:
                raise InputError(
                    f"{other.path} has another model than {run.path}; no line leads from one to the other."
                )
            end = other.load(other.rounds("last")[0])
        named = {EVERYBODY: everyone} | {f"client {client}": surface for client, surface in single.items()}
        name = "" if other is None else other.path.name
        found = landscape(
            run.task, named, model, other=end, other_name=name, seed=seed, plane=plane, say=say, **options
        )
    title = "-".join(["landscape", *(["plane"] if plane else []), *(["to", name] if name else []), f"round-{round}"])
    settings = asdict(scope) | {"seed": seed, "round": round, "to": str(other.path) if other else None} | options
    files = [place / f"{title}.json", place / f"{title}.csv"]
    write_json(files[0], {"settings": settings, **found.record()})
    with replacing(files[1]) as beside:
        beside.write_text(csv_text(found), encoding="utf-8")
    return RunLandscape(title, found, round, everyone.sample.count, everyone.sample.total, files)


def csv_text(found: Landscape) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, ["loss_of", "x", "y", "loss"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(found.lines())
    return out.getvalue()
