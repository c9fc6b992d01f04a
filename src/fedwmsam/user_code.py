"""Code of the user's own, which is named by its path: "package.module:name"."""

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from fedwmsam.errors import InputError, describe_error, unknown_name_message


def import_named(
    kind: str, name: str, what: str, is_meant: Callable[[object], bool] = callable
) -> Any:
    """Return the function or class that a path names.

    `kind` and `what` are words of the messages, such as "model" and "function"; `is_meant` tells
    which of a module's values are such. Raise InputError if the path is none, or if nothing can be
    imported from there.
    """
    path, _, attribute = name.partition(":")
    is_file = path.endswith(".py")
    if is_file or not all(map(str.isidentifier, [*path.split("."), attribute])):
        example = f", here '{Path(path).stem}:{attribute}'" if is_file else ""
        raise InputError(
            f"The {kind} {name!r} is not a path to a {kind}: "
            f"expected 'package.module:{what}'{example}."
        )
    module = _import_module(kind, name, path)
    if not hasattr(module, attribute):
        known = [key for key, value in own_values(module) if is_meant(value)]
        raise InputError(
            unknown_name_message(f"{what.lower()} in the module {path!r}", attribute, known)
        )
    return getattr(module, attribute)


def own_values(module: ModuleType) -> Iterator[tuple[str, object]]:
    """Yield the public functions and classes that a module or a part of it defines, by name."""
    for name, value in vars(module).items():
        home = f"{getattr(value, '__module__', '')}."
        if home.startswith(f"{module.__name__}.") and not name.startswith("_"):
            yield name, value


def _import_module(kind: str, name: str, path: str) -> ModuleType:
    """Return the module at a dotted path, or raise InputError if it cannot be imported."""
    importlib.invalidate_caches()  # the file may have been written since Python last looked
    try:
        with current_directory_first():
            return importlib.import_module(path)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{path}.".startswith(f"{missing}."):
            raise InputError(
                f"The module {missing!r} of the {kind} {name!r} is neither in {Path.cwd()} "
                "nor installed: correct the name, or start from the folder that holds it."
            ) from error
        raise InputError(
            f"The module {path!r} of the {kind} {name!r} cannot be imported "
            f"({describe_error(error)}): correct it."
        ) from error


@contextlib.contextmanager
def current_directory_first() -> Iterator[None]:
    """Let Python look for modules in the current folder first while the block runs."""
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # the user's module may have removed it
            sys.path.remove(folder)
