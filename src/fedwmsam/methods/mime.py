"""Mime: Karimireddy et al., Breaking the centralized barrier for cross-device federated learning
(NeurIPS 2021).

MimeLite with a correction as in SVRG: each mini-batch gradient is replaced by how it has changed
since the beginning of the round, and the mean full gradient c stands for the rest.
    v = (1 − β) (g(w) − g(w_r) + c) + β m,      m ← (1 − β) mean_{P_r} F_k + β m
Deviation ("stale"): Mime takes c = mean_{P_r} F_k of the same round, which needs an exchange before
the training. Here a round has one exchange, so that c is that of the round before, and while there
is none the steps are MimeLite's.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedwmsam.methods.base import Cost, Gradient, Info
from fedwmsam.methods.mimelite import MimeLite
from fedwmsam.methods.vectors import Vectors


@dataclass(frozen=True)
class Mime(MimeLite):
    """MimeLite with gradients that are corrected by the full gradient of the round before."""

    name: ClassVar[str] = "mime"
    cost: ClassVar[Cost] = Cost(backprops=2, down=3, up=2, memory=0, full_gradients=1)

    def server_init(self, w: Tensor) -> Vectors:
        return super().server_init(w) | {"c": torch.zeros_like(w)}

    def downlink(self, server: Vectors, memory: Vectors, info: Info) -> Vectors:
        return super().downlink(server, memory, info) | {"c": server["c"]}

    def begin(self, down: Vectors, full_gradient: Gradient, info: Info) -> Vectors:
        has_c = torch.tensor(bool(down["c"].any()))
        return super().begin(down, full_gradient, info) | {"has_c": has_c}

    def direction(
        self, w: Tensor, grad: Gradient, down: Vectors, scratch: Vectors
    ) -> tuple[Tensor, Vectors]:
        def corrected(at: Tensor) -> Tensor:
            return grad(at).sub_(grad(down["w"])).add_(down["c"])

        return super().direction(w, corrected if scratch["has_c"] else grad, down, scratch)

    def aggregate(self, server: Vectors, mean: Vectors, info: Info) -> Vectors:
        return super().aggregate(server, mean, info) | {"c": mean["F_k"]}
