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
from itertools import chain
from typing import Any, NamedTuple

from fedwmsam.errors import (
    InputError,
    describe_error,
    printable,
    same_meaning,
    unknown_name_message,
)
from fedwmsam.user_code import import_named


class LibraryMethod(NamedTuple):
    """A method of the library, as the list of all methods tells of it."""

    idea: str
    class_path: str
    """The module in `methods/` and the class in it."""
    use: str
    """When to use it, as the end of a sentence that begins with "Use it"."""


WEIGHTED_MOMENTUM = "weighted momentum and SAM"
AVERAGING = "averaging"
SERVER = "server optimizers"
MOMENTUM = "momentum"
CONTROL = "control variates and duals"
SAM = "SAM"

METHOD_TABLE = {
    "fedwmsam": LibraryMethod(
        WEIGHTED_MOMENTUM,
        "fedwmsam.FedWMSAM",
        "under label skew with few participants, in runs that outlast a slow start",
    ),
    "fedwmsam-plus": LibraryMethod(
        WEIGHTED_MOMENTUM,
        "fedwmsam_plus.FedWMSAMPlus",
        "where FedWMSAM starts too slowly or its accuracy jumps from round to round",
    ),
    "fedavg": LibraryMethod(
        AVERAGING,
        "fedavg.FedAvg",
        "as the reference, and where clients are alike or traffic is the limit",
    ),
    "fedprox": LibraryMethod(
        AVERAGING,
        "fedprox.FedProx",
        "when clients drift far in a round and memory and traffic may not grow",
    ),
    "fednova": LibraryMethod(
        AVERAGING, "fednova.FedNova", "when clients take very different numbers of steps"
    ),
    "fedexp": LibraryMethod(
        SERVER, "fedexp.FedExP", "when updates nearly cancel and clients must stay as they are"
    ),
    "fedavgm": LibraryMethod(
        SERVER,
        "fedadam.FedAvgM",
        "when few participants make updates noisy and clients must stay as they are",
    ),
    "fedadam": LibraryMethod(
        SERVER,
        "fedadam.FedAdam",
        "when coordinates differ widely in scale and clients must stay as they are",
    ),
    "fedyogi": LibraryMethod(
        SERVER, "fedadam.FedYogi", "in FedAdam's place, when the size of updates changes suddenly"
    ),
    "fedadagrad": LibraryMethod(
        SERVER,
        "fedadam.FedAdagrad",
        "for rarely used coordinates, with a server step that comes to rest by itself",
    ),
    "fedacg": LibraryMethod(
        MOMENTUM,
        "fedacg.FedACG",
        "with few participants, for momentum on the clients at FedAvg's traffic",
    ),
    "fedcm": LibraryMethod(
        MOMENTUM,
        "fedcm.FedCM",
        "when few of many clients take part and one more vector down is affordable",
    ),
    "fedadc": LibraryMethod(
        MOMENTUM, "fedadc.FedADC", "in FedCM's place, with a look-ahead that damps overshooting"
    ),
    "mfl": LibraryMethod(
        MOMENTUM, "mfl.MFL", "when local momentum is to go on over rounds, at twice the traffic"
    ),
    "mimelite": LibraryMethod(
        MOMENTUM,
        "mimelite.MimeLite",
        "when drift should not enter the momentum and one more pass is cheap",
    ),
    "mime": LibraryMethod(
        MOMENTUM,
        "mime.Mime",
        "for its row in a comparison; on the digits MimeLite did better at less cost",
    ),
    "ghbm": LibraryMethod(
        MOMENTUM,
        "ghbm.GHBM",
        "when few of many clients take part and nothing may be kept per client",
    ),
    "localghbm": LibraryMethod(
        MOMENTUM, "ghbm.LocalGHBM", "in GHBM's place, without a τ to choose, when clients come back"
    ),
    "fedhbm": LibraryMethod(
        MOMENTUM, "ghbm.FedHBM", "when clients come back often, but not all in every round"
    ),
    "scaffold": LibraryMethod(
        CONTROL,
        "scaffold.SCAFFOLD",
        "under strong label skew with many local steps, when clients come back",
    ),
    "scaffold-m": LibraryMethod(
        CONTROL,
        "scaffold_m.SCAFFOLDM",
        "under label skew with few participants, without SAM or an adaptive weight",
    ),
    "feddyn": LibraryMethod(
        CONTROL,
        "feddyn.FedDyn",
        "under label skew with many local steps, when clients take part regularly",
    ),
    "adabest": LibraryMethod(
        CONTROL,
        "adabest.AdaBest",
        "when FedDyn's duals would grow because clients come back rarely",
    ),
    "fedsam": LibraryMethod(
        SAM,
        "fedsam.FedSAM",
        "when the model overfits its clients, computation is cheap and traffic dear",
    ),
    "mofedsam": LibraryMethod(
        SAM,
        "mofedsam.MoFedSAM",
        "with few participants and a model that overfits, where computation is cheap",
    ),
    "fedgamma": LibraryMethod(
        SAM,
        "fedgamma.FedGAMMA",
        "where SCAFFOLD helps and the model overfits, at two backprops a step",
    ),
    "fedspeed": LibraryMethod(
        SAM,
        "fedspeed.FedSpeed",
        "for long local work, where computation is cheap and rounds are dear",
    ),
    "fedsmoo": LibraryMethod(
        SAM,
        "fedsmoo.FedSMOO",
        "when clients' perturbations disagree and traffic and computation are cheap",
    ),
    "fedlesam": LibraryMethod(
        SAM, "fedlesam.FedLESAM", "for SAM at one backprop a step, when clients come back"
    ),
    "fedlesam-s": LibraryMethod(
        SAM,
        "fedlesam_s.FedLESAMS",
        "where SCAFFOLD helps and SAM is wanted without a second backprop",
    ),
    "fedlesam-d": LibraryMethod(
        SAM,
        "fedlesam_d.FedLESAMD",
        "where FedDyn helps and SAM is wanted without a second backprop",
    ),
    "fedgloss": LibraryMethod(
        SAM,
        "fedgloss.FedGloSS",
        "for SAM of the global loss at one backprop a step, with short local work",
    ),
}
"""The library's methods by name, those of one idea together."""


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
    if plain in METHOD_TABLE or plain in registered_methods():
        return plain
    known = [*METHOD_TABLE, *registered_methods()]
    own = f"A method of your own is named as {meant_path(name)!r}."
    if "." in name or name != name.lower():
        raise InputError(unknown_name_message("method", name, known, first=own))
    raise InputError(f"{unknown_name_message('method', name, known)} {own}")


