"""What a model makes of samples before its last layer, laid out in the plane by t-SNE, and how well it clusters.

Silhouette (−1 to 1, more is better) and the Davies–Bouldin index (from 0, less is better) are taken of the features
themselves and, for comparison, of the picture: t-SNE makes clusters look tighter and apart than they are.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedwmsam import rng
from fedwmsam.analysis.samples import Sample
from fedwmsam.analysis.statistics import Numbers
from fedwmsam.engine.records import Record
from fedwmsam.errors import InputError
from fedwmsam.training.task import Task

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
    points: Numbers
    classes: list[int]
    clients: list[int] | None
    scores: tuple[Score, ...]
    layer: str
    dimensions: int

    def record(self) -> Record:
        return {
            "layer": self.layer, "dimensions": self.dimensions, "scores": [score._asdict() for score in self.scores],
            "points": np.round(self.points, 3).tolist(), "classes": self.classes, "clients": self.clients,
        }  # fmt: skip


def embed(
    task: Task, sample: Sample, clients: Tensor | None = None, *, layer: str | None = None,
    perplexity: float = PERPLEXITY, seed: int = 0,
) -> Embedding:  # fmt: skip
    """Of the model as it is in place; `clients` are the samples' owners, if they have any."""
    from sklearn.manifold import TSNE

    if not 1 < perplexity < sample.count:
        raise InputError(f"The perplexity must be above 1 and below the {sample.count} samples, not {perplexity:g}.")
    name, features = features_before(task.model, sample, layer)
    method = TSNE(perplexity=perplexity, init="pca", random_state=rng.key(seed, "embedding") % 2**32)
    points = np.asarray(method.fit_transform(features), dtype=np.float64)
    owners = {"class": torch.cat([batch[1] for batch in sample.batches]).cpu().numpy()}
    if clients is not None:
        owners["client"] = clients.cpu().numpy()
    scores = tuple(
        score
        for by, labels in owners.items()
        for of, places in (("features", features), ("picture", points))
        for score in scored(of, by, places, labels)
    )
    own = owners["client"].tolist() if "client" in owners else None
    return Embedding(points, owners["class"].tolist(), own, scores, name, features.shape[1])


def scored(of: str, by: str, places: Numbers, labels: Any) -> Iterator[Score]:
    """Nothing if there are not two groups, or if each sample is one."""
    from sklearn.metrics import davies_bouldin_score, silhouette_score

    if 1 < len(np.unique(labels)) < len(labels):
        yield Score(of, by, float(silhouette_score(places, labels)), float(davies_bouldin_score(places, labels)))


def features_before(model: nn.Module, sample: Sample, layer: str | None = None) -> tuple[str, Numbers]:
    """The name of the layer (the linear one that is used last, unless named) and its inputs, a row a sample."""
    model.eval()
    modules = dict(model.named_modules())
    if layer is not None and layer not in modules:
        raise InputError(f"The model has no layer {layer!r}; it has {', '.join(filter(None, modules))}.")
    name = last_linear(model, sample.batches[0][0]) if layer is None else layer
    caught: list[Tensor] = []
    hook = modules[name].register_forward_pre_hook(lambda _, inputs: caught.append(inputs[0].detach()))
    rows = []
    try:
        with torch.no_grad():
            for inputs, targets in sample.batches:
                caught.clear()
                model(inputs)
                if not caught or len(caught[-1]) != len(targets):
                    raise InputError(f"The layer {name!r} does not see one input a sample; name another with --layer.")
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
        raise InputError("The model uses no linear layer whose inputs could be embedded; name a layer with --layer.")
    return used[-1]
