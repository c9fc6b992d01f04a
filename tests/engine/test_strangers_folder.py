"""A run folder from a stranger: refused in one sentence, and nothing outside of it is touched."""

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch
from helpers.small_run import SMALL_RUN

from fedwmsam import Result
from fedwmsam.analysis.saved_run import SavedRun
from fedwmsam.engine import checkpoint
from fedwmsam.engine.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from fedwmsam.experiment.experiment import load_config

TEXT_FILES = (
    "config.toml",
    "metrics.jsonl",
    "data.json",
    "summary.json",
    "timings.jsonl",
    "provenance.json",
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, cli):
    """Return a finished run with checkpoints, client memory, a best model and kept states."""
    out = tmp_path_factory.mktemp("finished")
    outcome = cli(
        *("run", *SMALL_RUN, "--method", "scaffold", "--validation", "0.2", "--keep-states", "1"),
        *("--record", "echo", "--out", out, "--name", "run", "--quiet"),
    )
    assert outcome.code == 0, outcome.err
    return out / "run"


@pytest.fixture
def run(finished, tmp_path):
    """Return a copy of the finished run, which may be spoilt."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture
def foreign(tmp_path):
    """Return a folder outside of the run with a file, both of which must stay as they are."""
    folder = tmp_path / "foreign"
    folder.mkdir()
    (folder / "file").write_bytes(bytes(10**6))
    return folder


def assert_refused(outcome, *words):
    assert outcome.code == 2, outcome
    assert outcome.err.startswith("Error: ") and outcome.err.count("\n") == 1, outcome.err
    assert all(word in outcome.err for word in words), outcome.err


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def resume(cli, run, *flags):
    return cli("resume", run, "--rounds", "4", "--quiet", *flags)


# Links and pipes


@pytest.mark.parametrize(
    "name", ["checkpoints/memory.rows", "metrics.jsonl", "timings.jsonl", "recordings.jsonl"]
)
def test_resume_writes_to_no_file_that_a_link_points_to(cli, run, foreign, name):
    before = contents(foreign)
    (run / name).unlink()
    (run / name).symlink_to(foreign / "file")
    assert_refused(resume(cli, run), "is a link")
    assert contents(foreign) == before


def test_a_dangling_lock_creates_nothing(cli, run, foreign):
    (run / "lock").unlink(missing_ok=True)
    (run / "lock").symlink_to(foreign / "new")
    assert_refused(resume(cli, run), "lock is a link")
    assert not (foreign / "new").exists()


@pytest.mark.parametrize("name", ["checkpoints", "states"])
def test_folders_of_a_run_are_its_own(cli, run, foreign, name):
    """Old checkpoints are removed, so a link would empty another run's folder."""
    for path in (run / name).iterdir():
        shutil.copy(path, foreign)
    before = contents(foreign)
    shutil.rmtree(run / name)
    (run / name).symlink_to(foreign)
    assert_refused(resume(cli, run), "is a link, not a folder")
    assert contents(foreign) == before


@pytest.mark.parametrize("planted", [".flatness.json.new", "flatness.json"])
def test_an_analysis_replaces_no_file_that_a_link_points_to(cli, run, foreign, planted):
    before = contents(foreign)
    (run / "analysis").mkdir()
    (run / "analysis" / planted).symlink_to(foreign / "file")
    small = ("--samples", "50", "--clients", "0", "--eigenvalues", "1", "--probes", "1")
    outcome = cli("analyse", "flatness", run, *small, "--rho", "", "--adaptive-rho", "", "--quiet")
    assert outcome.code == 0 or "is a link" in outcome.err, outcome.err
    assert contents(foreign) == before


def test_an_analysis_is_written_into_no_other_folder(cli, run, foreign):
    (run / "analysis").symlink_to(foreign)
    before = contents(foreign)
    assert_refused(cli("analyse", "flatness", run, "--quiet"), "is a link, not a folder")
    assert contents(foreign) == before


@pytest.mark.parametrize("name", [*TEXT_FILES, "model.safetensors", "clients.json"])
@pytest.mark.parametrize("kind", ["pipe", "endless device", "sparse file"])
def test_no_command_waits_for_a_pipe_or_reads_without_end(cli, run, name, kind):
    path = run / name
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "endless device":
        path.symlink_to("/dev/zero")
    else:
        with path.open("wb") as file:
            file.truncate(2**40)
    for command in ("report", "evaluate", "resume"):
        outcome = cli(command, run)
        assert outcome.code in (0, 2) and "Traceback" not in outcome.err, outcome.err
        assert outcome.code == 0 or outcome.err.count("Error: ") == 1, outcome.err


