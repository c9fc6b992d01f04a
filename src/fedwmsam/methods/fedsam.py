"""FedSAM: Qu et al., Generalized Federated Learning via Sharpness Aware Minimization (ICML 2022).

g₁ = g(w),      ε = ρ g₁/‖g₁‖,      v = g(w + ε)      same batch twice, one norm over all parameters
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedwmsam.methods.base import Cost, Gradient
from fedwmsam.methods.fedavg import FedAvg
from fedwmsam.methods.vectors import Vectors, step_towards
from fedwmsam.settings.options import option


def sam_gradient(grad: Gradient, rho: float) -> Gradient:
    """Return a gradient function that takes the gradient after an ascent step of length ρ.

    It turns any method into that method with SAM; each call costs two backprops.
    """
    return lambda w: grad(step_towards(w, grad(w), rho, tau=1e-7, reuse=True))


@dataclass(frozen=True)
class FedSAM(FedAvg):
    """FedAvg whose local steps are SAM steps."""

    rho: float = option(0.01, "ρ, radius of the SAM perturbation", low=0.0)

    name: ClassVar[str] = "fedsam"
    paper: ClassVar[str] = "Qu et al. 2022"
    cost: ClassVar[Cost] = Cost(backprops=2, down=1, up=1, memory=0)
    needs_own_steps: ClassVar[str] = "all that tells it from FedAvg are its clients' SAM steps"

    def direction(
        self, w: Tensor, grad: Gradient, down: Vectors, scratch: Vectors
    ) -> tuple[Tensor, Vectors]:
        return super().direction(w, sam_gradient(grad, self.rho), down, scratch)
