"""FedProx: Li et al., Federated Optimization in Heterogeneous Networks (MLSys 2020).

    w ← w − η (clip(g(w)) + λ (w − w_r))
Deviation: published simulators split the pull between the clipped direction and weight decay, which
adds a spurious decay whenever the clip is active; here it is one term, after the clip.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedwmsam.methods.fedavg import FedAvg
from fedwmsam.methods.vectors import Vectors
from fedwmsam.settings.options import option


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg with a pull back to the global model."""

    lam: float = option(0.1, "λ, strength of the proximal pull", low=0.0)

    name: ClassVar[str] = "fedprox"
    paper: ClassVar[str] = "Li et al. 2020"

    def pull(self, w: Tensor, down: Vectors) -> Tensor:
        return self.lam * (w - down["w"])
