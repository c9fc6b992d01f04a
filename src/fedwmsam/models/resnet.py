"""Residual networks with GroupNorm: He et al., Deep Residual Learning for Image Recognition (2016).

GroupNorm with two groups stands in for BatchNorm, whose statistics differ between clients and
average badly. The stem of the FedWMSAM paper is that for ImageNet, which leaves one pixel of a
32 × 32 image; the "-cifar" variants keep the resolution and reach higher accuracy at about fifteen
times the work, so the two are not comparable.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from fedwmsam.models.input_shape import InputShape, check_image_shape

GROUPS = 2
"""The number of groups of every GroupNorm."""
WIDTHS = (64, 128, 256, 512)
"""The number of channels in each of the four stages."""


class ResidualBlock(nn.Module):
    """The function relu(body(x) + x), with a 1 × 1 convolution of x where the shapes differ."""

    def __init__(self, body: nn.Sequential, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = body
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(*_convolution(inputs, outputs, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


class BasicBlock:
    """The body of a residual block that consists of two 3 × 3 convolutions."""

    expansion = 1

    @staticmethod
    def body(inputs: int, width: int, stride: int) -> nn.Sequential:
        """Return the layers, for that many input channels."""
        return nn.Sequential(
            *_convolution(inputs, width, 3, stride), nn.ReLU(), *_convolution(width, width, 3)
        )


class Bottleneck:
    """The body of a residual block that narrows the channels, convolves, and widens them again.

    It is a 1 × 1 convolution down to the width, a 3 × 3 one, and a 1 × 1 one up to four times the
    width. The 3 × 3 has the stride, so that no pixel is skipped (the paper's first version put it
    on the 1 × 1).
    """

    expansion = 4

    @staticmethod
    def body(inputs: int, width: int, stride: int) -> nn.Sequential:
        """Return the layers, for that many input channels."""
        return nn.Sequential(
            *_convolution(inputs, width, 1),
            nn.ReLU(),
            *_convolution(width, width, 3, stride),
            nn.ReLU(),
            *_convolution(width, width * Bottleneck.expansion, 1),
        )


BlockType = type[BasicBlock] | type[Bottleneck]


def make_resnet_factory(
    name: str, block: BlockType, depths: tuple[int, ...], *, cifar: bool
) -> Callable[[InputShape, int], nn.Module]:
    """Return a function that makes networks with `depths` blocks in the four stages."""

    def make(shape: InputShape, classes: int) -> nn.Module:
        channels, _, _ = check_image_shape(name, shape)
        stem = _cifar_stem(channels) if cifar else _imagenet_stem(channels)
        network = nn.Sequential(
            *stem,
            *_stages(block, depths),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(WIDTHS[-1] * block.expansion, classes),
        )
        return network.apply(_initialise)

    return make


def _imagenet_stem(channels: int) -> tuple[nn.Module, ...]:
    pool = nn.MaxPool2d(3, stride=2, padding=1)
    return *_convolution(channels, WIDTHS[0], 7, 2), nn.ReLU(), pool


def _cifar_stem(channels: int) -> tuple[nn.Module, ...]:
    return *_convolution(channels, WIDTHS[0], 3), nn.ReLU()


def _stages(block: BlockType, depths: tuple[int, ...]) -> Iterator[nn.Sequential]:
    inputs = WIDTHS[0]
    for stage, (width, depth) in enumerate(zip(WIDTHS, depths, strict=True)):
        blocks = []
        for position in range(depth):
            stride = 2 if stage > 0 and position == 0 else 1
            outputs = width * block.expansion
            blocks.append(ResidualBlock(block.body(inputs, width, stride), inputs, outputs, stride))
            inputs = outputs
        yield nn.Sequential(*blocks)


def _convolution(
    inputs: int, outputs: int, kernel: int, stride: int = 1
) -> tuple[nn.Module, nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    return convolution, nn.GroupNorm(GROUPS, outputs)


def _initialise(module: nn.Module) -> None:
    """Draw the weights of a convolution from Kaiming's normal distribution.

    GroupNorm (1 and 0) and Linear keep the initial weights that PyTorch gives them.
    """
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
