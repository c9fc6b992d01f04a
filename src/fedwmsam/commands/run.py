"""`fedwmsam run`: train one model."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedwmsam import toml
from fedwmsam.commands import output
from fedwmsam.commands.execution import carry_out, start_workers
from fedwmsam.commands.options import (
    AggregationOption,
    ClientsOption,
    CorruptOption,
    DataDirOption,
    DatasetOption,
    DeadlineOption,
    DecayOption,
    DropoutOption,
    ModelOption,
    PartitionOption,
    PresetOption,
    QuietOption,
    RoundsOption,
    SeedOption,
    SetOption,
    StragglersOption,
    TrackOption,
    TwinOption,
    given_settings,
)
from fedwmsam.errors import InputError

if TYPE_CHECKING:
    from fedwmsam.settings.config import RunConfig


def run(
    config: Annotated[Path | None, typer.Argument(help="A TOML file of settings.", show_default=False)] = None,
    method: Annotated[str | None, typer.Option(help="Method; see `fedwmsam methods`.", show_default="fedwmsam")] = None,
    dataset: DatasetOption = None,
    model: ModelOption = None,
    partition: PartitionOption = None,
    augmentation: Annotated[str | None, typer.Option(help="paper: flip and crop images.", show_default="none")] = None,
    clients: ClientsOption = None,
    participation: Annotated[float | None, typer.Option(help="Share of clients a round.", show_default="0.25")] = None,
    clients_per_round: Annotated[int | None, typer.Option(help="Their number, instead of the share.")] = None,
    sampling: Annotated[
        str | None, typer.Option(help="fixed: always as many; bernoulli: each by its own coin.", show_default="fixed")
    ] = None,
    rounds: RoundsOption = None,
    local_epochs: Annotated[int | None, typer.Option(help="Passes over a client's data.", show_default="5")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Samples a local step.", show_default="50")] = None,
    lr: Annotated[float | None, typer.Option(help="Local step size.", show_default="0.1")] = None,
    weight_decay_mode: DecayOption = None,
    aggregation: AggregationOption = None,
    twin: TwinOption = None,
    dropout: DropoutOption = None,
    stragglers: StragglersOption = None,
    deadline: DeadlineOption = None,
    corrupt: CorruptOption = None,
    dp_noise: Annotated[float | None, typer.Option(help="Differential privacy: σ, noise over clip.")] = None,
    dp_epsilon: Annotated[float | None, typer.Option(help="Instead of σ: ε that all rounds may spend.")] = None,
    dp_clip: Annotated[float | None, typer.Option(help="Longest upload that counts in full.")] = None,
    dp_delta: Annotated[float | None, typer.Option(help="δ of the guarantee.", show_default="1e-5")] = None,
    workers: Annotated[
        str | None, typer.Option(help="Processes that train clients side by side: auto or a number.", show_default="1")
    ] = None,
    seed: SeedOption = None,
    validation: Annotated[float | None, typer.Option(help="Share of training data held out.", show_default="0")] = None,
    target_accuracy: Annotated[float | None, typer.Option(help="Stop when it is reached.")] = None,
    preset: PresetOption = None,
    checkpoint_every: Annotated[int | None, typer.Option(help="Rounds between checkpoints.", show_default="10")] = None,
    record: Annotated[
        str | None, typer.Option(metavar="A,B,…", help="Record alignment, drift, echo; docs/dynamics.md.")
    ] = None,
    record_every: Annotated[int | None, typer.Option(help="Rounds between recordings.", show_default="10")] = None,
    data_dir: DataDirOption = None,
    track: TrackOption = None,
    set_: SetOption = None,
    out: Annotated[Path, typer.Option(help="Folder that holds the runs.")] = Path("runs"),
    name: Annotated[
        str | None, typer.Option(help="Name of the run's folder.", show_default="from the settings")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what the run would take, from a probe of a few steps, and stop.")
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
    given = given_settings(locals(), apart=("config", "set_", "out", "name", "dry_run", "quiet"))
    file = toml.load(config) if config else {}
    if not dry_run:
        start_workers(workers or file.get("workers"))
    from fedwmsam.settings import config as configs

    chosen = configs.method_name(
        file, given, *({"method": text[7:]} for text in set_ or [] if text.startswith("method="))
    )
    resolved = configs.resolve(file, given, configs.parse_assignments(set_ or [], chosen))
    if dry_run:
        from fedwmsam.experiment.experiment import anchored, prepare
        from fedwmsam.report.terminal import show_estimate

        show_estimate(output.console, prepare(anchored(resolved)).estimate(), resolved)
    else:
        start(resolved, out, name, quiet)


def start(config: "RunConfig", out: Path, name: str | None, quiet: bool) -> None:
    from fedwmsam.engine.run_folder import unused
    from fedwmsam.experiment.experiment import anchored, prepare
    from fedwmsam.trackers import make_trackers

    trackers = make_trackers(config.track)
    experiment = prepare(anchored(config))
    if name == "":
        raise InputError("--name must not be empty; leave it out for a name from the settings.")
    if name is None:
        carry_out(experiment, unused(out, folder_name(config), experiment.create), trackers, quiet)
    else:
        carry_out(experiment, experiment.create(out / name), trackers, quiet)


def folder_name(config: "RunConfig") -> str:
    """What a run is, in characters every shell and file system takes."""
    parts = (config.method, Path(config.dataset).name, config.partition.replace(":", ""), f"seed{config.seed}")
    return re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(parts))
