"""What --dry-run says agrees with what the run then does."""

from types import SimpleNamespace

import pytest
from helpers.small_federation import make_federation

from fedwmsam.engine import estimate as estimate_module
from fedwmsam.engine.estimate import RoundCost, batch_rounds, probe_rounds
from fedwmsam.engine.rounds import Diverged
from fedwmsam.experiment.experiment import prepare
from fedwmsam.methods import FedAvg
from fedwmsam.settings.config import resolve_config


def test_traffic_steps_and_rows_are_those_of_the_run(tmp_path):
    experiment = prepare(resolve_config({"rounds": 3, "method": "scaffold", "participation": 0.5}))
    estimate = experiment.estimate()
    result = experiment.run(experiment.create(tmp_path / "run"))
    first = result.rows[0]
    assert estimate.cohort * estimate.bytes_down == first["bytes_down"]
    assert estimate.cohort * estimate.bytes_up == first["bytes_up"]
    assert estimate.cohort * estimate.steps == first["backprops"]
    assert estimate.parameters == experiment.task.parameter_count
    assert estimate.row_bytes == 4 * estimate.parameters
    assert 10 < estimate.participants < 20  # of 20 clients, after three rounds of ten
    assert estimate.round_seconds > 0 and estimate.step_seconds > 0


def test_an_estimate_leaves_the_run_as_it_was(tmp_path):
    config = resolve_config({"rounds": 2, "method": "fedwmsam"})
    plain = prepare(config)
    probed = prepare(config)
    probed.estimate()
    for experiment, name in ((plain, "a"), (probed, "b")):
        experiment.run(experiment.create(tmp_path / name))
    metrics = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("a", "b")]
    assert metrics[0] == metrics[1]


def test_dry_run_writes_nothing(cli, tmp_path):
    outcome = cli("run", "--dry-run", "--out", str(tmp_path / "runs"), "--method", "fedwmsam")
    assert outcome.code == 0
    assert "a round" in outcome.out and "Nothing was trained" in outcome.out
    assert not (tmp_path / "runs").exists()


def test_a_round_lasts_until_the_last_worker_is_done():
    cost = RoundCost(round=1, client=2, step=0.5)
    assert cost.round_seconds([2, 4, 6], workers=1) == 1 + 3 + 4 + 5
    assert cost.round_seconds([2, 2, 2], workers=2) == 1 + 2 * 3
    assert cost.round_seconds([10, 2, 2, 2], workers=2) == 1 + 9
    assert cost.round_seconds([2], workers=8) == 1 + 3


def test_an_evaluation_lasts_until_the_last_batch_is_done():
    assert batch_rounds(10_500, 1000, workers=1) == 10.5
    assert batch_rounds(10_000, 3000, workers=3) == 4
    assert batch_rounds(1500, 1500, workers=2) == 1


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("clients", [1, 2, 5])
def test_short_rounds_tell_what_a_round_is_made_of(monkeypatch, workers, clients):
    """On a clock of our own; the first rounds, which are slower, do not count."""
    true = RoundCost(round=0.25, client=0.5, step=0.125)
    clock = SimpleNamespace(now=0.0, rounds=0)

    def run_round(federation, state):
        schedule = federation.schedule
        clock.now += true.round_seconds([schedule.count] * len(schedule.clients), workers)
        clock.now += 10.0 if clock.rounds < 3 else 0.0
        clock.rounds += 1
        raise Diverged("a probe does not mind")

    monkeypatch.setattr(estimate_module, "run_round", run_round)
    clock.perf_counter = lambda: clock.now
    monkeypatch.setattr(estimate_module, "time", clock)
    cohort = list(range(clients))
    cost, _ = probe_rounds(make_federation(FedAvg()), cohort, 40, workers, seconds=1.0)
    for steps in (1, 40):
        expected = true.round_seconds([steps] * clients, workers)
        assert cost.round_seconds([steps] * clients, workers) == pytest.approx(expected)
    assert cost.step == pytest.approx(true.step)


def test_evaluations_and_checkpoints_count_by_their_share():
    settings = {"evaluate_every": 4, "checkpoint_every": 5, "validation": 0.1, "model": "linear"}
    estimate = prepare(resolve_config(settings)).estimate(0.01)
    assert estimate.evaluate_seconds > 0 and estimate.save_seconds > 0
    assert estimate.round_seconds == pytest.approx(
        estimate.train_seconds + estimate.evaluate_seconds / 4 + estimate.save_seconds / 5
    )


def test_the_probe_is_made_on_the_workers_of_the_run(monkeypatch):
    used = []
    predict = estimate_module.Run.predict

    def record(self, w, buffers, samples):
        used.append((len(self.helpers.workers), len(samples)))
        return predict(self, w, buffers, samples)

    monkeypatch.setattr(estimate_module.Run, "predict", record)
    estimate = prepare(resolve_config({"workers": 2, "twin": 8.0})).estimate(0.01)
    assert set(used) == {(2, 355)}  # the test data are less than a batch for each worker
    assert estimate.workers == 2 and estimate.round_seconds > 0
