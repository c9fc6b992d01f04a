"""Server optimizers around FedAvg's clients.

FedAdam: Reddi et al., Adaptive Federated Optimization (ICLR 2021); no bias correction, s_0 = 0:
    m ← β₁ m + (1 − β₁) ū,      s ← β₂ s + (1 − β₂) ū²,      w ← w + η_g m/(√s + τ)
FedAvgM: Hsu et al., Measuring the Effects of Non-Identical Data Distribution (2019):
    m ← β m + ū,      w ← w + η_g m
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedwmsam.methods.base import Info
from fedwmsam.methods.fedavg import FedAvg
from fedwmsam.methods.vectors import Vectors
from fedwmsam.settings.options import option


@dataclass(frozen=True)
class FedAdam(FedAvg):
    """Adam at the server, on the mean update."""

    global_lr: float = option(0.1, "η_g, server step size", low=0.0)
    beta1: float = option(0.9, "β₁, decay rate of the mean update", low=0.0, high=1.0)
    beta2: float = option(0.99, "β₂, decay rate of its square", low=0.0, high=1.0)
    tau: float = option(0.01, "τ, added to √s in the denominator", above=0.0)

    name: ClassVar[str] = "fedadam"
    paper: ClassVar[str] = "Reddi et al. 2021"

    def server_init(self, w: Tensor) -> Vectors:
        return {"w": w, "m": torch.zeros_like(w), "s": torch.zeros_like(w)}

    def aggregate(self, server: Vectors, mean: Vectors, info: Info) -> Vectors:
        m = torch.lerp(mean["delta"], server["m"], self.beta1)
        s = torch.lerp(mean["delta"].square(), server["s"], self.beta2)
        return {"w": server["w"] + self.global_lr * m / (s.sqrt() + self.tau), "m": m, "s": s}


@dataclass(frozen=True)
class FedAvgM(FedAvg):
    """Heavy-ball momentum at the server, on the mean update."""

    beta: float = option(0.4, "β, decay rate of the mean update", low=0.0, high=1.0)

    name: ClassVar[str] = "fedavgm"
    paper: ClassVar[str] = "Hsu et al. 2019"

    def server_init(self, w: Tensor) -> Vectors:
        return {"w": w, "m": torch.zeros_like(w)}

    def aggregate(self, server: Vectors, mean: Vectors, info: Info) -> Vectors:
        m = self.beta * server["m"] + mean["delta"]
        return {"w": server["w"] + self.global_lr * m, "m": m}
