"""Federated learning on clients whose data differ.

import fedwmsam
result = fedwmsam.fit(model, clients, test=(x, y), rounds=100)
"""

from fedwmsam.api import fit
from fedwmsam.errors import InputError
from fedwmsam.methods import METHODS, SCAFFOLD, FedAvg, FedCM, FedWMSAM, Method
from fedwmsam.result import Result
from fedwmsam.version import __version__

__all__ = ["METHODS", "SCAFFOLD", "FedAvg", "FedCM", "FedWMSAM", "InputError", "Method", "Result", "__version__", "fit"]
