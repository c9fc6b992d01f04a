"""Residual networks with GroupNorm: He et al., Deep Residual Learning for Image Recognition (2016).

GroupNorm with two groups stands in for BatchNorm, whose statistics differ between clients and
average badly. The stem of the FedWMSAM paper is that for ImageNet, which leaves one pixel of a
32 × 32 image; the "-cifar" variants keep the resolution and reach higher accuracy at about fifteen
times the work, so the two are not comparable.

Parameters have the names that torchvision gives them, "bn" for the normalisation included, so that
a trained model can be loaded there: resnet18(norm_layer=functools.partial(nn.GroupNorm, 2)).
"""

from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedwmsam.models.convolution import Convolution
from fedwmsam.models.input_shape import InputShape, check_image_shape

GROUPS = 2
"""The number of groups of every GroupNorm."""
WIDTHS = (64, 128, 256, 512)
"""The number of channels in each of the four stages."""


class BasicBlock(nn.Module):
    """A residual block of two 3 × 3 convolutions."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _convolution(inputs, width, 3, stride)
        self.bn1 = _normalisation(width)
        self.conv2 = _convolution(width, width, 3)
        self.bn2 = _normalisation(width)
        self.downsample = _shortcut(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return torch.relu(y + self.downsample(x))


class Bottleneck(nn.Module):
    """A residual block that narrows the channels, convolves, and widens them again.

    It is a 1 × 1 convolution down to the width, a 3 × 3 one, and a 1 × 1 one up to four times the
    width. The 3 × 3 has the stride, so that no pixel is skipped (the paper's first version put it
    on the 1 × 1).
    """

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.conv1 = _convolution(inputs, width, 1)
        self.bn1 = _normalisation(width)
        self.conv2 = _convolution(width, width, 3, stride)
        self.bn2 = _normalisation(width)
        self.conv3 = _convolution(width, outputs, 1)
        self.bn3 = _normalisation(outputs)
        self.downsample = _shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        y = torch.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return torch.relu(y + self.downsample(x))


BlockType = type[BasicBlock] | type[Bottleneck]


def make_resnet_factory(
    name: str, block: BlockType, depths: tuple[int, ...], *, cifar: bool
) -> Callable[[InputShape, int], nn.Module]:
    """Return a function that makes networks with `depths` blocks in the four stages."""

    def make(shape: InputShape, classes: int) -> nn.Module:
        channels, _, _ = check_image_shape(name, shape)
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        layers["conv1"] = _convolution(channels, WIDTHS[0], *((3, 1) if cifar else (7, 2)))
        layers["bn1"] = _normalisation(WIDTHS[0])
        layers["relu"] = nn.ReLU()
        if not cifar:
            layers["maxpool"] = nn.MaxPool2d(3, stride=2, padding=1)
        inputs = WIDTHS[0]
        for stage, (width, depth) in enumerate(zip(WIDTHS, depths, strict=True), start=1):
            layers[f"layer{stage}"] = _stage(block, inputs, width, depth, 1 if stage == 1 else 2)
            inputs = width * block.expansion
        layers["avgpool"] = nn.AdaptiveAvgPool2d(1)
        layers["flatten"] = nn.Flatten()
        layers["fc"] = nn.Linear(inputs, classes)
        return nn.Sequential(layers).apply(_initialise)

    return make


def _stage(block: BlockType, inputs: int, width: int, depth: int, stride: int) -> nn.Sequential:
    """Return the blocks of one stage, the first of which has the stride."""
    blocks = [block(inputs, width, stride)]
    for _ in range(depth - 1):
        blocks.append(block(width * block.expansion, width, 1))
    return nn.Sequential(*blocks)


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> Convolution:
    return Convolution(inputs, outputs, kernel, stride, kernel // 2, bias=False)


def _normalisation(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(GROUPS, channels)


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    """Return what leads a block's input past its convolutions: itself, where the shapes agree."""
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(_convolution(inputs, outputs, 1, stride), _normalisation(outputs))


def _initialise(module: nn.Module) -> None:
    """Draw the weights of a convolution from Kaiming's normal distribution.

    GroupNorm (1 and 0) and Linear keep the initial weights that PyTorch gives them.
    """
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
