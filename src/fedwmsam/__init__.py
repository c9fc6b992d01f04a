"""Federated learning on clients whose data differ.

import fedwmsam
result = fedwmsam.fit(model, clients, test=(x, y), rounds=100)
"""

from typing import TYPE_CHECKING, Any

from fedwmsam.errors import InputError
from fedwmsam.version import __version__

if TYPE_CHECKING:
    from fedwmsam.experiment.api import fit
    from fedwmsam.experiment.result import Result
    from fedwmsam.methods import METHODS, FedWMSAM, Method, make_method

__all__ = ["METHODS", "FedWMSAM", "InputError", "Method", "Result", "__version__", "fit", "make_method"]

_HOMES = {"fit": "experiment.api", "Result": "experiment.result", "make_method": "methods"}


def __getattr__(name: str) -> Any:
    """Import PyTorch only when something that needs it is used, so that `fedwmsam --help` answers at once."""
    import importlib

    home = _HOMES.get(name, "methods" if name[0].isupper() else None)
    module = importlib.import_module(f"fedwmsam.{home}") if home else None
    if not hasattr(module, name):
        raise AttributeError(f"module 'fedwmsam' has no attribute {name!r}")
    return getattr(module, name)


def __dir__() -> list[str]:
    return __all__
