"""The shape of one input, and what the image models ask of it."""

from fedwmsam.errors import InputError

InputShape = tuple[int, ...]
"""Of one sample, without the batch: (channels, height, width) of images, (context length,) of text."""


def check_image_shape(model: str, shape: InputShape, smallest: int = 1) -> tuple[int, int, int]:
    """Channels, height and width of an input that the model can take."""
    if len(shape) != 3:
        raise InputError(
            f"The model {model!r} takes images of shape (channels, height, width), not inputs of shape {shape}: "
            "choose 'mlp' or 'linear'."
        )
    channels, height, width = shape
    if min(height, width) < smallest:
        raise InputError(
            f"The model {model!r} takes images of at least {smallest} × {smallest}, not {height} × {width}: "
            "enlarge the images or choose 'mlp'."
        )
    return channels, height, width
