"""FedExP: Jhunjhunwala et al., FedExP: Speeding up Federated Averaging via Extrapolation
(ICLR 2023).

The more the clients' updates disagree, the shorter is their mean beside them, and the further the
server goes along it:
    v = g(w),      η_g = max(1, mean_k ‖u_k‖² / (2 (‖ū‖² + ε))),      w_{r+1} = w_r + η_g ū
The step is never shorter than FedAvg's. Deviations from the released code: ε is a constant (there
it is proportional to the number of clients and shrinks as the squared step size does), and w_{r+1}
is evaluated (there the mean of w_{r+1} and w_r; `twin` gives an averaged model beside it).
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedwmsam.methods.base import Gradient, Info, Method
from fedwmsam.methods.vectors import Vectors
from fedwmsam.settings.options import option


@dataclass(frozen=True)
class FedExP(Method):
    """FedAvg whose server goes further along the mean update, the more the updates disagree."""

    epsilon: float = option(
        0.001, "ε, added to ‖ū‖², in whose units it is; a large one gives FedAvg", low=0.0
    )

    name: ClassVar[str] = "fedexp"
    paper: ClassVar[str] = "Jhunjhunwala et al. 2023"
    needs_own_steps: ClassVar[str] = ""

    def direction(
        self, w: Tensor, grad: Gradient, down: Vectors, scratch: Vectors
    ) -> tuple[Tensor, Vectors]:
        return grad(w), scratch

    def settle(
        self, server: Vectors, memory: Vectors, up: Vectors, info: Info
    ) -> tuple[Vectors, Vectors]:
        return memory, {"delta": up["delta"], "squared_norm": squared_norm(up["delta"])}

    def aggregate(self, server: Vectors, mean: Vectors, info: Info) -> Vectors:
        return {"w": server["w"] + self.extrapolation(mean) * mean["delta"]}

    def extrapolation(self, mean: Vectors) -> Tensor:
        """Return η_g of a round; it is 1 if no client has moved."""
        eta_g = mean["squared_norm"] / (2 * (squared_norm(mean["delta"]) + self.epsilon))
        return eta_g.nan_to_num(nan=1.0, posinf=1.0).clamp(min=1.0)


def squared_norm(v: Tensor) -> Tensor:
    """Return ‖v‖² as a single number."""
    return v.dot(v)
