"""Every method that has reference vectors reproduces them through the real round loop."""

import json
from pathlib import Path

import pytest

from fedwmsam.engine import rounds
from fedwmsam.experiment import verify
from fedwmsam.methods import METHODS

FILES = sorted((Path(__file__).parents[1] / "data" / "reference_vectors").glob("*.json"))


def method_of(path):
    return json.loads(path.read_text())["config"]["method"].lower().replace("_", "-")


READY = [path for path in FILES if method_of(path) in METHODS]


@pytest.mark.parametrize("path", READY, ids=lambda p: p.stem)
def test_agrees_to_1e_9(path):
    verdict = verify.verify_file(path)
    assert verdict.worst <= 1e-9, verdict.errors
    assert ("alpha" in verdict.errors) == path.name.startswith("fedwmsam")


def test_every_file_has_its_method():
    assert READY == FILES
    assert len(FILES) == 47


def test_verify_runs_the_real_round_loop(monkeypatch):
    calls = []
    run_round = rounds.run_round

    def counted(*arguments):
        calls.append(arguments)
        return run_round(*arguments)

    monkeypatch.setattr(rounds, "run_round", counted)
    verify.verify_file(READY[0])
    assert len(calls) == len(json.loads(READY[0].read_text())["selected"])


def test_verify_notices_a_changed_local_loop(monkeypatch):
    """Break the loop that training really uses: the verdict must change."""
    train_locally = rounds.train_locally

    def changed(*arguments, **keywords):
        rules = rounds.LocalRules(2e-3, "sgd", 10.0)
        return train_locally(*arguments[:-1], rules, **keywords)

    monkeypatch.setattr(rounds, "train_locally", changed)
    assert verify.verify_file(READY[0]).worst > 1e-6


def test_verify_notices_one_changed_number(tmp_path):
    file = json.loads(READY[0].read_text())
    file["global"][-1][3] += 1e-6
    changed = tmp_path / "changed.json"
    changed.write_text(json.dumps(file))
    assert 0.9e-6 < verify.verify_file(changed).worst < 1.1e-6
