"""MFL: Liu et al., Accelerating Federated Learning via Momentum Gradient Descent (IEEE Transactions
on Parallel and Distributed Systems 2020).

Clients descend with momentum; the server averages their momenta as it does their models, and sends
both:
    m_k ← γ m_k + g(w),      v = m_k, from m_k = m;      m ← mean_k m_k,      w_{r+1} = w_r + η_g ū
The momentum is in heavy-ball form: steps grow to 1/(1 − γ) times those of FedAvg. The clip
shortens the step and not the momentum.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedwmsam.methods.base import Averaging, Cost, Gradient, Info
from fedwmsam.methods.vectors import Vectors
from fedwmsam.settings.options import option


@dataclass(frozen=True)
class MFL(Averaging):
    """Local momentum that is averaged and goes on in the next round."""

    gamma: float = option(0.9, "γ, decay rate of the clients' momentum", low=0.0, high=0.999)

    name: ClassVar[str] = "mfl"
    paper: ClassVar[str] = "Liu et al. 2020"
    cost: ClassVar[Cost] = Cost(backprops=1, down=2, up=2, memory=0)

    def server_init(self, w: Tensor) -> Vectors:
        return {"w": w, "m": torch.zeros_like(w)}

    def downlink(self, server: Vectors, memory: Vectors, info: Info) -> Vectors:
        return {"w": server["w"], "m": server["m"]}

    def begin(self, down: Vectors, full_gradient: Gradient, info: Info) -> Vectors:
        return {"m_k": down["m"]}

    def direction(
        self, w: Tensor, grad: Gradient, down: Vectors, scratch: Vectors
    ) -> tuple[Tensor, Vectors]:
        m_k = grad(w).add_(scratch["m_k"], alpha=self.gamma)
        return m_k, {"m_k": m_k}

    def uplink(self, delta: Tensor, down: Vectors, scratch: Vectors, info: Info) -> Vectors:
        return {"delta": delta, "m_k": scratch["m_k"]}

    def settle(
        self, server: Vectors, memory: Vectors, up: Vectors, info: Info
    ) -> tuple[Vectors, Vectors]:
        return memory, up

    def aggregate(self, server: Vectors, mean: Vectors, info: Info) -> Vectors:
        return super().aggregate(server, mean, info) | {"m": mean["m_k"]}
