"""Every method learns real data with its own values: at least 80 % on digits within 30 rounds."""

import pytest

from fedwmsam.config import resolve
from fedwmsam.experiment import prepare
from fedwmsam.methods import METHODS

ROUNDS = {"mimelite": 45}
"""MimeLite's momentum comes from full gradients alone and takes 1/(1 − β) = 10 rounds to fill: it needs about 40."""


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_reaches_80_percent_on_digits(tmp_path, method):
    rounds = ROUNDS.get(method, 30)
    experiment = prepare(resolve({"method": method, "rounds": rounds, "target_accuracy": 0.8, "checkpoint_every": 100}))
    result = experiment.run(experiment.create(tmp_path / method))
    assert result.status == "reached accuracy 0.8", result.last()
