"""Federated learning on clients whose data differ.

import fedwmsam
result = fedwmsam.fit(model, clients, test=(x, y), rounds=100)
"""

from typing import TYPE_CHECKING

from fedwmsam.errors import InputError
from fedwmsam.version import __version__

if TYPE_CHECKING:
    from fedwmsam.experiment.api import fit
    from fedwmsam.experiment.result import Result
    from fedwmsam.methods import (
        GHBM,
        METHODS,
        MFL,
        SCAFFOLD,
        SCAFFOLDM,
        AdaBest,
        FedACG,
        FedAdagrad,
        FedAdam,
        FedADC,
        FedAvg,
        FedAvgM,
        FedCM,
        FedDyn,
        FedExP,
        FedGAMMA,
        FedGloSS,
        FedHBM,
        FedLESAM,
        FedLESAMD,
        FedLESAMS,
        FedNova,
        FedProx,
        FedSAM,
        FedSMOO,
        FedSpeed,
        FedWMSAM,
        FedWMSAMPlus,
        FedYogi,
        LocalGHBM,
        Method,
        Mime,
        MimeLite,
        MoFedSAM,
        make_method,
    )
else:
    # PyTorch is imported only when something that needs it is used, so that `fedwmsam --help`
    # answers at once. Type checkers see the imports above, and refuse a name that is not there.
    MODULES = {"fit": "experiment.api", "Result": "experiment.result"}

    def __getattr__(name: str) -> object:
        import importlib

        if name not in __all__:
            raise AttributeError(f"module 'fedwmsam' has no attribute {name!r}")
        module = importlib.import_module(f"fedwmsam.{MODULES.get(name, 'methods')}")
        return getattr(module, name)

    def __dir__() -> list[str]:
        return __all__


__all__ = [
    "GHBM",
    "METHODS",
    "MFL",
    "SCAFFOLD",
    "SCAFFOLDM",
    "AdaBest",
    "FedACG",
    "FedADC",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedCM",
    "FedDyn",
    "FedExP",
    "FedGAMMA",
    "FedGloSS",
    "FedHBM",
    "FedLESAM",
    "FedLESAMD",
    "FedLESAMS",
    "FedNova",
    "FedProx",
    "FedSAM",
    "FedSMOO",
    "FedSpeed",
    "FedWMSAM",
    "FedWMSAMPlus",
    "FedYogi",
    "InputError",
    "LocalGHBM",
    "Method",
    "Mime",
    "MimeLite",
    "MoFedSAM",
    "Result",
    "__version__",
    "fit",
    "make_method",
]
