"""`fedwmsam flower …`: a new Flower app, its keys, checks before a run, and its status."""

import contextlib
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedwmsam.commands.options import RunArgument, SuggestingGroup
from fedwmsam.commands.output import console, print_tables, print_written, say

app = typer.Typer(
    cls=SuggestingGroup,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Train across machines, on Flower.",
)

WATCH_SECONDS = 1
"""Seconds from one look at a run that is watched to the next."""


@app.command()
def new(
    folder: Annotated[Path, typer.Argument(help="Folder of the app; must not exist or be empty.")],
) -> None:
    """Write a small working app to edit: model and data, client, server, settings, README.

    Example: `fedwmsam flower new hospitals`
    """
    from fedwmsam.flower.new import new_app

    print_written(new_app(folder))
    say(f"How to run it: {folder / 'README.md'}")


@app.command()
def keys(
    folder: Annotated[Path, typer.Argument(help="Where to write them; keys that are there stay.")],
    host: Annotated[
        list[str], typer.Option(help="Name or address clients reach the server by; repeatable.")
    ],
    nodes: Annotated[int, typer.Option(min=0, help="Key pairs for so many SuperNodes.")] = 0,
) -> None:
    """Make a certificate for the SuperLink and keys for the SuperNodes.

    `ca.key` and `server.key` stay on the server, each node gets its own `node-K.key` and `ca.crt`.
    `identities.toml` binds client K to the key of node K.

    Example: `fedwmsam flower keys keys --host fl.example.org --nodes 10`
    """
    from fedwmsam.flower.keys import IDENTITIES, make_keys

    written = make_keys(folder, host, nodes)
    print_written(written)
    if not written:
        say(f"Everything is in {folder} already.")
    if nodes:
        say(
            f"Let no other node be client K: flwr run . NAME --run-config {folder / IDENTITIES}, "
            "or copy its two lines into [tool.flwr.app.config]."
        )


@app.command()
def release(
    folder: Annotated[Path, typer.Argument(help="Folder of a run that is not going on.")],
    client: Annotated[int, typer.Argument(min=0, help="Client whose place is released.")],
) -> None:
    """Let a node with another key be a client of a run, from its next start on.

    With authentication a client belongs to one key for the whole run; this undoes it.

    Example: `fedwmsam flower release /srv/runs/first 3`
    """
    from fedwmsam.flower.identities import release as release_client

    key = release_client(folder, client)
    say(
        f"Client {client} belonged to {key}. Unless identities names another key, the first node "
        "that says it is this client gets its place."
    )


@app.command()
def check(
    folder: Annotated[Path, typer.Argument(help="Folder of the app.")] = Path(),
    superlink: Annotated[
        str | None, typer.Argument(help="Name of the SuperLink in Flower's config.toml.")
    ] = None,
    node_config: Annotated[
        str | None,
        typer.Option(
            help="As for flower-supernode; whose data to try.", show_default="partition-id=0 …"
        ),
    ] = None,
    key: Annotated[Path | None, typer.Option(help="Private key of a SuperNode to look at.")] = None,
    simulation: Annotated[
        bool, typer.Option("--simulation", help="Also what a simulation needs.")
    ] = False,
) -> None:
    """Say before a run what is wrong: versions, settings, data, address, certificates, keys.

    Exits with 1 if something would stop the run.

    Examples:

    - `fedwmsam flower check .`
    - `fedwmsam flower check . tls --key keys/node-0.key --node-config "partition-id=4
      data='/srv/scans.npz'"`
    """
    from fedwmsam.flower.check import run_checks

    has_error = False
    for finding in run_checks(folder, superlink, node_config, key, simulation):
        style = {"ERROR": "red", "warning": "yellow"}.get(finding.grade)
        say(f"{finding.grade:<7} {finding.text}", style)
        has_error |= finding.grade == "ERROR"
    if has_error:
        sys.exit(1)


@app.command()
def status(
    folder: RunArgument,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="On a terminal, keep the table up to date while it goes on."),
    ] = False,
) -> None:
    """Show a run that is deployed: round, clients, last answers, bytes, what was not used and why.

    It reads the run's folder only, on the server, while the run goes on or afterwards.

    Examples:

    - `fedwmsam flower status /srv/runs/first`
    - `fedwmsam flower status /srv/runs/first --watch`
    """
    from fedwmsam.report.flower_status import follow_status, read_status, status_table

    if watch and console.is_terminal:
        from fedwmsam.report.terminal import LiveDisplay, render_text_table

        with contextlib.suppress(KeyboardInterrupt), LiveDisplay(console, quiet=False) as display:
            for seen in follow_status(folder, WATCH_SECONDS):
                display.show(render_text_table(status_table(seen)), line="")
    else:
        print_tables([status_table(read_status(folder))])
