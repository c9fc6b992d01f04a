"""Embeddings: a model's features before its last layer, mapped to the plane by t-SNE.

How well the features cluster, by class and by client, is measured by the silhouette (−1 to 1, more
is better) and the Davies–Bouldin index (from 0, less is better). Both are computed of the features
themselves and, for comparison, of the t-SNE plot ("picture" in the records): t-SNE makes clusters
look tighter and further apart than they are.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedwmsam import rng
from fedwmsam.analysis.flatness import ReportProgress, four_digit_cell
from fedwmsam.analysis.loss_surface import (
    DrawnSample,
    clients_of_samples,
    draw_indices,
    gather_sample,
    pool_clients,
)
from fedwmsam.analysis.saved_run import AnalysisCache, SavedRun
from fedwmsam.engine.records import Record
from fedwmsam.errors import InputError
from fedwmsam.report.plots import COLOURS, FONT, MARKERS, PlotSpec, add_legend, legend_height
from fedwmsam.report.text_tables import MISSING, TextTable
from fedwmsam.statistics import FloatArray
from fedwmsam.training.task import Task, deterministic_torch

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PERPLEXITY = 30.0
"""Default perplexity of t-SNE: about how many neighbours of a point count."""


class Score(NamedTuple):
    """How well points cluster: two scores of one set of points under one grouping."""

    of: str
    """Points that are scored: "features" or "picture" (the t-SNE plot)."""
    by: str
    """Grouping of the points: "class" or "client"."""
    silhouette: float
    davies_bouldin: float


@dataclass(frozen=True)
class Embedding:
    """Samples mapped to the plane by t-SNE, with the scores of their clusters."""

    points: FloatArray
    """Position of each sample in the plane."""
    classes: list[int]
    clients: list[int] | None
    """Client of each sample, None if the samples belong to no client."""
    scores: tuple[Score, ...]
    layer: str
    """Name of the layer whose inputs are the features."""
    dimensions: int
    """Number of features."""

    def record(self) -> Record:
        """Return the embedding as a JSON record."""
        return {
            "layer": self.layer,
            "dimensions": self.dimensions,
            "scores": [score._asdict() for score in self.scores],
            "points": np.round(self.points, 3).tolist(),
            "classes": self.classes,
            "clients": self.clients,
        }


def embed(
    task: Task,
    sample: DrawnSample,
    clients: Tensor | None = None,
    *,
    layer: str | None = None,
    perplexity: float = PERPLEXITY,
    seed: int = 0,
) -> Embedding:
    """Embed the sample's features under the task's current model, and score their clusters.

    `clients` has the client of each sample, if they have any; `layer` names the layer whose inputs
    are the features (None: the last linear one). Raise InputError if the perplexity does not fit
    the sample or the layer has no features.
    """
    from sklearn.manifold import TSNE

    if not 1 < perplexity < sample.count:
        raise InputError(
            f"The perplexity must be above 1 and below the {sample.count} samples, "
            f"not {perplexity:g}."
        )
    name, features = features_before(task.model, sample, layer)
    tsne = TSNE(
        perplexity=perplexity, init="pca", random_state=rng.derive_seed(seed, "embedding") % 2**32
    )
    points = np.asarray(tsne.fit_transform(features), dtype=np.float64)
    groupings = {"class": torch.cat([batch[1] for batch in sample.batches]).cpu().numpy()}
    if clients is not None:
        groupings["client"] = clients.cpu().numpy()
    scores: list[Score] = []
    for by, labels in groupings.items():
        scores += cluster_scores("features", by, features, labels)
        scores += cluster_scores("picture", by, points, labels)
    return Embedding(
        points=points,
        classes=groupings["class"].tolist(),
        clients=groupings["client"].tolist() if "client" in groupings else None,
        scores=tuple(scores),
        layer=name,
        dimensions=features.shape[1],
    )


def cluster_scores(of: str, by: str, points: FloatArray, labels: Any) -> Iterator[Score]:
    """Yield the score of these points grouped by their labels.

    Yield nothing if there are less than two groups, or if each point is a group of its own.
    """
    from sklearn.metrics import davies_bouldin_score, silhouette_score

    if 1 < len(np.unique(labels)) < len(labels):
        yield Score(
            of,
            by,
            float(silhouette_score(points, labels)),
            float(davies_bouldin_score(points, labels)),
        )


def features_before(
    model: nn.Module, sample: DrawnSample, layer: str | None = None
) -> tuple[str, FloatArray]:
    """Return a layer's name and its inputs, one row per sample.

    Without a name it is the linear layer that is used last. Raise InputError if the model has no
    such layer, or if the layer does not get one input per sample.
    """
    model.eval()
    modules = dict(model.named_modules())
    if layer is not None and layer not in modules:
        raise InputError(
            f"The model has no layer {layer!r}; it has {', '.join(filter(None, modules))}."
        )
    name = last_linear(model, sample.batches[0][0]) if layer is None else layer
    captured: list[Tensor] = []
    hook = modules[name].register_forward_pre_hook(
        lambda _, inputs: captured.append(inputs[0].detach())
    )
    rows = []
    try:
        with torch.no_grad():
            for inputs, targets in sample.batches:
                captured.clear()
                model(inputs)
                if not captured or len(captured[-1]) != len(targets):
                    raise InputError(
                        f"The layer {name!r} does not see one input a sample; "
                        "name another with --layer."
                    )
                rows.append(captured[-1].flatten(1).cpu().double())
    finally:
        hook.remove()
    return name, torch.cat(rows).numpy()


def last_linear(model: nn.Module, inputs: Any) -> str:
    """Return the name of the linear layer that the model uses last in a forward pass.

    The order of definition is not enough: a module may list its layers in any order. Raise
    InputError if the model uses no linear layer.
    """
    used: list[str] = []
    hooks = [
        module.register_forward_pre_hook(lambda _, __, name=name: used.append(name))
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    ]
    try:
        with torch.no_grad():
            model(inputs[:1] if isinstance(inputs, Tensor) else inputs)
    finally:
        for hook in hooks:
            hook.remove()
    if not used:
        raise InputError(
            "The model uses no linear layer whose inputs could be embedded; "
            "name a layer with --layer."
        )
    return used[-1]


# Embeddings of saved runs


EMBEDDING_FILE = "embedding.json"
"""File with the embeddings of a run's models."""
SOURCES = ("train", "test")
"""Data that samples can be drawn from."""


