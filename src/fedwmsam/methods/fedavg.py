"""FedAvg: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data
(AISTATS 2017).

    v = g(w),      w_{r+1} = w_r + η_g ū
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedwmsam.methods.base import Averaging, Gradient
from fedwmsam.methods.vectors import Vectors


@dataclass(frozen=True)
class FedAvg(Averaging):
    """Local SGD; the server averages the updates."""

    name: ClassVar[str] = "fedavg"
    paper: ClassVar[str] = "McMahan et al. 2017"
    needs_own_steps: ClassVar[str] = ""

    def direction(
        self, w: Tensor, grad: Gradient, down: Vectors, scratch: Vectors
    ) -> tuple[Tensor, Vectors]:
        return grad(w), scratch
