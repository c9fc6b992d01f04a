"""Features, their layout in the plane and how they cluster."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedwmsam.analysis.embedding import embed, features_before
from fedwmsam.analysis.loss_surface import (
    DrawnSample,
    clients_of_samples,
    draw_indices,
    draw_sample,
    pool_clients,
)
from fedwmsam.data.clients import TensorSamples
from fedwmsam.errors import InputError
from fedwmsam.training.objectives import OBJECTIVES
from fedwmsam.training.task import Task


class Backwards(nn.Module):
    """A network whose last layer is defined first, with a layer that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(5, 3)
        self.body = nn.Linear(4, 5)
        self.spare = nn.Linear(5, 9)

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.head(torch.tanh(self.body(inputs)))
        return out


def groups(apart: float) -> DrawnSample:
    """Return samples of three Gaussian clusters at this distance."""
    random = torch.Generator().manual_seed(0)
    labels = torch.arange(90) % 3
    x = torch.randn(90, 4, generator=random) + apart * torch.nn.functional.one_hot(labels, 4)
    return draw_sample(TensorSamples(x, labels), None, 32, 0)


def test_features_are_the_inputs_of_the_linear_layer_used_last() -> None:
    model = Backwards().train()
    sample = groups(3.0)
    name, features = features_before(model, sample)
    inputs = torch.cat([batch[0] for batch in sample.batches])
    assert name == "head"
    assert features == pytest.approx(torch.tanh(model.body(inputs)).detach().numpy(), abs=1e-6)
    name, features = features_before(model, sample, "body")
    assert name == "body" and features == pytest.approx(inputs.numpy(), abs=1e-6)
    assert not any(module._forward_pre_hooks for module in model.modules()), "no hook stays behind"


def test_tight_groups_score_better_in_features_and_picture() -> None:
    task = Task(nn.Sequential(nn.Identity(), nn.Linear(4, 3)), OBJECTIVES["classification"])
    clients = torch.arange(90) // 30
    loose = embed(task, groups(1.0), clients, perplexity=10)
    tight = embed(task, groups(8.0), clients, perplexity=10)
    for worse, better in zip(loose.scores, tight.scores, strict=True):
        assert (worse.of, worse.by) == (better.of, better.by)
        if worse.by == "class":
            assert better.silhouette > worse.silhouette
            assert better.davies_bouldin < worse.davies_bouldin
    assert [(score.by, score.of) for score in tight.scores] == [
        ("class", "features"),
        ("class", "picture"),
        ("client", "features"),
        ("client", "picture"),
    ]
    features = torch.cat([batch[0] for batch in groups(8.0).batches]).numpy()
    assert tight.scores[0].silhouette == pytest.approx(
        silhouette(features, np.arange(90) % 3), abs=1e-6
    )
    again = embed(task, groups(8.0), perplexity=10)
    assert np.array_equal(again.points, tight.points) and again.clients is None


def silhouette(x: "np.ndarray", labels: "np.ndarray") -> float:
    """Compute the silhouette by its definition."""
    distances = np.linalg.norm(x[:, None] - x[None], axis=2)
    values = []
    for i, label in enumerate(labels):
        same_group = (labels == label) & (np.arange(len(x)) != i)
        inside = distances[i, same_group].mean()
        outside = min(distances[i, labels == other].mean() for other in set(labels) - {label})
        values.append((outside - inside) / max(inside, outside))
    return float(np.mean(values))


def test_the_client_of_every_sample_is_known() -> None:
    clients = [
        TensorSamples(torch.full((n, 1), float(k)), torch.zeros(n)) for k, n in enumerate((3, 1, 5))
    ]
    index = draw_indices(9, 6, stream=4)
    inputs, _ = pool_clients(clients).batch(index)
    assert clients_of_samples(clients, index).tolist() == inputs[:, 0].long().tolist()
    assert (
        len(index) == 6
        and (index.diff() > 0).all()
        and draw_indices(9, None, 4).tolist() == list(range(9))
    )


@pytest.mark.parametrize(
    ("model", "layer", "words"),
    [
        (nn.Sequential(nn.Linear(4, 3)), "last", "no layer 'last'; it has 0"),
        (nn.Sequential(nn.Conv1d(4, 3, 1), nn.Flatten()), None, "no linear layer"),
        (
            nn.Sequential(nn.Flatten(0), nn.Unflatten(0, (-1, 4)), nn.Linear(4, 3)),
            "1",
            "one input a sample",
        ),
    ],
)
def test_a_layer_without_features_is_refused(
    model: nn.Module, layer: str | None, words: str
) -> None:
    sample = groups(1.0)
    if isinstance(model[0], nn.Conv1d):
        sample = DrawnSample(((torch.zeros(2, 4, 1), torch.zeros(2)),), 2, 2, 2)
    with pytest.raises(InputError, match=words):
        features_before(model, sample, layer)
