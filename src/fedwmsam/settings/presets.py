"""Presets: named settings that hold unless a value is set explicitly.

`paper` is the experiment of the FedWMSAM paper: its text and appendix and, where they are silent
(step-size decay, weight decay outside the gradient, clipping), its released code. One thing differs
from that code: the number of clients per round is fixed, as the text says, where the code decides
for each client at random (`--set sampling=bernoulli`). `tuned` holds what the FL-Simulator project,
whose baselines the paper uses, found for CIFAR-10 and, for methods that it lacks, the values of
their own authors.
"""

from typing import Any

from fedwmsam.errors import InputError, unknown_name_message

SHARED_BY_PRESETS: dict[str, Any] = {
    "clients": 100,
    "participation": 0.1,
    "partition": "dirichlet:0.1",
    "local_epochs": 5,
    "batch_size": 50,
    "lr": 0.1,
    "lr_decay": 0.998,
    "weight_decay": 1e-3,
    "weight_decay_mode": "sgd",
    "clip_norm": 10.0,
}
"""The settings that both presets have in common."""
PRESET_SETTINGS: dict[str, dict[str, Any]] = {
    "paper": SHARED_BY_PRESETS | {"rounds": 500},
    "tuned": SHARED_BY_PRESETS | {"rounds": 1000},
}
"""The settings of each preset that hold for all methods."""
BY_METHOD: dict[str, dict[str, dict[str, Any]]] = {
    "paper": {
        "fedcm": {"alpha": 0.1},
        "fedsam": {"rho": 0.01},
        # For MoFedSAM's ρ the text says 0.1, but Table 1 repeats Table 6's entry for 0.01.
        "mofedsam": {"rho": 0.01, "alpha": 0.1},
        "fedgamma": {"rho": 0.01},
        "fedsmoo": {"rho": 0.1, "lam": 0.1},
        "fedlesam": {"rho": 0.01},
        "fedlesam-s": {"rho": 0.01},
        "fedlesam-d": {"rho": 0.01, "lam": 0.1},
        "fedwmsam": {
            "alpha": 0.1,
            "adapt_rate": 0.01,
            "rho": 0.01,
            "alpha_min": 0.1,
            "alpha_max": 0.9,
        },
    },
    "tuned": {
        "fedprox": {"lam": 0.1},
        "fedavgm": {"beta": 0.4},
        "fedadam": {"global_lr": 0.1, "tau": 0.01},
        "fedexp": {"epsilon": 0.01, "lr": 0.01, "weight_decay": 1e-4},
        "fedacg": {"lam": 0.85, "beta": 0.001},
        "fedcm": {"alpha": 0.1},
        "fedadc": {"beta": 0.9, "weight_decay": 1e-4},
        "mimelite": {"beta": 0.9},
        "mime": {"beta": 0.9},
        "ghbm": {"beta": 0.9, "tau": 10, "lr": 0.01, "weight_decay": 1e-5},
        "localghbm": {"beta": 0.9, "lr": 0.01, "weight_decay": 1e-5},
        "fedhbm": {"beta": 1.0, "lr": 0.01, "weight_decay": 1e-5},
        "feddyn": {"lam": 0.1, "lr_decay": 0.9995},
        "adabest": {"mu": 0.01, "beta": 0.9},
        "mofedsam": {"rho": 0.1, "alpha": 0.1},
        "fedgamma": {"rho": 0.01},
        "fedspeed": {"rho": 0.1, "lam": 0.1},
        "fedsmoo": {"rho": 0.1, "lam": 0.1},
        "fedgloss": {
            "rho": 0.15,
            "rho_local": 0.15,
            "beta": 10.0,
            "warmup": 2000,
            "lr": 0.01,
            "weight_decay": 4e-4,
            "batch_size": 64,
            "local_epochs": 1,
            "participation": 0.05,
            "rounds": 10000,
        },
    },
}
"""The settings and options of each preset that hold for one method, by its name."""


def preset_values(preset: str | None, method: str) -> dict[str, Any]:
    """Return the settings and options of a preset for a method; none without a preset.

    Raise InputError if there is no preset of that name.
    """
    if preset is None:
        return {}
    if preset not in PRESET_SETTINGS:
        raise InputError(unknown_name_message("preset", preset, PRESET_SETTINGS))
    return PRESET_SETTINGS[preset] | BY_METHOD[preset].get(method, {})
