"""FedSpeed: Sun et al., FedSpeed: Larger Local Interval, Less Communication Round, Higher
Generalization (ICLR 2023).

FedDyn with SAM (the paper's gradient merge with weight 1, as in its experiments):
    ε = ρ g₁/‖g₁‖,      w ← w − η (clip(g(w + ε) + λ h_k) + λ (w − w_r))
The paper's server averages w_B + h_k over the participants; public code adds the mean h of all
clients instead.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedwmsam.methods.base import Cost, Gradient, Info
from fedwmsam.methods.feddyn import FedDyn
from fedwmsam.methods.fedsam import sam_gradient
from fedwmsam.methods.vectors import Vectors
from fedwmsam.settings.options import option


@dataclass(frozen=True)
class FedSpeed(FedDyn):
    """Dynamic regularisation on top of SAM gradients."""

    rho: float = option(0.1, "ρ, radius of the SAM perturbation", low=0.0)
    server_dual: str = option(
        "all", "whose h_k amend the server's model", choices=("all", "participants")
    )

    name: ClassVar[str] = "fedspeed"
    paper: ClassVar[str] = "Sun et al. 2023a"
    cost: ClassVar[Cost] = Cost(backprops=2, down=2, up=1, memory=1)

    def direction(
        self, w: Tensor, grad: Gradient, down: Vectors, scratch: Vectors
    ) -> tuple[Tensor, Vectors]:
        return super().direction(w, sam_gradient(grad, self.rho), down, scratch)

    def settle(
        self, server: Vectors, memory: Vectors, up: Vectors, info: Info
    ) -> tuple[Vectors, Vectors]:
        memory, contribution = super().settle(server, memory, up, info)
        if self.server_dual == "participants":
            contribution = contribution | {"h_k": memory["h_k"]}
        return memory, contribution

    def aggregate(self, server: Vectors, mean: Vectors, info: Info) -> Vectors:
        after = super().aggregate(server, mean, info)
        if self.server_dual == "participants":
            after["w"] = server["w"] + mean["delta"] + mean["h_k"]
        return after
