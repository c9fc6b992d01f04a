"""MimeLite: Karimireddy et al., Breaking the centralized barrier for cross-device federated
learning (NeurIPS 2021).

SGD with momentum as base optimizer; m is frozen during the round and updated from full local
gradients at w_r only, never from the updates (that is the difference to FedCM):
    v = (1 − β) g(w) + β m,      F_k = ∇f_k(w_r),      m ← (1 − β) mean_{P_r} F_k + β m
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedwmsam.methods.base import Averaging, Cost, Gradient, Info
from fedwmsam.methods.vectors import Vectors
from fedwmsam.settings.options import option


@dataclass(frozen=True)
class MimeLite(Averaging):
    """Every client applies the server's momentum as if it were centralised."""

    beta: float = option(
        0.9, "β, weight of the momentum against the fresh gradient", low=0.0, high=0.999
    )

    name: ClassVar[str] = "mimelite"
    paper: ClassVar[str] = "Karimireddy et al. 2021"
    cost: ClassVar[Cost] = Cost(backprops=1, down=2, up=2, memory=0, full_gradients=1)
    needs_plain_gradients: ClassVar[str] = (
        "its momentum is made of the clients' full gradients, which no optimizer has changed"
    )

    def server_init(self, w: Tensor) -> Vectors:
        return {"w": w, "m": torch.zeros_like(w)}

    def downlink(self, server: Vectors, memory: Vectors, info: Info) -> Vectors:
        return {"w": server["w"], "m": server["m"]}

    def begin(self, down: Vectors, full_gradient: Gradient, info: Info) -> Vectors:
        return {"F_k": full_gradient(down["w"])}

    def direction(
        self, w: Tensor, grad: Gradient, down: Vectors, scratch: Vectors
    ) -> tuple[Tensor, Vectors]:
        return torch.lerp(grad(w), down["m"], self.beta), scratch

    def uplink(self, delta: Tensor, down: Vectors, scratch: Vectors, info: Info) -> Vectors:
        return {"delta": delta, "F_k": scratch["F_k"]}

    def settle(
        self, server: Vectors, memory: Vectors, up: Vectors, info: Info
    ) -> tuple[Vectors, Vectors]:
        return memory, up

    def aggregate(self, server: Vectors, mean: Vectors, info: Info) -> Vectors:
        m = torch.lerp(mean["F_k"], server["m"], self.beta)
        return super().aggregate(server, mean, info) | {"m": m}
