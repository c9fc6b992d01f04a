"""FedWMSAM: Li et al., A Fast and Flat Federated Learning Method via Weighted Momentum and SAM
(NeurIPS 2025).

One round, with every vector in gradient units except positions (w, t) and updates (u):
    Eq. 1   m_k = Δ_r + α_r/(1 − α_r) · (c − c_k)         personalized momentum, sent to client k
    Alg. 1  t_b = w_0 − η b m_k                           where the momentum alone would have led
            ε = ρ · (t_b − w_b)/‖t_b − w_b‖
    Eq. 2   v = α_r g(w_b + ε) + (1 − α_r) m_k            the step's only backprop
            w_{b+1} = w_b − η v,   u_k = w_B − w_0
    Eq. 3   α̂ = mean_k cos(Δ_r, m_k)
    Eq. 4   α_{r+1} = (1 − λ) α_r + λ · clip(α̂, α_min, α_max)
    Eq. 5   c_k⁺ = c_k − c + d_k,   c ← c + (1/N) Σ (c_k⁺ − c_k)
            Δ_{r+1} = mean_k d_k,   d_k = −u_k/(η B_k),   w_{r+1} = w_r + η_g · mean_k u_k

Where the printed paper contradicts itself we read: Δ with the sign and size of a gradient (as
printed it ascends), c − c_k in Eq. 1 (its proof), 1/N in Eq. 5 (so that c stays the mean of the
c_k), and the target t_b as the point that the momentum leads to (as printed, t_b = w_0 + b m_k, ε
becomes a descent direction of the client's own loss, and climbs the federation's).
docs/methods/fedwmsam.md tells why.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedwmsam.errors import InputError
from fedwmsam.methods.base import Averaging, Cost, Gradient, Info, mean_direction
from fedwmsam.methods.vectors import Vectors, cosine, lerp_into_end, step_towards
from fedwmsam.settings.options import option


@dataclass(frozen=True)
class FedWMSAM(Averaging):
    """Personalized momentum, SAM along it at one backprop a step, and an adaptive weight between
    the two."""

    rho: float = option(0.01, "ρ, radius of the SAM perturbation", low=0.0)
    alpha: float = option(
        0.1, "α_0, first weight of the fresh gradient against the momentum", low=0.001, high=0.999
    )
    alpha_min: float = option(0.1, "lower bound of α", low=0.001, high=0.999)
    alpha_max: float = option(0.9, "upper bound of α", low=0.001, high=0.999)
    adapt_rate: float = option(0.01, "λ, how fast α follows the similarity", low=0.0, high=1.0)
    perturbation: str = option(
        "trajectory",
        "what SAM ascends along",
        choices=("trajectory", "literal", "momentum", "none"),
    )
    similarity: str = option(
        "personalized", "what drives α", choices=("personalized", "update", "disagreement", "fixed")
    )
    correction: str = option(
        "scaffold", "how c_k is refreshed", choices=("scaffold", "mean_gradient", "none")
    )

    name: ClassVar[str] = "fedwmsam"
    paper: ClassVar[str] = "Li et al. 2025"
    cost: ClassVar[Cost] = Cost(backprops=1, down=2, up=1, memory=1, down_scalars=1)
    means: ClassVar[Mapping[str, str]] = {"c": "c_k"}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alpha_min > self.alpha_max:
            raise InputError(
                f"fedwmsam: alpha_min {self.alpha_min:g} "
                f"must not be above alpha_max {self.alpha_max:g}."
            )

    def server_init(self, w: Tensor) -> Vectors:
        zero = torch.zeros_like(w)
        return {"w": w, "Delta": zero, "c": zero, "alpha": w.new_tensor(self.alpha)}

    def memory_init(self, w: Tensor) -> Vectors:
        return {} if self.correction == "none" else {"c_k": torch.zeros_like(w)}

    def momentum(self, server: Vectors, memory: Vectors) -> Tensor:
        """Return m_k, the personalized momentum of Eq. 1."""
        if self.correction == "none":
            return server["Delta"]
        weight = server["alpha"] / (1 - server["alpha"])
        return (server["c"] - memory["c_k"]).mul_(weight).add_(server["Delta"])

    def downlink(self, server: Vectors, memory: Vectors, info: Info) -> Vectors:
        down = {"w": server["w"], "m": self.momentum(server, memory), "alpha": server["alpha"]}
        return down | {"Delta": server["Delta"]} if self.perturbation == "momentum" else down

    def begin(self, down: Vectors, full_gradient: Gradient, info: Info) -> Vectors:
        # The target t_b moves by `pace` times m_k in each step.
        pace = 1.0 if self.perturbation == "literal" else -info.lr
        return {"b": torch.tensor(0.0), "pace": torch.tensor(pace, dtype=torch.float64)}

    def direction(
        self, w: Tensor, grad: Gradient, down: Vectors, scratch: Vectors
    ) -> tuple[Tensor, Vectors]:
        """Return v of Eq. 2, and the scratch state with b increased by one."""
        point = w
        if self.perturbation == "momentum":
            point = step_towards(w, down["Delta"], self.rho, tau=1e-12)
        elif self.perturbation != "none":
            offset = self.target_offset(w, down, scratch)
            point = step_towards(w, offset, self.rho, tau=1e-12, reuse=True)
            scratch = scratch | {"b": scratch["b"] + 1}
        return lerp_into_end(down["m"], grad(point), down["alpha"]), scratch

    def target_offset(self, w: Tensor, down: Vectors, scratch: Vectors) -> Tensor:
        """Return t_b − w_b, along which ε points, as a new tensor."""
        return torch.sub(down["w"], w).add_(down["m"], alpha=float(scratch["b"] * scratch["pace"]))

    def settle(
        self, server: Vectors, memory: Vectors, up: Vectors, info: Info
    ) -> tuple[Vectors, Vectors]:
        d_k = mean_direction(up["delta"], info)
        m_k = self.momentum(server, memory)
        alpha = server["alpha"]
        contribution = {
            "delta": up["delta"],
            "Delta": d_k,
            "similarity": self.client_similarity(server["Delta"], m_k, d_k),
        }
        if self.correction == "none":
            return memory, contribution
        c_k = memory["c_k"] - server["c"] + d_k
        if self.correction == "mean_gradient":
            # The mean ḡ of the local gradients, solved from d_k = α ḡ + (1 − α) m_k.
            c_k = (d_k - (1 - alpha) * m_k) / alpha
        return {"c_k": c_k}, contribution | {"c_k": c_k - memory["c_k"]}

    def client_similarity(self, Delta: Tensor, m_k: Tensor, d_k: Tensor) -> Tensor:
        """Return the similarity of Eq. 3 for one client.

        By every rule it is 0 while there is no momentum.
        """
        if self.similarity in ("personalized", "fixed"):
            return cosine(Delta, m_k)
        if self.similarity == "update":
            return cosine(Delta, d_k)
        return torch.where((Delta != 0).any(dim=-1), 1 - cosine(Delta, d_k), 0.0)

    def aggregate(self, server: Vectors, mean: Vectors, info: Info) -> Vectors:
        alpha = server["alpha"]
        c = server["c"]
        if self.similarity != "fixed":  # Eq. 4
            target = mean["similarity"].clamp(self.alpha_min, self.alpha_max)
            alpha = (1 - self.adapt_rate) * alpha + self.adapt_rate * target
        if self.correction != "none":  # Eq. 5
            c = c + info.share * mean["c_k"]
        after = super().aggregate(server, mean, info)
        return after | {"Delta": mean["Delta"], "c": c, "alpha": alpha}
