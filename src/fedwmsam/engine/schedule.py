"""The schedule of a run: who trains in which round, on which batches, with which step size.

The round loop and local training get all of this from a Schedule and from nowhere else, so that
another source of cohorts and batches (a reference-vector file, say) needs no other loop.
"""

from dataclasses import dataclass
from typing import Protocol

import torch

from fedwmsam import rng
from fedwmsam.errors import InputError
from fedwmsam.settings.parsers import LearningRateRule, round_half_up
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
    learning_rate: "LearningRate"
    empty_rounds: bool = False
    """Whether an empty Bernoulli draw stands, as differential privacy needs it, or is repeated."""
    local_steps: int | None = None
    """Steps of a client's round, instead of epochs."""
    last_batch: str = "keep"
    """What becomes of samples that do not fill an epoch's last batch: keep, drop or merge."""

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
        return self.learning_rate(round)

    def steps(self, round: int, client: int, samples: int) -> list[Step]:
        count = self.step_count(round, client, samples)
        if count > MAX_STEPS:
            raise InputError(
                f"Client {client} would take {count:,} steps in a round, expected at most "
                f"{MAX_STEPS:,}: lower local_epochs or raise batch_size."
            )
        random = rng.generator(self.seed, "batches", round, client)
        batches: list[torch.Tensor] = []
        while len(batches) < count:
            order = torch.from_numpy(random.permutation(samples))
            batches += split_epoch(order, self.batch_size, self.last_batch)
        return [
            Step(batch, rng.derive_seed(self.seed, "step", round, client, b))
            for b, batch in enumerate(batches[:count])
        ]

    def step_count(self, round: int, client: int, samples: int) -> int:
        return self.local_steps or self.local_epochs * self.steps_per_epoch(samples)

    def steps_per_epoch(self, samples: int) -> int:
        if self.last_batch == "keep":
            return -(-samples // self.batch_size)
        return max(1, samples // self.batch_size)


def split_epoch(order: torch.Tensor, batch_size: int, last_batch: str) -> list[torch.Tensor]:
    """Return the batches of one epoch, whose samples are in this order.

    Samples that do not fill the last batch are a smaller one ("keep"), are left out ("drop"), or
    are added to the batch before ("merge"). A client with less than a batch always has one.
    """
    batches = list(torch.split(order, batch_size))
    if last_batch == "keep" or len(batches) == 1 or len(batches[-1]) == batch_size:
        return batches
    rest = batches.pop()
    if last_batch == "merge":
        batches[-1] = torch.cat([batches[-1], rest])
    return batches


@dataclass(frozen=True)
class LearningRate:
    """The step size as a function of the round, counted from 0.

    It rises in equal steps over the first `warmup` rounds; the rule begins after them.
    """

    first: float
    rule: LearningRateRule
    warmup: int = 0

    def __call__(self, round: int) -> float:
        if round < self.warmup:
            return self.first * (round + 1) / self.warmup
        return self.first * self.rule.factor(round - self.warmup)
