"""FedLESAM-S: Fan et al., Locally Estimated Global Perturbations are Better than Local
Perturbations (ICML 2024).

FedLESAM's perturbation with SCAFFOLD's correction:
    v = g(w + ε) + (c − c_k)
Deviation: the released code weighs the correction by 0.1, an argument meant for another method;
here by 1.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedwmsam.methods.base import Cost, Info
from fedwmsam.methods.fedlesam import LESAMPerturbation
from fedwmsam.methods.scaffold import SCAFFOLD
from fedwmsam.methods.vectors import Vectors
from fedwmsam.settings.options import option


@dataclass(frozen=True)
class FedLESAMS(LESAMPerturbation, SCAFFOLD):
    """SCAFFOLD, perturbed along the path of the global model."""

    correction_weight: float = option(1.0, "weight of c − c_k in a local step", low=0.0)

    name: ClassVar[str] = "fedlesam-s"
    paper: ClassVar[str] = "Fan et al. 2024"
    cost: ClassVar[Cost] = Cost(backprops=1, down=3, up=1, memory=2)

    def downlink(self, server: Vectors, memory: Vectors, info: Info) -> Vectors:
        down = super().downlink(server, memory, info)
        return down | {"correction": self.correction_weight * down["correction"]}
