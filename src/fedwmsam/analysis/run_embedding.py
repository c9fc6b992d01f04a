"""Embeddings of a run's models."""

from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from fedwmsam import rng
from fedwmsam.analysis.embedding import PERPLEXITY, embed
from fedwmsam.analysis.flatness import Say
from fedwmsam.analysis.samples import Sample, everybody, owners, picked, read
from fedwmsam.analysis.saved import Archive, SavedRun
from fedwmsam.engine.records import Record
from fedwmsam.errors import InputError
from fedwmsam.training.task import calm_torch

FILE = "embedding.json"
SOURCES = ("train", "test")


@dataclass(frozen=True)
class Choice:
    """Of what, and how."""

    data: str = "train"
    """train: what the clients hold, so that each sample has a client; test."""
    samples: int | None = 2000
    layer: str | None = None
    perplexity: float = PERPLEXITY
    seed: int = 0
    batch_size: int = 1000

    def __post_init__(self) -> None:
        if self.data not in SOURCES:
            raise InputError(f"The data must be {' or '.join(SOURCES)}, not {self.data!r}.")


def run_embedding(
    run: SavedRun, rounds: list[int], choice: Choice, place: Path, say: Say = lambda _: None
) -> list[Record]:
    """Computed, or read from `place` if it was computed like that before."""
    archive = Archive(place / FILE, asdict(choice))
    missing = [round for round in rounds if round not in archive]
    if missing:
        with calm_torch():
            sample, clients = chosen(run, choice)
            for round in missing:
                say(f"round {round}, t-SNE of {sample.count:,} samples")
                run.load(round)
                found = embed(
                    run.task, sample, clients, layer=choice.layer, perplexity=choice.perplexity, seed=choice.seed
                )
                archive.put(round, {"samples": sample.count, "of": sample.total} | found.record())
    return [archive.found[round] for round in rounds]


def chosen(run: SavedRun, choice: Choice) -> tuple[Sample, torch.Tensor | None]:
    """The samples, and the client of each if it has one."""
    experiment, stream = run.experiment, rng.key(choice.seed, "embedded sample")
    if choice.data == "train":
        index = picked(len(everybody(experiment.clients)), choice.samples, stream)
        return read(everybody(experiment.clients), index, choice.batch_size), owners(experiment.clients, index)
    index, groups = picked(len(experiment.test), choice.samples, stream), experiment.breakdown.groups
    return read(experiment.test, index, choice.batch_size), None if groups is None else groups[index]
