"""GHBM and its relatives: Zaccone et al., Communication-Efficient Heterogeneous Federated Learning
with Generalized Heavy-Ball Momentum (2023).

Every local step is pushed along the way that the global model went over several rounds, so that the
momentum has seen more clients than one round has:
    v = g(w) + β/(η B_k) · m
    GHBM         m = (w_{r−τ} − w_r)/τ              the same for all; zero in the first τ rounds
    LocalGHBM    m = C (z_k − w_r),  C = |P_r|/N    z_k: the global model that client k last got
    FedHBM       m = C (z_k − w), anew each step    z_k: the model that client k last ended with
In one round the push alone would lead β m further. m is zero for a client that is new. The fresh
gradient is not damped, so steps grow to 1/(1 − β) times those of FedAvg. Deviation: the authors'
β = 1 for FedHBM diverges where all clients take part, so that its default is 0.8.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedwmsam.methods.base import Averaging, Cost, Gradient, Info
from fedwmsam.methods.vectors import Vectors
from fedwmsam.settings.options import option


@dataclass(frozen=True)
class FixedPush(Averaging):
    """The local step of GHBM and LocalGHBM: the gradient and a push that is fixed in the round."""

    beta: float = option(0.9, "β, how much of the past movement a round repeats", low=0.0)

    cost: ClassVar[Cost] = Cost(backprops=1, down=2, up=1, memory=0)

    def begin(self, down: Vectors, full_gradient: Gradient, info: Info) -> Vectors:
        return {"push": self.beta / (info.lr * info.steps) * down["m"]}

    def direction(
        self, w: Tensor, grad: Gradient, down: Vectors, scratch: Vectors
    ) -> tuple[Tensor, Vectors]:
        return grad(w).add_(scratch["push"]), scratch


@dataclass(frozen=True)
class GHBM(FixedPush):
    """Heavy-ball momentum over several rounds, in every local step."""

    tau: int = option(
        10, "τ, rounds that the momentum reaches back, best 1/participation", low=1, high=1000
    )

    name: ClassVar[str] = "ghbm"
    paper: ClassVar[str] = "Zaccone et al. 2023"

    def server_init(self, w: Tensor) -> Vectors:
        """Return the model and z_1 … z_τ, the models one to τ rounds ago."""
        return {"w": w} | {f"z_{age}": w for age in range(1, self.tau + 1)}

    def downlink(self, server: Vectors, memory: Vectors, info: Info) -> Vectors:
        if info.round < self.tau:
            return {"w": server["w"], "m": torch.zeros_like(server["w"])}
        return {"w": server["w"], "m": (server[f"z_{self.tau}"] - server["w"]) / self.tau}

    def aggregate(self, server: Vectors, mean: Vectors, info: Info) -> Vectors:
        older = {f"z_{age}": server[f"z_{age - 1}"] for age in range(2, self.tau + 1)}
        return super().aggregate(server, mean, info) | {"z_1": server["w"]} | older


@dataclass(frozen=True)
class LocalGHBM(FixedPush):
    """GHBM whose momentum reaches back to the round in which the client last took part."""

    name: ClassVar[str] = "localghbm"
    paper: ClassVar[str] = "Zaccone et al. 2023"
    cost: ClassVar[Cost] = Cost(backprops=1, down=2, up=1, memory=1)

    def memory_init(self, w: Tensor) -> Vectors:
        return {"z_k": w}

    def downlink(self, server: Vectors, memory: Vectors, info: Info) -> Vectors:
        return {"w": server["w"], "m": info.share * (memory["z_k"] - server["w"])}

    def settle(
        self, server: Vectors, memory: Vectors, up: Vectors, info: Info
    ) -> tuple[Vectors, Vectors]:
        return {"z_k": server["w"]}, {"delta": up["delta"]}


@dataclass(frozen=True)
class FedHBM(Averaging):
    """Momentum away from the model with which the client last ended."""

    beta: float = option(0.8, "β, how much of the past movement a round repeats", low=0.0)

    name: ClassVar[str] = "fedhbm"
    paper: ClassVar[str] = "Zaccone et al. 2023"
    cost: ClassVar[Cost] = Cost(
        backprops=1, down=2, up=1, memory=1, down_scalars=1, memory_scalars=1
    )

    def memory_init(self, w: Tensor) -> Vectors:
        """Return a model to begin with, and that it is none of the client's own."""
        return {"z_k": w, "seen": w.new_tensor(0.0)}

    def downlink(self, server: Vectors, memory: Vectors, info: Info) -> Vectors:
        return {"w": server["w"], "z_k": memory["z_k"], "seen": memory["seen"]}

    def begin(self, down: Vectors, full_gradient: Gradient, info: Info) -> Vectors:
        return {"push": self.beta * info.share / (info.lr * info.steps) * down["seen"]}

    def direction(
        self, w: Tensor, grad: Gradient, down: Vectors, scratch: Vectors
    ) -> tuple[Tensor, Vectors]:
        return grad(w).addcmul_(down["z_k"] - w, scratch["push"]), scratch

    def settle(
        self, server: Vectors, memory: Vectors, up: Vectors, info: Info
    ) -> tuple[Vectors, Vectors]:
        own = {"z_k": server["w"] + up["delta"], "seen": torch.ones_like(memory["seen"])}
        return own, {"delta": up["delta"]}
