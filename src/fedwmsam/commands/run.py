"""`fedwmsam run`: train one model."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedwmsam import toml
from fedwmsam.commands import output
from fedwmsam.commands.execution import run_with_display, start_workers
from fedwmsam.commands.options import QuietOption, SetOption, add_setting_flags
from fedwmsam.errors import InputError
from fedwmsam.settings.config import method_name, parse_assignments, resolve, setting_names

if TYPE_CHECKING:
    from fedwmsam.settings.config import RunConfig


@add_setting_flags(setting_names())
def run(
    settings: dict[str, Any],
    config: Annotated[
        Path | None, typer.Argument(help="A TOML file of settings.", show_default=False)
    ] = None,
    set_: SetOption = None,
    out: Annotated[Path, typer.Option(help="Folder that holds the runs.")] = Path("runs"),
    name: Annotated[
        str | None, typer.Option(help="Name of the run's folder.", show_default="from the settings")
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Say what the run would take, from a probe of a few steps, and stop."
        ),
    ] = False,
    quiet: QuietOption = False,
) -> None:
    """Train one model over many clients.

    With no argument: FedWMSAM on handwritten digits, 20 clients with very different data.

    Examples:

    - `fedwmsam run`
    - `fedwmsam run --method fedavg --partition iid --rounds 30`
    - `fedwmsam run --dataset fashion-mnist --preset paper --set rho=0.05`
    - `fedwmsam run settings.toml --seed 1`
    - `fedwmsam run --dropout 0.3 --stragglers 0.3:4`
    - `fedwmsam run --method fedavg --corrupt sign_flip:0.2 --aggregation median`
    - `fedwmsam run --method fedavg --sampling bernoulli --dp-epsilon 8 --dp-clip 1`
    - `fedwmsam run --dataset cifar-10 --model resnet18 --preset paper --dry-run`
    """
    file = toml.load(config) if config else {}
    named = [
        {"method": text.removeprefix("method=")}
        for text in set_ or []
        if text.startswith("method=")
    ]
    assigned = parse_assignments(set_ or [], method_name(file, settings, *named))
    if not dry_run:
        start_workers(settings.get("workers", file.get("workers")))
    resolved = resolve(file, settings, assigned)
    if dry_run:
        from fedwmsam.experiment.experiment import prepare, with_absolute_paths
        from fedwmsam.report.terminal import show_estimate

        show_estimate(output.console, prepare(with_absolute_paths(resolved)).estimate(), resolved)
    else:
        start_run(resolved, out, name, quiet)


def start_run(config: "RunConfig", out: Path, name: str | None, quiet: bool) -> None:
    from fedwmsam.engine.run_folder import create_unused_folder
    from fedwmsam.experiment.experiment import prepare, with_absolute_paths
    from fedwmsam.trackers import make_trackers

    trackers = make_trackers(config.track)
    experiment = prepare(with_absolute_paths(config))
    if name == "":
        raise InputError("--name must not be empty; leave it out for a name from the settings.")
    if name is None:
        run_with_display(
            experiment,
            create_unused_folder(out, folder_name(config), experiment.create),
            trackers,
            quiet,
        )
    else:
        run_with_display(experiment, experiment.create(out / name), trackers, quiet)


def folder_name(config: "RunConfig") -> str:
    """What a run is, in characters every shell and file system takes."""
    parts = (
        config.method,
        Path(config.dataset).name,
        config.partition.replace(":", ""),
        f"seed{config.seed}",
    )
    return re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(parts))
