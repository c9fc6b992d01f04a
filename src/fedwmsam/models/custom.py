"""Models of the user's own, which are named by their path: "package.module:function"."""

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from fedwmsam.errors import InputError, describe_error
from fedwmsam.models.input_shape import InputShape
from fedwmsam.user_code import current_directory_first, import_named


def imported_factory(name: str, shape: InputShape, classes: int) -> Callable[[], nn.Module]:
    """Return a function that makes the user's model.

    The user's function is called with (shape, classes) if it accepts both, without arguments if it
    takes none. Raise InputError if it cannot be imported or called like that, or, when called, if
    it fails or returns no module.
    """
    function = _import_function(name)
    arguments = _choose_arguments(name, function, shape, classes)

    def make() -> nn.Module:
        try:
            with current_directory_first():  # the function may import more of the user's modules
                model = function(*arguments)
        except InputError:
            raise
        except Exception as error:
            call = f"called with {arguments}" if arguments else "called without arguments"
            raise InputError(
                f"The model {name!r} failed when {call} ({describe_error(error)}): correct it."
            ) from error
        if not isinstance(model, nn.Module):
            raise InputError(
                f"The model {name!r} must return a torch.nn.Module, "
                f"not {type(model).__name__}: correct it."
            )
        return model

    return make


def _import_function(name: str) -> Callable[..., Any]:
    """Return the function or class that the path names, or raise InputError."""
    function = import_named("model", name, "function")
    if isinstance(function, nn.Module) or not callable(function):
        # A module that is already made is refused, too: its initial weights would not depend on the
        # run's seed.
        raise InputError(
            f"The model {name!r} is a {type(function).__name__}, "
            "expected a function or class that makes a model: name one."
        )
    return function  # type: ignore[no-any-return]  # callable() does not tell mypy of what


def _choose_arguments(
    name: str, function: Callable[..., Any], shape: InputShape, classes: int
) -> tuple[Any, ...]:
    """Return the arguments that the user's function accepts: (shape, classes) or none."""
    for arguments in ((shape, classes), ()):
        # ValueError: some functions written in C do not tell what they take.
        with contextlib.suppress(TypeError, ValueError):
            inspect.signature(function).bind(*arguments)
            return arguments
    raise InputError(
        f"The model {name!r} must take (shape, classes) or no arguments: correct what it takes."
    )