def test_a_comparison_does_not_follow_a_link_to_a_run(cli, tmp_path, foreign):
    flags = ("compare", "--methods", "fedavg", "--seeds", "1", "--out", tmp_path / "out")
    assert cli(*flags, *SMALL_RUN, "--quiet").code == 0
    made = next(path for path in (tmp_path / "out").iterdir() if "fedavg" in path.name)
    shutil.rmtree(made)
    made.symlink_to(foreign)
    before = contents(foreign)
    assert_refused(cli(*flags, *SMALL_RUN, "--quiet"), "is a link")
    assert contents(foreign) == before


# Forged checkpoints


def forge(run, change):
    """Change the newest checkpoint and seal it again, as a stranger would."""
    round = checkpoint.rounds_in(run / "checkpoints")[0]
    path = checkpoint.path_of(run / "checkpoints", round)
    saved = read_checkpoint(path)
    bundles = {name: dict(vectors) for name, vectors in saved.bundles.items()}
    notes = dict(saved.notes)
    change(bundles, notes)
    write_checkpoint(path, Checkpoint(bundles, notes))


def rename_memory(bundles, notes):
    notes["memory"] = {"other": notes["memory"]["c_k"]}


def widen_memory(bundles, notes):
    notes["memory"] = {"c_k": ["float64", [notes["memory"]["c_k"][1][0] // 2]]}


def take_another_type(bundles, notes):
    bundles["server"]["c"] = bundles["server"]["c"].view(torch.int32)


FORGERIES = {
    "no method": lambda bundles, notes: notes.pop("method"),
    "another method": lambda bundles, notes: notes.update(method="fedavg\n\x1b[2J"),
    "no memory": lambda bundles, notes: notes.pop("memory"),
    "renamed memory": rename_memory,
    "float64 memory": widen_memory,
    "a shape of floats": lambda bundles, notes: notes.update(memory={"c_k": ["float32", [1.5]]}),
    "float slots": lambda bundles, notes: bundles["memory"].update(
        slots=bundles["memory"]["slots"].double()
    ),
    "far slots": lambda bundles, notes: bundles["memory"].update(
        slots=bundles["memory"]["slots"] + 2**40
    ),
    "no index": lambda bundles, notes: bundles.pop("memory"),
    "an empty best": lambda bundles, notes: bundles.update({"best": {}}),
    "no score": lambda bundles, notes: notes.pop("best_score"),
    "a score that is text": lambda bundles, notes: notes.update(best_score="high"),
    "another type": take_another_type,
    "no server": lambda bundles, notes: bundles.pop("server"),
    "no buffers": lambda bundles, notes: bundles.pop("buffers"),
    "more buffers": lambda bundles, notes: bundles["buffers"].update(x=torch.zeros(3)),
    "no frozen": lambda bundles, notes: bundles.pop("frozen"),
    "frozen weights in no file": lambda bundles, notes: notes.update(frozen="0" * 32),
    "a digest that is no text": lambda bundles, notes: notes.update(frozen=[{}]),
    "another trail": lambda bundles, notes: bundles.update(trail={"7": torch.zeros(2)}),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_checkpoint_with_a_true_digest_is_refused(cli, run, forgery, caplog):
    forge(run, FORGERIES[forgery])
    outcome = resume(cli, run)
    assert "Traceback" not in outcome.err
    if outcome.code == 0:  # a damaged one: the checkpoint before it was used, and a line says so
        assert "using the checkpoint before it" in caplog.text
    else:
        assert_refused(outcome, "checkpoint")


def test_payloads_that_are_no_checkpoint_are_damaged(tmp_path):
    path = tmp_path / "file"
    notes = [json.dumps([]), json.dumps({"bundles": 3}), "[" * 10**5, json.dumps({"bundles": []})]
    for text in notes:
        payload = safetensors.torch.save({"a|b": torch.zeros(1)}, metadata={"notes": text})
        digest = hashlib.blake2b(payload, digest_size=checkpoint.DIGEST_BYTES).digest()
        path.write_bytes(checkpoint.MAGIC + digest + payload)
        with pytest.raises(checkpoint.DamagedFileError):
            read_checkpoint(path)


def test_files_that_only_look_like_checkpoints_are_passed_over(run):
    for name in ("round-x.checkpoint", "round-1.checkpoint", f"round-{'9' * 200}.checkpoint"):
        (run / "checkpoints" / name).touch()
    numbers = checkpoint.rounds_in(run / "checkpoints")
    assert 1 not in numbers and max(numbers) == int("9" * 200)


@pytest.mark.parametrize(
    "change",
    [
        {"classes": "ten"},
        {"classes": -1},
        {"classes": None},
        {"input_shape": "x"},
        {"input_shape": [1.5, 8, 8]},
        {"input_shape": None},
    ],
)
def test_data_that_describe_no_model_are_refused(cli, run, change):
    data = json.loads((run / "data.json").read_text()) | change
    (run / "data.json").write_text(json.dumps(data))
    assert_refused(cli("evaluate", run), "data.json is damaged")


def test_a_kept_state_of_another_round_is_refused(cli, run):
    path = checkpoint.path_of(run / "states", checkpoint.rounds_in(run / "states")[0])
    saved = read_checkpoint(path)
    write_checkpoint(path, Checkpoint(saved.bundles, {"method": "scaffold"}))
    assert_refused(cli("analyse", "theory", run, "--quiet"), "is a checkpoint of round None")


def test_complex_weights_are_refused(cli, run):
    weights = checkpoint.read_tensors(run / "model.safetensors")
    name = next(iter(weights))
    checkpoint.write_tensors(
        run / "model.safetensors", weights | {name: weights[name].to(torch.complex64)}
    )
    assert_refused(cli("evaluate", run), "do not fit the model")


@pytest.mark.parametrize("value", [1.5, "text", None, []])
def test_a_damaged_analysis_is_named(cli, run, value):
    (run / "analysis").mkdir()
    record = {"round": 3, "global": {"trace": value}, "clients": [value]}
    small = ("--samples", "50", "--clients", "0", "--eigenvalues", "1", "--probes", "1")
    assert cli("analyse", "flatness", run, *small, "--quiet").code == 0
    file = run / "analysis" / "flatness.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {"rounds": [record]}))
    assert_refused(cli("analyse", "flatness", run, *small, "--quiet"), "flatness.json is damaged")


# Imports


@pytest.fixture
def tempting(run, tmp_path, monkeypatch):
    """Return a run that names a model of the current folder, and the file that importing makes."""
    monkeypatch.chdir(tmp_path)
    name = f"tempting_{abs(hash(str(tmp_path)))}"
    text = f"""
from pathlib import Path
from fedwmsam.models.mlp import linear as make
Path({str(tmp_path / "imported")!r}).touch()
"""
    (tmp_path / f"{name}.py").write_text(text)
    config = (run / "config.toml").read_text()
    (run / "config.toml").write_text(config.replace('"linear"', f'"{name}:make"'))
    (run / "provenance.json").unlink()  # it would tell that the file is another
    return f"{name}:make", tmp_path / "imported"


COMMANDS = (
    ("resume", "RUN", "--quiet"),
    ("evaluate", "RUN"),
    ("analyse", "flatness", "RUN", "--quiet"),
    ("analyse", "landscape", "RUN", "--quiet"),
    ("analyse", "embedding", "RUN", "--quiet"),
    ("analyse", "dynamics", "RUN", "--quiet"),
    ("analyse", "theory", "RUN", "--quiet"),
)


def test_nothing_is_imported_that_only_a_run_folder_names(cli, run, tempting):
    model, imported = tempting
    for command in COMMANDS:
        outcome = cli(*(run if word == "RUN" else word for word in command))
        assert_refused(outcome, model, "would be imported", "--trust")
    for load in (Result.load, load_config, lambda path: SavedRun(path).experiment):
        with pytest.raises(ValueError, match="would be imported"):
            load(run)
    assert cli("report", run, "--html", run.parent / "page.html").code == 0
    assert not imported.exists()


def test_a_model_that_is_repeated_or_trusted_is_imported(cli, run, tempting):
    model, imported = tempting
    assert_refused(cli("evaluate", run, "--model", "other:make"), "is", model, "not 'other:make'")
    assert not imported.exists()
    assert cli("evaluate", run, "--model", model).code == 0
    assert imported.exists()
    assert cli("evaluate", run, "--trust").code == 0
    assert cli("resume", run, "--rounds", "4", "--quiet", "--model", model).code == 0
    assert Result.load(run, trust=True).model
