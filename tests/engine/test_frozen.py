"""Weights that are not trained are in a run folder once, and are still those of every state."""

import os
import shutil

import pytest
import torch
from helpers.fit_problems import CLIENTS
from torch import nn

import fedwmsam
from fedwmsam import InputError, Result
from fedwmsam.analysis.replay import ReplayedRun
from fedwmsam.analysis.saved_run import SavedRun
from fedwmsam.engine import checkpoint
from fedwmsam.engine.checkpoint import Checkpoint
from fedwmsam.experiment.experiment import prepare
from fedwmsam.experiment.trust import Trust
from fedwmsam.settings.config import resolve_config
from fedwmsam.training.task import deterministic_torch

FILE = "frozen.safetensors"
SETTINGS = {"participation": 1.0, "local_epochs": 1, "seed": 3, "checkpoint_every": 1}


class Head(nn.Module):
    """A trained layer behind a frozen one, which is much larger, and BatchNorm."""

    def __init__(self, width=200):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 6))
        self.backbone.requires_grad_(False)
        self.norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.norm(self.backbone(x)))


class Follower(Head):
    """A model that changes a frozen weight itself whenever it trains."""

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                self.backbone[2].weight.mul_(0.99)
        return super().forward(x)


def head(seed=1, model=Head, **options):
    torch.manual_seed(seed)
    return model(**options)


def fit(folder, rounds=4, model=None, **settings):
    return fedwmsam.fit(
        model or head(), CLIENTS, rounds=rounds, run_folder=folder, **SETTINGS | settings
    )


def go_on(folder, model=None):
    return fit(folder, 4, model or head(seed=2), resume=True)


def states_in(folder):
    return sorted(folder.glob("*/round-*.checkpoint"))


def contents(folder):
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != FILE]
    return {path: path.read_bytes() for path in files}


def assert_same(ours, theirs):
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.fixture(scope="module")
def whole():
    """Return the model of four rounds without an interruption."""
    return fit(None).model


@pytest.fixture
def half(tmp_path):
    """Return the folder of a run that has done two of its four rounds."""
    fit(tmp_path / "run", 2, keep_states=1)
    return tmp_path / "run"


def test_no_checkpoint_and_no_kept_state_holds_them(half):
    size = (half / FILE).stat().st_size
    states = states_in(half)
    assert len(states) == 4 and all(path.stat().st_size < size for path in states)
    assert (half / "model.safetensors").stat().st_size > size


def test_a_resumed_run_has_its_own_and_writes_them_no_second_time(half, whole):
    before = (half / FILE).stat()
    assert_same(go_on(half).model, whole)
    after = (half / FILE).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def put_into_checkpoints(folder):
    """Make the folder one of a version in which each checkpoint held the frozen weights."""
    weights = checkpoint.read_tensors(folder / FILE)
    for path in states_in(folder):
        saved = checkpoint.read_checkpoint(path)
        notes = {name: note for name, note in saved.notes.items() if name != "frozen"}
        checkpoint.write_checkpoint(path, Checkpoint(saved.bundles | {"frozen": weights}, notes))
    (folder / FILE).unlink()


def test_a_folder_of_an_older_version_goes_on(half, whole):
    put_into_checkpoints(half)
    assert_same(go_on(half).model, whole)
    newest = checkpoint.path_of(half / "checkpoints", 4)
    assert newest.stat().st_size < (half / FILE).stat().st_size


def test_weights_that_the_model_changes_itself_are_in_the_checkpoint(tmp_path):
    fit(tmp_path / "run", 2, head(model=Follower), keep_states=1)
    first = (tmp_path / "run" / FILE).read_bytes()
    resumed = go_on(tmp_path / "run", head(model=Follower))
    assert_same(resumed.model, fit(None, 4, head(model=Follower)).model)
    assert (tmp_path / "run" / FILE).read_bytes() == first  # the first kept state needs them


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def change_a_value(path):
    weights = checkpoint.read_tensors(path)
    weights["backbone.0.bias"][0] += 1
    checkpoint.write_tensors(path, weights)


def rename(path):
    weights = checkpoint.read_tensors(path)
    weights["other"] = weights.pop("backbone.0.bias")
    checkpoint.write_tensors(path, weights)


def link(path):
    shutil.move(path, path.parent.parent / "elsewhere")
    path.symlink_to(path.parent.parent / "elsewhere")


def put_a_pipe(path):
    path.unlink()
    os.mkfifo(path)


def make_endless(path):
    os.truncate(path, 2**40)


HARMS = {
    "removed": (lambda path: path.unlink(), "is missing"),
    "cut": (cut, "cannot be read"),
    "emptied": (lambda path: path.write_bytes(b""), "cannot be read"),
    "another value": (change_a_value, "does not hold the weights that belong to .* round 2"),
    "another name": (rename, "does not hold the weights that belong to .* round 2"),
    "a link": (link, "is a link"),
    "a pipe": (put_a_pipe, "is a pipe"),
    "endless": (make_endless, "has .* bytes, more than"),
}


