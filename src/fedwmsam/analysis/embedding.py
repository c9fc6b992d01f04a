"""What a model makes of samples before its last layer, laid out in the plane by t-SNE, and how well it clusters.

Silhouette (−1 to 1, more is better) and the Davies–Bouldin index (from 0, less is better) are taken of the features
themselves and, for comparison, of the picture: t-SNE makes clusters look tighter and apart than they are.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedwmsam import rng
from fedwmsam.analysis.flatness import ReportProgress, digits
from fedwmsam.analysis.loss_surface import (
    Sample,
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


class Score(NamedTuple):
    of: str
    """features, or the picture."""
    by: str
    """class or client."""
    silhouette: float
    davies_bouldin: float


@dataclass(frozen=True)
class Embedding:
    points: FloatArray
    classes: list[int]
    clients: list[int] | None
    scores: tuple[Score, ...]
    layer: str
    dimensions: int

    def record(self) -> Record:
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
    sample: Sample,
    clients: Tensor | None = None,
    *,
    layer: str | None = None,
    perplexity: float = PERPLEXITY,
    seed: int = 0,
) -> Embedding:
    """Of the model as it is in place; `clients` are the samples' owners, if they have any."""
    from sklearn.manifold import TSNE

    if not 1 < perplexity < sample.count:
        raise InputError(
            f"The perplexity must be above 1 and below the {sample.count} samples, not {perplexity:g}."
        )
    name, features = features_before(task.model, sample, layer)
    method = TSNE(
        perplexity=perplexity, init="pca", random_state=rng.derive_seed(seed, "embedding") % 2**32
    )
    points = np.asarray(method.fit_transform(features), dtype=np.float64)
    owners = {"class": torch.cat([batch[1] for batch in sample.batches]).cpu().numpy()}
    if clients is not None:
        owners["client"] = clients.cpu().numpy()
    scores = tuple(
        score
        for by, labels in owners.items()
        for of, places in (("features", features), ("picture", points))
        for score in cluster_scores(of, by, places, labels)
    )
    own = owners["client"].tolist() if "client" in owners else None
    return Embedding(points, owners["class"].tolist(), own, scores, name, features.shape[1])


def cluster_scores(of: str, by: str, places: FloatArray, labels: Any) -> Iterator[Score]:
    """Nothing if there are not two groups, or if each sample is one."""
    from sklearn.metrics import davies_bouldin_score, silhouette_score

    if 1 < len(np.unique(labels)) < len(labels):
        yield Score(
            of,
            by,
            float(silhouette_score(places, labels)),
            float(davies_bouldin_score(places, labels)),
        )


def features_before(
    model: nn.Module, sample: Sample, layer: str | None = None
) -> tuple[str, FloatArray]:
    """The name of the layer (the linear one that is used last, unless named) and its inputs, a row a sample."""
    model.eval()
    modules = dict(model.named_modules())
    if layer is not None and layer not in modules:
        raise InputError(
            f"The model has no layer {layer!r}; it has {', '.join(filter(None, modules))}."
        )
    name = last_linear(model, sample.batches[0][0]) if layer is None else layer
    caught: list[Tensor] = []
    hook = modules[name].register_forward_pre_hook(
        lambda _, inputs: caught.append(inputs[0].detach())
    )
    rows = []
    try:
        with torch.no_grad():
            for inputs, targets in sample.batches:
                caught.clear()
                model(inputs)
                if not caught or len(caught[-1]) != len(targets):
                    raise InputError(
                        f"The layer {name!r} does not see one input a sample; name another with --layer."
                    )
                rows.append(caught[-1].flatten(1).double().cpu())
    finally:
        hook.remove()
    return name, torch.cat(rows).numpy()


def last_linear(model: nn.Module, inputs: Any) -> str:
    """By use, not by definition: a module may list its layers in any order."""
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
            "The model uses no linear layer whose inputs could be embedded; name a layer with --layer."
        )
    return used[-1]


# Of a run's models


EMBEDDING_FILE = "embedding.json"
SOURCES = ("train", "test")


@dataclass(frozen=True)
class EmbeddingConfig:
    """Of what, and how."""

    data: str = "train"
    """train: what the clients hold, so that each sample has a client; test."""
    samples: int | None = 2000
    layer: str | None = None
    perplexity: float = PERPLEXITY
    seed: int = 0
    batch_size: int = 1000

    def __post_init__(self) -> None:
        if self.data not in SOURCES:
            raise InputError(f"The data must be {' or '.join(SOURCES)}, not {self.data!r}.")


def run_embedding(
    run: SavedRun,
    rounds: list[int],
    choice: EmbeddingConfig,
    place: Path,
    say: ReportProgress = lambda _: None,
) -> list[Record]:
    """Computed, or read from `place` if it was computed like that before."""
    archive = AnalysisCache(place / EMBEDDING_FILE, asdict(choice))
    missing = [round for round in rounds if round not in archive]
    if missing:
        with deterministic_torch():
            sample, clients = draw_samples(run, choice)
            for round in missing:
                say(f"round {round}, t-SNE of {sample.count:,} samples")
                run.load(round)
                found = embed(
                    run.task,
                    sample,
                    clients,
                    layer=choice.layer,
                    perplexity=choice.perplexity,
                    seed=choice.seed,
                )
                archive.put(round, {"samples": sample.count, "of": sample.total} | found.record())
    return [archive.found[round] for round in rounds]


