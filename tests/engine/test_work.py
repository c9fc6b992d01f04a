"""What the pieces of a round's work have in common, and what is refused before anybody starts."""

import sys

import pytest
import torch
from helpers.small_federation import make_federation

import fedwmsam
from fedwmsam import InputError
from fedwmsam.engine.rounds import first_state, make_jobs, sample_cohort
from fedwmsam.engine.shared_memory import ArrayBlock
from fedwmsam.engine.work import find_shared_tensors, split_shared
from fedwmsam.engine.workers import Pool
from fedwmsam.methods import METHODS


def round_works(method):
    """Return the work of a first round."""
    federation = make_federation(METHODS[method](), sizes=(8, 14, 6, 11, 7))
    state = first_state(federation)
    jobs = make_jobs(federation, state, *sample_cohort(federation, 0))
    with Pool(federation, 0) as pool:
        return [pool.training_work(job) for job in jobs], state


@pytest.mark.parametrize("method", ["fedavg", "fedwmsam", "scaffold"])
def test_the_weights_of_a_round_are_found_in_the_first_two_pieces(method):
    works, state = round_works(method)
    shared, same_works = find_shared_tensors(iter(works))
    assert list(same_works) == works
    assert shared["down w"] is state.server["w"]
    for work in works:
        same, own = split_shared(work.tensors, shared)
        assert same.keys() == shared.keys()
        assert same | own == work.tensors


def test_equal_tensors_are_not_the_same():
    first, second = ({"a": torch.zeros(3), "b": torch.zeros(3)} for _ in range(2))
    second["b"] = first["b"]
    same, own = split_shared(second, first)
    assert list(same) == ["b"] and list(own) == ["a"]


def test_a_single_piece_shares_nothing():
    works, _ = round_works("fedavg")
    assert find_shared_tensors(works[:1])[0] == {}
    assert find_shared_tensors([])[0] == {}


def test_tensors_survive_an_array_that_cannot_be_written(recwarn):
    tensors = {"a": torch.arange(5.0), "b": torch.tensor(3), "c": torch.empty(0, 4)}
    tensors["d"] = torch.ones(2, 2, dtype=torch.bfloat16)
    block = ArrayBlock()
    locations = block.write(tensors)
    block.content.flags.writeable = False
    copies = ArrayBlock(block.content).read(locations)
    assert all(torch.equal(copies[name], value) for name, value in tensors.items())
    copies["a"].add_(1)
    assert torch.equal(ArrayBlock(block.content).read(locations)["a"], tensors["a"])
    assert not recwarn.list


CLIENTS = [(torch.zeros(4, 2), torch.arange(4) % 2)] * 2


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"pip install 'fedwmsam\[ray\]'"):
        fedwmsam.fit(torch.nn.Linear(2, 2), CLIENTS, rounds=1, workers="ray:2")


def test_gpus_are_reserved_for_a_run_that_uses_them():
    with pytest.raises(InputError, match=r"'cpu', and reserve num_gpus=0\.25"):
        fedwmsam.fit(torch.nn.Linear(2, 2), CLIENTS, rounds=1, workers="ray:2,num_gpus=0.25")


def test_a_dry_run_with_ray_is_refused(cli):
    outcome = cli("run", "--dry-run", "--workers", "ray:2")
    assert outcome.code == 2 and "ask with a number of workers" in outcome.err
