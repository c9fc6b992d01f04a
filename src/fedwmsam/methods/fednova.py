"""FedNova: Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated
Optimization (NeurIPS 2020).

A client that takes more steps must not count more for it: each update is divided by its own number
of steps, and the mean of these is as long as a client's steps are on average.
    v = g(w),      w_{r+1} = w_r + η_g · mean_k(B_k) · mean_k(u_k/B_k)
Deviation: the mean is uniform unless `averaging` is "size"; the paper weighs clients by samples.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedwmsam.methods.base import Info
from fedwmsam.methods.fedavg import FedAvg
from fedwmsam.methods.vectors import Vectors


@dataclass(frozen=True)
class FedNova(FedAvg):
    """Local SGD; the server averages the updates per step, not the updates."""

    name: ClassVar[str] = "fednova"
    paper: ClassVar[str] = "Wang et al. 2020"
    needs_own_steps: ClassVar[str] = "its server divides each update by the number of its steps"
    needs_plain_gradients: ClassVar[str] = (
        "it divides an update by the number of plain steps in it, and an optimizer changes how "
        "long they are"
    )

    def settle(
        self, server: Vectors, memory: Vectors, up: Vectors, info: Info
    ) -> tuple[Vectors, Vectors]:
        update = up["delta"]
        return memory, {"step": update / info.steps, "steps": update.new_tensor(info.steps)}

    def aggregate(self, server: Vectors, mean: Vectors, info: Info) -> Vectors:
        return super().aggregate(server, {"delta": mean["steps"] * mean["step"]}, info)
