"""MoFedSAM: Qu et al., Generalized Federated Learning via Sharpness Aware Minimization (ICML 2022).

FedCM with SAM; the perturbation comes from the loss gradient alone, momentum not included:
    ε = ρ g₁/‖g₁‖,      v = α g(w + ε) + (1 − α) Δ_r
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedwmsam.methods.base import Cost, Gradient
from fedwmsam.methods.fedcm import FedCM
from fedwmsam.methods.fedsam import sam_gradient
from fedwmsam.methods.vectors import Vectors
from fedwmsam.settings.options import option


@dataclass(frozen=True)
class MoFedSAM(FedCM):
    """Client-level momentum whose fresh gradient is a SAM gradient."""

    rho: float = option(0.01, "ρ, radius of the SAM perturbation", low=0.0)

    name: ClassVar[str] = "mofedsam"
    paper: ClassVar[str] = "Qu et al. 2022"
    cost: ClassVar[Cost] = Cost(backprops=2, down=2, up=1, memory=0)

    def direction(
        self, w: Tensor, grad: Gradient, down: Vectors, scratch: Vectors
    ) -> tuple[Tensor, Vectors]:
        return super().direction(w, sam_gradient(grad, self.rho), down, scratch)
