"""The paper's LeNet: two wide convolutions, three fully connected layers."""

from torch import nn

from fedwmsam.models.convolution import Convolution
from fedwmsam.models.input_shape import InputShape, check_image_shape

KERNEL = 5
POOL = 2
FEATURES = 64
SMALLEST = ((1 * POOL) + KERNEL - 1) * POOL + KERNEL - 1
"""The smallest side of an image: both convolutions and both pools leave one pixel of it."""


def lenet(shape: InputShape, classes: int) -> nn.Module:
    """Return a LeNet; it has 797,962 parameters for images of 3 × 32 × 32 and 10 classes."""
    channels, height, width = check_image_shape("lenet", shape, SMALLEST)
    return nn.Sequential(
        Convolution(channels, FEATURES, KERNEL),
        nn.ReLU(),
        nn.MaxPool2d(POOL),
        Convolution(FEATURES, FEATURES, KERNEL),
        nn.ReLU(),
        nn.MaxPool2d(POOL),
        nn.Flatten(),
        nn.Linear(FEATURES * _feature_map_size(height) * _feature_map_size(width), 384),
        nn.ReLU(),
        nn.Linear(384, 192),
        nn.ReLU(),
        nn.Linear(192, classes),
    )


def _feature_map_size(side: int) -> int:
    """Return the side of an image after two unpadded convolutions, each followed by a pool."""
    for _ in range(2):
        side = (side - KERNEL + 1) // POOL
    return side
