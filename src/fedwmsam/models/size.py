"""How much memory a model would take, known before it is made.

A file of a few bytes can claim a million inputs and as many classes. A model for them is refused
while it is still a number.
"""

import math
from collections.abc import Callable

import torch
from torch import nn

from fedwmsam.errors import InputError
from fedwmsam.machine import machine_memory
from fedwmsam.models.input_shape import InputShape
from fedwmsam.settings.options import truncated_repr

BYTES_PER_WEIGHT = 2 * 4
"""A weight in float32, and the same again: its gradient or, for a saved model, its file."""
MAX_WEIGHTS_PER_UNIT = 4000
MAX_CONSTANT_WEIGHTS = 30_000_000
"""The weights of the largest model beside those that depend on inputs and classes."""


def check_model_fits(
    name: str, make: Callable[[InputShape, int], nn.Module], shape: InputShape, classes: int
) -> None:
    """Raise InputError if this machine's memory cannot hold the model of that name.

    The model is counted without memory or random numbers. That takes seconds for a large one, so
    it is done only where a bound on the weights of all models does not suffice.
    """
    purpose = f"inputs of shape {truncated_repr(shape)} and {truncated_repr(classes)} classes"
    if any(type(size) is not int or size < 1 for size in (*shape, classes)):
        raise InputError(
            f"The model {name!r} cannot be made for {purpose}: "
            "expected whole numbers from 1 on, correct the data."
        )
    memory = machine_memory()
    if BYTES_PER_WEIGHT * most_weights(shape, classes) <= memory:
        return
    needed = BYTES_PER_WEIGHT * count_weights(make, shape, classes)
    if needed > memory:
        amount = f"{needed / 1e9:,.0f} GB" if needed < math.inf else "more than any machine has"
        raise InputError(
            f"The model {name!r} for {purpose} would need {amount}, "
            f"this machine has {memory / 1e9:.0f} GB: choose another model or correct the data."
        )


def most_weights(shape: InputShape, classes: int) -> int:
    """Return a number of weights that no model of this library exceeds."""
    inputs = math.prod(shape)
    return inputs * classes + MAX_WEIGHTS_PER_UNIT * (inputs + classes) + MAX_CONSTANT_WEIGHTS


def count_weights(
    make: Callable[[InputShape, int], nn.Module], shape: InputShape, classes: int
) -> float:
    """Return the number of weights of a model, infinity if PyTorch cannot count so far."""
    try:
        with torch.device("meta"):
            return sum(weight.numel() for weight in make(shape, classes).parameters())
    except InputError:
        raise
    except (RuntimeError, TypeError, OverflowError):
        return math.inf
