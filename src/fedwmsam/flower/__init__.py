"""The methods of this library across machines, on Flower.

The server uses `FlowerStrategy`, the clients `make_client_app`.
"""

from typing import TYPE_CHECKING, Any

from fedwmsam.errors import InputError, install_command

if TYPE_CHECKING:
    from fedwmsam.flower.client import make_client_app
    from fedwmsam.flower.strategy import FlowerStrategy, from_run_config
    from fedwmsam.flower.training import TooFewReplies

__all__ = ["FlowerStrategy", "TooFewReplies", "from_run_config", "make_client_app"]
_MODULES = {
    "FlowerStrategy": "strategy",
    "TooFewReplies": "training",
    "make_client_app": "client",
    "from_run_config": "strategy",
}


def __getattr__(name: str) -> Any:
    """Return a public name, importing Flower only now: it is an extra, and slow to import.

    Raise InputError if Flower is not installed.
    """
    import importlib

    if name not in __all__:
        raise AttributeError(f"module 'fedwmsam.flower' has no attribute {name!r}")
    try:
        module = importlib.import_module(f"fedwmsam.flower.{_MODULES[name]}")
    except ModuleNotFoundError as error:
        if error.name != "flwr":
            raise
        raise InputError(
            f"Flower is not installed; install it with: {install_command('flower')}"
        ) from error
    return getattr(module, name)
