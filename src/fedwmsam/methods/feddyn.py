"""FedDyn: Acar et al., Federated Learning Based on Dynamic Regularization (ICLR 2021).

h_k, in parameter units, is the running sum of client k's updates; its dual gradient is −λ h_k. h is
the mean over ALL clients of h_k.
    w ← w − η (clip(g(w) + λ h_k) + λ (w − w_r)),      h_k ← h_k + u_k
    w_{r+1} = mean_{P_r} w_B + h
The server's step has no size of its own. Deviation: the pull is added after the clip (see FedProx).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedwmsam.methods.base import Cost, Gradient, Info, Method
from fedwmsam.methods.vectors import Vectors
from fedwmsam.settings.options import option


@dataclass(frozen=True)
class FedDyn(Method):
    """A dual variable per client, so that local optima and the global one coincide."""

    lam: float = option(0.1, "λ, strength of the proximal pull and of the dual term", low=0.0)

    name: ClassVar[str] = "feddyn"
    paper: ClassVar[str] = "Acar et al. 2021"
    cost: ClassVar[Cost] = Cost(backprops=1, down=2, up=1, memory=1)
    means: ClassVar[Mapping[str, str]] = {"h": "h_k"}

    def server_init(self, w: Tensor) -> Vectors:
        return {"w": w, "h": torch.zeros_like(w)}

    def memory_init(self, w: Tensor) -> Vectors:
        return {"h_k": torch.zeros_like(w)}

    def downlink(self, server: Vectors, memory: Vectors, info: Info) -> Vectors:
        return {"w": server["w"], "h_k": memory["h_k"]}

    def direction(
        self, w: Tensor, grad: Gradient, down: Vectors, scratch: Vectors
    ) -> tuple[Tensor, Vectors]:
        return torch.add(grad(w), down["h_k"], alpha=self.lam), scratch

    def pull(self, w: Tensor, down: Vectors) -> Tensor:
        return self.lam * (w - down["w"])

    def settle(
        self, server: Vectors, memory: Vectors, up: Vectors, info: Info
    ) -> tuple[Vectors, Vectors]:
        return {"h_k": memory["h_k"] + up["delta"]}, {"delta": up["delta"]}

    def aggregate(self, server: Vectors, mean: Vectors, info: Info) -> Vectors:
        h = server["h"] + info.share * mean["delta"]
        return {"w": server["w"] + mean["delta"] + h, "h": h}
