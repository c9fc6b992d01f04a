"""FedGloSS: Caldarola et al., Beyond Local Sharpness: Communication-Efficient Global
Sharpness-aware Minimization for Federated Learning (CVPR 2025).

SAM at the server: clients start from a model perturbed along the last pseudo-gradient q (ascent
sign), and a dual σ_k keeps them consistent:
    w̃_r = w_r + ρ_r q/‖q‖,      w ← w − η (clip(g(w) − σ_k) + (w − w̃_r)/β)
    σ_k ← σ_k − u_k/β,      q = −ū,      σ ← σ − (1/βN) Σ u_k
    w_{r+1} = w_r − η_g q − β σ      from the unperturbed w_r
With `rho_local` > 0 the local gradient is a SAM gradient as well. Both radii grow linearly over the
first T_s rounds. Deviations: the pull is added after the clip; σ has no further 1/S (its code has
one, its algorithm has not).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedwmsam.methods.base import Averaging, Cost, Gradient, Info
from fedwmsam.methods.fedsam import sam_gradient
from fedwmsam.methods.vectors import Vectors, step_towards
from fedwmsam.settings.options import option


@dataclass(frozen=True)
class FedGloSS(Averaging):
    """Global SAM by a perturbation at the server, with FedDyn-like duals."""

    rho: float = option(0.15, "ρ, radius of the server's perturbation", low=0.0)
    rho_local: float = option(
        0.0, "radius of the clients' own SAM (0: plain gradients, one backprop)", low=0.0
    )
    beta: float = option(10.0, "β, inverse strength of the pull and of the duals", above=0.0)
    warmup: int = option(0, "T_s, rounds over which ρ grows from 0.001", low=0, high=10**9)

    name: ClassVar[str] = "fedgloss"
    paper: ClassVar[str] = "Caldarola et al. 2025"
    cost: ClassVar[Cost] = Cost(backprops=1, down=2, up=1, memory=1)
    means: ClassVar[Mapping[str, str]] = {"sigma": "sigma_k"}

    def server_init(self, w: Tensor) -> Vectors:
        return {"w": w, "q": torch.zeros_like(w), "sigma": torch.zeros_like(w)}

    def memory_init(self, w: Tensor) -> Vectors:
        return {"sigma_k": torch.zeros_like(w)}

    def radius(self, rho: float, round: int) -> float:
        """Return the radius in a round: ρ, or less than that while it is still growing."""
        if round >= self.warmup or rho <= 0.001:
            return rho
        return 0.001 + (rho - 0.001) * round / self.warmup

    def downlink(self, server: Vectors, memory: Vectors, info: Info) -> Vectors:
        w = step_towards(server["w"], server["q"], self.radius(self.rho, info.round), tau=1e-12)
        return {"w": w, "sigma_k": memory["sigma_k"]}

    def begin(self, down: Vectors, full_gradient: Gradient, info: Info) -> Vectors:
        rho = self.radius(self.rho_local, info.round)
        return {"rho_local": torch.tensor(rho, dtype=down["w"].dtype)}

    def direction(
        self, w: Tensor, grad: Gradient, down: Vectors, scratch: Vectors
    ) -> tuple[Tensor, Vectors]:
        local = sam_gradient(grad, float(scratch["rho_local"])) if self.rho_local else grad
        return local(w) - down["sigma_k"], scratch

    def pull(self, w: Tensor, down: Vectors) -> Tensor:
        return (w - down["w"]) / self.beta

    def settle(
        self, server: Vectors, memory: Vectors, up: Vectors, info: Info
    ) -> tuple[Vectors, Vectors]:
        return {"sigma_k": memory["sigma_k"] - up["delta"] / self.beta}, {"delta": up["delta"]}

    def aggregate(self, server: Vectors, mean: Vectors, info: Info) -> Vectors:
        sigma = server["sigma"] - info.share / self.beta * mean["delta"]
        w = super().aggregate(server, mean, info)["w"] - self.beta * sigma
        return {"w": w, "q": -mean["delta"], "sigma": sigma}
