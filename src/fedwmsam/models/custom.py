"""Models of the user's own, which are named by their path: "package.module:function"."""

import contextlib
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from fedwmsam.errors import InputError, describe_error, unknown_name_message
from fedwmsam.models.input_shape import InputShape


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
            with _current_directory_first():  # the function may import more of the user's modules
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
    path, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in [*path.split("."), attribute]):
        raise InputError(
            f"The model {name!r} is not a path to a model: expected 'package.module:function'."
        )
    module = _import_module(name, path)
    if not hasattr(module, attribute):
        public = [
            key
            for key, value in vars(module).items()
            if callable(value) and not key.startswith("_")
        ]
        raise InputError(
            unknown_name_message(f"function in the module {path!r}", attribute, public)
        )
    function = getattr(module, attribute)
    if isinstance(function, nn.Module) or not callable(function):
        # A module that is already made is refused, too: its initial weights would not depend on the
        # run's seed.
        raise InputError(
            f"The model {name!r} is a {type(function).__name__}, "
            "expected a function or class that makes a model: name one."
        )
    return function  # type: ignore[no-any-return]  # callable() does not tell mypy of what


def _import_module(name: str, path: str) -> ModuleType:
    """Return the module at a dotted path, or raise InputError if it cannot be imported."""
    importlib.invalidate_caches()  # the file may have been written since Python last looked
    try:
        with _current_directory_first():
            return importlib.import_module(path)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{path}.".startswith(f"{missing}."):
            raise InputError(
                f"The module {missing!r} of the model {name!r} is neither in {Path.cwd()} "
                "nor installed: correct the name, or start from the folder that holds it."
            ) from error
        raise InputError(
            f"The module {path!r} of the model {name!r} cannot be imported "
            f"({describe_error(error)}): correct it."
        ) from error


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


@contextlib.contextmanager
def _current_directory_first() -> Iterator[None]:
    """Let Python look for modules in the current folder first while the block runs."""
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # the user's module may have removed it
            sys.path.remove(folder)
