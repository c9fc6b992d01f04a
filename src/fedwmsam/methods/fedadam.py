"""Server optimizers around FedAvg's clients.

FedAdagrad, FedAdam and FedYogi: Reddi et al., Adaptive Federated Optimization (ICLR 2021); no bias
correction, s_0 = 0:
    m ← β₁ m + (1 − β₁) ū,      w ← w + η_g m/(√s + τ)
    Adagrad   s ← s + ū²
    Adam      s ← β₂ s + (1 − β₂) ū²
    Yogi      s ← s − (1 − β₂) ū² sign(s − ū²)
FedAvgM: Hsu et al., Measuring the Effects of Non-Identical Data Distribution (2019):
    m ← β m + ū,      w ← w + η_g m
"""

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedwmsam.methods.base import Info
from fedwmsam.methods.fedavg import FedAvg
from fedwmsam.methods.vectors import Vectors
from fedwmsam.settings.options import option


@dataclass(frozen=True)
class AdaptiveServer(FedAvg):
    """A step per coordinate at the server, by the size of its past updates."""

    global_lr: float = option(0.1, "η_g, server step size", low=0.0)
    beta1: float = option(0.9, "β₁, decay rate of the mean update", low=0.0, high=1.0)
    _: KW_ONLY  # a value that is passed by position must not mean τ here and β₂ there
    tau: float = option(0.01, "τ, added to √s in the denominator", above=0.0)

    def next_s(self, s: Tensor, square: Tensor) -> Tensor:
        """Return the next s, from the last one and the square of the mean update."""
        raise AssertionError(f"{type(self).__name__} defines no next_s")

    def server_init(self, w: Tensor) -> Vectors:
        return {"w": w, "m": torch.zeros_like(w), "s": torch.zeros_like(w)}

    def aggregate(self, server: Vectors, mean: Vectors, info: Info) -> Vectors:
        m = torch.lerp(mean["delta"], server["m"], self.beta1)
        s = self.next_s(server["s"], mean["delta"].square())
        return {"w": server["w"] + self.global_lr * m / (s.sqrt() + self.tau), "m": m, "s": s}


@dataclass(frozen=True)
class FedAdagrad(AdaptiveServer):
    """Adagrad at the server, on the mean update."""

    beta1: float = option(0.0, "β₁, decay rate of the mean update", low=0.0, high=1.0)

    name: ClassVar[str] = "fedadagrad"
    paper: ClassVar[str] = "Reddi et al. 2021"

    def next_s(self, s: Tensor, square: Tensor) -> Tensor:
        return s + square


@dataclass(frozen=True)
class FedAdam(AdaptiveServer):
    """Adam at the server, on the mean update."""

    beta2: float = option(0.99, "β₂, decay rate of its square", low=0.0, high=1.0)

    name: ClassVar[str] = "fedadam"
    paper: ClassVar[str] = "Reddi et al. 2021"

    def next_s(self, s: Tensor, square: Tensor) -> Tensor:
        return torch.lerp(square, s, self.beta2)


@dataclass(frozen=True)
class FedYogi(FedAdam):
    """Yogi at the server, on the mean update: Adam whose s cannot fall at once."""

    name: ClassVar[str] = "fedyogi"

    def next_s(self, s: Tensor, square: Tensor) -> Tensor:
        return s - (1 - self.beta2) * square * torch.sign(s - square)


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
