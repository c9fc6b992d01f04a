"""SCAFFOLD, option II: Karimireddy et al., Stochastic Controlled Averaging for Federated Learning
(ICML 2020).

    v = g(w) + (c − c_k),      c_k⁺ = c_k − c + d_k,      c ← c + (1/N) Σ_{k∈P_r} (c_k⁺ − c_k)
c_k is held by the server, so the client gets c − c_k and uploads one vector. Invariant: c is the
mean of all c_k.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedwmsam.methods.base import Averaging, Cost, Gradient, Info, mean_direction
from fedwmsam.methods.vectors import Vectors


@dataclass(frozen=True)
class SCAFFOLD(Averaging):
    """Control variates: each step is corrected by what this client's gradients usually differ
    by."""

    name: ClassVar[str] = "scaffold"
    paper: ClassVar[str] = "Karimireddy et al. 2020"
    cost: ClassVar[Cost] = Cost(backprops=1, down=2, up=1, memory=1)
    means: ClassVar[Mapping[str, str]] = {"c": "c_k"}

    def server_init(self, w: Tensor) -> Vectors:
        return {"w": w, "c": torch.zeros_like(w)}

    def memory_init(self, w: Tensor) -> Vectors:
        return {"c_k": torch.zeros_like(w)}

    def downlink(self, server: Vectors, memory: Vectors, info: Info) -> Vectors:
        return {"w": server["w"], "correction": server["c"] - memory["c_k"]}

    def direction(
        self, w: Tensor, grad: Gradient, down: Vectors, scratch: Vectors
    ) -> tuple[Tensor, Vectors]:
        return grad(w).add_(down["correction"]), scratch

    def settle(
        self, server: Vectors, memory: Vectors, up: Vectors, info: Info
    ) -> tuple[Vectors, Vectors]:
        c_k = (memory["c_k"] - server["c"]).add_(mean_direction(up["delta"], info))
        return {"c_k": c_k}, {"delta": up["delta"], "c_k": c_k - memory["c_k"]}

    def aggregate(self, server: Vectors, mean: Vectors, info: Info) -> Vectors:
        return super().aggregate(server, mean, info) | {"c": server["c"] + info.share * mean["c_k"]}
