"""`fedwmsam flower status` tells of a deployed run while it goes on and afterwards.

It reads nothing but the run's folder, which may be a stranger's.
"""

import json
import os
import pty
import re
import shutil
import subprocess
import sys
import threading
import time
from itertools import chain

import pytest
from helpers.flower_in_process import (
    CLIENTS,
    SETTINGS,
    FakeGrid,
    error_reply,
    load_test,
    network,
    with_entries,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedwmsam import files
from fedwmsam.errors import InputError
from fedwmsam.flower import FlowerStrategy, TooFewReplies, exchange, status
from fedwmsam.methods import FedWMSAM
from fedwmsam.report.flower_status import MAX_ROWS, follow_status, read_status, status_table

TIMEOUT = 300
"""Seconds that anything may take."""


@pytest.fixture(autouse=True, scope="module")
def short_waits():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange, "POLL_SECONDS", 0.01)
        patch.setattr(exchange, "TTL_MARGIN", 0.2)
        patch.setattr(status, "INTERVAL_SECONDS", 0.0)
        patch.setattr(status, "PAUSE_FACTOR", 0)
        yield


def train(folder, grid, **keywords):
    """Train all clients for some rounds on this grid."""
    defaults = {"clients": CLIENTS, "test": load_test(0, {}), "wait": 0.05, "timeout": 0.2}
    chosen = SETTINGS | {"participation": 1.0, "quorum": 0.3} | keywords
    FlowerStrategy(FedWMSAM(), network, run_folder=folder, **defaults | chosen).start(grid)


def rows_of(folder):
    """Return the table's rows as dictionaries, by client."""
    table = status_table(read_status(folder))
    rows = [dict(zip(table.header, row, strict=True)) for row in table.rows]
    return {int(row["client"]): row for row in rows}


@pytest.fixture
def troubled_run(tmp_path, trained_run):
    """Return a folder of its own for each test, with that run."""
    return shutil.copytree(trained_run, tmp_path / "run")


