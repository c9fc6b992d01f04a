"""FedProx whose pull fades: a method of one's own, in a folder of its own.

The pull λ_r (w − w_r) keeps clients together in the first rounds, when their models differ most,
and halves every `half_life` rounds, so that late rounds are FedAvg's:
    w ← w − η (clip(g(w)) + λ_r (w − w_r)),      λ_0 = λ,      λ_{r+1} = λ_r · 2^(−1/half_life)
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedwmsam.methods import Averaging, Cost, Gradient, Info, Vectors, option


@dataclass(frozen=True)
class FadingProx(Averaging):
    """FedAvg with a pull back to the global model that halves every few rounds."""

    lam: float = option(0.1, "λ, strength of the pull in the first round", low=0.0)
    half_life: float = option(10.0, "rounds after which the pull is half as strong", above=0.0)

    name: ClassVar[str] = "fading-prox"
    paper: ClassVar[str] = "an example"
    cost: ClassVar[Cost] = Cost(backprops=1, down=1, up=1, memory=0, down_scalars=1)

    def server_init(self, w: Tensor) -> Vectors:
        return {"w": w, "lam": w.new_tensor(self.lam)}

    def downlink(self, server: Vectors, memory: Vectors, info: Info) -> Vectors:
        return {"w": server["w"], "lam": server["lam"]}

    def direction(
        self, w: Tensor, grad: Gradient, down: Vectors, scratch: Vectors
    ) -> tuple[Tensor, Vectors]:
        return grad(w), scratch

    def pull(self, w: Tensor, down: Vectors) -> Tensor:
        return down["lam"] * (w - down["w"])

    def aggregate(self, server: Vectors, mean: Vectors, info: Info) -> Vectors:
        return super().aggregate(server, mean, info) | {
            "lam": server["lam"] * 0.5 ** (1 / self.half_life)
        }
