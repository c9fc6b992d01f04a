"""FedSMOO: Sun et al., Dynamic Regularized Sharpness Aware Minimization in Federated Learning
(ICML 2023).

FedDyn with a perturbation that clients agree on through a second dual μ_k and a global one, s:
    q = g(w) − μ_k − s,      ε = ρ q/‖q‖,      μ_k ← μ_k + ε − s      at every step
    w ← w − η (clip(g(w + ε) + λ h_k) + λ (w − w_r)),      s ← ρ m/‖m‖,  m = mean_{P_r} μ_k
Deviation from the paper, as in public code: the last local ε is not added to μ_k before the
server's mean.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedwmsam.methods.base import Cost, Gradient, Info
from fedwmsam.methods.feddyn import FedDyn
from fedwmsam.methods.vectors import Vectors, unit
from fedwmsam.settings.options import option


@dataclass(frozen=True)
class FedSMOO(FedDyn):
    """Dynamic regularisation of both the model and the SAM perturbation."""

    rho: float = option(0.1, "ρ, radius of the SAM perturbation", low=0.0)

    name: ClassVar[str] = "fedsmoo"
    paper: ClassVar[str] = "Sun et al. 2023b"
    cost: ClassVar[Cost] = Cost(backprops=2, down=4, up=2, memory=2)

    def server_init(self, w: Tensor) -> Vectors:
        return super().server_init(w) | {"s": torch.zeros_like(w)}

    def memory_init(self, w: Tensor) -> Vectors:
        return super().memory_init(w) | {"mu_k": torch.zeros_like(w)}

    def downlink(self, server: Vectors, memory: Vectors, info: Info) -> Vectors:
        return super().downlink(server, memory, info) | {"mu_k": memory["mu_k"], "s": server["s"]}

    def begin(self, down: Vectors, full_gradient: Gradient, info: Info) -> Vectors:
        return {"mu_k": down["mu_k"]}

    def direction(
        self, w: Tensor, grad: Gradient, down: Vectors, scratch: Vectors
    ) -> tuple[Tensor, Vectors]:
        eps = self.rho * unit(grad(w) - scratch["mu_k"] - down["s"], tau=1e-7)
        v, _ = super().direction(w + eps, grad, down, scratch)
        return v, {"mu_k": scratch["mu_k"] + eps - down["s"]}

    def uplink(self, delta: Tensor, down: Vectors, scratch: Vectors, info: Info) -> Vectors:
        return {"delta": delta, "mu_k": scratch["mu_k"]}

    def settle(
        self, server: Vectors, memory: Vectors, up: Vectors, info: Info
    ) -> tuple[Vectors, Vectors]:
        memory, contribution = super().settle(server, memory, up, info)
        return memory | {"mu_k": up["mu_k"]}, contribution | {"mu_k": up["mu_k"]}

    def aggregate(self, server: Vectors, mean: Vectors, info: Info) -> Vectors:
        s = self.rho * unit(mean["mu_k"], tau=1e-7)
        return super().aggregate(server, mean, info) | {"s": s}
