"""FedGAMMA: Dai et al., FedGAMMA: Federated Learning with Global Sharpness-Aware Minimization
(TNNLS 2023).

SCAFFOLD with SAM; the perturbation comes from the local loss gradient:
    ε = ρ g₁/‖g₁‖,      v = g(w + ε) + (c − c_k)
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedwmsam.methods.base import Cost, Gradient
from fedwmsam.methods.fedsam import sam_gradient
from fedwmsam.methods.scaffold import SCAFFOLD
from fedwmsam.methods.vectors import Vectors
from fedwmsam.settings.options import option


@dataclass(frozen=True)
class FedGAMMA(SCAFFOLD):
    """Control variates on top of SAM gradients."""

    rho: float = option(0.01, "ρ, radius of the SAM perturbation", low=0.0)

    name: ClassVar[str] = "fedgamma"
    paper: ClassVar[str] = "Dai et al. 2023"
    cost: ClassVar[Cost] = Cost(backprops=2, down=2, up=1, memory=1)

    def direction(
        self, w: Tensor, grad: Gradient, down: Vectors, scratch: Vectors
    ) -> tuple[Tensor, Vectors]:
        return super().direction(w, sam_gradient(grad, self.rho), down, scratch)
