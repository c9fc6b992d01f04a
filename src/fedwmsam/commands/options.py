"""Options that several commands share."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fedwmsam.pictures import Picture

RunArgument = Annotated[Path, typer.Argument(help="The run's folder.")]
RunsArgument = Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold them.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any setting or option of the method; repeatable."),
]
DatasetOption = Annotated[
    str | None, typer.Option(help="digits, fashion-mnist, cifar-10 …, or a path to your own.", show_default="digits")
]
PartitionOption = Annotated[
    str | None,
    typer.Option(help="iid, dirichlet:0.1, shards:2, natural …; docs/partitions.md.", show_default="dirichlet:0.1"),
]
DataDirOption = Annotated[str | None, typer.Option(help="Folder with the data set's files.")]
ModelOption = Annotated[
    str | None, typer.Option(help="mlp, cnn, resnet18, char …, or package.module:function.", show_default="mlp")
]
PresetOption = Annotated[str | None, typer.Option(help="paper or tuned: named settings, below explicit values.")]
JobsOption = Annotated[str, typer.Option(help="Runs at a time: auto or a number.")]
FormatOption = Annotated[Picture, typer.Option(help="Of the pictures.")]
MarkdownOption = Annotated[Path | None, typer.Option(help="Write the tables here.")]
HtmlOption = Annotated[Path | None, typer.Option(help="Write everything here as one page for a browser.")]
DecayOption = Annotated[
    str | None, typer.Option(help="objective, or sgd as published code does.", show_default="objective")
]
AggregationOption = Annotated[
    str | None, typer.Option(help="mean, norm_bound[:TAU], median or trimmed:0.1; docs/faults.md.", show_default="mean")
]
TwinOption = Annotated[
    float | None, typer.Option(help="γ, such as 8: also evaluate an average of the global models; docs/compare.md.")
]
DropoutOption = Annotated[
    float | None, typer.Option(help="Probability that a sampled client never answers.", show_default="0")
]
StragglersOption = Annotated[
    str | None, typer.Option(help="0.3:4: 30 % of the clients are 4 times slower; 0.3:4:drop: unfinished is lost.")
]
DeadlineOption = Annotated[
    float | None, typer.Option(help="When a round closes, in an ordinary client's time.", show_default="1")
]
CorruptOption = Annotated[
    str | None,
    typer.Option(help="Hostile clients, such as sign_flip:0.1; nan, huge, sign_flip, random, stale, label_flip."),
]
ClientsOption = Annotated[
    int | None, typer.Option(help="Number of clients.", show_default="20; with natural, what the data say")
]
RoundsOption = Annotated[int | None, typer.Option(help="Rounds to train.", show_default="50")]
SeedOption = Annotated[int | None, typer.Option(help="Key of everything random.", show_default="0")]
TrackOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Also log to tensorboard, wandb or wandb:PROJECT (offline); repeatable."),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]


def given_settings(arguments: dict[str, Any], apart: Sequence[str]) -> dict[str, Any]:
    """What was given of a command's arguments, but for those that are no settings; trackers are one setting."""
    given = {key: value for key, value in arguments.items() if value is not None and key not in apart}
    track = given.pop("track", None)
    return given | ({"track": ",".join(track)} if track else {})
