"""FedADC: Ozfatura et al., FedADC: Accelerated Federated Learning with Drift Control (ISIT 2021).

m, the momentum of the mean local directions, acts in every local step, with the share β_l of its
decay rate β; what is left acts at the server:
    l = β_l m,      v = l + g(w − η l)  ("nesterov")   or   v = l + g(w)  ("heavy_ball")
    m ← mean_k d_k + (β − β_l) m,      w ← w + η_g (ū − η B̄ (β − β_l) m)
The fresh gradient is not damped: steps grow to 1/(1 − β) times those of FedAvg. With β_l = β the
heavy ball is FedCM with α = 1 − β and another step size. Deviation: B̄ and d_k are made of each
client's own number of steps.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedwmsam.methods.base import Averaging, Cost, Gradient, Info, mean_direction
from fedwmsam.methods.vectors import Vectors
from fedwmsam.settings.options import option


@dataclass(frozen=True)
class FedADC(Averaging):
    """Accelerated local steps: the server's momentum in each, and gradients where it leads."""

    beta: float = option(0.9, "β, decay rate of the momentum", low=0.0, high=0.999)
    beta_local: float | None = option(
        None, "β_l, the part of β that acts in the local steps; none: all of it", low=0.0, high=1.0
    )
    variant: str = option(
        "nesterov",
        "where the gradient is taken: ahead, or at the model",
        choices=("nesterov", "heavy_ball"),
    )

    name: ClassVar[str] = "fedadc"
    paper: ClassVar[str] = "Ozfatura et al. 2021"
    cost: ClassVar[Cost] = Cost(backprops=1, down=2, up=1, memory=0)

    @property
    def in_steps(self) -> float:
        """Return β_l, the part of β that acts in the local steps."""
        return self.beta if self.beta_local is None else self.beta_local

    def server_init(self, w: Tensor) -> Vectors:
        return {"w": w, "m": torch.zeros_like(w)}

    def downlink(self, server: Vectors, memory: Vectors, info: Info) -> Vectors:
        return {"w": server["w"], "m": server["m"]}

    def begin(self, down: Vectors, full_gradient: Gradient, info: Info) -> Vectors:
        push = self.in_steps * down["m"]
        return {"l": push} if self.variant == "heavy_ball" else {"l": push, "ahead": info.lr * push}

    def direction(
        self, w: Tensor, grad: Gradient, down: Vectors, scratch: Vectors
    ) -> tuple[Tensor, Vectors]:
        point = w if self.variant == "heavy_ball" else w - scratch["ahead"]
        return grad(point).add_(scratch["l"]), scratch

    def settle(
        self, server: Vectors, memory: Vectors, up: Vectors, info: Info
    ) -> tuple[Vectors, Vectors]:
        # What the momentum left to the server would have moved, had it acted in the steps: with it
        # both equations of the server are means over the clients.
        rest = info.lr * info.steps * (self.beta - self.in_steps)
        delta = up["delta"] - rest * server["m"]
        return memory, {"delta": delta, "m": mean_direction(delta, info)}

    def aggregate(self, server: Vectors, mean: Vectors, info: Info) -> Vectors:
        return super().aggregate(server, mean, info) | {"m": mean["m"]}
