"""What every rule takes and gives."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedwmsam.data.partitions.partition import Indices, Labels


@dataclass(frozen=True)
class Rule:
    """What the text of a rule says, checked as far as that is possible without the data."""

    text: str
    name: str
    value: float  # 0 where the rule takes none
    options: Mapping[str, str]  # all options of the rule, given or by default


@dataclass(frozen=True, eq=False)
class Data:
    labels: Labels
    clients: int
    random: np.random.Generator
    groups: npt.NDArray[Any] | None = None


@dataclass(frozen=True, eq=False)
class Dealt:
    samples: Indices  # those of client 0, of client 1, and so on
    sizes: Indices
    notes: tuple[str, ...] = ()


def equal_sizes(samples: int, clients: int) -> Indices:
    # The released code gives the whole remainder to client 0, which makes one client larger by up to N - 1 samples (and
    # its ragged arrays fail to stack); one more for each of the first n mod N clients keeps the sizes balanced.
    sizes = np.full(clients, samples // clients)
    sizes[: samples % clients] += 1
    return sizes


def by_owner(samples: Indices, owners: Indices, clients: int, notes: tuple[str, ...] = ()) -> Dealt:
    return Dealt(samples[np.argsort(owners, kind="stable")], np.bincount(owners, minlength=clients), notes)


def many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
