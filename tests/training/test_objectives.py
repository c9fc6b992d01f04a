"""Losses and metrics see the outputs and the targets that belong together."""

import torch
from torch.nn import functional

from fedwmsam.training.objectives import OBJECTIVES


def test_targets_follow_a_models_own_loss():
    """A language model moves its labels itself; its accuracy must compare with the same tokens."""
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(4, 5, 6, generator=generator)
    labels = torch.randint(5, (4, 6), generator=generator)
    objective = OBJECTIVES["classification"]
    plain = float(functional.cross_entropy(outputs, labels))
    moved = float(functional.cross_entropy(outputs[..., :-1], labels[:, 1:]))
    assert torch.equal(objective.align_targets(outputs, labels, plain), labels)
    aligned = objective.align_targets(outputs, labels, moved)
    assert torch.equal(aligned[:, :-1], labels[:, 1:]) and bool((aligned[:, -1] == -100).all())
    assert torch.equal(objective.align_targets(outputs, labels, moved + 1), labels)
    single = labels[:, :1]
    assert torch.equal(objective.align_targets(outputs[..., :1], single, moved), single)
