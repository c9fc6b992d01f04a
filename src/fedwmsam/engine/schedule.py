"""The schedule of a run: who trains in which round, on which batches, with which step size.

The round loop and local training get all of this from a Schedule and from nowhere else, so that
another source of cohorts and batches (a reference-vector file, say) needs no other loop.
"""

from dataclasses import dataclass
from typing import Protocol

import torch

from fedwmsam import rng
from fedwmsam.errors import InputError
from fedwmsam.settings.parsers import round_half_up
from fedwmsam.training.local import Step

MAX_STEPS = 1_000_000
"""Local steps of a client in one round, all of whose batches are drawn before the first."""


class Schedule(Protocol):
    """The cohorts, batches and step sizes of a run."""

    def cohort(self, round: int) -> list[int]:
        """Return the clients of a round, in the order in which their contributions are added."""
        ...

    def lr(self, round: int) -> float:
        """Return the step size of the local steps of a round."""
        ...

    def steps(self, round: int, client: int, samples: int) -> list[Step]:
        """Return all local steps of a client's round, epoch after epoch."""
        ...

    def step_count(self, round: int, client: int, samples: int) -> int:
        """Return the number of a client's local steps in a round, without making them."""
        ...

    def steps_per_epoch(self, samples: int) -> int:
        """Return the number of steps in one pass over that many samples."""
        ...


@dataclass(frozen=True)
class SeededSchedule:
    """The default schedule, drawn from streams seeded by (seed, purpose, round, client)."""

    seed: int
    clients: int
    cohort_size: float
    """Clients per round: their number, or its expectation under Bernoulli sampling."""
    sampling: str
    local_epochs: int
    batch_size: int
    learning_rate: float
    lr_decay: float
    empty_rounds: bool = False
    """Whether an empty Bernoulli draw stands, as differential privacy needs it, or is repeated."""

    def cohort(self, round: int) -> list[int]:
        random = rng.generator(self.seed, "cohort", round)
        if self.sampling == "fixed":
            size = round_half_up(self.cohort_size)
            return sorted(random.choice(self.clients, size=size, replace=False).tolist())
        probability = self.cohort_size / self.clients
        while True:
            mask = random.random(self.clients) < probability
            cohort: list[int] = mask.nonzero()[0].tolist()
            if cohort or self.empty_rounds:
                return cohort

    def lr(self, round: int) -> float:
        return self.learning_rate * self.lr_decay**round

    def steps(self, round: int, client: int, samples: int) -> list[Step]:
        if self.step_count(round, client, samples) > MAX_STEPS:
            raise InputError(
                f"Client {client} would take {self.step_count(round, client, samples):,} steps in "
                f"a round, expected at most {MAX_STEPS:,}: lower local_epochs or raise batch_size."
            )
        random = rng.generator(self.seed, "batches", round, client)
        batches: list[torch.Tensor] = []
        for _ in range(self.local_epochs):
            order = torch.from_numpy(random.permutation(samples))
            batches += torch.split(order, self.batch_size)
        return [
            Step(batch, rng.derive_seed(self.seed, "step", round, client, b))
            for b, batch in enumerate(batches)
        ]

    def step_count(self, round: int, client: int, samples: int) -> int:
        return self.local_epochs * self.steps_per_epoch(samples)

    def steps_per_epoch(self, samples: int) -> int:
        return -(-samples // self.batch_size)
