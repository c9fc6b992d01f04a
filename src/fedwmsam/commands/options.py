"""The options of commands: those made from the declarations of settings, and those that several commands share."""

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import Field
from enum import Enum
from pathlib import Path
from types import NoneType
from typing import Annotated, Any

import typer

from fedwmsam.settings.config import RunConfig, settings_by_panel
from fedwmsam.settings.options import describe_range, field_types, has_range, parse_typed


class FigureFormat(Enum):
    PNG = "png"
    SVG = "svg"
    PDF = "pdf"


RunArgument = Annotated[Path, typer.Argument(help="The run's folder.")]
RunsArgument = Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold them.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Any setting or option of the method; repeatable."
    ),
]
JobsOption = Annotated[str, typer.Option(help="Runs at a time: auto or a number.")]
FormatOption = Annotated[FigureFormat, typer.Option(help="Of the pictures.")]
MarkdownOption = Annotated[Path | None, typer.Option(help="Write the tables here.")]
HtmlOption = Annotated[
    Path | None, typer.Option(help="Write everything here as one page for a browser.")
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]

REPEATABLE = ("track",)
"""Settings that hold several values with commas between, and whose flag may also be given several times."""


def add_setting_flags(names: Sequence[str]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command a flag for each of these settings; it gets the given ones in its argument `settings`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True).parameters.values()
        flags = [make_flag(f) for f in settings_by_panel() if f.name in names]
        arguments = [parameter for parameter in own if parameter.name != "settings"]

        @functools.wraps(command)
        def called(**given: Any) -> None:
            settings = {name: given.pop(name) for name in names}
            command(**given, settings=parse_given_settings(settings))

        signature = inspect.Signature([*(to_keyword_only(one) for one in arguments), *flags])
        called.__signature__ = signature  # type: ignore[attr-defined]
        called.__annotations__ = {one.name: one.annotation for one in signature.parameters.values()}
        return called

    return decorate


def to_keyword_only(parameter: inspect.Parameter) -> inspect.Parameter:
    return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)


def make_flag(setting: "Field[Any]") -> inspect.Parameter:
    """The command-line option of a setting, as a parameter of a function."""
    rule = setting.metadata
    help = capitalise(rule["help"])
    help += f", {describe_range(rule)}" if has_range(rule) else ""
    help += f"; {rule['see']}." if rule["see"] else "."
    option = typer.Option(
        f"--{setting.name.replace('_', '-')}",
        help=help,
        rich_help_panel=rule["panel"],
        show_default=False if setting.default is None else str(setting.default),
        metavar="|".join(rule["choices"]) or None,
    )
    annotation = Annotated[flag_type(setting.name), option]  # type: ignore[valid-type]
    return inspect.Parameter(
        setting.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )


def capitalise(text: str) -> str:
    """With a capital first, unless it begins with a value that is typed as it stands, as in "paper: …"."""
    return text if text.split()[0].endswith(":") else f"{text[0].upper()}{text[1:]}"


def flag_type(name: str) -> Any:
    """A number where a number is meant; where also a word is (auto, none), a text."""
    if name in REPEATABLE:
        return list[str] | None
    return str | None if accepts_word(name) else field_types(RunConfig)[name][0] | None


def accepts_word(name: str) -> bool:
    kinds = field_types(RunConfig)[name]
    may_be_switched_off = NoneType in kinds and getattr(RunConfig, name) is not None
    return name == "workers" or may_be_switched_off


def parse_given_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """What was given of the settings, each as its own type; the number of workers is read where it is used."""
    given = {name: value for name, value in settings.items() if value is not None and value != []}
    for name in given:
        if name in REPEATABLE:
            given[name] = ",".join(given[name])
        elif name != "workers" and isinstance(given[name], str):
            given[name] = parse_typed(name, given[name], field_types(RunConfig)[name])
    return given
