"""What a FlowerStrategy is given, checked; and how it is read from an app's run config."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from fedwmsam.errors import InputError, unknown
from fedwmsam.flower.wire import TRANSPORTS
from fedwmsam.methods import Method, make_method, method_class
from fedwmsam.settings.config import Settings

SIMULATED = "clients fail and lie by themselves here; simulate that with fedwmsam.fit"
UNCOUNTED = "differential privacy is built for the simulator only"
ELSEWHERE = "it needs the clients' data where the server is"
REFUSED = {
    "dropout": SIMULATED, "stragglers": SIMULATED, "deadline": SIMULATED, "corrupt": SIMULATED,
    "dp_noise": UNCOUNTED, "dp_epsilon": UNCOUNTED,
    "record": ELSEWHERE, "keep_states": ELSEWHERE, "workers": "each client is a process of its own",
}  # fmt: skip
"""Settings of the simulator that have no meaning on Flower, and why."""


def check_arguments(method: object, clients: int, quorum: float, transport: str) -> None:
    if not isinstance(method, Method):
        raise InputError(f"method must be a method with its options, such as FedWMSAM(), not {method!r}.")
    if not isinstance(clients, int) or clients < 1:
        raise InputError(f"clients must be the number of clients, not {clients!r}.")
    if not 0 < quorum <= 1:
        raise InputError(f"quorum must be a share above 0 and at most 1, not {quorum!r}.")
    if transport not in TRANSPORTS:
        raise InputError(unknown("transport", str(transport), TRANSPORTS))


def read_settings(given: Mapping[str, Any]) -> Settings:
    """A round takes long on a network: unless told otherwise each one is kept."""
    known = [f.name for f in fields(Settings) if f.name not in REFUSED]
    for name, value in given.items():
        if name in REFUSED and value is not None:
            raise InputError(f"{name} does not apply on Flower: {REFUSED[name]}.")
        if name not in known and name not in REFUSED:
            raise InputError(unknown("setting", name, known))
    return Settings(**{"checkpoint_every": 1} | dict(given))


def from_run_config(config: Mapping[str, Any]) -> tuple[Method, dict[str, Any]]:
    """The method, and the other arguments of FlowerStrategy, from an app's run config; "none" is None."""
    values = {key.replace("-", "_"): None if value == "none" else value for key, value in config.items()}
    name = str(values.pop("method", "fedwmsam"))
    options = {f.name: values.pop(f.name) for f in fields(method_class(name)) if f.name in values}
    return make_method(name, **options), values