@dataclass(frozen=True)
class EmbeddingConfig:
    """Which samples of a run are embedded, and how."""

    data: str = "train"
    """Source of the samples: "train" (the clients' data, so that each has a client) or "test"."""
    samples: int | None = 2000
    """Most samples that are drawn; None: all."""
    layer: str | None = None
    """Name of the layer whose inputs are embedded; None: the last linear one."""
    perplexity: float = PERPLEXITY
    seed: int = 0
    batch_size: int = 1000

    def __post_init__(self) -> None:
        """Raise InputError if the source of the samples is unknown."""
        if self.data not in SOURCES:
            raise InputError(f"The data must be {' or '.join(SOURCES)}, not {self.data!r}.")


def run_embedding(
    run: SavedRun,
    rounds: list[int],
    config: EmbeddingConfig,
    folder: Path,
    report_progress: ReportProgress = lambda _: None,
) -> list[Record]:
    """Return the records of the embeddings of a run's models after these rounds.

    What the folder holds already, computed with the same settings, is read instead of computed.
    """
    cache = AnalysisCache(folder / EMBEDDING_FILE, asdict(config))
    missing = [round for round in rounds if round not in cache]
    if missing:
        with deterministic_torch():
            sample, clients = draw_embedded_sample(run, config)
            for round in missing:
                report_progress(f"round {round}, t-SNE of {sample.count:,} samples")
                run.load(round)
                embedding = embed(
                    run.task,
                    sample,
                    clients,
                    layer=config.layer,
                    perplexity=config.perplexity,
                    seed=config.seed,
                )
                counts = {"samples": sample.count, "of": sample.total}
                cache.put(round, counts | embedding.record())
    return [cache.records[round] for round in rounds]


def draw_embedded_sample(
    run: SavedRun, config: EmbeddingConfig
) -> tuple[DrawnSample, torch.Tensor | None]:
    """Draw the samples to embed; return them and the client of each, None if they have none."""
    experiment = run.experiment
    stream = rng.derive_seed(config.seed, "embedded sample")
    if config.data == "train":
        pooled = pool_clients(experiment.clients)
        index = draw_indices(len(pooled), config.samples, stream)
        sample = gather_sample(pooled, index, config.batch_size)
        return sample, clients_of_samples(experiment.clients, index)
    index = draw_indices(len(experiment.test), config.samples, stream)
    sample = gather_sample(experiment.test, index, config.batch_size)
    groups = experiment.breakdown.groups
    return sample, None if groups is None else groups[index]


# Tables


def cluster_table(named: Sequence[tuple[str, Record]], notes: Sequence[str] = ()) -> TextTable:
    """Return a table of the cluster scores of embeddings, one row per run and round.

    `named` has each embedding's record with its run's name; `notes` precede those on the scores.
    """
    kinds = score_kinds(record for _, record in named)
    header = ["run", "round"]
    for by, of in kinds:
        header += [f"by {by}, {of}: silhouette", "Davies–Bouldin"]
    rows = []
    for name, record in named:
        scores = {(score["by"], score["of"]): score for score in record["scores"]}
        cells = []
        for kind in kinds:
            for measure in ("silhouette", "davies_bouldin"):
                cells.append(four_digit_cell(scores[kind][measure]) if kind in scores else MISSING)
        rows.append((name, str(record["round"]), *cells))
    reading = (
        "Silhouette: −1 to 1, more is better. Davies–Bouldin: from 0, less is better. "
        "Compare those of the features: t-SNE makes clusters look better than they are."
    )
    return TextTable(
        "Clusters before the last layer", tuple(header), tuple(rows), (*notes, reading)
    )


