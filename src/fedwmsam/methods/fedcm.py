"""FedCM: Xu et al., FedCM: Federated Learning with Client-level Momentum (2021).

Δ_r, the last round's mean local direction, is mixed into every local step:
    v = α g(w) + (1 − α) Δ_r,      Δ_{r+1} = mean_k d_k,      d_k = −u_k / (η_r B_k)
Deviation: the published code keeps one step count for all clients; each d_k here uses its own B_k.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedwmsam.methods.base import Averaging, Cost, Gradient, Info, mean_direction
from fedwmsam.methods.vectors import Vectors, lerp_into_end
from fedwmsam.settings.options import option


@dataclass(frozen=True)
class FedCM(Averaging):
    """Client-level momentum: every local step leans on the last global direction."""

    alpha: float = option(
        0.1, "weight of the fresh gradient against the momentum", above=0.0, high=1.0
    )

    name: ClassVar[str] = "fedcm"
    paper: ClassVar[str] = "Xu et al. 2021"
    cost: ClassVar[Cost] = Cost(backprops=1, down=2, up=1, memory=0)

    def server_init(self, w: Tensor) -> Vectors:
        return {"w": w, "Delta": torch.zeros_like(w)}

    def downlink(self, server: Vectors, memory: Vectors, info: Info) -> Vectors:
        return {"w": server["w"], "Delta": server["Delta"]}

    def direction(
        self, w: Tensor, grad: Gradient, down: Vectors, scratch: Vectors
    ) -> tuple[Tensor, Vectors]:
        return lerp_into_end(down["Delta"], grad(w), self.alpha), scratch

    def settle(
        self, server: Vectors, memory: Vectors, up: Vectors, info: Info
    ) -> tuple[Vectors, Vectors]:
        return memory, {"delta": up["delta"], "Delta": mean_direction(up["delta"], info)}

    def aggregate(self, server: Vectors, mean: Vectors, info: Info) -> Vectors:
        return super().aggregate(server, mean, info) | {"Delta": mean["Delta"]}
