"""Models by name, made for a data set's input shape and number of classes."""

from collections.abc import Callable

from torch import nn

from fedwmsam.errors import InputError, unknown
from fedwmsam.models.cnn import cnn
from fedwmsam.models.custom import imported_factory
from fedwmsam.models.lenet import lenet
from fedwmsam.models.mlp import linear, mlp
from fedwmsam.models.resnet import Basic, Bottleneck, resnet
from fedwmsam.models.text import char

Shape = tuple[int, ...]

MODELS: dict[str, Callable[[Shape, int], nn.Module]] = {
    "mlp": mlp,
    "linear": linear,
    "lenet": lenet,
    "cnn": cnn,
    "resnet18": resnet("resnet18", Basic, (2, 2, 2, 2), cifar=False),
    "resnet34": resnet("resnet34", Basic, (3, 4, 6, 3), cifar=False),
    "resnet50": resnet("resnet50", Bottleneck, (3, 4, 6, 3), cifar=False),
    "resnet18-cifar": resnet("resnet18-cifar", Basic, (2, 2, 2, 2), cifar=True),
    "resnet34-cifar": resnet("resnet34-cifar", Basic, (3, 4, 6, 3), cifar=True),
    "resnet50-cifar": resnet("resnet50-cifar", Bottleneck, (3, 4, 6, 3), cifar=True),
    "char": char,
}
"""For text, shape is (context length,) and the number of classes is the size of the vocabulary."""


def model_factory(name: str, shape: Shape, classes: int) -> Callable[[], nn.Module]:
    """A maker of the named model, or of the user's own, named as "package.module:function"."""
    if ":" in name:
        return imported_factory(name, shape, classes)
    if name not in MODELS:
        raise InputError(
            f"{unknown('model', name, MODELS)} A model of your own is named as 'package.module:function'."
        )
    return lambda: MODELS[name](shape, classes)
