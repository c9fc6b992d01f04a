"""The shape of one input, and the check that an image model can take it."""

from fedwmsam.errors import InputError

InputShape = tuple[int, ...]
"""The shape of one sample: (channels, height, width) of an image, (context length,) of text."""


def check_image_shape(model: str, shape: InputShape, smallest: int = 1) -> tuple[int, int, int]:
    """Return the channels, height and width of an input.

    Raise InputError if it is not an image, or smaller than `smallest` on either side.
    """
    if len(shape) != 3:
        raise InputError(
            f"The model {model!r} takes images of shape (channels, height, width), "
            f"not inputs of shape {shape}: choose 'mlp' or 'linear'."
        )
    channels, height, width = shape
    if min(height, width) < smallest:
        raise InputError(
            f"The model {model!r} takes images of at least {smallest} × {smallest}, "
            f"not {height} × {width}: enlarge the images or choose 'mlp'."
        )
    return channels, height, width
