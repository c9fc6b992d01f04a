"""A model of the user's own, named by where it is: "package.module:function"."""

import contextlib
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from fedwmsam.errors import InputError, unknown_name_message
from fedwmsam.models.input_shape import InputShape


def imported_factory(name: str, shape: InputShape, classes: int) -> Callable[[], nn.Module]:
    """What the path names is called with (shape, classes) if it accepts both, without arguments if it takes none."""
    maker = _find(name)
    arguments = _arguments(name, maker, shape, classes)

    def make() -> nn.Module:
        try:
            with _current_directory_first():  # the function may import more of the user's modules
                model = maker(*arguments)
        except InputError:
            raise
        except Exception as error:
            called = f"called with {arguments}" if arguments else "called without arguments"
            raise InputError(
                f"The model {name!r} failed when {called} ({_one_line_error(error)}): correct it."
            ) from error
        if not isinstance(model, nn.Module):
            raise InputError(
                f"The model {name!r} must return a torch.nn.Module, not {type(model).__name__}: correct it."
            )
        return model

    return make


def _find(name: str) -> Callable[..., Any]:
    path, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in [*path.split("."), attribute]):
        raise InputError(
            f"The model {name!r} is not a path to a model: expected 'package.module:function'."
        )
    module = _import(name, path)
    if not hasattr(module, attribute):
        public = [
            key
            for key, value in vars(module).items()
            if callable(value) and not key.startswith("_")
        ]
        raise InputError(
            unknown_name_message(f"function in the module {path!r}", attribute, public)
        )
    maker = getattr(module, attribute)
    if isinstance(maker, nn.Module) or not callable(maker):
        # A module that is already made is refused too: its initial weights would not follow the run's seed.
        raise InputError(
            f"The model {name!r} is a {type(maker).__name__}, expected a function or class that makes a model: "
            "name one."
        )
    return maker  # type: ignore[no-any-return]  # callable() does not tell mypy of what


def _import(name: str, path: str) -> ModuleType:
    importlib.invalidate_caches()  # the file may have been written since Python last looked
    try:
        with _current_directory_first():
            return importlib.import_module(path)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{path}.".startswith(f"{missing}."):
            raise InputError(
                f"The module {missing!r} of the model {name!r} is neither in {Path.cwd()} nor installed: "
                "correct the name, or start from the folder that holds it."
            ) from error
        raise InputError(
            f"The module {path!r} of the model {name!r} cannot be imported ({_one_line_error(error)}): correct it."
        ) from error


def _arguments(
    name: str, maker: Callable[..., Any], shape: InputShape, classes: int
) -> tuple[Any, ...]:
    for arguments in ((shape, classes), ()):
        # ValueError: some functions written in C do not tell what they take.
        with contextlib.suppress(TypeError, ValueError):
            inspect.signature(maker).bind(*arguments)
            return arguments
    raise InputError(
        f"The model {name!r} must take (shape, classes) or no arguments: correct what it takes."
    )


@contextlib.contextmanager
def _current_directory_first() -> Iterator[None]:
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # the user's module may have taken it out
            sys.path.remove(here)


def _one_line_error(error: BaseException) -> str:
    """An error in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
