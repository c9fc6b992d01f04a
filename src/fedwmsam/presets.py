"""Named settings, below whatever is given explicitly.

`paper` is the FedWMSAM paper's experiment (its Section 5 and the appendix; one value the text leaves out, weight decay
beside the gradient, is its released code's).
"""

from typing import Any

from fedwmsam.errors import InputError
from fedwmsam.wording import unknown

COMMON: dict[str, dict[str, Any]] = {
    "paper": {
        "clients": 100, "participation": 0.1, "partition": "dirichlet:0.1", "rounds": 500, "local_epochs": 5,
        "batch_size": 50, "lr": 0.1, "lr_decay": 0.998, "weight_decay": 1e-3, "weight_decay_mode": "sgd",
        "clip_norm": 10.0, "global_lr": 1.0,
    },
}  # fmt: skip

BY_METHOD: dict[str, dict[str, dict[str, Any]]] = {
    "paper": {
        "fedcm": {"alpha": 0.1},
        "fedwmsam": {"alpha": 0.1, "adapt_rate": 0.01, "rho": 0.01, "alpha_min": 0.1, "alpha_max": 0.9},
    },
}


def preset_values(preset: str | None, method: str) -> dict[str, Any]:
    if preset is None:
        return {}
    if preset not in COMMON:
        raise InputError(unknown("preset", preset, COMMON))
    return COMMON[preset] | BY_METHOD[preset].get(method, {})