@pytest.fixture(scope="module")
def trained_run(tmp_path_factory):
    """Return the folder of a run in which clients failed, and a node was refused."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    grid = FakeGrid()
    del grid.nodes[1005]
    grid.nodes[2**63 + 77] = {"partition-id": 2}
    grid.faults[1, 1] = error_reply
    grid.faults[2, 0] = with_entries(loss="high")
    grid.faults[3, 0] = with_entries(loss="higher")
    train(folder, grid)
    return folder


def test_the_table_says_who_answered_and_why_others_did_not_count(troubled_run, cli):
    rows = rows_of(troubled_run)
    assert (rows[0]["rejected"], rows[0]["missing"]) == ("2", "0")
    assert re.fullmatch(r"round 3: rejected: its 'loss' is 'higher'.*", rows[0]["last trouble"])
    assert rows[0]["last answer"].endswith("ago, round 1")
    assert (rows[1]["rejected"], rows[1]["missing"]) == ("0", "1")
    assert rows[1]["last trouble"] == "round 1: error 2: out of memory"
    assert rows[1]["last answer"].endswith("ago, round 3")
    assert rows[2]["last trouble"] == "–" and rows[2]["samples"] == "31"
    assert rows[5]["missing"] == "3" and rows[5]["down"] == "0 B" and rows[5]["up"] == "0 B"
    result = cli("flower", "status", troubled_run)
    assert result.code == 0
    metrics = [json.loads(line) for line in (troubled_run / "metrics.jsonl").open()]
    for text in (
        "3 of 3 rounds done, completed",
        f"accuracy {metrics[-1]['accuracy']:.4f} after round 3",
        f"node {2**63 + 77} cannot take part: node 1002 is client 2 already",
    ):
        assert text in result.out, result.out


def test_bytes_by_client_add_up_to_the_metrics(tmp_path):
    train(tmp_path / "run", FakeGrid())
    seen = read_status(tmp_path / "run")
    for name in ("bytes_down", "bytes_up"):
        total = sum(getattr(client, name) for client in seen.clients.values())
        assert total == sum(seen.column(name).values()) > 0


def test_a_run_that_goes_on_is_followed_to_its_end(tmp_path):
    """Client 3 keeps round 2 waiting until it has been seen at that."""
    grid = FakeGrid()
    folder = tmp_path / "run"
    reached = threading.Event()
    seen_waiting = threading.Event()

    def slow(message, honest_reply):
        reached.set()
        assert seen_waiting.wait(TIMEOUT)
        return honest_reply()

    grid.faults[2, 3] = slow
    thread = threading.Thread(target=train, args=(folder, grid))
    thread.start()
    try:
        assert reached.wait(TIMEOUT)
        statuses = follow_status(folder, seconds=0.02)
        seen = next(statuses)
        assert seen.is_going_on and (seen.round, seen.activity) == (2, "training")
        assert len(seen.metrics) == 1
        table = status_table(seen)
        assert "1 of 3 rounds done; round 2, training" in table.title
        assert [row[1] for row in table.rows] == ["connected"] * CLIENTS
    finally:
        seen_waiting.set()
        thread.join()
    *_, last = statuses
    assert not last.is_going_on and last.outcome == "completed" and len(last.metrics) == 3
    assert not any(client.is_training for client in last.clients.values())


def test_clients_that_owe_an_answer_and_those_that_left_are_told_apart(tmp_path):
    """While replies are waited for the file is written, too."""
    grid = FakeGrid()
    folder = tmp_path / "run"
    seen = []
    grid.faults[2, 3] = lambda message, honest_reply: None
    look_once = iter([True])

    def pull(message_ids):
        rows = rows_of(folder)
        is_waited_for = 3 in rows and rows[3]["now"] == "training"
        if read_status(folder).round == 2 and is_waited_for and next(look_once, False):
            del grid.nodes[1004]
            seen.extend(row["now"] for row in rows.values())
        return FakeGrid.pull_messages(grid, message_ids)

    grid.pull_messages = pull
    train(folder, grid)
    assert seen == ["connected"] * 3 + ["training"] + ["connected"] * 2
    rows = rows_of(folder)
    assert rows[3]["last trouble"].startswith("round 2: no answer within timeout")
    assert read_status(folder).clients[4].node == ""


def test_a_run_that_stopped_says_why_and_one_that_was_killed_how_long_ago(tmp_path):
    grid = FakeGrid(clients=1)
    with pytest.raises(TooFewReplies):
        train(tmp_path / "run", grid, quorum=1.0)
    title = status_table(read_status(tmp_path / "run")).title
    assert "0 of 3 rounds done, nobody works on it; " in title
    assert "round 1, stopped by TooFewReplies: Round 1 got 1 usable answers" in title


def test_the_status_leaves_metrics_and_resuming_as_they_are(tmp_path):
    train(tmp_path / "run", FakeGrid(), rounds=2)
    train(tmp_path / "run", FakeGrid(), rounds=3)
    train(tmp_path / "whole", FakeGrid(), rounds=3)
    for name in ("metrics.jsonl", "model.safetensors"):
        resumed = (tmp_path / "run" / name).read_bytes()
        assert resumed == (tmp_path / "whole" / name).read_bytes()
    assert read_status(tmp_path / "run").clients[0].answered_round == 3


def test_the_file_is_written_when_something_changed_and_not_too_often(tmp_path, monkeypatch):
    written = []

    class Folder:
        def write_json(self, name, record):
            written.append(record)

    kept = status.StatusFile()
    kept.folder = Folder()
    kept.save()
    kept.save()
    assert len(written) == 1
    monkeypatch.setattr(status, "INTERVAL_SECONDS", 1000.0)
    kept.note_question(0, 10)
    kept.save()
    kept.note_reply(0, 20)
    kept.save()
    assert len(written) == 2
    kept.save(at_once=True)
    assert len(written) == 3 and written[-1]["clients"]["0"]["bytes_up"] == 20


def test_many_clients_show_those_with_trouble(troubled_run):
    path = troubled_run / "status.json"
    record = json.loads(path.read_text())
    quiet = record["clients"]["2"]
    record["clients"] |= {str(client): quiet for client in range(6, 5000)}
    record["clients"]["4321"] = quiet | {"trouble": "late", "trouble_round": 1}
    path.write_text(json.dumps(record))
    table = status_table(read_status(troubled_run))
    assert len(table.rows) == MAX_ROWS
    assert [row[0] for row in table.rows[:5]] == ["0", "1", "5", "4321", "2"]
    assert f"{5000 - MAX_ROWS:,} more clients are not shown" in table.notes


# Folders of strangers


def test_a_run_of_the_simulator_has_no_status(tmp_path, cli):
    (tmp_path / "config.toml").write_text("")
    for folder, words in ((tmp_path, "no run on Flower"), (tmp_path / "absent", "no run folder")):
        result = cli("flower", "status", folder)
        assert result.code == 2 and words in result.err
        assert len(result.err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"round": "2"}, "round must be a whole number"),
        ({"activity": ["x"]}, "activity must be a text"),
        ({"written_at": 1e100}, "written_at must be a time"),
        ({"clients": []}, "clients must be a table"),
        ({"clients": {"1\x1b[2J": {}}}, "clients must be numbers"),
        ({"clients": {"0": {}}}, "clients.0.node must be a text"),
        ({"refused": {"1": 2}}, "refused must be a text"),
    ],
)
def test_damage_is_one_sentence(troubled_run, cli, change, words):
    path = troubled_run / "status.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    result = cli("flower", "status", troubled_run)
    assert result.code == 2 and words in result.err, result
    assert len(result.err.strip().splitlines()) == 1 and "\x1b" not in result.err


def test_a_link_or_a_pipe_in_place_of_the_file_is_refused(troubled_run, cli):
    path = troubled_run / "status.json"
    path.unlink()
    path.symlink_to("/etc/passwd")
    assert "is a link" in cli("flower", "status", troubled_run).err
    path.unlink()
    os.mkfifo(path)
    assert "is a pipe" in cli("flower", "status", troubled_run).err


def test_texts_of_a_stranger_do_not_steer_the_terminal(troubled_run, cli):
    path = troubled_run / "status.json"
    record = json.loads(path.read_text())
    record["activity"] = "\x1b[2J\nRound 9"
    record["clients"]["1"]["trouble"] = "\x1b]0;title\x07" + "x" * 10**5
    record["refused"] = {"\x1b[31m": "\r\n\x1b[0m"}
    path.write_text(json.dumps(record))
    (troubled_run / "summary.json").unlink()
    result = cli("flower", "status", troubled_run)
    assert result.code == 0 and "\x1b" not in result.out and "\r" not in result.out
    assert len(result.out) < 20_000


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["0", "7", "node", "samples", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.data())
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_value_is_shown_or_refused_in_one_line(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("stranger")
    (folder / "config.toml").write_text("rounds = 3\n")
    client = {"node": "1", "samples": 3, "is_training": False, "answered_at": 1e9}
    client |= {
        "answered_round": 1,
        "bytes_down": 1,
        "bytes_up": 1,
        "trouble": "",
        "trouble_round": 0,
    }
    record = {"activity": "training", "round": 1, "written_at": 1e9, "refused": {}}
    record |= {
        "clients": {
            "0": client | data.draw(st.dictionaries(st.sampled_from(sorted(client)), VALUES))
        }
    }
    record |= data.draw(st.dictionaries(st.sampled_from(sorted(record)), VALUES, max_size=1))
    (folder / "status.json").write_text(json.dumps(record))
    line = {"round": 1} | data.draw(
        st.dictionaries(st.sampled_from(["accuracy", "rejected", "bytes_up", "missing"]), VALUES)
    )
    (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    try:
        table = status_table(read_status(folder))
    except InputError as error:
        assert len(str(error).splitlines()) == 1
    else:
        assert all(map(str.isprintable, chain.from_iterable(table.rows)))


# A terminal


def test_on_a_terminal_the_table_is_redrawn_until_the_run_is_over(troubled_run):
    """The lock of the run's folder says that the run goes on."""
    command = [sys.executable, "-m", "fedwmsam", "flower", "status", troubled_run, "--watch"]
    terminal, end = pty.openpty()
    with files.lock_for(troubled_run / "lock"):
        environment = os.environ | {"COLUMNS": "160"}
        watcher = subprocess.Popen(command, stdout=end, stderr=end, env=environment)
        os.close(end)
        shown = read_terminal(terminal, until="since the server app was started")
    assert "3 of 3 rounds done; round 3, aggregating" in shown and "connected" in shown
    rest = read_terminal(terminal)
    os.close(terminal)
    assert watcher.wait(timeout=TIMEOUT) == 0
    assert "3 of 3 rounds done, completed" in rest and "\x1b[" in rest


def read_terminal(terminal, until=None):
    """Return what a program writes to its terminal, until this text or its end."""
    text = ""
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline and not (until and until in text):
        try:
            text += os.read(terminal, 4096).decode(errors="replace")
        except OSError:  # the program has ended
            break
    return text
