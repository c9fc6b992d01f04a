"""FedWMSAM-plus: FedWMSAM with two changes at the server, for its slow start and its noisy end.

    start     α'_r = max(α_r, min(α_max, 1/(r + 1)))      in the place of α_r in Eq. 1 to 3
    average   x_{r+1} = x_r + η_g mean_k u_k              the model that clients train
              w_{r+1} = w_r + β_r (x_{r+1} − w_r)         the model that is evaluated and returned
              β_r = max((γ + 1)/(r + γ + 1), |P_r|/N)

Δ_0 is zero, so with α_0 = 0.1 FedWMSAM's first rounds take a tenth of a step and need about 1/α
rounds to fill the momentum. With 1/(r + 1) the momentum is nearly the plain mean of all directions
so far (α_max = 0.9 lets the first count 0.9), until 1/(r + 1) falls below α_r. Each x_r leans
towards the clients of its round; `average.py` tells why the average is weighted as it is, and any
other method may have it, too, beside its model (the setting `twin`). Neither change costs traffic
or backprops.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedwmsam.methods.average import update_average
from fedwmsam.methods.base import Info
from fedwmsam.methods.fedwmsam import FedWMSAM
from fedwmsam.methods.vectors import Vectors
from fedwmsam.settings.options import option


@dataclass(frozen=True)
class FedWMSAMPlus(FedWMSAM):
    """FedWMSAM with a plain mean as its first momentum, which returns an average of its models."""

    average_power: float = option(
        8.0, "γ: early on, the r-th model counts like r^γ in the average", low=0.0, high=1e9
    )

    name: ClassVar[str] = "fedwmsam-plus"
    paper: ClassVar[str] = "this project"

    def server_init(self, w: Tensor) -> Vectors:
        return super().server_init(w) | {"x": w}

    def training_state(self, server: Vectors, info: Info) -> Vectors:
        """Return the state as FedWMSAM would have it: x is its model, α' its weight."""
        start = min(self.alpha_max, 1 / (info.round + 1))
        return server | {"w": server["x"], "alpha": torch.clamp(server["alpha"], min=start)}

    def downlink(self, server: Vectors, memory: Vectors, info: Info) -> Vectors:
        return super().downlink(self.training_state(server, info), memory, info)

    def settle(
        self, server: Vectors, memory: Vectors, up: Vectors, info: Info
    ) -> tuple[Vectors, Vectors]:
        return super().settle(self.training_state(server, info), memory, up, info)

    def aggregate(self, server: Vectors, mean: Vectors, info: Info) -> Vectors:
        # Not `training_state`: Eq. 4 goes on from α, not from α'.
        after = super().aggregate(server | {"w": server["x"]}, mean, info)
        average = update_average(server["w"], after["w"], self.average_power, info)
        return after | {"x": after["w"], "w": average}
