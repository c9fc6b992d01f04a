"""`fedwmsam run`: federated training of one model."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedwmsam import toml
from fedwmsam.commands import output
from fedwmsam.commands.execution import run_with_display, start_workers
from fedwmsam.commands.options import QuietOption, SetOption, add_setting_flags
from fedwmsam.errors import InputError
from fedwmsam.settings.config import (
    RESULT_NEUTRAL_SETTINGS,
    STOPPING_SETTINGS,
    parse_assignments,
    requested_method,
    resolve_config,
    setting_names,
)
from fedwmsam.settings.options import truncated_repr

if TYPE_CHECKING:
    from fedwmsam.settings.config import RunConfig

MAX_FOLDER_NAME = 120
"""Letters of a folder's name that is made from the settings; some systems allow 143."""


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
    file_values = toml.load_named(config) if config else {}
    assignments = set_ or []
    methods = [text.removeprefix("method=") for text in assignments if text.startswith("method=")]
    method_layers = [{"method": method} for method in methods]
    method = requested_method(file_values, settings, *method_layers)
    assigned_values = parse_assignments(assignments, method)
    start_workers(settings.get("workers", file_values.get("workers")))
    resolved = resolve_config(file_values, settings, assigned_values)
    if dry_run:
        from fedwmsam.experiment.experiment import prepare, with_absolute_paths
        from fedwmsam.report.terminal import show_estimate

        show_estimate(output.console, prepare(with_absolute_paths(resolved)).estimate(), resolved)
    else:
        start_run(resolved, out, name, quiet)


def start_run(config: "RunConfig", out: Path, name: str | None, quiet: bool) -> None:
    """Carry out a run in a new folder below `out`, whose name is given or made from the settings.

    Raise InputError if the name is no plain name of a folder, or taken.
    """
    if name is not None:
        check_folder_name(name)
    from fedwmsam.engine.run_folder import create_unused_folder
    from fedwmsam.experiment.experiment import prepare, with_absolute_paths
    from fedwmsam.trackers import make_trackers

    trackers = make_trackers(config.track)
    experiment = prepare(with_absolute_paths(config))
    if name is None:
        folder = create_unused_folder(out, make_folder_name(config), experiment.create)
    else:
        folder = experiment.create(out / name)
    run_with_display(experiment, folder, trackers, quiet)


def check_folder_name(name: str) -> None:
    """Raise InputError unless a folder of that name would lie directly in --out."""
    if not name:
        raise InputError("--name must not be empty; leave it out for a name from the settings.")
    # On Windows a backslash and a colon lead elsewhere, too.
    if name in (".", "..") or not name.isprintable() or set(name) & set("/\\:"):
        raise InputError(
            f"--name must be a plain name of a folder, not {truncated_repr(name)}; "
            "say with --out where it lies."
        )


def make_folder_name(config: "RunConfig") -> str:
    """Return a folder name from method, data set, partition and seed, safe for shells.

    What else differs from the defaults follows, as far as there is room.
    """
    parts = (
        config.method,
        Path(config.dataset).name,
        config.partition.replace(":", ""),
        f"seed{config.seed}",
    )
    name = plain_word("-".join(parts))
    for word in differing_words(config):
        longer = f"{name}-{plain_word(word)}"
        name = longer if len(longer) <= MAX_FOLDER_NAME else name
    return name


def differing_words(config: "RunConfig") -> list[str]:
    """Return the preset and each further setting that is not at its default, such as "lr0.2".

    When a run ends is not said, since `resume` can change it, nor what leaves results as they are.
    """
    chosen = {"method": config.method, "preset": config.preset}
    defaults = resolve_config(chosen).to_flat_dict()
    unsaid = ("dataset", "partition", "seed", *STOPPING_SETTINGS, *RESULT_NEUTRAL_SETTINGS)
    words = [config.preset] if config.preset else []
    for key, value in config.to_flat_dict().items():
        if key not in unsaid and value not in (None, defaults.get(key)):
            words.append(f"{key}{value}")
    return words


def plain_word(text: str) -> str:
    """Return the text with a hyphen for whatever a shell might not take as part of a word."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)
