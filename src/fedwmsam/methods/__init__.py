"""Every method by its name on the command line; a new method is a file here and a line in this table."""

from dataclasses import fields

from fedwmsam.errors import InputError
from fedwmsam.methods.base import Cost, Gradient, Info, Method, Slot
from fedwmsam.methods.fedavg import FedAvg
from fedwmsam.methods.fedcm import FedCM
from fedwmsam.methods.fedwmsam import FedWMSAM
from fedwmsam.methods.scaffold import SCAFFOLD
from fedwmsam.wording import unknown

METHODS: dict[str, type[Method]] = {
    "fedwmsam": FedWMSAM,
    "fedavg": FedAvg,
    "fedcm": FedCM,
    "scaffold": SCAFFOLD,
}


def method_class(name: str) -> type[Method]:
    if name not in METHODS:
        raise InputError(unknown("method", name, METHODS))
    return METHODS[name]


def make_method(name: str, **options: object) -> Method:
    """The method called `name` with its options; an unknown option is an error that names the nearest."""
    cls = method_class(name)
    known = [f.name for f in fields(cls)]
    for option in options:
        if option not in known:
            raise InputError(unknown(f"option of {name}", option, known))
    return cls(**options)  # type: ignore[arg-type]


__all__ = [
    "METHODS", "SCAFFOLD", "Cost", "FedAvg", "FedCM", "FedWMSAM", "Gradient", "Info", "Method", "Slot",
    "make_method", "method_class",
]  # fmt: skip
