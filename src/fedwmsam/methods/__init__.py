"""Every method, and everything that the author of a method needs.

A new method is a file here, a line in `fedwmsam.settings.method_table`, and its class below and in
`fedwmsam/__init__.py`.
"""

from fedwmsam.methods.adabest import AdaBest
from fedwmsam.methods.base import (
    Averaging,
    Cost,
    Gradient,
    Info,
    Method,
    ParameterSlice,
    mean_direction,
)
from fedwmsam.methods.fedacg import FedACG
from fedwmsam.methods.fedadam import FedAdagrad, FedAdam, FedAvgM, FedYogi
from fedwmsam.methods.fedadc import FedADC
from fedwmsam.methods.fedavg import FedAvg
from fedwmsam.methods.fedcm import FedCM
from fedwmsam.methods.feddyn import FedDyn
from fedwmsam.methods.fedexp import FedExP
from fedwmsam.methods.fedgamma import FedGAMMA
from fedwmsam.methods.fedgloss import FedGloSS
from fedwmsam.methods.fedlesam import FedLESAM
from fedwmsam.methods.fedlesam_d import FedLESAMD
from fedwmsam.methods.fedlesam_s import FedLESAMS
from fedwmsam.methods.fednova import FedNova
from fedwmsam.methods.fedprox import FedProx
from fedwmsam.methods.fedsam import FedSAM
from fedwmsam.methods.fedsmoo import FedSMOO
from fedwmsam.methods.fedspeed import FedSpeed
from fedwmsam.methods.fedwmsam import FedWMSAM
from fedwmsam.methods.fedwmsam_plus import FedWMSAMPlus
from fedwmsam.methods.ghbm import GHBM, FedHBM, LocalGHBM
from fedwmsam.methods.mfl import MFL
from fedwmsam.methods.mime import Mime
from fedwmsam.methods.mimelite import MimeLite
from fedwmsam.methods.mofedsam import MoFedSAM
from fedwmsam.methods.scaffold import SCAFFOLD
from fedwmsam.methods.scaffold_m import SCAFFOLDM
from fedwmsam.methods.vectors import Vectors
from fedwmsam.settings import method_table
from fedwmsam.settings.options import option

METHODS: dict[str, type[Method]] = {
    name: method_table.method_class(name) for name in method_table.METHOD_TABLE
}
"""The class of every method, by its name on the command line."""


def method_class(name: str) -> type[Method]:
    """Return the class of the method called `name`, or raise InputError if there is none."""
    cls: type[Method] = method_table.method_class(name)
    return cls


def make_method(name: str, /, **options: object) -> Method:
    """Return the method called `name` with its options.

    Raise InputError if there is no such method, if it has no such option, or if a value is wrong.
    """
    method: Method = method_table.make_method(name, **options)
    return method


__all__ = [
    "GHBM",
    "METHODS",
    "MFL",
    "SCAFFOLD",
    "SCAFFOLDM",
    "AdaBest",
    "Averaging",
    "Cost",
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
    "Gradient",
    "Info",
    "LocalGHBM",
    "Method",
    "Mime",
    "MimeLite",
    "MoFedSAM",
    "ParameterSlice",
    "Vectors",
    "make_method",
    "mean_direction",
    "method_class",
    "option",
]