def meant_path(name: str) -> str:
    """Return the path of a class that may be meant by a file's name, by dots or by a class alone.

    "fading_prox.FadingProx" gives "fading_prox:FadingProx"; what the name does not say is a word
    such as "Class".
    """
    module, _, last = printable(name, 100).replace("/", ".").rpartition(".")
    class_name = "Class" if last == last.lower() else last
    return f"{module.strip('.') or 'package.module'}:{class_name}"


@cache
def registered_methods() -> dict[str, EntryPoint]:
    """Return the methods that installed packages register; those of the library come first."""
    registered = {entry.name.lower(): entry for entry in entry_points(group=ENTRY_POINTS)}
    return {name: entry for name, entry in registered.items() if name not in METHOD_TABLE}


def method_title(name: str) -> str:
    """Return a method's name as papers write it: its class's, with the hyphens of the method's.

    "fedavg" gives "FedAvg", "fedlesam-s" "FedLESAM-S", and a method named by its path the class in
    that. Nothing is imported, and a name that is not known is returned as it is.
    """
    if name in METHOD_TABLE:
        class_name = METHOD_TABLE[name].class_path.partition(".")[2]
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
    if name in METHOD_TABLE:
        module, _, class_name = METHOD_TABLE[name].class_path.partition(".")
        return getattr(import_module(f"fedwmsam.methods.{module}"), class_name)
    if is_path(name):
        cls = import_named("method", name, "Class", is_method_class)
    else:
        cls = load_registered(name)
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
    if not is_method_class(cls):
        raise InputError(f"The method {name!r} must be a class derived from fedwmsam.Method.")
    if "__dataclass_params__" not in vars(cls) or not is_dataclass(cls):
        raise InputError(f"The method {name!r} must be a @dataclass(frozen=True): decorate it.")
    for attribute in ("name", "paper"):
        if not isinstance(getattr(cls, attribute, None), str):
            raise InputError(
                f"The method {name!r} has no {attribute}: add {attribute}: ClassVar[str]."
            )
    base = import_module("fedwmsam.methods.base")
    base.check_functions(cls)
    for function in ("direction", "aggregate"):
        if getattr(cls, function) is getattr(base.Method, function):
            raise InputError(f"The method {name!r} defines no {function}: write one.")
    for f in fields(cls):
        if "help" not in f.metadata or f.default is MISSING:
            raise InputError(
                f"The field {f.name!r} of the method {name!r} is no option: "
                "declare it as option(default, meaning)."
            )


def is_method_class(value: object) -> bool:
    """Return whether a value is a class derived from `fedwmsam.Method`."""
    base = import_module("fedwmsam.methods.base").Method
    return isinstance(value, type) and issubclass(value, base)


def known_class(name: object) -> Any:
    """Return the class of a method, or None if it is not known or nobody has allowed its import.

    For what is written about runs, which may be a stranger's.
    """
    try:
        return method_class(name) if isinstance(name, str) else None
    except InputError:
        return None


def methods_with_option(option: str) -> list[str]:
    """Return the library's methods that have an option.

    The methods of other packages are not asked: that would import them.
    """
    return [name for name in METHOD_TABLE if option in option_names(name)]


def option_names(method: str) -> list[str]:
    """Return the names of the method's options; this imports its class."""
    return [f.name for f in fields(method_class(method))]


def missing_option_message(option: str, methods: Sequence[str]) -> str | None:
    """Return the sentence for an option that these methods lack and others have.

    It is None if none do, or if these methods have one that means the same.
    """
    own_names = chain.from_iterable(map(option_names, methods))
    owners = [name for name in methods_with_option(option) if name not in methods]
    if not owners or same_meaning(option, own_names):
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