def score_kinds(records: Iterable[Record]) -> list[tuple[str, str]]:
    """Return each pair of grouping and scored points that some record has a score of, once."""
    kinds: dict[tuple[str, str], None] = {}
    for record in records:
        for score in record["scores"]:
            kinds[score["by"], score["of"]] = None
    return list(kinds)


# Plots


GROUP_COLOURS = (*COLOURS, "#882255", "#F0E442")
"""Colours of points, which may be paler than those of lines: enough for ten classes."""
PANEL = 1.75
"""Height in inches of each of two embeddings side by side."""


def embedding_plots(records: Sequence[Record], class_names: Sequence[str]) -> list[PlotSpec]:
    """Return a plot for each round, by class and, if the samples have clients, also by client."""
    return [
        (
            f"embedding-round-{record['round']}",
            2.35 + legend_height(legend_labels(record, class_names)),
            partial(draw_embedding, record, class_names),
        )
        for record in records
    ]


def draw_embedding(record: Record, class_names: Sequence[str], figure: "Figure") -> None:
    """Draw an embedding by class and, if the samples have clients, by client."""
    kinds = ["class"] if record["clients"] is None else ["class", "client"]
    panels = figure.subplots(1, len(kinds), squeeze=False)[0]
    for axes, by in zip(panels, kinds, strict=True):
        scatter(axes, record, by, class_names)
        axes.set_title(f"by {by}\n{score_caption(record, by)}", fontsize=FONT - 1)
    add_embedding_legend(figure, panels[0], record)


def grid_of_embeddings(
    named: Sequence[tuple[str, Record]], class_names: Sequence[str], name: str
) -> PlotSpec:
    """Return a plot of several models' embeddings side by side, by class."""
    rows = math.ceil(len(named) / 2)
    height = 0.3 + rows * PANEL + legend_height(legend_labels(named[0][1], class_names))
    return name, height, partial(draw_grid, named, class_names, rows)


def draw_grid(
    named: Sequence[tuple[str, Record]], class_names: Sequence[str], rows: int, figure: "Figure"
) -> None:
    """Draw embeddings by class in rows of two."""
    panels = list(figure.subplots(rows, 2, squeeze=False).flat)
    for axes, (title, record) in zip(panels, named, strict=False):
        scatter(axes, record, "class", class_names)
        axes.set_title(f"{title}\n{score_caption(record, 'class')}", fontsize=FONT - 1)
    for axes in panels[len(named) :]:
        axes.set_axis_off()
    add_embedding_legend(figure, panels[0], named[0][1])


def add_embedding_legend(figure: "Figure", axes: "Axes", record: Record) -> None:
    """Add a legend that says how many samples are shown, and after how many rounds."""
    add_legend(
        figure,
        axes,
        f"t-SNE of {record['samples']:,} samples, round {record['round']}; figures of the features",
    )


def scatter(axes: "Axes", record: Record, by: str, class_names: Sequence[str]) -> None:
    """Draw an embedding's points, each group with its own colour and marker.

    Combinations of colours and markers tell more groups apart than either alone, but not all of
    many clients.
    """
    points = np.array(record["points"])
    labels = np.array(record["classes" if by == "class" else "clients"])
    for number, label in enumerate(np.unique(labels)):
        mask = labels == label
        lap = number // len(GROUP_COLOURS)
        axes.scatter(
            points[mask, 0],
            points[mask, 1],
            s=3,
            color=GROUP_COLOURS[number % len(GROUP_COLOURS)],
            linewidths=0,
            marker=MARKERS[(number + lap) % len(MARKERS)],
            label=class_name(int(label), class_names) if by == "class" else None,
        )
    axes.set(xticks=[], yticks=[])
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)


def legend_labels(record: Record, class_names: Sequence[str]) -> list[str]:
    """Return the names of the classes that an embedding shows."""
    return [class_name(label, class_names) for label in sorted(set(record["classes"]))]


def class_name(label: int, names: Sequence[str]) -> str:
    """Return a class's name, or its number if it has none."""
    return names[label] if label < len(names) else str(label)


def score_caption(record: Record, by: str, of: str = "features") -> str:
    """Return an embedding's scores in words, for a title."""
    for score in record["scores"]:
        if (score["of"], score["by"]) == (of, by):
            return f"silhouette {score['silhouette']:.2f}, D–B {score['davies_bouldin']:.2f}"
    return "one group"
