"""SCAFFOLD-M: Cheng et al., Momentum Benefits Non-IID Federated Learning Simply and Provably
(ICLR 2024).

    v = β (g(w) + c − c_k) + (1 − β) Δ_r,      c_k⁺ = mean local gradient
    c ← c + (1/N) Σ (c_k⁺ − c_k),      Δ_{r+1} = mean_k d_k
The server sends drift = β (c − c_k) + (1 − β) Δ_r and solves d_k = β ḡ + drift for the mean
gradient ḡ, so one vector travels each way in addition to the model (exact while no clip is active).
β = 1 is SCAFFOLD; FedWMSAM without perturbation, with fixed α = β and `correction="mean_gradient"`,
is this method. Deviation: c_k starts at 0, not at a mini-batch gradient.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedwmsam.methods.base import Averaging, Cost, Gradient, Info, mean_direction
from fedwmsam.methods.vectors import Vectors
from fedwmsam.settings.options import option


@dataclass(frozen=True)
class SCAFFOLDM(Averaging):
    """Control variates and client-level momentum together."""

    beta: float = option(
        0.1, "β, weight of the corrected gradient against the momentum", above=0.0, high=1.0
    )

    name: ClassVar[str] = "scaffold-m"
    paper: ClassVar[str] = "Cheng et al. 2024"
    cost: ClassVar[Cost] = Cost(backprops=1, down=2, up=1, memory=1)
    means: ClassVar[Mapping[str, str]] = {"c": "c_k"}

    def server_init(self, w: Tensor) -> Vectors:
        return {"w": w, "Delta": torch.zeros_like(w), "c": torch.zeros_like(w)}

    def memory_init(self, w: Tensor) -> Vectors:
        return {"c_k": torch.zeros_like(w)}

    def gradient_offset(self, server: Vectors, memory: Vectors) -> Tensor:
        """Return β (c − c_k) + (1 − β) Δ_r, which every local step adds to β times the gradient."""
        return torch.lerp(server["Delta"], server["c"] - memory["c_k"], self.beta)

    def downlink(self, server: Vectors, memory: Vectors, info: Info) -> Vectors:
        return {"w": server["w"], "drift": self.gradient_offset(server, memory)}

    def direction(
        self, w: Tensor, grad: Gradient, down: Vectors, scratch: Vectors
    ) -> tuple[Tensor, Vectors]:
        return torch.add(down["drift"], grad(w), alpha=self.beta), scratch

    def settle(
        self, server: Vectors, memory: Vectors, up: Vectors, info: Info
    ) -> tuple[Vectors, Vectors]:
        d_k = mean_direction(up["delta"], info)
        c_k = (d_k - self.gradient_offset(server, memory)) / self.beta
        return {"c_k": c_k}, {"delta": up["delta"], "Delta": d_k, "c_k": c_k - memory["c_k"]}

    def aggregate(self, server: Vectors, mean: Vectors, info: Info) -> Vectors:
        c = server["c"] + info.share * mean["c_k"]
        return super().aggregate(server, mean, info) | {"Delta": mean["Delta"], "c": c}
