"""Clients whose data are elsewhere."""

from typing import Any

from torch import Tensor

from fedwmsam.flower.exchange import Nodes
from fedwmsam.training.task import Samples


class RemoteSamples:
    """Data that are elsewhere: only their number is known here."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def batch(self, index: Tensor, seed: int | None = None) -> Any:
        raise AssertionError("the data are with the client")


class RemoteClients:
    def __init__(self, count: int) -> None:
        self.count = count
        self.nodes: Nodes | None = None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, client: int) -> Samples:
        return RemoteSamples(self.nodes.samples(client) if self.nodes else 0)
