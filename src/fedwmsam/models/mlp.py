"""Fully connected models for inputs of any shape."""

import math

from torch import nn

from fedwmsam.models.input_shape import InputShape


def mlp(shape: InputShape, classes: int) -> nn.Module:
    """Return a network with two hidden layers of 200, as in the paper's Fashion-MNIST runs.

    It has 199,210 parameters for 28 × 28 and 10 classes.
    """
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(shape), 200),
        nn.ReLU(),
        nn.Linear(200, 200),
        nn.ReLU(),
        nn.Linear(200, classes),
    )


def linear(shape: InputShape, classes: int) -> nn.Module:
    """Return a model of multinomial logistic regression: a single linear layer."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))
