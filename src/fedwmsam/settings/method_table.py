"""The table of methods: the name of each on the command line and the path of its class.

A new method has a line here. The table needs no PyTorch, whose import takes seconds; the classes
do, and each is imported when it is first used. For code that needs PyTorch anyway,
`fedwmsam.methods` has the same two functions with precise types.
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
"""The module in `methods/` and the class in it, by the name of the method."""


def check_method_name(name: str) -> None:
    """Raise InputError if no method is called `name`."""
    if name not in METHOD_CLASS_PATHS:
        raise InputError(unknown_name_message("method", name, METHOD_CLASS_PATHS))


def method_class(name: str) -> Any:
    """Return the class of the method called `name`, or raise InputError if there is none."""
    check_method_name(name)
    module, _, class_name = METHOD_CLASS_PATHS[name].partition(".")
    return getattr(import_module(f"fedwmsam.methods.{module}"), class_name)


def make_method(name: str, /, **options: object) -> Any:
    """Return the method called `name` with its options.

    Raise InputError if there is no such method, if it has no such option, or if a value is wrong.
    """
    cls = method_class(name)
    names = [f.name for f in fields(cls)]
    for option in options:
        if option not in names:
            raise InputError(unknown_name_message(f"option of {name}", option, names))
    return cls(**options)
