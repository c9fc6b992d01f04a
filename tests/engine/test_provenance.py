"""provenance.json: which versions and machine made a run, and whether its settings were edited."""

import hashlib
import json
import platform
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from helpers.run_folders import write_run
from helpers.small_run import SMALL_RUN

import fedwmsam
from fedwmsam.engine import provenance
from fedwmsam.report.runs import find_runs, read_run
from fedwmsam.report.summary import summarise
from fedwmsam.report.text_tables import make_text_tables

SESSION = {
    "begin": "2026-01-01T00:00:00+00:00",
    "end": "2026-01-01T00:01:00+00:00",
    "command": ["fedwmsam", "run"],
    "versions": {"fedwmsam": "0.1", "PyTorch": "2.13.0", "numpy": "2.4"},
    "processor": "Abacus",
    "device": "cpu",
    "threads": 1,
    "workers": 1,
    "first_round": 1,
    "last_round": 2,
}


def sessions_of(run):
    return json.loads((run / "provenance.json").read_text())["sessions"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory, cli):
    out = tmp_path_factory.mktemp("finished")
    outcome = cli("run", *SMALL_RUN, "--out", out, "--name", "run", "--quiet")
    assert outcome.code == 0, outcome.err
    return out / "run"


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def edit(run):
    text = (run / "config.toml").read_text()
    assert "\nlr = 0.1\n" in text
    (run / "config.toml").write_text(text.replace("\nlr = 0.1\n", "\nlr = 0.2\n"))


# What is noted


def test_a_run_notes_what_made_it(run):
    [session] = sessions_of(run)
    versions = session["versions"]
    assert versions["fedwmsam"].startswith(fedwmsam.__version__)
    assert versions["Python"].endswith(platform.python_version())
    assert (versions["PyTorch"], versions["numpy"]) == (torch.__version__, np.__version__)
    assert versions["BLAS"] and "Flower" not in versions
    assert session["command"][:3] == ["fedwmsam", "run", "--model"]
    assert session["begin"] <= session["end"]
    assert (session["first_round"], session["last_round"]) == (1, 3)
    assert (session["device"], session["threads"], session["workers"]) == ("cpu", 1, 1)
    assert platform.node() not in (run / "provenance.json").read_text()


def test_the_host_is_noted_on_request_and_changes_nothing_else(cli, run, tmp_path):
    flags = ("--record-host", "--out", tmp_path, "--name", "with-host", "--quiet")
    assert cli("run", *SMALL_RUN, *flags).code == 0
    [session] = sessions_of(tmp_path / "with-host")
    assert session["host"] == platform.node()
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (tmp_path / "with-host" / name).read_bytes() == (run / name).read_bytes()


def test_the_commit_of_a_checkout_is_noted_and_that_it_was_changed(tmp_path, monkeypatch):
    def git(*words):
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True)

    module = tmp_path / "src" / "fedwmsam" / "engine" / "provenance.py"
    module.parent.mkdir(parents=True)
    module.write_text("")
    monkeypatch.setattr(provenance, "__file__", str(module))
    find_commit = provenance.library_commit.__wrapped__
    assert find_commit() is None
    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    clean = find_commit()
    assert len(clean) == 12
    module.write_text("changed")
    assert find_commit() == f"{clean}-dirty"
    monkeypatch.setenv("PATH", "")
    assert find_commit() is None


