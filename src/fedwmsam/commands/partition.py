"""`fedwmsam partition`: how a data set would be partitioned over clients."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedwmsam.commands import output
from fedwmsam.commands.options import add_setting_flags
from fedwmsam.settings.config import resolve_config


@add_setting_flags(["dataset", "partition", "clients", "seed", "data_dir"])
def partition(
    settings: dict[str, Any],
    save: Annotated[
        Path | None, typer.Option(help="Also draw it to a .png, .svg or .pdf file.")
    ] = None,
) -> None:
    """Show how a data set would be divided: who has which classes, and how different the
    clients are.

    Examples:

    - `fedwmsam partition --dataset fashion-mnist --partition dirichlet:0.1 --clients 100`
    - `fedwmsam partition --partition shards:2 --save shards.png`
    """
    from fedwmsam.experiment.experiment import hold_out_indices, load_data, partition_data
    from fedwmsam.report.partition_plot import make_partition_chart, save_partition_plot

    config = resolve_config(settings)
    data = load_data(config.dataset, config.data_dir)
    train_indices, _ = hold_out_indices(len(data.train), 0.0, config.seed)
    split = partition_data(config, data, train_indices)
    output.console.print(make_partition_chart(split, data.class_names))
    if save is not None:
        save_partition_plot(split, save, data.class_names)
        output.say(f"Drawn to {save}")
