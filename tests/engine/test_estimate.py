"""What --dry-run says agrees with what the run then does."""

from fedwmsam.experiment.experiment import prepare
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
