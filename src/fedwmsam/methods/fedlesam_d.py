"""FedLESAM-D: Fan et al., Locally Estimated Global Perturbations are Better than Local
Perturbations (ICML 2024).

FedLESAM's perturbation with FedDyn's regularisation:
    w ← w − η (clip(g(w + ε) + λ h_k) + λ (w − w_r))
"""

from dataclasses import dataclass
from typing import ClassVar

from fedwmsam.methods.base import Cost
from fedwmsam.methods.feddyn import FedDyn
from fedwmsam.methods.fedlesam import LESAMPerturbation


@dataclass(frozen=True)
class FedLESAMD(LESAMPerturbation, FedDyn):
    """FedDyn, perturbed along the path of the global model."""

    name: ClassVar[str] = "fedlesam-d"
    paper: ClassVar[str] = "Fan et al. 2024"
    cost: ClassVar[Cost] = Cost(backprops=1, down=3, up=1, memory=2)
