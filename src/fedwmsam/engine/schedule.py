"""Who trains in which round, on which batches, with which step size: the one seam through which they reach the loop."""

from dataclasses import dataclass
from typing import Protocol

import torch

from fedwmsam import rng
from fedwmsam.settings.parsers import round_half_up
from fedwmsam.training.local import Step


class Schedule(Protocol):
    def cohort(self, round: int) -> list[int]:
        """The clients of a round, in the order their contributions are added."""
        ...

    def lr(self, round: int) -> float: ...

    def steps(self, round: int, client: int, samples: int) -> list[Step]:
        """All local steps of a client's round, epoch after epoch."""
        ...

    def count(self, round: int, client: int, samples: int) -> int:
        """How many steps those are."""
        ...

    def epoch(self, samples: int) -> int:
        """How many steps make one pass over that many samples."""
        ...


@dataclass(frozen=True)
class KeyedSchedule:
    """Everything drawn from streams keyed by (seed, purpose, round, client): the default."""

    seed: int
    clients: int
    per_round: float
    """Clients per round: their number, or its expectation under Bernoulli sampling."""
    sampling: str
    local_epochs: int
    batch_size: int
    learning_rate: float
    lr_decay: float
    empty_rounds: bool = False
    """Whether a Bernoulli draw of nobody stands, as differential privacy needs it, or is repeated."""

    def cohort(self, round: int) -> list[int]:
        random = rng.generator(self.seed, "cohort", round)
        if self.sampling == "fixed":
            return sorted(
                random.choice(
                    self.clients, size=round_half_up(self.per_round), replace=False
                ).tolist()
            )
        while True:
            chosen: list[int] = (
                (random.random(self.clients) < self.per_round / self.clients).nonzero()[0].tolist()
            )
            if chosen or self.empty_rounds:
                return chosen

    def lr(self, round: int) -> float:
        return self.learning_rate * self.lr_decay**round

    def steps(self, round: int, client: int, samples: int) -> list[Step]:
        random = rng.generator(self.seed, "batches", round, client)
        batches = [
            batch
            for _ in range(self.local_epochs)
            for batch in torch.split(torch.from_numpy(random.permutation(samples)), self.batch_size)
        ]
        return [
            Step(batch, rng.derive_seed(self.seed, "step", round, client, b))
            for b, batch in enumerate(batches)
        ]

    def count(self, round: int, client: int, samples: int) -> int:
        return self.local_epochs * self.epoch(samples)

    def epoch(self, samples: int) -> int:
        return -(-samples // self.batch_size)
