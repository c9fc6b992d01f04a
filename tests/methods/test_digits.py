"""Every method learns real data with the options of its preset: 80 % on digits in 30 rounds."""

import pytest

from fedwmsam.experiment.experiment import prepare
from fedwmsam.methods import METHODS
from fedwmsam.settings.config import resolve_config
from fedwmsam.settings.presets import BY_METHOD

DEFAULTS = ("fedgloss", "fedexp", "ghbm", "localghbm", "fedhbm")
"""The methods whose authors' step size, 0.01, is for thousands of rounds; 30 need the default."""


def preset_of(method):
    if method in DEFAULTS:
        return {}
    if method in BY_METHOD["tuned"] and method not in BY_METHOD["paper"]:
        return {"preset": "tuned"}
    return {"preset": "paper"}


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_reaches_80_percent_on_digits(tmp_path, method):
    settings = {"method": method, "rounds": 30, "target_accuracy": 0.8, "checkpoint_every": 100}
    experiment = prepare(resolve_config(preset_of(method) | settings))
    result = experiment.run(experiment.create(tmp_path / method))
    assert result.status == "reached accuracy 0.8", result.last()
