"""What --dry-run says agrees with what the run then does."""

from fedwmsam.experiment.experiment import prepare
from fedwmsam.settings.config import resolve


def test_traffic_steps_and_rows_are_those_of_the_run(tmp_path):
    experiment = prepare(resolve({"rounds": 3, "method": "scaffold", "participation": 0.5}))
    found = experiment.estimate()
    result = experiment.run(experiment.create(tmp_path / "run"))
    first = result.rows[0]
    assert found.cohort * found.bytes_down == first["bytes_down"]
    assert found.cohort * found.bytes_up == first["bytes_up"]
    assert found.cohort * found.steps == first["backprops"]
    assert found.parameters == experiment.task.size and found.row == 4 * found.parameters
    assert 10 < found.seen < 20  # of 20 clients, after three rounds of ten
    assert found.round_seconds > 0 and found.step_seconds > 0


def test_an_estimate_leaves_the_run_as_it_was(tmp_path):
    config = resolve({"rounds": 2, "method": "fedwmsam"})
    plain, probed = prepare(config), prepare(config)
    probed.estimate()
    for experiment, name in ((plain, "a"), (probed, "b")):
        experiment.run(experiment.create(tmp_path / name))
    assert (tmp_path / "a" / "metrics.jsonl").read_bytes() == (
        tmp_path / "b" / "metrics.jsonl"
    ).read_bytes()


def test_dry_run_writes_nothing(cli, tmp_path):
    answer = cli("run", "--dry-run", "--out", str(tmp_path / "runs"), "--method", "fedwmsam")
    assert answer.code == 0 and "a round" in answer.out and "Nothing was trained" in answer.out
    assert not (tmp_path / "runs").exists()
