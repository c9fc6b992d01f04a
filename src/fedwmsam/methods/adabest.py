"""AdaBest: Varno et al., AdaBest: Minimizing Client Drift in Federated Learning via Adaptive Bias
Estimation (ECCV 2022).

h_k, in parameter units, is what client k's updates usually are; the longer it was away, the less it
is believed. a is the mean of the clients' models, and the server sends a point beyond it:
    v = g(w) + μ h_k,      h_k ← h_k/(r − r_k) + u_k
    a_{r+1} = w_r + ū,     w_{r+1} = a_{r+1} + β (a_{r+1} − a_r)
r_k is the round in which client k last took part. Unlike FedDyn's, its h_k stays bounded, and there
is no proximal pull. The server's step has no size of its own; w, which is sent, is also evaluated.
Deviation: μ is the same for all clients; the authors' code scales it by the mean number of samples
over the client's own.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedwmsam.methods.base import Cost, Gradient, Info, Method
from fedwmsam.methods.vectors import Vectors
from fedwmsam.settings.options import option


@dataclass(frozen=True)
class AdaBest(Method):
    """A bounded estimate of each client's drift, and a server that looks ahead."""

    mu: float = option(0.01, "μ, weight of the estimated drift in a local step", low=0.0)
    beta: float = option(0.9, "β, how far beyond the mean model the server goes", low=0.0, high=1.0)

    name: ClassVar[str] = "adabest"
    paper: ClassVar[str] = "Varno et al. 2022"
    cost: ClassVar[Cost] = Cost(backprops=1, down=2, up=1, memory=1, memory_scalars=1)

    def server_init(self, w: Tensor) -> Vectors:
        return {"w": w, "a": w}

    def memory_init(self, w: Tensor) -> Vectors:
        # A model's own type may be too short to tell rounds apart: bfloat16 has no 257.
        never = torch.tensor(-1.0, dtype=torch.float32, device=w.device)
        return {"h_k": torch.zeros_like(w), "r_k": never}

    def downlink(self, server: Vectors, memory: Vectors, info: Info) -> Vectors:
        return {"w": server["w"], "h_k": memory["h_k"]}

    def direction(
        self, w: Tensor, grad: Gradient, down: Vectors, scratch: Vectors
    ) -> tuple[Tensor, Vectors]:
        return grad(w).add_(down["h_k"], alpha=self.mu), scratch

    def settle(
        self, server: Vectors, memory: Vectors, up: Vectors, info: Info
    ) -> tuple[Vectors, Vectors]:
        h_k = memory["h_k"] / (info.round - memory["r_k"]) + up["delta"]
        r_k = memory["r_k"].new_tensor(info.round)
        return {"h_k": h_k, "r_k": r_k}, {"delta": up["delta"]}

    def aggregate(self, server: Vectors, mean: Vectors, info: Info) -> Vectors:
        a = server["w"] + mean["delta"]
        return {"w": a + self.beta * (a - server["a"]), "a": a}
