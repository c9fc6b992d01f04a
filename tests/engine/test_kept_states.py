"""A kept state is all that its round needs to be repeated exactly."""

import pytest

from fedwmsam.engine import checkpoint
from fedwmsam.engine.records import read_lines
from fedwmsam.engine.rounds import run_round
from fedwmsam.engine.run_folder import unpack_replay_state
from fedwmsam.experiment.assembly import make_federation
from fedwmsam.experiment.experiment import prepare
from fedwmsam.settings.config import resolve_config
from fedwmsam.training.task import deterministic_torch


@pytest.mark.parametrize("method", ["fedavg", "fedwmsam", "fedsmoo"])
def test_a_round_repeats_from_its_kept_state(tmp_path, method):
    config = resolve_config(
        {"method": method, "rounds": 5, "local_epochs": 1, "keep_states": 2, "memory_budget": 0}
    )
    experiment = prepare(config)
    experiment.run(experiment.create(tmp_path / "run"))
    rows = read_lines(tmp_path / "run" / "metrics.jsonl")
    states = sorted((tmp_path / "run" / "states").iterdir())
    assert checkpoint.rounds_in(tmp_path / "run" / "states") == [4, 2, 0]
    with deterministic_torch():
        federation = make_federation(
            config, config.make_method(), experiment.task, experiment.clients
        )
        for path in states:
            saved = checkpoint.read_checkpoint(path)
            _, record = run_round(federation, unpack_replay_state(federation, saved))
            row = rows[saved.notes["round"]]
            assert record == {key: row[key] for key in record}


def test_a_kept_state_holds_no_more_than_its_cohort(tmp_path):
    config = resolve_config(
        {
            "method": "scaffold",
            "rounds": 9,
            "local_epochs": 1,
            "keep_states": 8,
            "participation": 0.25,
        }
    )
    experiment = prepare(config)
    experiment.run(experiment.create(tmp_path / "run"))
    saved = checkpoint.read_checkpoint(checkpoint.path_of(tmp_path / "run" / "states", 8))
    assert sum(name.startswith("memory/") for name in saved.bundles) <= 5
