"""The options of commands.

Flags are made from the declarations of settings; other options that several commands share are
declared here.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import Field
from enum import Enum
from pathlib import Path
from types import NoneType
from typing import Annotated, Any

import click
import typer
from typer.core import TyperCommand, TyperGroup

from fedwmsam.errors import InputError, same_meaning
from fedwmsam.settings.config import RunConfig, settings_in_help_order
from fedwmsam.settings.method_table import methods_with_option
from fedwmsam.settings.options import describe_range, field_types, has_range, parse_typed


class FigureFormat(Enum):
    """A file format of plots."""

    PNG = "png"
    SVG = "svg"
    PDF = "pdf"


RunArgument = Annotated[Path, typer.Argument(help="The run's folder.")]
RunsArgument = Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold them.")]
RepeatedModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="PACKAGE:FUNCTION",
        help="The run's own model, repeated: only then is it imported.",
    ),
]
RepeatedMethodOption = Annotated[
    str | None,
    typer.Option(
        "--method",
        metavar="PACKAGE:CLASS",
        help="The run's own method, repeated: only then is it imported.",
    ),
]
TrustOption = Annotated[
    bool, typer.Option("--trust", help="Import whatever model and method the run folder names.")
]
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


class SuggestingGroup(TyperGroup):
    """A group of commands that suggests a similar one once: Click does, and Typer would again."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        return click.Group.resolve_command(self, ctx, args)


class SuggestingCommand(TyperCommand):
    """A command that suggests for an unknown option the one that is meant, also of a method."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            meant = self.meant_flag(error.option_name)
            if meant is None:
                raise
            message = f"No such option {error.option_name!r}. Did you mean {meant!r}?"
            raise click.UsageError(message, ctx) from None

    def meant_flag(self, flag: str) -> str | None:
        """Return the flag that means what others call `flag`, or the --set of a method's option."""
        meant = same_meaning(flag, [parameter.name or "" for parameter in self.params])
        if meant:
            return f"--{meant[0].replace('_', '-')}"
        option = flag.lstrip("-").replace("-", "_")
        takes_set = any("--set" in parameter.opts for parameter in self.params)
        return f"--set {option}=…" if takes_set and methods_with_option(option) else None


REPEATABLE = ("track",)
"""Settings with several values, separated by commas, whose flag may also be given repeatedly."""


def parse_jobs(text: str) -> int:
    """Return how many runs are carried out at a time; "auto" is 0, which means one for each core.

    Raise InputError for what is no number, or a negative one: a queue without workers never ends.
    """
    jobs = 0 if text == "auto" else int(parse_typed("--jobs", text, (int,)))
    if jobs < 0:
        raise InputError(f"--jobs must be auto or a whole number of at least 1, not {jobs}.")
    return jobs


def add_setting_flags(names: Sequence[str]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command a flag for each of these settings.

    The command receives those that were given on the command line as its argument `settings`.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        parameters = inspect.signature(command, eval_str=True).parameters.values()
        own_parameters = [to_keyword_only(p) for p in parameters if p.name != "settings"]
        flags = [make_flag(f) for f in settings_in_help_order() if f.name in names]

        @functools.wraps(command)
        def wrapper(**arguments: Any) -> None:
            settings = {name: arguments.pop(name) for name in names}
            command(**arguments, settings=parse_given_settings(settings))

        signature = inspect.Signature([*own_parameters, *flags])
        wrapper.__signature__ = signature  # type: ignore[attr-defined]
        wrapper.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
        return wrapper

    return decorate


def to_keyword_only(parameter: inspect.Parameter) -> inspect.Parameter:
    """Return the parameter as one that is passed by keyword only, in any order."""
    return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)


def make_flag(setting: "Field[Any]") -> inspect.Parameter:
    """Return the command-line option of a setting, as a parameter of a function."""
    metadata = setting.metadata
    help_text = capitalise(metadata["help"])
    help_text += f", {describe_range(metadata)}" if has_range(metadata) else ""
    help_text += f"; {metadata['see']}." if metadata["see"] else "."
    option = typer.Option(
        f"--{setting.name.replace('_', '-')}",
        help=help_text,
        rich_help_panel=metadata["panel"],
        show_default=False if setting.default is None else str(setting.default),
        metavar="|".join(metadata["choices"]) or None,
    )
    annotation = Annotated[flag_type(setting.name), option]  # type: ignore[valid-type]
    return inspect.Parameter(
        setting.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )


def capitalise(text: str) -> str:
    """Return the text with a capital first letter.

    A text is left unchanged if it begins with a value to be typed as it is, as in "paper: …", or
    with a Greek letter, which is a symbol.
    """
    begins_with_value = text.split()[0].endswith(":")
    begins_with_symbol = not text[0].isascii()
    if begins_with_value or begins_with_symbol:
        return text
    return f"{text[0].upper()}{text[1:]}"


def flag_type(name: str) -> Any:
    """Return the type of a setting's flag: its own, or text where a word is allowed as well."""
    if name in REPEATABLE:
        return list[str] | None
    return str | None if accepts_word(name) else field_types(RunConfig)[name][0] | None


def accepts_word(name: str) -> bool:
    """Return whether a setting accepts a word besides its own type: auto or none."""
    types = field_types(RunConfig)[name]
    may_be_switched_off = NoneType in types and getattr(RunConfig, name) is not None
    return name == "workers" or may_be_switched_off


def parse_given_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that were given, each converted to its own type.

    The number of workers stays a text; it is parsed where it is used. Raise InputError for a value
    of the wrong type.
    """
    given = {name: value for name, value in settings.items() if value is not None and value != []}
    for name in given:
        if name in REPEATABLE:
            given[name] = ",".join(given[name])
        elif name != "workers" and isinstance(given[name], str):
            given[name] = parse_typed(name, given[name], field_types(RunConfig)[name])
    return given
