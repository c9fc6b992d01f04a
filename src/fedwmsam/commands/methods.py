"""`fedwmsam methods`: the methods of the library and their options."""

from typing import Annotated

import typer

from fedwmsam.commands import output


def methods(
    name: Annotated[
        str | None, typer.Argument(help="One method, with its options.", show_default=False)
    ] = None,
) -> None:
    """List the methods by idea, what they cost and when to use them, or one method's options.

    Examples: `fedwmsam methods`, `fedwmsam methods fedwmsam`
    """
    from fedwmsam.report.terminal import list_methods, method_details

    output.console.print(list_methods() if name is None else method_details(name))
