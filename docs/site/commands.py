"""The reference of the command line, from what `fedwmsam COMMAND --help` says."""

from typing import Any

import typer
from sphinx.application import Sphinx

from fedwmsam import cli

PAGE = "docs/site/commands"


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", add_commands)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def add_commands(app: Sphinx, page: str, source: list[str]) -> None:
    if page == PAGE:
        group: Any = typer.main.get_command(cli.app)
        source[0] += "".join(section(name, command) for name, command in group.commands.items())


def section(name: str, command: Any) -> str:
    rows = [row(parameter) for parameter in command.params if parameter.name != "help"]
    return (
        f"\n\n## fedwmsam {name}\n\n{command.help}\n\n| | meaning | default |\n|---|---|---|\n"
        + "\n".join(rows)
    )


def row(parameter: Any) -> str:
    names = (
        ", ".join(f"`{text}`" for text in parameter.opts)
        if parameter.param_type_name == "option"
        else ""
    )
    default = (
        parameter.show_default if isinstance(parameter.show_default, str) else parameter.default
    )
    shown = "" if default in (None, False, ...) else str(default)
    return f"| {names or f'`{parameter.name.upper()}`'} | {parameter.help or ''} | {shown} |"
