"""A convolutional network small enough to train on one CPU core."""

from torch import nn

from fedwmsam.models.convolution import Convolution
from fedwmsam.models.input_shape import InputShape, check_image_shape

SMALLEST = 7
"""The smallest side of an image: the stride and the two pools leave one pixel of it."""
CELLS = 2
"""The side of the last feature map. A single cell would lose where things are in the image, which
costs several points of accuracy."""


def cnn(shape: InputShape, classes: int) -> nn.Module:
    """Return a network of three convolutions with GroupNorm, for images of any size.

    It has 100,138 parameters for 3 channels and 10 classes. The first convolution has stride 2,
    because at full resolution it and the second would take most of the time of a step.
    """
    channels, _, _ = check_image_shape("cnn", shape, SMALLEST)
    return nn.Sequential(
        *_block(channels, 32, kernel=5, stride=2),
        nn.MaxPool2d(2),
        *_block(32, 64),
        nn.MaxPool2d(2),
        *_block(64, 128),
        nn.AdaptiveAvgPool2d(CELLS),
        nn.Flatten(),
        nn.Linear(128 * CELLS**2, classes),
    )


def _block(inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> tuple[nn.Module, ...]:
    convolution = Convolution(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    return convolution, nn.GroupNorm(8, outputs), nn.ReLU()
