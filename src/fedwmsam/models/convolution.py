"""A convolution that computes on the CPU in the form that is cheapest for the size of its image.

oneDNN multiplies every tap of a kernel, also those that lie on the padding. Of a 3 × 3 kernel on an
image of one pixel only the centre counts, and the last stages of a ResNet see such images: there a
matrix product over the taps that count is the same sum. Larger images are convolved in
channels-last memory, in which pooling, normalisation and convolution are faster, down to those of
2 × 2 pixels, for which plain memory is. docs/project/performance.md has the measurements. Other
devices have libraries of their own, and get PyTorch's convolution as it is.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

PLAIN_PIXELS = 4
"""Images of at most so many pixels are convolved in plain memory, larger ones in channels-last."""


class Convolution(nn.Conv2d):
    """PyTorch's convolution with a square kernel: same parameters, same values up to rounding."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        stride: int = 1,
        padding: int = 0,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(inputs, outputs, kernel, stride, padding, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolution of a batch of images."""
        if x.device.type != "cpu":
            return super().forward(x)
        height, width = x.shape[-2:]
        if self.output_side(height) == self.output_side(width) == 1:
            return self.single_output(x)
        is_small = height * width <= PLAIN_PIXELS
        memory = torch.contiguous_format if is_small else torch.channels_last
        return super().forward(x.contiguous(memory_format=memory))

    def output_side(self, side: int) -> int:
        """Return the height or width of the output for that of an image."""
        padding = int(self.padding[0])
        return (side + 2 * padding - self.kernel_size[0]) // self.stride[0] + 1

    def single_output(self, x: Tensor) -> Tensor:
        """Return the only output pixel: the taps inside the image times the pixels below them.

        Taps are one slice of the kernel, from the first inside the image to the last. Those between
        that lie outside are multiplied by zero, which is quicker than to pick the others.
        """
        side = self.kernel_size[0]
        padding = int(self.padding[0])
        height = min(x.shape[2], side - padding)
        width = min(x.shape[3], side - padding)
        first = padding * side + padding
        count = (height - 1) * side + width
        rows = functional.pad(x[:, :, :height, :width], (0, side - width))
        pixels = rows.flatten(2)[:, :, :count].flatten(1)
        taps = self.weight.flatten(2)[:, :, first : first + count].flatten(1).contiguous()
        return functional.linear(pixels, taps, self.bias)[:, :, None, None]
