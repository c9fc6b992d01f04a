"""Partitions: sizes, class proportions, reuse and refusals."""

import numpy as np
import pytest

from fedwmsam.data import Partition, make_partition
from fedwmsam.data.partitions import _turns
from fedwmsam.errors import InputError

LABELS = np.repeat(np.arange(10), 600)
RULES = ["iid", "dirichlet:0.1", "dirichlet:1e-12", "dirichlet:5e-324", "dirichlet:1e308", "pathological:1"]


def proportions(partition: Partition) -> np.ndarray:
    return partition.counts / partition.counts.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("rule", [*RULES, "pathological:3", "pathological:10", "dirichlet:1e-8", "dirichlet:0.05"])
@pytest.mark.parametrize("clients", [1, 13, 100, 1200])
def test_sizes_counts_and_reuse_agree_with_the_indices(rule: str, clients: int) -> None:
    labels = np.random.default_rng(0).permutation(LABELS[::5])
    partition = make_partition(rule, labels, clients, seed=3)
    sizes = [len(own) for own in partition.clients]
    assert sizes == [1200 // clients + (k < 1200 % clients) for k in range(clients)]
    everything = np.concatenate(partition.clients)
    assert everything.dtype == np.int64 and everything.min() >= 0 and everything.max() < len(labels)
    for own, counts in zip(partition.clients, partition.counts, strict=True):
        assert np.bincount(labels[own], minlength=10).tolist() == counts.tolist()
    assert partition.reused == 1200 - len(set(everything.tolist()))


def test_iid_uses_every_sample_once_and_mixes_them() -> None:
    partition = make_partition("iid", LABELS, 10, seed=0)
    assert sorted(np.concatenate(partition.clients)) == list(range(6000))
    assert partition.reused == 0
    assert np.abs(proportions(partition) - 0.1).max() < 0.05


@pytest.mark.parametrize("rule", RULES)
def test_the_seed_alone_decides(rule: str) -> None:
    first, again, other = (make_partition(rule, LABELS, 20, seed) for seed in (0, 0, 1))
    assert first.hash == again.hash != other.hash
    assert len(first.hash) == 12 and int(first.hash, 16) >= 0
    assert all((a == b).all() for a, b in zip(first.clients, again.clients, strict=True))


def test_the_hash_sees_sizes_and_order() -> None:
    def partition(*clients: list[int]) -> Partition:
        return Partition("iid", tuple(np.array(own, dtype=np.int64) for own in clients), np.ones((2, 2), np.int64), 0)

    assert len({partition([1, 2], [3]).hash, partition([1], [2, 3]).hash, partition([2, 1], [3]).hash}) == 3


def test_a_pass_over_a_class_ends_before_it_repeats() -> None:
    """Every sample of a class is used floor or ceil of (draws / class size) times: no replacement within a pass."""
    partition = make_partition("dirichlet:0.1", LABELS, 15, seed=5)
    used = np.bincount(np.concatenate(partition.clients), minlength=6000)
    for label, drawn in enumerate(partition.counts.sum(axis=0)):
        assert set(used[label == LABELS]) <= {drawn // 600, -(-drawn // 600)}
    assert partition.counts.sum(axis=0).max() > 600, "the test needs a class that was used up"
    assert partition.reused == np.maximum(partition.counts.sum(axis=0) - 600, 0).sum()


def test_a_second_pass_may_repeat_samples_within_a_client() -> None:
    """As in the released code, whose clients take turns; handing out blocks would never repeat inside a client."""
    partitions = (make_partition("pathological:1", np.repeat([0, 1], 500), 3, seed) for seed in range(50))
    crowded = next(p for p in partitions if (p.counts[:, 0] > 0).sum() in (0, 3))  # all three drew the same class
    assert partition_repeats(crowded) > 0


def partition_repeats(partition: Partition) -> int:
    return sum(len(own) - len(np.unique(own)) for own in partition.clients)


def test_the_fill_order_is_that_of_uniform_picks_with_full_clients_skipped() -> None:
    random = np.random.default_rng(0)
    sizes = np.array([3, 2])
    found = np.array([(_turns(sizes, random) < 3) for _ in range(4000)]).mean(axis=0)
    # by hand, P(client 0 has turn i): full clients are skipped, so the last turns are not proportional to the quotas
    expected = np.array([0.5, 0.5, 5 / 8, 11 / 16, 11 / 16])
    assert np.abs(found - expected).max() < 0.04


def test_clients_have_priors_of_their_own() -> None:
    shares = proportions(make_partition("dirichlet:0.3", LABELS, 20, seed=0))
    assert len(set(shares.argmax(axis=1))) > 4
    assert shares.std(axis=0).min() > 0.05


def test_large_beta_is_nearly_iid_and_small_beta_is_nearly_one_class() -> None:
    assert np.abs(proportions(make_partition("dirichlet:1e6", LABELS, 10, seed=0)) - 0.1).max() < 0.05
    assert proportions(make_partition("dirichlet:0.01", LABELS, 100, seed=0)).max(axis=1).mean() > 0.9


@pytest.mark.parametrize("beta", [0.1, 0.6, 5.0])
def test_priors_have_the_spread_of_a_dirichlet(beta: float) -> None:
    """E[sum of squares] of a symmetric Dirichlet prior is (beta + 1) / (C beta + 1)."""
    shares = proportions(make_partition(f"dirichlet:{beta}", np.repeat(np.arange(10), 10_000), 500, seed=0))
    assert (shares**2).sum(axis=1).mean() == pytest.approx((beta + 1) / (10 * beta + 1), rel=0.05)


@pytest.mark.parametrize("rule", ["dirichlet:5e-324", "dirichlet:1e-9", "dirichlet:1e-8", "pathological:1"])
def test_single_classes_are_chosen_uniformly(rule: str) -> None:
    partition = make_partition(rule, LABELS, 3000, seed=0)
    assert (np.count_nonzero(partition.counts, axis=1) == 1).mean() > 0.999
    assert np.abs(partition.counts.sum(axis=0) / 6000 - 0.1).max() < 0.03


@pytest.mark.parametrize("gamma", [1, 3, 10])
def test_pathological_clients_hold_exactly_gamma_classes(gamma: int) -> None:
    partition = make_partition(f"pathological:{gamma}", LABELS, 20, seed=2)
    assert (np.count_nonzero(partition.counts, axis=1) == gamma).all()
    held = partition.counts[partition.counts > 0]
    assert np.abs(held / 300 - 1 / gamma).max() < 0.15
    if 1 < gamma < 10:
        assert len({tuple(np.flatnonzero(row)) for row in partition.counts}) > 10


@pytest.mark.parametrize("rule", ["dirichlet:0.1", "dirichlet:1e-12", "dirichlet:100", "pathological:2", "iid"])
def test_a_class_without_samples_is_never_drawn(rule: str) -> None:
    partition = make_partition(rule, np.repeat([1, 4, 6], 100), 30, seed=0, classes=10)
    assert partition.counts.shape == (30, 10)
    assert set(np.flatnonzero(partition.counts.sum(axis=0))) <= {1, 4, 6}
    used = np.bincount(np.concatenate(partition.clients), minlength=300).reshape(3, 100)
    assert (np.ptp(used, axis=1) <= 1).all(), "some sample stands in for those that do not exist"


def test_small_label_types_do_not_overflow() -> None:
    narrow = make_partition("dirichlet:0.5", LABELS.astype(np.uint8), 100, seed=0)
    assert narrow.hash == make_partition("dirichlet:0.5", LABELS, 100, seed=0).hash
    assert narrow.counts.sum() == 6000


def test_describe_is_one_line_with_the_numbers() -> None:
    partition = make_partition("pathological:3", LABELS, 7, seed=0)
    text = partition.describe()
    assert "\n" not in text
    for part in ("pathological:3", "7 clients", "857/857/858", "3.0 classes", f"{partition.reused} ", partition.hash):
        assert part in text


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("dirichlett:0.1", ["'dirichlett'", "'dirichlet'", "pathological", "iid"]),
        ("path:2", ["'path'", "'pathological'"]),
        ("zzz", ["'zzz'", "iid"]),
        ("", ["''"]),
        ("iid:2", ["'iid:2'"]),
        ("dirichlet", ["BETA", "'dirichlet'"]),
        ("dirichlet:", ["BETA"]),
        ("dirichlet:x", ["BETA", "'dirichlet:x'"]),
        ("dirichlet:0", ["BETA", "above 0"]),
        ("dirichlet:-1", ["BETA"]),
        ("dirichlet:nan", ["BETA"]),
        ("dirichlet:inf", ["BETA"]),
        ("pathological", ["GAMMA"]),
        ("pathological:0", ["GAMMA"]),
        ("pathological:-2", ["GAMMA"]),
        ("pathological:2.5", ["GAMMA", "whole"]),
        ("pathological:" + "9" * 400, ["GAMMA"]),
        ("pathological:11", ["GAMMA", "11", "10 classes"]),
    ],
)
def test_bad_rules_are_refused_in_one_sentence(rule: str, words: list[str]) -> None:
    with pytest.raises(InputError) as refusal:
        make_partition(rule, LABELS, 10, seed=0)
    assert "\n" not in str(refusal.value)
    for word in words:
        assert word in str(refusal.value)


def test_gamma_is_bounded_by_the_classes_that_exist() -> None:
    with pytest.raises(InputError, match="2 classes"):
        make_partition("pathological:3", np.repeat([1, 5], 10), 2, seed=0, classes=10)


@pytest.mark.parametrize(("clients", "word"), [(0, "at least 1"), (-3, "-3 clients"), (6001, "6000 samples")])
@pytest.mark.parametrize("rule", ["iid", "dirichlet:0.1", "pathological:2"])
def test_impossible_numbers_of_clients_are_refused(rule: str, clients: int, word: str) -> None:
    with pytest.raises(InputError, match=word):
        make_partition(rule, LABELS, clients, seed=0)


def test_labels_outside_the_classes_are_refused() -> None:
    with pytest.raises(InputError, match="0 to 4"):
        make_partition("iid", LABELS, 10, seed=0, classes=5)
    with pytest.raises(InputError, match="-1"):
        make_partition("iid", np.array([-1, 0, 1]), 2, seed=0)
    with pytest.raises(InputError, match="0 samples"):
        make_partition("iid", np.array([], dtype=np.int64), 1, seed=0)