@pytest.mark.parametrize("harm", HARMS)
def test_a_file_that_is_not_the_run_s_own_is_refused_and_nothing_is_lost(half, whole, harm):
    spoil, words = HARMS[harm]
    good = (half / FILE).read_bytes()
    spoil(half / FILE)
    before = contents(half)
    with pytest.raises(InputError, match=rf"frozen\.safetensors {words}"):
        go_on(half)
    assert contents(half) == before
    (half / FILE).unlink(missing_ok=True)
    (half / FILE).write_bytes(good)
    assert_same(go_on(half).model, whole)


def test_the_file_of_another_model_is_refused_even_with_its_digest(half, tmp_path):
    fit(tmp_path / "wide", 2, head(width=300))
    other = checkpoint.read_round(tmp_path / "wide" / "checkpoints", 2)
    path = checkpoint.path_of(half / "checkpoints", 2)
    saved = checkpoint.read_checkpoint(path)
    notes = saved.notes | {"frozen": other.notes["frozen"]}
    checkpoint.write_checkpoint(path, Checkpoint(saved.bundles, notes))
    shutil.copy(tmp_path / "wide" / FILE, half / FILE)
    with pytest.raises(InputError, match="'frozen' is not that of this method and model"):
        go_on(half)


def test_a_run_that_begins_again_has_new_ones(half):
    for path in states_in(half):
        path.unlink()
    assert_same(go_on(half).model, fit(None, 4, head(seed=2)).model)
    weights = checkpoint.read_tensors(half / FILE)
    assert torch.equal(weights["backbone.0.weight"], head(seed=2).backbone[0].weight)


def test_a_run_that_trains_everything_has_no_such_file(tmp_path):
    fit(tmp_path / "run", 2, head().requires_grad_(True))
    saved = checkpoint.read_round(tmp_path / "run" / "checkpoints", 2)
    assert saved.bundles["frozen"] == {} and "frozen" not in saved.notes
    assert not (tmp_path / "run" / FILE).exists()


def test_the_trained_part_completes_a_model_that_has_the_others(half):
    result = Result.load(half, model=head(seed=5))
    buffers = {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    parameters = {"norm.weight", "norm.bias", "head.weight", "head.bias"}
    assert result.trained.keys() == buffers | parameters
    model = head()
    model.load_state_dict(result.trained, strict=False)
    assert_same(model.state_dict(), result.model)
    with pytest.raises(InputError, match=r"Result\.load\(folder, model="):
        _ = Result.load(half).trained


# Kept states of the command line's runs

MODULE = """
import torch
from torch import nn

def make():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, 10))
    model[1].requires_grad_(False)
    return model
"""


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Return a run of the command line with a frozen layer and kept states."""
    name = f"frozen_model_{abs(hash(str(tmp_path)))}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    experiment = prepare(
        resolve_config(
            {"model": f"{name}:make", "rounds": 3, "local_epochs": 1, "keep_states": 1, "seed": 1}
        )
    )
    experiment.run(experiment.create(tmp_path / "run"))
    return tmp_path / "run"


def test_rounds_are_replayed_with_the_frozen_weights_of_the_run(kept):
    run = ReplayedRun.from_folder(kept, Trust(everything=True))
    frozen = run.federation.task.copy_frozen()
    run.federation.task.load_frozen({name: value + 1 for name, value in frozen.items()})
    with deterministic_torch():
        for round in run.kept_rounds():
            run.replay_round(run.load_state(round))
        run.replay_round(run.load_older_checkpoint())
    assert not run.mismatched_rounds


def test_a_kept_model_is_analysed_with_the_frozen_weights_of_the_run(kept):
    run = SavedRun(kept, Trust(everything=True))
    frozen = run.task.copy_frozen()
    run.task.load_frozen({name: value + 1 for name, value in frozen.items()})
    run.load(1)
    assert_same(run.task.copy_frozen(), frozen)
    change = checkpoint.read_tensors(kept / FILE)
    change["1.bias"][0] += 1
    checkpoint.write_tensors(kept / FILE, change)
    with pytest.raises(InputError, match=r"frozen\.safetensors does not hold the weights"):
        run.load(1)


def test_an_unfinished_run_is_loaded_with_them(tmp_path):
    """The model of a partial result is complete, whatever model is given to load it into."""

    def stop(progress):
        if progress.record["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "run", 4, callbacks=[stop])
    assert (tmp_path / "run" / FILE).exists()
    partial = Result.load(tmp_path / "run", model=head(seed=2), partial=True)
    assert_same(partial.model, fit(None, 2).model)
