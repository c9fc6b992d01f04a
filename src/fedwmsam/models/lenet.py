"""The paper's LeNet: two wide convolutions, three fully connected layers."""

from torch import nn

from fedwmsam.models.input_shape import InputShape, check_image_shape

KERNEL, POOL, FEATURES = 5, 2, 64
SMALLEST = (
    ((1 * POOL) + KERNEL - 1) * POOL + KERNEL - 1
)  # leaves one pixel after both convolutions and both pools


def lenet(shape: InputShape, classes: int) -> nn.Module:
    """797,962 parameters for 3 × 32 × 32 and 10 classes."""
    channels, height, width = check_image_shape("lenet", shape, SMALLEST)
    return nn.Sequential(
        nn.Conv2d(channels, FEATURES, KERNEL),
        nn.ReLU(),
        nn.MaxPool2d(POOL),
        nn.Conv2d(FEATURES, FEATURES, KERNEL),
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
    """What two unpadded convolutions, each followed by a pool, leave of one side of the image."""
    for _ in range(2):
        side = (side - KERNEL + 1) // POOL
    return side
