"""Observers, which are told of a run's begin and end: what they see, and when."""

import copy

import pytest
from helpers import killed_run

import fedwmsam
from fedwmsam.engine.records import read_lines

DATA = list(killed_run.make_clients())
SETTINGS = {"test": DATA[7], "batch_size": 10, "seed": 3, "checkpoint_every": 3}


class Notes:
    """An observer that notes what it is told, in order."""

    def __init__(self):
        self.told = []

    def note(self, word, progress):
        self.told.append((word, copy.deepcopy(progress.record), progress.summary["status"]))

    def start(self, progress):
        self.note("start", progress)
        self.config = progress.config
        self.folder = progress.folder

    def __call__(self, progress):
        self.note("round", progress)

    def finish(self, progress):
        self.note("finish", progress)

    def words(self):
        return [word for word, _, _ in self.told]

    def rounds(self):
        return [record for word, record, _ in self.told if word == "round"]


def fit(callbacks, **settings):
    return fedwmsam.fit(
        killed_run.NETWORKS["plain"], DATA[:7], callbacks=callbacks, **SETTINGS | settings
    )


def test_an_observer_is_told_of_the_begin_each_round_and_the_end(tmp_path):
    notes = Notes()
    result = fit([notes], rounds=4, run_folder=tmp_path / "run")
    assert notes.words() == ["start", *["round"] * 4, "finish"]
    assert notes.rounds() == result.rows == read_lines(tmp_path / "run" / "metrics.jsonl")
    assert notes.told[0][1:] == ({}, "running")
    assert notes.told[-1][1:] == (result.rows[-1], "completed")
    assert notes.config == result.config and notes.folder == tmp_path / "run"


def test_it_sees_the_evaluation_of_a_round_that_another_callback_made_the_last():
    notes = Notes()

    def stop(progress):
        if progress.record["round"] == 4:
            progress.stop()

    result = fit([notes, stop], rounds=9, evaluate_every=3)
    assert notes.rounds() == result.rows
    assert ["accuracy" in record for record in notes.rounds()] == [False, False, True, True]


def test_a_resumed_run_starts_with_its_history(tmp_path):
    fit([], rounds=4, run_folder=tmp_path / "run")
    notes = Notes()
    result = fit([notes], rounds=6, run_folder=tmp_path / "run", resume=True)
    assert [record["round"] for _, record, _ in notes.told] == [4, 5, 6, 6]
    assert notes.told[0][1] == result.rows[3]


def test_it_is_told_that_a_run_was_interrupted_and_the_error_is_not_lost():
    def fail(progress):
        if progress.record["round"] == 2:
            raise ZeroDivisionError

    notes = Notes()
    with pytest.raises(ZeroDivisionError):
        fit([notes, fail], rounds=4)
    assert notes.words() == ["start", "round", "finish"]
    assert notes.told[-1][1]["round"] == 2 and notes.told[-1][2] == "interrupted"


def test_one_that_cannot_start_ends_those_before_it_and_nothing_is_trained(tmp_path):
    class Unable(Notes):
        def start(self, progress):
            raise fedwmsam.InputError("no")

    before = Notes()
    after = Notes()
    with pytest.raises(fedwmsam.InputError):
        fit([before, Unable(), after], rounds=4, run_folder=tmp_path / "run")
    assert before.words() == ["start", "finish"] and after.words() == []
    assert read_lines(tmp_path / "run" / "metrics.jsonl") == []
