"""The reference of the command line, made from the help texts of the commands."""

from typing import Any

import typer
from sphinx.application import Sphinx

from fedwmsam.commands.app import app as command_line

PAGE = "docs/site/commands"


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect this extension to Sphinx."""
    app.connect("source-read", add_commands)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def add_commands(app: Sphinx, page: str, source: list[str]) -> None:
    """Append a section for every command to the page of the commands."""
    if page == PAGE:
        group: Any = typer.main.get_command(command_line)
        sections = [make_section(name, command) for name, command in group.commands.items()]
        source[0] += "".join(sections)


def make_section(name: str, command: Any) -> str:
    """Return the help of a command and a table of its parameters, as Markdown."""
    shown = [p for p in command.params if p.name != "help" and not getattr(p, "hidden", False)]
    rows = [table_row(parameter) for parameter in shown]
    header = "| | meaning | default |\n|---|---|---|\n"
    return f"\n\n## fedwmsam {name}\n\n{command.help}\n\n{header}" + "\n".join(rows)


def table_row(parameter: Any) -> str:
    """Return the row of a parameter: its names, its meaning and its default."""
    names = f"`{parameter.name.upper()}`"
    if parameter.param_type_name == "option":
        names = ", ".join(f"`{option}`" for option in parameter.opts)
    default = parameter.default
    if isinstance(parameter.show_default, str):
        default = parameter.show_default
    shown = "" if default in (None, False, ...) else str(default)
    return f"| {names} | {parameter.help or ''} | {shown} |"