def draw_samples(run: SavedRun, choice: EmbeddingConfig) -> tuple[Sample, torch.Tensor | None]:
    """The samples, and the client of each if it has one."""
    experiment, stream = run.experiment, rng.derive_seed(choice.seed, "embedded sample")
    if choice.data == "train":
        index = draw_indices(len(pool_clients(experiment.clients)), choice.samples, stream)
        return gather_sample(
            pool_clients(experiment.clients), index, choice.batch_size
        ), clients_of_samples(experiment.clients, index)
    index, groups = (
        draw_indices(len(experiment.test), choice.samples, stream),
        experiment.breakdown.groups,
    )
    return gather_sample(
        experiment.test, index, choice.batch_size
    ), None if groups is None else groups[index]


# Tables


def cluster_sheet(named: Sequence[tuple[str, Record]], notes: Sequence[str] = ()) -> TextTable:
    """Silhouette and Davies–Bouldin index of embeddings."""
    kinds = list(
        dict.fromkeys((score["by"], score["of"]) for _, one in named for score in one["scores"])
    )
    header = ["run", "round"]
    for by, of in kinds:
        header += [f"by {by}, {of}: silhouette", "Davies–Bouldin"]
    rows = []
    for name, one in named:
        scores = {(score["by"], score["of"]): score for score in one["scores"]}
        cells = [
            digits(scores[kind][figure]) if kind in scores else MISSING
            for kind in kinds
            for figure in ("silhouette", "davies_bouldin")
        ]
        rows.append((name, str(one["round"]), *cells))
    said = (
        "Silhouette: −1 to 1, more is better. Davies–Bouldin: from 0, less is better. Compare those of the features: "
        "t-SNE makes clusters look better than they are.",
    )
    return TextTable("Clusters before the last layer", tuple(header), tuple(rows), (*notes, *said))


# Pictures


GROUP_COLOURS = (*COLOURS, "#882255", "#F0E442")
"""For dots, which may be paler than lines: ten classes then have a colour each."""


PANEL = 1.75
"""Inches: the height of one of two embeddings side by side."""


def embedding_pictures(records: Sequence[Record], class_names: Sequence[str]) -> list[PlotSpec]:
    """A picture for each round, by class and, if the samples have clients, beside it by client."""
    return [
        (
            f"embedding-round-{record['round']}",
            2.35 + legend_height(shown_names(record, class_names)),
            partial(draw_embedding, record, class_names),
        )
        for record in records
    ]


def draw_embedding(record: Record, class_names: Sequence[str], figure: "Figure") -> None:
    kinds = ["class"] + (["client"] if record["clients"] is not None else [])
    panels = figure.subplots(1, len(kinds), squeeze=False)[0]
    for axes, by in zip(panels, kinds, strict=True):
        scatter(axes, record, by, class_names)
        axes.set_title(f"by {by}\n{score_words(record, by)}", fontsize=FONT - 1)
    add_legend(
        figure,
        panels[0],
        f"t-SNE of {record['samples']:,} samples, round {record['round']}; figures of the features",
    )


def grid_of_embeddings(
    named: Sequence[tuple[str, Record]], class_names: Sequence[str], name: str
) -> PlotSpec:
    """Several models beside each other, by class."""
    rows = math.ceil(len(named) / 2)
    height = 0.3 + rows * PANEL + legend_height(shown_names(named[0][1], class_names))
    return name, height, partial(draw_grid, named, class_names, rows)


def draw_grid(
    named: Sequence[tuple[str, Record]], class_names: Sequence[str], rows: int, figure: "Figure"
) -> None:
    panels = list(figure.subplots(rows, 2, squeeze=False).flat)
    for axes, (title, record) in zip(panels, named, strict=False):
        scatter(axes, record, "class", class_names)
        axes.set_title(f"{title}\n{score_words(record, 'class')}", fontsize=FONT - 1)
    for axes in panels[len(named) :]:
        axes.set_axis_off()
    record = named[0][1]
    add_legend(
        figure,
        panels[0],
        f"t-SNE of {record['samples']:,} samples, round {record['round']}; figures of the features",
    )


def scatter(axes: "Axes", record: Record, by: str, class_names: Sequence[str]) -> None:
    """Colours and markers together tell more groups apart than either; of many clients only some can be."""
    points, labels = (
        np.array(record["points"]),
        np.array(record["classes" if by == "class" else "clients"]),
    )
    for number, label in enumerate(np.unique(labels)):
        own, lap = labels == label, number // len(GROUP_COLOURS)
        name = class_name(int(label), class_names) if by == "class" else None
        axes.scatter(
            points[own, 0],
            points[own, 1],
            s=3,
            color=GROUP_COLOURS[number % len(GROUP_COLOURS)],
            linewidths=0,
            marker=MARKERS[(number + lap) % len(MARKERS)],
            label=name,
        )
    axes.set(xticks=[], yticks=[])
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)


def shown_names(record: Record, class_names: Sequence[str]) -> list[str]:
    return [class_name(label, class_names) for label in sorted(set(record["classes"]))]


def class_name(label: int, names: Sequence[str]) -> str:
    return names[label] if label < len(names) else str(label)


def score_words(record: Record, by: str, of: str = "features") -> str:
    for score in record["scores"]:
        if (score["of"], score["by"]) == (of, by):
            return f"silhouette {score['silhouette']:.2f}, D–B {score['davies_bouldin']:.2f}"
    return "one group"
