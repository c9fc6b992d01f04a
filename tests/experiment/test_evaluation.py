"""Accuracy by class and client, against numbers made by hand."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from fedwmsam.experiment.assembly import make_federation
from fedwmsam.experiment.evaluation import AccuracyBreakdown, fine_tune_accuracies
from fedwmsam.experiment.experiment import prepare
from fedwmsam.settings.config import resolve_config
from fedwmsam.training.task import deterministic_torch

OUTPUTS = torch.eye(3)[[0, 0, 1, 1, 2, 0]]  # predictions
# Of class 0, 2 of 2 predictions are right, of class 1 2 of 3, of class 2 none of 1.
TARGETS = torch.tensor([0, 0, 1, 1, 1, 2])


def test_by_class_is_the_accuracy_of_each_class():
    breakdown = AccuracyBreakdown(4, torch.ones(1, 4))
    accuracies = breakdown.by_class(OUTPUTS, TARGETS)
    assert accuracies[:3].tolist() == pytest.approx([1.0, 2 / 3, 0.0]) and accuracies[3].isnan()


def test_by_client_weighs_classes_by_the_clients_own_counts():
    class_counts = torch.tensor([[10, 0, 0], [0, 5, 5], [0, 0, 7]])
    breakdown = AccuracyBreakdown(3, class_counts)
    assert breakdown.by_client(OUTPUTS, TARGETS).tolist() == pytest.approx([1.0, 1 / 3, 0.0])
    columns = breakdown.columns(OUTPUTS, TARGETS)
    assert columns["worst_client_accuracy"] == 0.0
    assert columns["tenth_percentile_accuracy"] == pytest.approx(
        np.quantile([1.0, 1 / 3, 0.0], 0.1)
    )


def test_a_class_the_test_data_lack_does_not_count():
    breakdown = AccuracyBreakdown(4, torch.tensor([[5, 0, 0, 5]]))
    assert breakdown.by_client(OUTPUTS, TARGETS).tolist() == [1.0]


def test_by_group_uses_the_groups_own_samples():
    breakdown = AccuracyBreakdown(3, torch.ones(2, 3), groups=torch.tensor([0, 0, 0, 1, 1, 1]))
    assert breakdown.by_client(OUTPUTS, TARGETS).tolist() == pytest.approx([1.0, 1 / 3])


def test_the_metrics_tell_the_worst_client_and_fine_tuning_helps_it(tmp_path):
    experiment = prepare(
        resolve_config({"rounds": 8, "partition": "pathological:2", "clients": 10})
    )
    result = experiment.run(experiment.create(tmp_path / "run"))
    evaluation = experiment.evaluate_breakdown(result.model, fine_tune=1, lr=0.05)
    assert evaluation["worst_client_accuracy"] == min(evaluation["by_client"].values())
    last = result.rows[-1]
    assert last["worst_client_accuracy"] == pytest.approx(evaluation["worst_client_accuracy"])
    assert last["worst_client_accuracy"] <= last["tenth_percentile_accuracy"]
    before = np.array(list(evaluation["by_client"].values()))
    after = np.array(list(evaluation["by_client_fine_tuned"].values()))
    assert after.mean() > before.mean() + 0.1


def test_a_run_ends_with_every_clients_accuracy(tmp_path):
    experiment = prepare(resolve_config({"rounds": 3, "clients": 5, "evaluate_every": 2}))
    result = experiment.run(experiment.create(tmp_path / "run"))
    written = json.loads((tmp_path / "run" / "clients.json").read_text())
    assert written == {
        "round": 3,
        "accuracy": list(experiment.evaluate_breakdown(result.model)["by_client"].values()),
    }
    assert min(written["accuracy"]) == result.rows[-1]["worst_client_accuracy"]


def test_client_accuracies_are_the_same_however_a_run_came_to_its_end(tmp_path):
    def run(name, rounds, callback=None, create=False):
        experiment = prepare(resolve_config({"rounds": rounds, "clients": 5}))
        folder = (experiment.create if create else experiment.reopen)(tmp_path / name)
        experiment.run(folder, [callback] if callback else [])
        return (tmp_path / name / "clients.json").read_bytes()

    def interrupt(progress):
        assert not (tmp_path / "extended" / "clients.json").exists(), "that of the earlier end"
        raise KeyboardInterrupt

    whole = run("whole", 4, create=True)
    assert run("extended", 2, create=True) != whole
    with pytest.raises(KeyboardInterrupt):
        run("extended", 4, interrupt)
    assert not (tmp_path / "extended" / "clients.json").exists()
    assert run("extended", 4) == whole
    # As if killed after the last round, or made before there was such a file.
    (tmp_path / "extended" / "clients.json").unlink()
    assert run("extended", 4) == whole


def test_fine_tuning_for_no_epoch_would_change_nothing(tmp_path):
    """One epoch at a vanishing step size leaves every client where the global model is."""
    experiment = prepare(resolve_config({"rounds": 1, "clients": 4}))
    result = experiment.run(experiment.create(tmp_path / "run"))
    with deterministic_torch():
        w, buffers = experiment.task.unpack_state_dict(result.model)
        federation = make_federation(
            experiment.config, experiment.config.make_method(), experiment.task, experiment.clients
        )
        tuned = fine_tune_accuracies(
            federation, w, buffers, experiment.test, experiment.breakdown, 1, 1e-12
        )
        outputs, targets, _ = experiment.task.compute_outputs(w, buffers, experiment.test)
        plain = experiment.breakdown.by_client(outputs, targets)
    assert torch.allclose(tuned, plain)


@pytest.fixture
def speakers(tmp_path):
    """A small text by three speakers."""
    lines = [
        {"speaker": name, "text": f"{name} says so, and says so again. " * 12}
        for name in ("Ann", "Bob", "Cid")
    ]
    path = tmp_path / "talk.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def test_a_natural_split_has_a_client_for_each_group(cli, speakers, tmp_path):
    arguments = [
        "--dataset",
        f"{speakers},context=8,stride=2",
        "--partition",
        "natural",
        "--model",
        "char",
    ]
    outcome = cli(
        "run", *arguments, "--participation", "1", "--rounds", "2", "--out", tmp_path, "--name", "r"
    )
    assert outcome.code == 0, outcome.err
    data = json.loads((tmp_path / "r" / "data.json").read_text())
    assert data["group_names"] == ["Ann", "Bob", "Cid"] and len(data["class_counts"]) == 3
    outcome = cli("evaluate", tmp_path / "r")
    assert outcome.code == 0 and "Ann" in outcome.out and "worst_client_accuracy" in outcome.out
    for wrong in ("7", "20"):
        refused = cli(
            "run", *arguments, "--clients", wrong, "--rounds", "2", "--out", tmp_path / "none"
        )
        assert refused.code == 2 and f"{wrong} clients" in refused.err and "3 groups" in refused.err
    refused = cli(
        "run", *arguments, "--clients-per-round", "4", "--rounds", "2", "--out", tmp_path / "none"
    )
    assert (
        refused.code == 2 and "only 3 clients" in refused.err and not (tmp_path / "none").exists()
    )


def test_a_natural_run_records_its_clients_and_resumes_also_where_20_were_recorded(
    cli, speakers, tmp_path
):
    arguments = [
        "--dataset",
        f"{speakers},context=8,stride=2",
        "--partition",
        "natural",
        "--model",
        "char",
    ]
    arguments += ["--participation", "1", "--out", tmp_path, "-q", "--name"]
    assert cli("run", *arguments, "whole", "--clients", "3", "--rounds", "2").code == 0
    assert cli("run", *arguments, "parts", "--rounds", "1").code == 0
    config = tmp_path / "parts" / "config.toml"
    assert "\nclients = 3\n" in config.read_text()
    # As early runs wrote it, which had no provenance.json.
    (tmp_path / "parts" / "provenance.json").unlink()
    config.write_text(config.read_text().replace("clients = 3", "clients = 20"))
    outcome = cli("resume", tmp_path / "parts", "--rounds", "2", "-q")
    assert outcome.code == 0, outcome.err
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes()


def test_the_partition_command_draws_a_plot(cli, tmp_path):
    plot = tmp_path / "split.png"
    outcome = cli("partition", "--partition", "shards:2", "--clients", "10", "--save", plot)
    assert outcome.code == 0, outcome.err
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert cli("partition", "--partition", "shards:0").code == 2
    assert cli("partition", "--save", tmp_path / "split.doc").code == 2


def test_augmented_runs_resume_exactly(cli, tmp_path):
    arguments = [
        "--augmentation",
        "paper",
        "--model",
        "cnn",
        "--clients",
        "5",
        "--local-epochs",
        "1",
        "-q",
    ]
    assert cli("run", *arguments, "--rounds", "3", "--out", tmp_path, "--name", "whole").code == 0
    assert cli("run", *arguments, "--rounds", "2", "--out", tmp_path, "--name", "parts").code == 0
    assert cli("resume", tmp_path / "parts", "--rounds", "3", "-q").code == 0
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes()
    assert (
        cli("run", *arguments[2:], "--rounds", "3", "--out", tmp_path, "--name", "plain").code == 0
    )
    assert (tmp_path / "whole" / "metrics.jsonl").read_bytes() != (
        tmp_path / "plain" / "metrics.jsonl"
    ).read_bytes()


def test_many_classes_have_a_top_five_column(cli, tmp_path):
    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "many.npz", x=rng.normal(size=(600, 5)).astype(np.float32), y=np.arange(600) % 60
    )
    arguments = [
        "--dataset",
        tmp_path / "many.npz",
        "--model",
        "linear",
        "--clients",
        "3",
        "--rounds",
        "1",
        "-q",
    ]
    assert cli("run", *arguments, "--out", tmp_path, "--name", "r").code == 0
    row = json.loads((tmp_path / "r" / "metrics.jsonl").read_text())
    assert row["accuracy"] <= row["top5"] <= 1


def test_changed_data_do_not_go_on(cli, tmp_path):
    rows = ["a,b,label", *(f"{i % 7},{i % 5},{i % 3}" for i in range(90))]
    table = tmp_path / "table.csv"
    table.write_text("\n".join(rows))
    arguments = ["--dataset", table, "--model", "linear", "--clients", "3", "--rounds", "1", "-q"]
    assert cli("run", *arguments, "--out", tmp_path, "--name", "r").code == 0
    table.write_text("\n".join([rows[0], *(f"{i % 7},{-i % 5},{i % 3}" for i in range(90))]))
    refused = cli("resume", tmp_path / "r", "--rounds", "2")
    assert refused.code == 2 and "data have changed" in refused.err
    table.write_text("\n".join(rows))
    assert cli("resume", tmp_path / "r", "--rounds", "2", "-q").code == 0


def test_a_client_without_test_samples_has_no_accuracy(cli, tmp_path):
    rows = ["a,b,client,label", *(f"{i % 7},{i % 5},{i % 2},{i % 3}" for i in range(80)), "1,1,9,0"]
    (tmp_path / "table.csv").write_text("\n".join(rows))
    arguments = [
        "--dataset",
        tmp_path / "table.csv",
        "--partition",
        "natural",
        "--model",
        "linear",
        "--rounds",
        "1",
    ]
    assert cli("run", *arguments, "--out", tmp_path, "--name", "r", "-q").code == 0
    *others, last = json.loads((tmp_path / "r" / "clients.json").read_text())["accuracy"]
    assert last is None and all(0 <= accuracy <= 1 for accuracy in others) and len(others) == 2
    outcome = cli("evaluate", tmp_path / "r", "--fine-tune", "1")
    assert outcome.code == 0, outcome.err
    assert "–" in outcome.out


def test_a_full_disk_is_one_sentence_and_the_run_goes_on_later(tmp_path):
    arguments = [
        "run",
        "--rounds",
        "6",
        "--checkpoint-every",
        "2",
        "--out",
        tmp_path,
        "--name",
        "r",
        "-q",
    ]
    command = f"ulimit -f 500; exec {sys.executable} -m fedwmsam {' '.join(map(str, arguments))}"
    full = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert full.returncode == 2, full.stderr
    assert "Traceback" not in full.stderr and "File too large" in full.stderr
    again = subprocess.run(
        [sys.executable, "-m", "fedwmsam", "resume", tmp_path / "r", "-q"],
        capture_output=True,
        text=True,
    )
    assert again.returncode == 0, again.stderr
    whole = [*arguments[:-3], "--name", "whole", "-q"]
    subprocess.run([sys.executable, "-m", "fedwmsam", *whole], check=True)
    assert (tmp_path / "r" / "metrics.jsonl").read_bytes() == (
        tmp_path / "whole" / "metrics.jsonl"
    ).read_bytes()
