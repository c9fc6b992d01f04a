"""The methods by their names on the command line, and where the class of each is: a new method is a line here.

The table needs no PyTorch, whose import takes seconds; the classes do, and are imported when they are asked for. For
those who need PyTorch anyway, `fedwmsam.methods` has the same two functions with their types.
"""

from dataclasses import fields
from importlib import import_module
from typing import Any

from fedwmsam.errors import InputError, unknown_name_message

METHOD_CLASS_PATHS = {
    "fedwmsam": "fedwmsam.FedWMSAM",
    "fedwmsam-plus": "fedwmsam_plus.FedWMSAMPlus",
    "fedavg": "fedavg.FedAvg",
    "fedprox": "fedprox.FedProx",
    "fedavgm": "fedadam.FedAvgM",
    "fedadam": "fedadam.FedAdam",
    "fedacg": "fedacg.FedACG",
    "fedcm": "fedcm.FedCM",
    "mimelite": "mimelite.MimeLite",
    "scaffold": "scaffold.SCAFFOLD",
    "scaffold-m": "scaffold_m.SCAFFOLDM",
    "feddyn": "feddyn.FedDyn",
    "fedsam": "fedsam.FedSAM",
    "mofedsam": "mofedsam.MoFedSAM",
    "fedgamma": "fedgamma.FedGAMMA",
    "fedspeed": "fedspeed.FedSpeed",
    "fedsmoo": "fedsmoo.FedSMOO",
    "fedlesam": "fedlesam.FedLESAM",
    "fedlesam-s": "fedlesam_s.FedLESAMS",
    "fedlesam-d": "fedlesam_d.FedLESAMD",
    "fedgloss": "fedgloss.FedGloSS",
}
"""Name → module in `methods/` and class."""


def check_method_name(name: str) -> None:
    if name not in METHOD_CLASS_PATHS:
        raise InputError(unknown_name_message("method", name, METHOD_CLASS_PATHS))


def method_class(name: str) -> Any:
    """The class of the method called `name`."""
    check_method_name(name)
    module, _, class_name = METHOD_CLASS_PATHS[name].partition(".")
    return getattr(import_module(f"fedwmsam.methods.{module}"), class_name)


def make_method(name: str, /, **options: object) -> Any:
    """The method called `name` with its options; an unknown option is an error that names the nearest."""
    cls = method_class(name)
    known = [f.name for f in fields(cls)]
    for option in options:
        if option not in known:
            raise InputError(unknown_name_message(f"option of {name}", option, known))
    return cls(**options)
