"""An average of the global models of a run: FedWMSAM-plus hands it over, any other method may have it as a twin.

    w̄_{r+1} = w̄_r + β_r (w_{r+1} − w̄_r),   β_r = max((γ + 1)/(r + γ + 1), |P_r|/N)

A round sees few of the clients, so each model leans towards the last of them. w̄ is a mean of the last models: at first
of about r/(γ + 1) of them (Shamir and Zhang 2013), and never of more than it takes to see every client about once. A
longer one falls behind, because the model keeps moving in one direction.
"""

import torch
from torch import Tensor

from fedwmsam.methods.base import Info


def update_average(average: Tensor, newest: Tensor, power: float, info: Info) -> Tensor:
    """The average with the model of round `info.round` in it; of a counter, which has no average, the newest value."""
    if not newest.is_floating_point():
        return newest
    return torch.lerp(average, newest, max((power + 1) / (info.round + power + 1), info.share))
