"""Partitions: sizes, class proportions, reuse and refusals."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedwmsam.data.partitions import (
    SYNTAX,
    Partition,
    make_partition,
    measure_heterogeneity,
    parse_partition_rule,
)
from fedwmsam.data.partitions.rules import (
    ClassDraws,
    apportion,
    draw_columns,
    draw_fill_order,
    longtail_counts,
    redraw_exhausted,
    removals_from_largest,
)
from fedwmsam.errors import InputError

LABELS = np.repeat(np.arange(10), 600)
RULES = [
    "iid",
    "dirichlet:0.1",
    "dirichlet:1e-12",
    "dirichlet:5e-324",
    "dirichlet:1e308",
    "pathological:1",
]


def proportions(partition: Partition) -> np.ndarray:
    return partition.class_counts / partition.class_counts.sum(axis=1, keepdims=True)


@pytest.mark.parametrize(
    "rule", [*RULES, "pathological:3", "pathological:10", "dirichlet:1e-8", "dirichlet:0.05"]
)
@pytest.mark.parametrize("clients", [1, 13, 100, 1200])
def test_sizes_counts_and_reuse_agree_with_the_indices(rule: str, clients: int) -> None:
    labels = np.random.default_rng(0).permutation(LABELS[::5])
    partition = make_partition(rule, labels, clients, seed=3)
    sizes = [len(indices) for indices in partition.client_indices]
    assert sizes == [1200 // clients + (k < 1200 % clients) for k in range(clients)]
    assigned = np.concatenate(partition.client_indices)
    assert assigned.dtype == np.int64 and assigned.min() >= 0 and assigned.max() < len(labels)
    for indices, counts in zip(partition.client_indices, partition.class_counts, strict=True):
        assert np.bincount(labels[indices], minlength=10).tolist() == counts.tolist()
    assert partition.reused == 1200 - len(set(assigned.tolist()))


def test_iid_uses_every_sample_once_and_mixes_them() -> None:
    partition = make_partition("iid", LABELS, 10, seed=0)
    assert sorted(np.concatenate(partition.client_indices)) == list(range(6000))
    assert partition.reused == 0
    assert np.abs(proportions(partition) - 0.1).max() < 0.05


@pytest.mark.parametrize("rule", RULES)
def test_the_seed_alone_decides(rule: str) -> None:
    first, again, other = (make_partition(rule, LABELS, 20, seed) for seed in (0, 0, 1))
    assert first.hash == again.hash != other.hash
    assert len(first.hash) == 12 and int(first.hash, 16) >= 0
    assert all(
        (a == b).all() for a, b in zip(first.client_indices, again.client_indices, strict=True)
    )


def test_the_hash_sees_sizes_and_order() -> None:
    def partition(*clients: list[int]) -> Partition:
        return Partition(
            "iid",
            tuple(np.array(indices, dtype=np.int64) for indices in clients),
            np.ones((2, 2), np.int64),
            0,
        )

    assert (
        len({partition([1, 2], [3]).hash, partition([1], [2, 3]).hash, partition([2, 1], [3]).hash})
        == 3
    )


def test_a_pass_over_a_class_ends_before_it_repeats() -> None:
    """Every sample of a class is used floor or ceil of (draws / class size) times."""
    partition = make_partition("dirichlet:0.1", LABELS, 15, seed=5)
    used = np.bincount(np.concatenate(partition.client_indices), minlength=6000)
    for label, drawn in enumerate(partition.class_counts.sum(axis=0)):
        assert set(used[label == LABELS]) <= {drawn // 600, -(-drawn // 600)}
    assert partition.class_counts.sum(axis=0).max() > 600, "the test needs a class that was used up"
    assert partition.reused == np.maximum(partition.class_counts.sum(axis=0) - 600, 0).sum()


def test_a_second_pass_may_repeat_samples_within_a_client() -> None:
    """The released code fills the clients in random order; block by block they would not repeat."""
    labels = np.repeat([0, 1], 500)
    partitions = (make_partition("pathological:1", labels, 3, seed) for seed in range(50))
    # All three clients drew the same class.
    crowded = next(p for p in partitions if (p.class_counts[:, 0] > 0).sum() in (0, 3))
    assert count_repeats(crowded) > 0


def count_repeats(partition: Partition) -> int:
    return sum(len(indices) - len(np.unique(indices)) for indices in partition.client_indices)


def test_the_fill_order_is_that_of_uniform_picks_with_full_clients_skipped() -> None:
    generator = np.random.default_rng(0)
    sizes = np.array([3, 2])
    orders = np.array([draw_fill_order(sizes, generator) for _ in range(4000)])
    # By hand, P(the i-th slot to be filled is client 0's): full clients are skipped, so the
    # last ones are not proportional to the sizes.
    expected = np.array([0.5, 0.5, 5 / 8, 11 / 16, 11 / 16])
    assert np.abs((orders < 3).mean(axis=0) - expected).max() < 0.04


def test_clients_have_priors_of_their_own() -> None:
    shares = proportions(make_partition("dirichlet:0.3", LABELS, 20, seed=0))
    assert len(set(shares.argmax(axis=1))) > 4
    assert shares.std(axis=0).min() > 0.05


def test_large_beta_is_nearly_iid_and_small_beta_is_nearly_one_class() -> None:
    assert (
        np.abs(proportions(make_partition("dirichlet:1e6", LABELS, 10, seed=0)) - 0.1).max() < 0.05
    )
    assert (
        proportions(make_partition("dirichlet:0.01", LABELS, 100, seed=0)).max(axis=1).mean() > 0.9
    )


@pytest.mark.parametrize("beta", [0.1, 0.6, 5.0])
def test_priors_have_the_spread_of_a_dirichlet(beta: float) -> None:
    """E[sum of squares] of a symmetric Dirichlet prior is (beta + 1) / (C beta + 1)."""
    shares = proportions(
        make_partition(f"dirichlet:{beta}", np.repeat(np.arange(10), 10_000), 500, seed=0)
    )
    assert (shares**2).sum(axis=1).mean() == pytest.approx((beta + 1) / (10 * beta + 1), rel=0.05)


@pytest.mark.parametrize(
    "rule", ["dirichlet:5e-324", "dirichlet:1e-9", "dirichlet:1e-8", "pathological:1"]
)
def test_single_classes_are_chosen_uniformly(rule: str) -> None:
    partition = make_partition(rule, LABELS, 3000, seed=0)
    assert (np.count_nonzero(partition.class_counts, axis=1) == 1).mean() > 0.999
    assert np.abs(partition.class_counts.sum(axis=0) / 6000 - 0.1).max() < 0.03


@pytest.mark.parametrize("gamma", [1, 3, 10])
def test_pathological_clients_hold_exactly_gamma_classes(gamma: int) -> None:
    partition = make_partition(f"pathological:{gamma}", LABELS, 20, seed=2)
    assert (np.count_nonzero(partition.class_counts, axis=1) == gamma).all()
    held = partition.class_counts[partition.class_counts > 0]
    assert np.abs(held / 300 - 1 / gamma).max() < 0.15
    if 1 < gamma < 10:
        assert len({tuple(np.flatnonzero(row)) for row in partition.class_counts}) > 10


@pytest.mark.parametrize(
    "rule", ["dirichlet:0.1", "dirichlet:1e-12", "dirichlet:100", "pathological:2", "iid"]
)
def test_a_class_without_samples_is_never_drawn(rule: str) -> None:
    partition = make_partition(rule, np.repeat([1, 4, 6], 100), 30, seed=0, classes=10)
    assert partition.class_counts.shape == (30, 10)
    assert set(np.flatnonzero(partition.class_counts.sum(axis=0))) <= {1, 4, 6}
    used = np.bincount(np.concatenate(partition.client_indices), minlength=300).reshape(3, 100)
    assert (np.ptp(used, axis=1) <= 1).all(), "some sample stands in for those that do not exist"


def test_small_label_types_do_not_overflow() -> None:
    narrow = make_partition("dirichlet:0.5", LABELS.astype(np.uint8), 100, seed=0)
    assert narrow.hash == make_partition("dirichlet:0.5", LABELS, 100, seed=0).hash
    assert narrow.class_counts.sum() == 6000


def test_describe_is_one_line_with_the_numbers() -> None:
    partition = make_partition("pathological:3", LABELS, 7, seed=0)
    text = partition.describe()
    assert "\n" not in text
    for part in (
        "pathological:3",
        "7 clients",
        "857/857/858",
        "3.0 classes",
        f"{partition.reused} ",
        partition.hash,
    ):
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
        ("dirichlet:0,1", ["BETA"]),
        ("dirichlet:1,1", ["'1'", "exhausted="]),
        ("dirichlet:0.1,exhausted", ["'exhausted'", "exhausted="]),
        ("dirichlet:0.1,exhausted=twice", ["exhausted", "renormalise", "reuse"]),
        ("dirichlet:0.1,exhausted=reuse,exhausted=reuse", ["at most once"]),
        ("dirichlet:0.1,min=3", ["'min=3'", "exhausted="]),
        ("dirichlet:0.1,exhausted=error", ["class ", "client ", "600 samples", "renormalise"]),
        ("iid,min=3", ["'min=3'", "no options"]),
        ("natural:3", ["no value"]),
        ("dirichlet-class:0", ["BETA", "'dirichlet-class:0.1'"]),
        ("dirichlet-class:0.1,min=0", ["min", "from 1"]),
        ("dirichlet-class:0.1,min=601", ["601", "6000", "smaller min"]),
        ("shards:0", ["PER_CLIENT"]),
        ("shards:601", ["6010 shards", "6000 samples"]),
        ("quantity:-0.1", ["SIGMA", "from 0"]),
        ("quantity:inf", ["SIGMA"]),
        ("longtail:0.01", ["FACTOR", "from 1"]),
        ("longtail:10,beta=0", ["beta", "iid"]),
        ("natural", ["person, device or domain"]),
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


@pytest.mark.parametrize(
    ("clients", "word"), [(0, "at least 1"), (-3, "-3 clients"), (6001, "6000 samples")]
)
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


UNEVEN = np.random.default_rng(7).permutation(
    np.repeat(np.arange(10), [30, 5, 20, 40, 0, 12, 33, 18, 7, 15])
)


@pytest.mark.parametrize(
    ("rule", "clients", "seed", "expected"),
    [
        ("iid", 7, 0, "954c7bef7553"),
        ("iid", 50, 3, "0a4a7e0f01b5"),
        ("dirichlet:0.1", 7, 0, "72381c46e237"),
        ("dirichlet:0.1", 50, 3, "2e9fa189d1a4"),
        ("dirichlet:1", 7, 0, "7f279b4d02d1"),
        ("dirichlet:1", 50, 3, "6f3bd9a8d092"),
        ("dirichlet:1e-12", 7, 0, "7b11a331cb17"),
        ("dirichlet:1e-12", 50, 3, "cd0232ce29d4"),
        ("dirichlet:1e300", 7, 0, "100fe0a98fc6"),
        ("dirichlet:1e300", 50, 3, "a87d89ff5fd4"),
        ("pathological:1", 7, 0, "2a1f27268aa8"),
        ("pathological:1", 50, 3, "6530d8f546ff"),
        ("pathological:3", 7, 0, "4371648dfaab"),
        ("pathological:3", 50, 3, "02dcda90036b"),
    ],
)
def test_published_partitions_never_change(
    rule: str, clients: int, seed: int, expected: str
) -> None:
    """Published numbers depend on these: never replace a hash here, keep the old draws instead."""
    assert make_partition(rule, UNEVEN, clients, seed, classes=10).hash == expected


@pytest.mark.parametrize(
    ("rule", "clients", "seed", "expected"),
    [
        ("iid", 7, 0, "7546a7e04739"),
        ("iid", 50, 3, "81519112a965"),
        ("dirichlet:0.1", 7, 0, "568358389df6"),
        ("dirichlet:0.1", 50, 3, "c1a8019c481c"),
        ("dirichlet:1", 7, 0, "27b1226fa694"),
        ("dirichlet:1", 50, 3, "80249e6b2bde"),
        ("dirichlet:1e-12", 7, 0, "0698497d3fc8"),
        ("dirichlet:1e-12", 50, 3, "571e5218d200"),
        ("dirichlet:1e300", 7, 0, "ac3606c9db8a"),
        ("dirichlet:1e300", 50, 3, "9e1f61386e92"),
        ("pathological:1", 7, 0, "7c28aac46279"),
        ("pathological:1", 50, 3, "64b8c457990c"),
        ("pathological:3", 7, 0, "cf34dcea7eff"),
        ("pathological:3", 50, 3, "299a28d828b5"),
    ],
)
def test_published_partitions_of_balanced_classes_never_change(
    rule: str, clients: int, seed: int, expected: str
) -> None:
    assert (
        make_partition(rule, np.repeat(np.arange(10), 60), clients, seed, classes=10).hash
        == expected
    )


EVERY_RULE = [
    "iid",
    "dirichlet:0.1",
    "dirichlet:1e-12",
    "dirichlet:0.1,exhausted=renormalise",
    "dirichlet:1e-12,exhausted=renormalise",
    "dirichlet:100,exhausted=renormalise",
    "dirichlet:3,exhausted=error",
    "dirichlet-class:0.1",
    "dirichlet-class:1e-12",
    "dirichlet-class:1e300",
    "dirichlet-class:0.5,min=2",
    "pathological:1",
    "pathological:2",
    "shards:1",
    "shards:2",
    "quantity:0",
    "quantity:1.5",
    "quantity:1e308",
    "longtail:1",
    "longtail:10",
    "longtail:1e308",
    "longtail:10,beta=iid",
    "longtail:10,beta=1e-12",
    "natural",
]


def has_replacement(rule: str) -> bool:
    return rule.startswith(("dirichlet:", "pathological:")) and "renormalise" not in rule


@settings(max_examples=60, deadline=None)
@given(
    rule=st.sampled_from(EVERY_RULE),
    labels=st.lists(st.sampled_from([0, 1, 3, 4, 9]), min_size=1, max_size=60),
    clients=st.integers(1, 70),
    seed=st.integers(0, 2**40),
)
def test_every_rule_ends_with_a_valid_partition_or_a_sentence(
    rule: str, labels: list[int], clients: int, seed: int
) -> None:
    label_array = np.array(labels)
    groups = np.arange(len(labels)) % clients
    try:
        partition = make_partition(rule, label_array, clients, seed, classes=12, groups=groups)
    except InputError as refusal:
        assert "\n" not in str(refusal)
        may_refuse_one_client = (
            rule.startswith("pathological") or "min=" in rule or "shards" in rule or "error" in rule
        )
        assert clients > 1 or may_refuse_one_client, refusal
        return
    assigned = np.concatenate(partition.client_indices)
    different = len(set(assigned.tolist()))
    assert (
        len(partition.client_indices) == clients
        and min(len(indices) for indices in partition.client_indices) >= 1
    )
    assert assigned.dtype == np.int64 and assigned.min() >= 0 and assigned.max() < len(labels)
    assert (
        partition.reused == len(assigned) - different
        and partition.unused == len(labels) - different
    )
    assert partition.reused == 0 or has_replacement(rule)
    assert len(assigned) == len(labels) or rule.startswith("longtail")
    for indices, counts in zip(partition.client_indices, partition.class_counts, strict=True):
        assert np.bincount(label_array[indices], minlength=12).tolist() == counts.tolist()
    assert "\n" not in partition.describe()
    assert (
        partition.hash
        == make_partition(rule, label_array, clients, seed, classes=12, groups=groups).hash
    )


@pytest.mark.parametrize(
    "rule", [rule for rule in EVERY_RULE if rule not in ("natural", "quantity:0")]
)
def test_seeds_differ_under_every_rule(rule: str) -> None:
    if "error" not in rule:
        assert (
            make_partition(rule, LABELS, 20, seed=0).hash
            != make_partition(rule, LABELS, 20, seed=1).hash
        )


def test_the_syntax_lists_every_rule() -> None:
    assert {rule.partition(":")[0].partition(",")[0] for rule in EVERY_RULE} == set(SYNTAX)
    assert SYNTAX["dirichlet"] == "dirichlet:BETA[,exhausted=reuse|renormalise|error]"


def test_a_parsed_rule_has_all_its_options() -> None:
    rule = parse_partition_rule("longtail:100, beta=iid")
    assert (rule.name, rule.value, rule.options) == ("longtail", 100.0, {"beta": "iid"})
    assert parse_partition_rule("dirichlet:0.3").options == {"exhausted": "reuse"}


def test_exhausted_options_differ_only_where_a_class_runs_out() -> None:
    labels = np.repeat(np.arange(4), 2)
    options = ("reuse", "renormalise", "error")
    hashes = {
        make_partition(f"dirichlet:1e9,exhausted={option}", labels, 1, 4).hash
        for option in options[:2]
    }
    assert len(hashes) == 2, (
        "eight samples of four classes do not come out even by chance with this seed"
    )
    one_class = [
        make_partition(f"dirichlet:1,exhausted={o}", np.zeros(50, int), 5, 0).hash for o in options
    ]
    assert len(set(one_class)) == 1
    assert (
        make_partition("dirichlet:0.1,exhausted=reuse", LABELS, 9, 0).hash
        == make_partition("dirichlet:0.1", LABELS, 9, 0).hash
    )


def test_renormalise_uses_every_sample_once_and_says_what_it_redrew() -> None:
    partition = make_partition("dirichlet:0.1,exhausted=renormalise", LABELS, 20, seed=0)
    assert sorted(np.concatenate(partition.client_indices)) == list(range(6000))
    assert any("redrawn" in note for note in partition.notes)
    reused = make_partition("dirichlet:0.1", LABELS, 20, seed=0)
    kept = sum(
        len(np.intersect1d(*pair))
        for pair in zip(partition.client_indices, reused.client_indices, strict=True)
    )
    assert kept > 3000, "both begin with the same draws"


def test_renormalise_draws_as_a_loop_over_the_slots_would() -> None:
    priors = np.array([[0.7, 0.2, 0.1], [0.1, 0.0, 0.9]])
    samples_per_class = np.array([2, 3, 3])
    clients = np.array([0, 1, 0, 0, 1, 1, 0, 1])
    generator = np.random.default_rng(0)
    repeats = 6000
    counts = np.zeros((8, 3))
    expected = np.zeros((8, 3))
    for _ in range(repeats):
        draws = ClassDraws(draw_columns(priors, clients, generator), clients, priors)
        redraw_exhausted("", draws, np.arange(3), samples_per_class, generator)
        counts[np.arange(8), draws.classes] += 1
        left = samples_per_class.copy()
        for slot, client in enumerate(clients):
            weights = priors[client] * (left > 0)
            weights = weights if weights.sum() else (left > 0) * 1.0
            label = generator.choice(3, p=weights / weights.sum())
            left[label] -= 1
            expected[slot, label] += 1
    assert np.abs(counts - expected).max() / repeats < 0.03


def test_columns_are_drawn_by_weight_and_never_without() -> None:
    weights = np.array([[0.0, 3.0, 1.0, 0.0], [5e-324, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 2.0]])
    rows = np.repeat([0, 1, 2], 4000)
    columns = draw_columns(weights, rows, np.random.default_rng(0)).reshape(3, 4000)
    assert set(columns[0]) == {1, 2} and (columns[0] == 1).mean() == pytest.approx(0.75, abs=0.03)
    assert set(columns[1]) == {0} and set(columns[2]) == {3}


def test_dirichlet_class_gives_every_client_its_share_of_a_class() -> None:
    """E[sum of squares] of a symmetric Dirichlet over N clients is (beta + 1) / (N beta + 1)."""
    labels = np.repeat(np.arange(300), 400)
    partition = make_partition("dirichlet-class:0.5", labels, 10, seed=0)
    shares = partition.class_counts / partition.class_counts.sum(axis=0)
    assert (shares**2).sum(axis=0).mean() == pytest.approx(1.5 / 6, rel=0.05)
    assert np.abs(shares.mean(axis=1) - 0.1).max() < 0.03


def test_dirichlet_class_favours_no_client_by_rounding() -> None:
    partition = make_partition("dirichlet-class:1e9", np.arange(5000), 10, seed=0)
    sizes = partition.class_counts.sum(axis=1)
    assert np.abs(sizes - 500).max() < 100, (
        "with one sample per class a plain cut gives all to one client"
    )


@pytest.mark.parametrize("min_size", [1, 5, 20])
def test_dirichlet_class_raises_the_smallest_from_the_largest(min_size: int) -> None:
    before = make_partition("dirichlet-class:10", LABELS, 10, seed=1)
    partition = make_partition(f"dirichlet-class:0.01,min={min_size}", LABELS, 300, seed=1)
    sizes = partition.class_counts.sum(axis=1)
    assert sizes.min() == min_size and sizes.sum() == 6000 and partition.unused == 0
    assert any(f"below {min_size}" in note and "moved" in note for note in partition.notes)
    assert before.notes == ()


def test_samples_are_removed_from_the_largest_first() -> None:
    assert removals_from_largest(np.array([9, 1, 7, 0]), 2).tolist() == [2, 0, 0, 0]
    assert removals_from_largest(np.array([9, 1, 7, 0]), 5).tolist() == [3, 0, 2, 0]
    for sizes in itertools.product(range(5), repeat=4):
        for total in range(1, sum(sizes) + 1):
            left = np.array(sizes)
            for _ in range(total):
                left[left.argmax()] -= 1
            removals = removals_from_largest(np.array(sizes), total)
            assert sorted(np.array(sizes) - removals) == sorted(left) and removals.min() >= 0


def test_shards_are_pieces_of_the_sorted_labels() -> None:
    partition = make_partition("shards:2", LABELS, 100, seed=0)
    assert (partition.class_counts.sum(axis=1) == 60).all() and partition.unused == 0
    assert set(partition.class_counts.ravel()) == {0, 30, 60}
    sizes = make_partition("shards:3", LABELS[:5999], 100, seed=0).class_counts.sum(axis=1)
    assert np.ptp(sizes) <= 3


def test_quantity_varies_sizes_only() -> None:
    partition = make_partition("quantity:0.7", np.tile(np.arange(10), 20_000), 400, seed=0)
    sizes = partition.class_counts.sum(axis=1)
    assert sizes.sum() == 200_000
    assert np.log(sizes).std() == pytest.approx(0.7, rel=0.1)
    assert measure_heterogeneity(partition).mean_tv_distance < 0.07
    assert np.ptp(make_partition("quantity:0", LABELS, 7, seed=0).class_counts.sum(axis=1)) <= 1


def test_apportioning_keeps_the_sum() -> None:
    assert apportion(10, np.array([0.25, 0.25, 0.5])).tolist() == [3, 2, 5]
    assert apportion(0, np.array([0.5, 0.5])).tolist() == [0, 0]


def test_longtail_counts_fall_by_the_factor() -> None:
    assert longtail_counts(np.full(3, 5000), 100).tolist() == [5000, 500, 50]
    assert longtail_counts(np.array([10, 1000]), 10).tolist() == [10, 100]
    assert longtail_counts(np.array([10, 1000]), 1000).tolist() == [1, 1000]
    assert longtail_counts(np.array([7]), 1000).tolist() == [7]
    assert longtail_counts(np.full(3, 4), 1e308).tolist() == [4, 1, 1]


@pytest.mark.parametrize("rule", ["longtail:100", "longtail:100,beta=iid", "longtail:100,beta=5"])
def test_longtail_assigns_the_kept_samples_once(rule: str) -> None:
    partition = make_partition(rule, LABELS, 20, seed=0)
    totals = partition.class_counts.sum(axis=0)
    assert totals[0] == 600 and totals[9] == 6 and (np.diff(totals) < 0).all()
    assert partition.reused == 0 and partition.unused == 6000 - totals.sum()
    assert np.ptp(partition.class_counts.sum(axis=1)) <= 1
    assert "600 down to 6" in partition.describe()


def test_longtail_refuses_more_clients_than_it_keeps() -> None:
    with pytest.raises(InputError, match="keeps 19 of 100"):
        make_partition("longtail:1e9", np.repeat(np.arange(10), 10), 50, seed=0)


@pytest.mark.parametrize("clients", [3, 0, None])
def test_natural_makes_a_client_of_each_group(clients: int | None) -> None:
    groups = np.array(["b", "a", "c", "a", "b"])
    partition = make_partition("natural", np.array([0, 1, 0, 1, 1]), clients, seed=0, groups=groups)
    assert [indices.tolist() for indices in partition.client_indices] == [[1, 3], [0, 4], [2]]
    assert (
        partition.hash
        == make_partition("natural", np.array([0, 1, 0, 1, 1]), clients, seed=9, groups=groups).hash
    )


def test_natural_refuses_other_numbers_of_clients() -> None:
    for clients in (2, 4):
        with pytest.raises(InputError, match=f"{clients} clients .* 3 groups .* ask for 3 clients"):
            make_partition("natural", np.zeros(6, int), clients, seed=0, groups=np.arange(6) % 3)
    with pytest.raises(InputError, match="5 groups for 6 samples"):
        make_partition("natural", np.zeros(6, int), 3, seed=0, groups=np.arange(5))


def test_other_rules_need_a_number_of_clients() -> None:
    with pytest.raises(InputError, match="at least 1"):
        make_partition("iid", LABELS, None, seed=0)


def partition_of_counts(*counts: list[int]) -> Partition:
    return Partition("iid", tuple(np.arange(sum(row)) for row in counts), np.array(counts), 0)


def test_heterogeneity_by_hand() -> None:
    same = measure_heterogeneity(partition_of_counts([2, 2, 0], [5, 5, 0]))
    assert same.mean_tv_distance == same.max_tv_distance == 0
    assert same.effective_classes == pytest.approx(2)
    assert same.size_cv == pytest.approx(3 / 7)
    apart = measure_heterogeneity(
        partition_of_counts([4, 0, 0, 0], [0, 4, 0, 0], [0, 0, 4, 0], [0, 0, 0, 4])
    )
    assert apart.mean_tv_distance == apart.max_tv_distance == pytest.approx(1 - 1 / 4)
    assert (apart.effective_classes, apart.size_cv) == (pytest.approx(1), 0)
    mixed = measure_heterogeneity(partition_of_counts([4, 0], [4, 8]))  # overall 1/2 and 1/2
    assert mixed.mean_tv_distance == pytest.approx((1 / 2 + 1 / 6) / 2)
    assert mixed.max_tv_distance == pytest.approx(1 / 2)
    assert mixed.effective_classes == pytest.approx((1 + 3 / 2 ** (2 / 3)) / 2)


@pytest.mark.parametrize("written", ["Dirichlet(0.1)", "dirichlet-0.1", "dirichlet=0.1"])
def test_a_rule_as_papers_write_it_is_answered_with_ours(written: str) -> None:
    with pytest.raises(InputError, match=r"Did you mean 'dirichlet:0\.1'\?"):
        parse_partition_rule(written)
