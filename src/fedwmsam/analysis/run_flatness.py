"""The flatness of a run's models: of the loss of all clients together, and of single clients' losses.

The mean over clients of λ_max is never below λ_max of the mean loss: what lies between is how differently the clients'
losses curve.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from torch import Tensor

from fedwmsam import rng
from fedwmsam.analysis.flatness import Flatness, Say, Wanted, flatness_at, from_record
from fedwmsam.analysis.samples import client_samples, draw, everybody, some_clients
from fedwmsam.analysis.saved import Archive, SavedRun, read_archive
from fedwmsam.analysis.surface import Surface
from fedwmsam.engine.records import Record
from fedwmsam.errors import InputError
from fedwmsam.training.task import calm_torch

FILE, AVERAGED_FILE = "flatness.json", "flatness-averaged.json"
"""Of a run's models, and of their averaged twins."""


@dataclass(frozen=True)
class Scope:
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
            "clients": [{"client": client} | found.record() for client, found in self.clients.items()],
        }


def run_flatness(
    run: SavedRun, rounds: list[int], wanted: Wanted, scope: Scope, place: Path, say: Say = lambda _: None,
    averaged: bool = False,
) -> list[RoundFlatness]:  # fmt: skip
    """Measured, or read from `place` if it was measured like that before; each round is kept there at once.

    `averaged`: of the averaged twins instead of the models.
    """
    archive = Archive(place / (AVERAGED_FILE if averaged else FILE), asdict(wanted) | asdict(scope))
    missing = [round for round in rounds if round not in archive]
    if missing:
        with calm_torch():
            everyone, single = surfaces(run, scope, wanted.seed)
            for round in missing:
                w, _ = run.load(round, averaged)
                archive.put(round, at_round(round, w, everyone, single, wanted, say).record())
    return [round_from(archive.path, archive.found[round]) for round in rounds]


def surfaces(run: SavedRun, scope: Scope, seed: int) -> tuple[Surface, dict[int, Surface]]:
    """Of the loss of everybody, and of some clients' losses."""
    clients, size, task = run.experiment.clients, scope.batch_size, run.task
    everyone = draw(everybody(clients), scope.samples, size, rng.key(seed, "global sample"))
    chosen = some_clients(len(clients), scope.clients, seed)
    own = client_samples(clients, chosen, scope.samples, size, seed)
    return Surface(task, everyone), {client: Surface(task, sample) for client, sample in zip(chosen, own, strict=True)}


def at_round(
    round: int, w: Tensor, everyone: Surface, single: dict[int, Surface], wanted: Wanted, say: Say
) -> RoundFlatness:
    together = flatness_at(everyone, w, wanted, lambda what: say(f"round {round}, all clients: {what}"))
    clients = {}
    for place, (client, surface) in enumerate(single.items(), start=1):
        say(f"round {round}, client {place} of {len(single)}")
        clients[client] = flatness_at(surface, w, replace(wanted, eigenvalues=1))
    return RoundFlatness(round, together, clients)


def round_from(path: Path, record: Record) -> RoundFlatness:
    try:
        clients = {
            one["client"]: from_record({k: v for k, v in one.items() if k != "client"}) for one in record["clients"]
        }
        return RoundFlatness(record["round"], from_record(record["global"]), clients)
    except (KeyError, TypeError) as error:
        raise InputError(f"{path} is damaged ({error}); remove it and analyse again.") from error


def read_flatness(path: Path) -> tuple[Record, Iterator[RoundFlatness]]:
    """A file's settings, and its rounds, rising."""
    settings, found = read_archive(path)
    return settings, (round_from(path, found[round]) for round in sorted(found))
