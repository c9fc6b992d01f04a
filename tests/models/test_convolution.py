"""The convolution of the built-in models beside PyTorch's, whatever the size of the image."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from fedwmsam.models import model_factory
from fedwmsam.models.convolution import Convolution

RESNET_SHAPES = [
    # inputs, outputs, kernel, stride, padding, side of the image
    (512, 512, 3, 1, 1, 1),
    (256, 512, 3, 2, 1, 2),
    (256, 512, 1, 2, 0, 2),
    (512, 512, 1, 1, 0, 1),
    (256, 256, 3, 1, 1, 2),
    (128, 256, 3, 2, 1, 4),
    (128, 128, 3, 1, 1, 4),
    (64, 64, 3, 1, 1, 8),
    (3, 64, 7, 2, 3, 32),
]
"""All convolutions of a ResNet with ImageNet's stem on images of 32 × 32 pixels, small to large."""


def pair(
    inputs: int, outputs: int, kernel: int, stride: int, padding: int, *, bias: bool, dtype=None
) -> tuple[Convolution, nn.Conv2d]:
    """Return our convolution and PyTorch's with the same weights."""
    ours = Convolution(inputs, outputs, kernel, stride, padding, bias=bias).to(dtype)
    theirs = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=bias).to(dtype)
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def output_and_gradients(layer: nn.Conv2d, images: Tensor, weights: Tensor) -> list[Tensor]:
    """Return a layer's output, and the gradients of a weighted sum of it."""
    images = images.clone().requires_grad_()
    output = layer(images)
    gradients = torch.autograd.grad((output * weights).sum(), [images, *layer.parameters()])
    return [output, *gradients]


def tensors_of_both(
    ours: Convolution, theirs: nn.Conv2d, images: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield output and gradients of both layers in pairs."""
    weights = torch.randn_like(theirs(images))
    yield from zip(
        output_and_gradients(ours, images, weights),
        output_and_gradients(theirs, images, weights),
        strict=True,
    )


def relative_difference(value: Tensor, reference: Tensor) -> float:
    difference = torch.linalg.vector_norm(value - reference)
    return float((difference / torch.linalg.vector_norm(reference)).detach())


@pytest.mark.parametrize("shape", RESNET_SHAPES, ids=str)
@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last], ids=str)
def test_values_and_gradients_are_those_of_pytorch(shape, memory):
    torch.manual_seed(0)
    *arguments, side = shape
    ours, theirs = pair(*arguments, bias=False)
    images = torch.randn(50, shape[0], side, side).contiguous(memory_format=memory)
    for value, reference in tensors_of_both(ours, theirs, images):
        assert value.shape == reference.shape
        assert relative_difference(value, reference) <= 1e-6


@given(
    kernel=st.integers(1, 7),
    stride=st.integers(1, 3),
    padding=st.integers(0, 3),
    height=st.integers(1, 7),
    width=st.integers(1, 7),
    bias=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_any_shape_is_computed_exactly(kernel, stride, padding, height, width, bias):
    padding = min(padding, kernel // 2)
    if min(height, width) + 2 * padding < kernel:
        return  # PyTorch refuses an image smaller than the kernel
    torch.manual_seed(kernel)
    ours, theirs = pair(2, 3, kernel, stride, padding, bias=bias, dtype=torch.float64)
    images = torch.randn(4, 2, height, width, dtype=torch.float64)
    for value, reference in tensors_of_both(ours, theirs, images):
        assert torch.allclose(value, reference, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(2, 3, 3, 1, 1, 1), (2, 3, 3, 2, 1, 2)], ids=str)
def test_a_single_pixel_is_one_matrix_product_and_no_convolution(shape, monkeypatch):
    *arguments, side = shape
    layer = Convolution(*arguments)
    monkeypatch.setattr(functional, "conv2d", None)
    assert layer(torch.randn(4, 2, side, side)).shape == (4, 3, 1, 1)


@pytest.mark.parametrize(("side", "is_plain"), [(2, True), (3, False), (8, False)])
def test_the_memory_format_follows_the_size_of_the_image(side, is_plain):
    output = Convolution(8, 8, 3, 1, 1)(torch.randn(4, 8, side, side))
    assert output.is_contiguous() is is_plain
    assert output.is_contiguous(memory_format=torch.channels_last) is not is_plain


def test_second_derivatives_of_a_single_pixel_are_right():
    layer = Convolution(2, 3, 3, 1, 1, bias=False).double()
    image = torch.randn(2, 2, 1, 1, dtype=torch.float64, requires_grad=True)

    def convolve(x: Tensor, weight: Tensor) -> Tensor:
        result: Tensor = torch.func.functional_call(layer, {"weight": weight}, (x,))
        return result

    weight = layer.weight.detach().requires_grad_()
    assert torch.autograd.gradgradcheck(convolve, (image, weight))


@pytest.mark.parametrize("side", [1, 4])
def test_half_precision_computes_and_leaves_the_weights_as_they_are(side):
    layer = Convolution(2, 3, 3, 1, 1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = layer(torch.randn(4, 2, side, side))
    assert output.dtype == torch.bfloat16
    gradient, _ = torch.autograd.grad(output.float().sum(), list(layer.parameters()))
    assert gradient.dtype == torch.float32 and gradient.isfinite().all()


def test_on_other_devices_images_stay_in_the_memory_they_come_in():
    with torch.device("meta"):
        output = Convolution(8, 8, 3, 1, 1)(torch.empty(4, 8, 8, 8))
    assert output.is_contiguous()


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "cnn", "lenet"])
def test_models_agree_with_pytorch_convolutions(name, monkeypatch):
    torch.manual_seed(0)
    model = model_factory(name, (3, 32, 32), 10)().double()
    images = torch.randn(4, 3, 32, 32, dtype=torch.float64)
    scores = model(images)
    monkeypatch.setattr(Convolution, "forward", nn.Conv2d.forward)
    assert relative_difference(scores, model(images)) < 1e-13


def test_residual_networks_have_the_parameters_of_torchvision():
    with torch.device("meta"):
        names = list(model_factory("resnet18", (3, 32, 32), 10)().state_dict())
        deep_names = list(model_factory("resnet50", (3, 32, 32), 10)().state_dict())
    assert names[:6] == [
        "conv1.weight",
        "bn1.weight",
        "bn1.bias",
        "layer1.0.conv1.weight",
        "layer1.0.bn1.weight",
        "layer1.0.bn1.bias",
    ]
    assert "layer2.0.downsample.0.weight" in names and "layer1.0.downsample.0.weight" not in names
    assert names[-2:] == ["fc.weight", "fc.bias"]
    assert "layer4.2.conv3.weight" in deep_names and "layer1.0.downsample.1.bias" in deep_names
