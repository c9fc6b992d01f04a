"""An average of the global models of a run.

FedWMSAM-plus returns it as its model; any other method may have it as a twin, evaluated beside its
global model.

    w̄_{r+1} = w̄_r + β_r (w_{r+1} − w̄_r),   β_r = max((γ + 1)/(r + γ + 1), |P_r|/N)

A round sees few of the clients, so each model leans towards the last of them. w̄ is a mean of the
last models: at first of about r/(γ + 1) of them (Shamir and Zhang 2013), and never of more than it
takes to see every client about once. A longer one falls behind, because the model keeps moving in
one direction.
"""

import torch
from torch import Tensor

from fedwmsam.methods.base import Info


def update_average(average: Tensor, newest: Tensor, power: float, info: Info) -> Tensor:
    """Return the average with the model of round `info.round` included.

    `power` is γ. For a counter, which has no average, it is the newest value.
    """
    if not newest.is_floating_point():
        return newest
    weight = max((power + 1) / (info.round + power + 1), info.share)
    return torch.lerp(average, newest, weight)
