"""FedLESAM: Fan et al., Locally Estimated Global Perturbations are Better than Local
Perturbations (ICML 2024).

The perturbation points back along the way that the global model came since the client last saw it,
and is fixed during the round:
    ε = ρ (z_k − w_r)/‖z_k − w_r‖,      v = g(w + ε),      then z_k ← w_r
It is zero at a client's first participation. Deviations from the released code, which differs from
its paper: z_k is the model of the client's own last round (its code: of the last round of all;
`reference="last_round"`), there is one L2 norm over all parameters (its code: a sum of norms per
tensor), and every coordinate has its own value (its code indexes the flat vector by tensor number).
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedwmsam.methods.base import Cost, Gradient, Info, Method
from fedwmsam.methods.fedavg import FedAvg
from fedwmsam.methods.vectors import Vectors, unit
from fedwmsam.settings.options import option


@dataclass(frozen=True)
class LESAMPerturbation(Method):
    """A mixin that adds the perturbation to any method: its gradients are taken at w + ε."""

    needs_own_steps: ClassVar[str] = "its clients take their gradients at w + ε"

    rho: float = option(0.01, "ρ, radius of the SAM perturbation", low=0.0)
    reference: str = option(
        "last_active", "the older model ε points to", choices=("last_active", "last_round")
    )

    def server_init(self, w: Tensor) -> Vectors:
        server = super().server_init(w)
        return server | {"z": w} if self.reference == "last_round" else server

    def memory_init(self, w: Tensor) -> Vectors:
        memory = super().memory_init(w)
        return memory | {"z_k": w} if self.reference == "last_active" else memory

    def downlink(self, server: Vectors, memory: Vectors, info: Info) -> Vectors:
        z = memory["z_k"] if self.reference == "last_active" else server["z"]
        eps = self.rho * unit(z - server["w"], tau=1e-12)
        return super().downlink(server, memory, info) | {"eps": eps}

    def direction(
        self, w: Tensor, grad: Gradient, down: Vectors, scratch: Vectors
    ) -> tuple[Tensor, Vectors]:
        return super().direction(w, lambda at: grad(at + down["eps"]), down, scratch)

    def settle(
        self, server: Vectors, memory: Vectors, up: Vectors, info: Info
    ) -> tuple[Vectors, Vectors]:
        memory, contribution = super().settle(server, memory, up, info)
        if self.reference == "last_active":
            memory = memory | {"z_k": server["w"]}
        return memory, contribution

    def aggregate(self, server: Vectors, mean: Vectors, info: Info) -> Vectors:
        after = super().aggregate(server, mean, info)
        return after | {"z": server["w"]} if self.reference == "last_round" else after


@dataclass(frozen=True)
class FedLESAM(LESAMPerturbation, FedAvg):
    """FedAvg, perturbed along the path of the global model."""

    name: ClassVar[str] = "fedlesam"
    paper: ClassVar[str] = "Fan et al. 2024"
    cost: ClassVar[Cost] = Cost(backprops=1, down=2, up=1, memory=1)
