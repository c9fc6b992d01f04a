"""FedProx whose pull fades: an own method, written and run on the digits.

    python examples/fading_prox.py

The pull λ_r (w − w_r) keeps clients together in the first rounds, when their models differ most,
and halves every `half_life` rounds, so that late rounds are FedAvg's:
    w ← w − η (clip(g(w)) + λ_r (w − w_r)),      λ_0 = λ,      λ_{r+1} = λ_r · 2^(−1/half_life)
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

import fedwmsam
from fedwmsam.data import load_dataset, make_partition
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


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 10))


def main() -> None:
    data = load_dataset("digits")
    x, y = data.transform_split(data.train)
    split = make_partition("dirichlet:0.1", y.numpy(), clients=20, seed=0, classes=data.num_classes)
    clients = [(x[rows], y[rows]) for rows in map(torch.from_numpy, split.client_indices)]
    test = data.transform_split(data.test)
    result = fedwmsam.fit(network, clients, FadingProx(lam=0.5), test=test, rounds=30)
    first = result.rows[0]["lam"]
    last = result.rows[-1]["lam"]
    print(f"last accuracy {result.last('accuracy'):.4f}, pull from {first:.3f} down to {last:.3f}")


if __name__ == "__main__":
    main()
