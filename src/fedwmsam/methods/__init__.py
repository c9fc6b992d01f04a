"""Every method by its name on the command line; a new method is a file here and a line in this table."""

from dataclasses import fields

from fedwmsam.errors import InputError, unknown
from fedwmsam.methods.base import Averaging, Cost, Gradient, Info, Method, Slot
from fedwmsam.methods.fedacg import FedACG
from fedwmsam.methods.fedadam import FedAdam, FedAvgM
from fedwmsam.methods.fedavg import FedAvg
from fedwmsam.methods.fedcm import FedCM
from fedwmsam.methods.feddyn import FedDyn
from fedwmsam.methods.fedgamma import FedGAMMA
from fedwmsam.methods.fedgloss import FedGloSS
from fedwmsam.methods.fedlesam import FedLESAM
from fedwmsam.methods.fedlesam_d import FedLESAMD
from fedwmsam.methods.fedlesam_s import FedLESAMS
from fedwmsam.methods.fedprox import FedProx
from fedwmsam.methods.fedsam import FedSAM
from fedwmsam.methods.fedsmoo import FedSMOO
from fedwmsam.methods.fedspeed import FedSpeed
from fedwmsam.methods.fedwmsam import FedWMSAM
from fedwmsam.methods.fedwmsam_plus import FedWMSAMPlus
from fedwmsam.methods.mimelite import MimeLite
from fedwmsam.methods.mofedsam import MoFedSAM
from fedwmsam.methods.scaffold import SCAFFOLD
from fedwmsam.methods.scaffold_m import SCAFFOLDM

METHODS: dict[str, type[Method]] = {
    "fedwmsam": FedWMSAM,
    "fedwmsam-plus": FedWMSAMPlus,
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "fedavgm": FedAvgM,
    "fedadam": FedAdam,
    "fedacg": FedACG,
    "fedcm": FedCM,
    "mimelite": MimeLite,
    "scaffold": SCAFFOLD,
    "scaffold-m": SCAFFOLDM,
    "feddyn": FedDyn,
    "fedsam": FedSAM,
    "mofedsam": MoFedSAM,
    "fedgamma": FedGAMMA,
    "fedspeed": FedSpeed,
    "fedsmoo": FedSMOO,
    "fedlesam": FedLESAM,
    "fedlesam-s": FedLESAMS,
    "fedlesam-d": FedLESAMD,
    "fedgloss": FedGloSS,
}


def method_class(name: str) -> type[Method]:
    if name not in METHODS:
        raise InputError(unknown("method", name, METHODS))
    return METHODS[name]


def make_method(name: str, /, **options: object) -> Method:
    """The method called `name` with its options; an unknown option is an error that names the nearest."""
    cls = method_class(name)
    known = [f.name for f in fields(cls)]
    for option in options:
        if option not in known:
            raise InputError(unknown(f"option of {name}", option, known))
    return cls(**options)


__all__ = [
    "METHODS", "SCAFFOLD", "SCAFFOLDM", "Averaging", "Cost", "FedACG", "FedAdam", "FedAvg", "FedAvgM", "FedCM",
    "FedDyn", "FedGAMMA", "FedGloSS", "FedLESAM", "FedLESAMD", "FedLESAMS", "FedProx", "FedSAM", "FedSMOO",
    "FedSpeed", "FedWMSAM", "FedWMSAMPlus", "Gradient", "Info", "Method", "MimeLite", "MoFedSAM", "Slot",
    "make_method", "method_class",
]  # fmt: skip
