"""Models by name, made for the input shape and the number of classes of a data set."""

from collections.abc import Callable

from torch import nn

from fedwmsam.errors import InputError, unknown_name_message
from fedwmsam.models.cnn import cnn
from fedwmsam.models.custom import imported_factory
from fedwmsam.models.input_shape import InputShape
from fedwmsam.models.lenet import lenet
from fedwmsam.models.mlp import linear, mlp
from fedwmsam.models.resnet import BasicBlock, Bottleneck, make_resnet_factory
from fedwmsam.models.size import check_model_fits
from fedwmsam.models.text import char_mlp

MODELS: dict[str, Callable[[InputShape, int], nn.Module]] = {
    "mlp": mlp,
    "linear": linear,
    "lenet": lenet,
    "cnn": cnn,
    "resnet18": make_resnet_factory("resnet18", BasicBlock, (2, 2, 2, 2), cifar=False),
    "resnet34": make_resnet_factory("resnet34", BasicBlock, (3, 4, 6, 3), cifar=False),
    "resnet50": make_resnet_factory("resnet50", Bottleneck, (3, 4, 6, 3), cifar=False),
    "resnet18-cifar": make_resnet_factory("resnet18-cifar", BasicBlock, (2, 2, 2, 2), cifar=True),
    "resnet34-cifar": make_resnet_factory("resnet34-cifar", BasicBlock, (3, 4, 6, 3), cifar=True),
    "resnet50-cifar": make_resnet_factory("resnet50-cifar", Bottleneck, (3, 4, 6, 3), cifar=True),
    "char": char_mlp,
}
"""Functions that make each model from an input shape and a number of classes.

For text the shape is (context length,) and the number of classes is the size of the vocabulary.
"""


def model_factory(name: str, shape: InputShape, classes: int) -> Callable[[], nn.Module]:
    """Return a function that makes the model of that name.

    A model of the user's own is named as "package.module:function". Raise InputError if there is no
    such model, or if this machine's memory cannot hold it.
    """
    if ":" in name:
        return imported_factory(name, shape, classes)
    if name not in MODELS:
        message = unknown_name_message("model", name, MODELS)
        raise InputError(f"{message} A model of your own is named as 'package.module:function'.")
    check_model_fits(name, MODELS[name], shape, classes)
    return lambda: MODELS[name](shape, classes)
