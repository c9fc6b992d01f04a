"""The devices that can be computed on here, by their names."""

import torch

from fedwmsam.errors import InputError, unknown_name_message

AUTO = "auto"
"""The name that stands for the best device there is: see `best_device`."""


def usable_device(name: str | torch.device) -> torch.device:
    """Return the device of that name, or the best one for "auto".

    Raise InputError if there is no such name, or if nothing can be computed on the device here.
    """
    if name == AUTO:
        return best_device()
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        known = (AUTO, "cpu", "cuda", "mps")
        raise InputError(unknown_name_message("device", str(name), known)) from error
    try:
        torch.zeros(1, device=device).item()
    # PyTorch raises a different error for each way in which a device can be missing.
    except (RuntimeError, AssertionError, ValueError, ImportError) as error:
        raise InputError(
            f"The device {str(name)!r} cannot be used here; usable are {', '.join(usable_names())}."
        ) from error
    return device


def best_device() -> torch.device:
    """Return the current CUDA device, or else Apple's MPS, or else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def usable_names() -> list[str]:
    """Return "auto", and the names of the CPU and of all CUDA and MPS devices that are here."""
    names = [AUTO, "cpu"]
    if torch.cuda.is_available():
        names += [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        names.append("mps")
    return names


def seed_device(device: torch.device, seed: int) -> None:
    """Set the seed of an accelerator's own generators, from which dropout draws its masks there.

    PyTorch's `manual_seed` does the same for all kinds. Where CUDA is not in use it notes the whole
    stack at each call, which takes longer than a step of a small model.
    """
    module = torch.get_device_module(device)
    if hasattr(module, "manual_seed_all"):
        module.manual_seed_all(seed)
    else:
        module.manual_seed(seed)
