"""FedACG: Kim et al., Communication-Efficient Federated Learning with Accelerated Client Gradient
(CVPR 2024).

Clients start at a look-ahead y_r and are pulled towards it; nothing but y_r travels down:
    y_r = w_r + λ m_r,      w ← w − η (clip(g(w)) + 2β (w − y_r))
    m ← λ m + ū,      w_{r+1} = w_r + m_{r+1}
The server's step has no size of its own. Deviation: the pull is added after the clip (see FedProx).
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedwmsam.methods.base import Gradient, Info, Method
from fedwmsam.methods.vectors import Vectors
from fedwmsam.settings.options import option


@dataclass(frozen=True)
class FedACG(Method):
    """Server momentum that clients see as a look-ahead model."""

    lam: float = option(0.85, "λ, memory of the server's momentum", low=0.0, high=1.0)
    beta: float = option(0.001, "β, strength of the pull towards the look-ahead", low=0.0)

    name: ClassVar[str] = "fedacg"
    paper: ClassVar[str] = "Kim et al. 2024"
    needs_own_steps: ClassVar[str] = ""

    def server_init(self, w: Tensor) -> Vectors:
        return {"w": w, "m": torch.zeros_like(w)}

    def downlink(self, server: Vectors, memory: Vectors, info: Info) -> Vectors:
        return {"w": server["w"] + self.lam * server["m"]}

    def direction(
        self, w: Tensor, grad: Gradient, down: Vectors, scratch: Vectors
    ) -> tuple[Tensor, Vectors]:
        return grad(w), scratch

    def pull(self, w: Tensor, down: Vectors) -> Tensor:
        return 2 * self.beta * (w - down["w"])

    def aggregate(self, server: Vectors, mean: Vectors, info: Info) -> Vectors:
        m = self.lam * server["m"] + mean["delta"]
        return {"w": server["w"] + m, "m": m}
