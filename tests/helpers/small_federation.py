"""A small federation in float64: five clients of unequal size whose last batches are partial."""

import contextlib
import resource

import torch

from fedwmsam.testing import LOCAL_RULES, make_federation, make_network, run_rounds
from fedwmsam.training.local import LocalRules

__all__ = ["make_federation", "make_network", "run_rounds", "train_weights"]

PLAIN_RULES = LocalRules(weight_decay=0.0, weight_decay_mode="objective", clip_norm=None)
"""Local steps along the gradient as it is."""
FULL_RULES = LOCAL_RULES
"""Local steps with weight decay and clipping."""


def train_weights(method, rules=FULL_RULES, **options):
    """Return the global weights after six rounds of a federation with these options."""
    states, _ = run_rounds(make_federation(method, rules, **options))
    return states[-1].server["w"]


@contextlib.contextmanager
def limit_file_size(size):
    """Let no file grow beyond so many bytes, as a quota does: writing more is an error."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class MislabelledDataset:
    """A dataset whose labels no model of three classes has."""

    def __len__(self):
        return 9

    def __getitem__(self, index):
        return torch.zeros(8), 7