def test_fit_notes_the_script_and_none_of_its_words(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/home/somebody/study.py", "--password", "secret"])
    data = [(torch.randn(8, 2), torch.arange(8) % 2) for _ in range(2)]
    folder = tmp_path / "run"
    model = torch.nn.Linear(2, 2)
    fedwmsam.fit(model, data, rounds=1, run_folder=folder, record_host=True, progress=False)
    [session] = sessions_of(folder)
    assert session["command"] == ["fit", "study.py"]
    assert session["host"] == platform.node()


def test_a_comparison_notes_its_own_command(cli, tmp_path):
    words = ("compare", "--methods", "fedavg", *SMALL_RUN, "--out", str(tmp_path / "c"), "-q")
    assert cli(*words).code == 0
    [run] = find_runs([tmp_path / "c"])[0]
    assert run.sessions[0]["command"] == ["fedwmsam", *words]


def test_an_extended_run_has_a_session_more(cli, run):
    assert cli("resume", run, "--rounds", "5", "--quiet").code == 0
    first, second = sessions_of(run)
    assert (first["last_round"], second["first_round"], second["last_round"]) == (3, 4, 5)
    assert second["command"][:2] == ["fedwmsam", "resume"]
    assert first["config"] != second["config"]
    assert not read_run(run).has_edited_config
    assert cli("resume", run, "--rounds", "6", "--quiet").code == 0


def test_a_session_that_was_killed_before_it_wrote_its_settings_can_be_resumed(cli, run):
    """Its digest is there already, the config.toml that it belongs to is not."""
    sessions = [*sessions_of(run), SESSION | {"config": "0" * 32, "end": None}]
    (run / "provenance.json").write_text(json.dumps({"sessions": sessions}))
    assert cli("resume", run, "--rounds", "4", "--quiet").code == 0


# Edited settings


def test_an_edited_run_is_not_resumed(cli, run):
    edit(run)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    outcome = cli("resume", run, "--rounds", "5", "--quiet")
    assert outcome.code == 2 and outcome.err.count("\n") == 1
    assert "config.toml is not as the run wrote it" in outcome.err
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    (run / "provenance.json").unlink()  # as the message says: whoever edited it answers for it
    assert cli("resume", run, "--rounds", "5", "--quiet").code == 0


def test_fit_does_not_go_on_with_an_edited_run(tmp_path):
    data = [(torch.randn(8, 2), torch.arange(8) % 2) for _ in range(2)]
    arguments = {"run_folder": tmp_path / "run", "progress": False}
    fedwmsam.fit(torch.nn.Linear(2, 2), data, rounds=1, **arguments)
    with (tmp_path / "run" / "config.toml").open("a") as file:
        file.write("weight_decay = 0.5\n")
    for _ in range(2):  # the first refusal has released the folder
        with pytest.raises(fedwmsam.InputError, match="not as the run wrote it"):
            fedwmsam.fit(torch.nn.Linear(2, 2), data, rounds=2, resume=True, **arguments)


def test_a_report_marks_the_row_of_an_edited_run(cli, run, tmp_path):
    report = ("report", run, "--csv", tmp_path / "t.csv", "--html", tmp_path / "page.html")
    assert "edited" not in cli(*report).out
    edit(run)
    outcome = cli(*report)
    assert outcome.code == 0
    assert "1 (1 edited)" in outcome.out and "config.toml was edited" in outcome.out
    assert "config.toml was edited" in (tmp_path / "t-runs.csv").read_text()
    assert "1 (1 edited)" in (tmp_path / "page.html").read_text()


# Tables whose runs were made differently


@pytest.fixture
def make(tmp_path):
    """Return a function that writes a run with these values of its session, or without one."""

    def write(seed, **values):
        run = write_run(tmp_path / "runs" / str(seed), [0.1, 0.2], seed=seed)
        if values:
            digest = provenance_digest(run)
            session = SESSION | {"config": digest} | values
            (run / "provenance.json").write_text(json.dumps({"sessions": [session]}))
        return run

    return write


def provenance_digest(run):
    return hashlib.blake2b((run / "config.toml").read_bytes(), digest_size=16).hexdigest()


def notes_of(folder):
    [table] = make_text_tables(summarise(find_runs([folder])[0]))
    return [note for note in table.notes if "made" in note]


def test_runs_that_were_made_alike_need_no_note(make, tmp_path):
    make(0, workers=1)
    make(1, workers=2, begin="2027-01-01T00:00:00+00:00", command=["other"])
    assert notes_of(tmp_path / "runs") == []


def test_a_note_names_what_differs(make, tmp_path):
    make(0, device="cpu")
    make(1, versions=SESSION["versions"] | {"PyTorch": "2.12.1"}, processor="Engine")
    [note] = notes_of(tmp_path / "runs")
    assert "PyTorch 2.13.0 or 2.12.1; processor Abacus or Engine." in note
    assert "numpy" not in note and "device" not in note


def test_a_run_resumed_by_another_version_differs_from_itself(make, tmp_path):
    run = make(0, last_round=1)
    later = {"first_round": 2, "versions": {"fedwmsam": "0.2"}}
    idle = {"first_round": 3, "last_round": 2, "versions": {"fedwmsam": "0.3"}}
    sessions = [*sessions_of(run), SESSION | later, SESSION | idle]
    (run / "provenance.json").write_text(json.dumps({"sessions": sessions}))
    [note] = notes_of(tmp_path / "runs")
    assert "fedwmsam 0.1 or 0.2." in note, "a session without a round made nothing"


def test_unknown_provenance_is_said_where_others_are_known(cli, make, tmp_path):
    make(0)
    assert notes_of(tmp_path / "runs") == [], "runs of older versions: their tables stay"
    listing = cli("report", tmp_path / "runs", "--provenance", "--html", tmp_path / "page.html")
    assert "provenance unknown" in listing.out
    assert "provenance unknown" in (tmp_path / "page.html").read_text()
    make(1, workers=1)
    [note] = notes_of(tmp_path / "runs")
    assert note == "1 of 2 runs do not say what made them (provenance unknown)."
    assert "Abacus" in cli("report", tmp_path / "runs", "--provenance").out


# A stranger's file

WRONG = {
    "sessions": [None, 3, {}, [3], "x"],
    "versions": [None, [], 3, {"numpy": 3}],
    "command": [None, "ls", [3], {}],
    "device": [None, 7, []],
    "threads": [None, "1", 1.5, True, 2**70],
    "first_round": [None, "x"],
    "last_round": ["x", 1.5],
    "host": [3],
}


@pytest.mark.parametrize("key", WRONG)
def test_a_damaged_file_is_one_sentence(cli, make, key):
    for value in WRONG[key]:
        run = make(0, workers=1)
        content = json.loads((run / "provenance.json").read_text())
        if key == "sessions":
            content[key] = value
        else:
            content["sessions"][0][key] = value
        (run / "provenance.json").write_text(json.dumps(content))
        outcome = cli("report", run)
        assert outcome.code == 0, value
        assert "1 damaged" in outcome.out and "provenance.json" in outcome.out, value
        shutil.rmtree(run)


def test_texts_of_a_stranger_are_one_line(cli, make, tmp_path):
    make(0, processor="a\x1b[2J\nFORGED", command=["\x1b[2J"])
    make(1, processor="<script>alert(7)")
    outcome = cli("report", tmp_path / "runs", "--provenance", "--html", tmp_path / "page.html")
    assert outcome.code == 0
    assert "\x1b" not in outcome.out and "\nFORGED" not in outcome.out
    assert "<script>alert(7)" not in (tmp_path / "page.html").read_text()


def test_only_so_many_sessions_are_kept(cli, run, monkeypatch):
    monkeypatch.setattr("fedwmsam.engine.run_folder.MAX_SESSIONS", 2)
    for rounds in ("4", "5"):
        assert cli("resume", run, "--rounds", rounds, "--quiet").code == 0
    assert [session["last_round"] for session in sessions_of(run)] == [4, 5]
