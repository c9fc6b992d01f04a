"""What the server remembers about clients: kept only for those that took part, in RAM up to a budget, else on disk.

A memory is a value: a round makes a new one, so that a round given up half-way leaves no trace.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch

from fedwmsam.engine.checkpoint import on
from fedwmsam.engine.store import Slot, Store
from fedwmsam.methods.vectors import Vectors

CPU = torch.device("cpu")


@dataclass(slots=True)
class Row:
    """One version of a client's row: in RAM, in the store, or both once it was saved."""

    vectors: Vectors | None = None
    slot: Slot | None = None


@dataclass(frozen=True, eq=False)
class Memory(Mapping[int, Vectors]):
    store: Store = field(default_factory=Store)
    budget: float = math.inf
    """Bytes of rows in RAM, those included that a round is about to replace."""
    device: torch.device = CPU
    rows: Mapping[int, Row] = field(default_factory=dict)

    def __getitem__(self, client: int) -> Vectors:
        row = self.rows[client]
        if row.vectors is not None:
            return row.vectors
        assert row.slot
        return on(self.store.read(row.slot.number), self.device)

    def __contains__(self, client: object) -> bool:
        return client in self.rows

    def __iter__(self) -> Iterator[int]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def in_ram(self) -> int:
        return sum(row.vectors is not None for row in self.rows.values())

    def changing(self) -> "Changes":
        return Changes(self)

    def stored(self, slots: Mapping[int, Slot]) -> "Memory":
        """The memory of which all rows are on disk, in these slots."""
        return replace(self, rows={client: Row(slot=slot) for client, slot in slots.items()})

    def save(self) -> dict[int, Slot]:
        """Make every row durable, writing only those that are not on disk yet; where they are."""
        slots = {}
        for client, row in self.rows.items():
            if row.slot is None:
                assert row.vectors
                row.slot = self.store.write(row.vectors)
            slots[client] = row.slot
        self.store.sync()
        return slots


class Changes:
    """A memory in the making: rows come one by one, and none has to stay in RAM."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.rows: dict[int, Row] = {}
        self.in_ram = memory.in_ram

    def put(self, client: int, vectors: Vectors) -> None:
        """Replace a client's row; one of whom nothing is kept gets none."""
        if not vectors:
            return
        store = self.memory.store
        store.admit(vectors)
        if (self.in_ram + 1) * store.layout.size <= self.memory.budget:
            self.rows[client] = Row(vectors)
            self.in_ram += 1
        else:
            self.rows[client] = Row(slot=store.write(vectors))

    def done(self) -> Memory:
        return replace(self.memory, rows={**self.memory.rows, **self.rows})
