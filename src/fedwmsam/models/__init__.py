"""Models by name, made for a data set's input shape and number of classes."""

import math
from collections.abc import Callable

from torch import nn

from fedwmsam.errors import InputError
from fedwmsam.wording import unknown

Shape = tuple[int, ...]


def mlp(shape: Shape, classes: int) -> nn.Module:
    """Two hidden layers of 200, as in the paper's Fashion-MNIST runs: 199,210 parameters for 28 × 28 and 10 classes."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(shape), 200),
        nn.ReLU(),
        nn.Linear(200, 200),
        nn.ReLU(),
        nn.Linear(200, classes),
    )


def linear(shape: Shape, classes: int) -> nn.Module:
    """Multinomial logistic regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


MODELS: dict[str, Callable[[Shape, int], nn.Module]] = {"mlp": mlp, "linear": linear}


def model_factory(name: str, shape: Shape, classes: int) -> Callable[[], nn.Module]:
    if name not in MODELS:
        raise InputError(unknown("model", name, MODELS))
    return lambda: MODELS[name](shape, classes)
