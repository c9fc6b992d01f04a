"""The methods there are: those of the library, of installed packages, and of the user's own code.

A method of the library has a line in the table below. An installed package registers methods
through the entry-point group `fedwmsam.methods`. Any other is named by its path,
"package.module:Class", and is imported only after `allow_import`: importing runs its code, and a
run folder or a message that names it may be a stranger's.

Nothing here needs PyTorch, whose import takes seconds; the classes do, and each is imported when it
is first used. For code that needs PyTorch anyway, `fedwmsam.methods` has `method_class` and
`make_method` with precise types.
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from fedwmsam.errors import InputError, describe_error, printable, unknown_name_message
from fedwmsam.user_code import import_named

METHOD_CLASS_PATHS = {
    "fedwmsam": "fedwmsam.FedWMSAM",
    "fedwmsam-plus": "fedwmsam_plus.FedWMSAMPlus",
    "fedavg": "fedavg.FedAvg",
    "fedprox": "fedprox.FedProx",
    "fedavgm": "fedadam.FedAvgM",
    "fedadam": "fedadam.FedAdam",
    "fedyogi": "fedadam.FedYogi",
    "fedadagrad": "fedadam.FedAdagrad",
    "fednova": "fednova.FedNova",
    "fedexp": "fedexp.FedExP",
    "fedacg": "fedacg.FedACG",
    "fedcm": "fedcm.FedCM",
    "fedadc": "fedadc.FedADC",
    "mfl": "mfl.MFL",
    "mimelite": "mimelite.MimeLite",
    "mime": "mime.Mime",
    "ghbm": "ghbm.GHBM",
    "localghbm": "ghbm.LocalGHBM",
    "fedhbm": "ghbm.FedHBM",
    "scaffold": "scaffold.SCAFFOLD",
    "scaffold-m": "scaffold_m.SCAFFOLDM",
    "feddyn": "feddyn.FedDyn",
    "adabest": "adabest.AdaBest",
    "fedsam": "fedsam.FedSAM",
    "mofedsam": "mofedsam.MoFedSAM",
    "fedgamma": "fedgamma.FedGAMMA",
    "fedspeed": "fedspeed.FedSpeed",
    "fedsmoo": "fedsmoo.FedSMOO",
    "fedlesam": "fedlesam.FedLESAM",
    "fedlesam-s": "fedlesam_s.FedLESAMS",
    "fedlesam-d": "fedlesam_d.FedLESAMD",
    "fedgloss": "fedgloss.FedGloSS",
}
"""The module in `methods/` and the class in it, by the name of the method."""


ENTRY_POINTS = "fedwmsam.methods"
"""The entry-point group in which installed packages register methods, each under its name."""
_allowed_paths: set[str] = set()


def is_path(name: str) -> bool:
    """Return whether a method is named by the path of its class."""
    return ":" in name


def allow_import(name: str) -> None:
    """Let this process import a method by its path; call it only where the user has named it."""
    if is_path(name):
        _allowed_paths.add(name)


def canonical_name(name: str) -> str:
    """Return a method's name as configurations have it: `FedAvg` and `fedavg` are one method.

    Raise InputError if no method is called that. Nothing is imported: a path is returned as it is.
    """
    if is_path(name):
        return name
    plain = name.lower().replace("_", "-")
    if plain in METHOD_CLASS_PATHS or plain in registered_methods():
        return plain
    message = unknown_name_message("method", name, [*METHOD_CLASS_PATHS, *registered_methods()])
    raise InputError(f"{message} A method of your own is named as 'package.module:Class'.")


@cache
def registered_methods() -> dict[str, EntryPoint]:
    """Return the methods that installed packages register; those of the library come first."""
    registered = {entry.name.lower(): entry for entry in entry_points(group=ENTRY_POINTS)}
    return {name: entry for name, entry in registered.items() if name not in METHOD_CLASS_PATHS}


def method_title(name: str) -> str:
    """Return a method's name as papers write it: its class's, with the hyphens of the method's.

    "fedavg" gives "FedAvg", "fedlesam-s" "FedLESAM-S", and a method named by its path the class in
    that. Nothing is imported, and a name that is not known is returned as it is.
    """
    if name in METHOD_CLASS_PATHS:
        class_name = METHOD_CLASS_PATHS[name].partition(".")[2]
    elif name in registered_methods():
        class_name = registered_methods()[name].attr
    else:
        class_name = name.rpartition(":")[2] or name
    if name.replace("-", "") != class_name.lower():
        return class_name
    letters = iter(class_name)
    return "".join("-" if letter == "-" else next(letters) for letter in name)


def method_class(name: str) -> Any:
    """Return the class of the method called `name`.

    Raise InputError if there is none, if it cannot be imported, or if it is named by a path that
    nobody has allowed.
    """
    name = canonical_name(name)
    if is_path(name) and name not in _allowed_paths:
        raise InputError(
            f"The method {printable(name)!r} would be imported, which runs its code: "
            "name it yourself to allow that."
        )
    return load_class(name)


@cache
def load_class(name: str) -> Any:
    """Import the class of a method by its canonical name, and check that it is one."""
    if name in METHOD_CLASS_PATHS:
        module, _, class_name = METHOD_CLASS_PATHS[name].partition(".")
        return getattr(import_module(f"fedwmsam.methods.{module}"), class_name)
    cls = import_named("method", name, "Class") if is_path(name) else load_registered(name)
    check_class(name, cls)
    return cls


def load_registered(name: str) -> Any:
    """Return what an installed package has registered under this name.

    Raise InputError if it cannot be imported, or if it calls itself otherwise: a run of `fit` is
    kept under the name that the class has.
    """
    entry = registered_methods()[name]
    try:
        cls = entry.load()
    except Exception as error:  # a package's code may fail in any way
        raise InputError(
            f"The method {name!r} of an installed package cannot be imported from {entry.value} "
            f"({describe_error(error)}): correct or remove the package."
        ) from error
    if getattr(cls, "name", None) != name:
        raise InputError(
            f"The method {name!r} ({entry.value}) is registered under another name than its own, "
            f"{getattr(cls, 'name', None)!r}: register it under that, in lower case."
        )
    return cls


def check_class(name: str, cls: Any) -> None:
    """Raise InputError unless `cls` can be used as a method: whoever wrote it is told what lacks.

    `fedwmsam.testing.check_method` tests whether it keeps the contract.
    """
    base = import_module("fedwmsam.methods.base").Method
    if not isinstance(cls, type) or not issubclass(cls, base):
        raise InputError(f"The method {name!r} must be a class derived from fedwmsam.Method.")
    if "__dataclass_params__" not in vars(cls) or not is_dataclass(cls):
        raise InputError(f"The method {name!r} must be a @dataclass(frozen=True): decorate it.")
    for attribute in ("name", "paper"):
        if not isinstance(getattr(cls, attribute, None), str):
            raise InputError(
                f"The method {name!r} has no {attribute}: add {attribute}: ClassVar[str]."
            )
    for function in ("direction", "aggregate"):
        if getattr(cls, function) is getattr(base, function):
            raise InputError(f"The method {name!r} defines no {function}: write one.")
    for f in fields(cls):
        if "help" not in f.metadata or f.default is MISSING:
            raise InputError(
                f"The field {f.name!r} of the method {name!r} is no option: "
                "declare it as option(default, meaning)."
            )


def known_class(name: object) -> Any:
    """Return the class of a method, or None if it is not known or nobody has allowed its import.

    For what is written about runs, which may be a stranger's.
    """
    try:
        return method_class(name) if isinstance(name, str) else None
    except InputError:
        return None


def missing_option_message(option: str, methods: Sequence[str]) -> str | None:
    """Return the sentence for an option that these methods lack and others have; None if none do.

    The methods of other packages are not asked: that would import them.
    """
    owners = []
    for name in METHOD_CLASS_PATHS:
        if name not in methods and option in {f.name for f in fields(load_class(name))}:
            owners.append(name)
    if not owners:
        return None
    who = f"{methods[0]} has" if len(methods) == 1 else f"None of {', '.join(methods)} has"
    no = "no" if len(methods) == 1 else "an"
    have = "has it" if len(owners) == 1 else "have it"
    return f"{who} {no} option {option!r}; {', '.join(owners)} {have}."


def make_method(name: str, /, **options: object) -> Any:
    """Return the method called `name` with its options.

    Raise InputError if there is no such method, if it has no such option, or if a value is wrong.
    """
    return method_with_options(method_class(name), options)


def method_with_options(cls: Any, options: Mapping[str, object]) -> Any:
    """Return an instance of a method's class.

    Raise InputError if it has no such option, or if a value is wrong.
    """
    names = [f.name for f in fields(cls)]
    for option in options:
        if option not in names:
            message = missing_option_message(option, [cls.name])
            raise InputError(
                message or unknown_name_message(f"option of {cls.name}", option, names)
            )
    return cls(**options)
