"""Simulated faults: who is hit, what arrives, and that the methods' state stays what it must be."""

import itertools
import json
from dataclasses import replace
from functools import partial

import pytest
import torch
from helpers.small_federation import FULL_RULES, make_federation, run_rounds

import fedwmsam
from fedwmsam import InputError
from fedwmsam.engine.faults import Faults
from fedwmsam.engine.rounds import run_round
from fedwmsam.engine.schedule import SeededSchedule
from fedwmsam.methods import METHODS, SCAFFOLD, FedAvg, FedCM, FedSMOO, FedWMSAM, MimeLite
from fedwmsam.settings.config import Settings
from fedwmsam.settings.parsers import Corruption, Stragglers, parse_corruption, parse_stragglers

SIZES = (9, 14, 5, 11, 7)


def make_faulty_federation(method, per_round=4, **faults):
    """Return a federation with these faults."""
    federation = make_federation(method, FULL_RULES, per_round=per_round)
    return replace(federation, faults=Faults(seed=2, clients=len(SIZES), **faults))


def collect_results(federation, state):
    """Return the job and the result of each client in the round after `state`."""
    results = {}
    run_round(federation, state, lambda job, result: results.update({job.client: (job, result)}))
    return results


def check_means(method, state):
    for server_name, kept in method.means.items():
        value = state.server[server_name]
        total = sum((row[kept] for row in state.memory.values()), torch.zeros_like(value))
        assert torch.allclose(value, total / len(SIZES), atol=1e-12)


@pytest.mark.parametrize("name", METHODS)
def test_only_the_memory_of_clients_whose_update_counted_changes(name):
    """For every method; and server vectors that must be means of the clients' memories are."""
    method = METHODS[name]()
    federation = make_faulty_federation(
        method,
        dropout=0.3,
        stragglers=Stragglers(0.4, 3.0, partial=False),
        corruption=Corruption("nan", 0.4),
    )
    states, records = run_rounds(federation, 8)
    seen = set()
    for before, after, record in zip(states[:-1], states[1:], records, strict=True):
        absent = {*record.get("dropped", []), *record.get("late", []), *record.get("rejected", [])}
        counted = set(federation.schedule.cohort(before.round)) - absent
        assert record["cohort"] == len(counted)
        for client in range(len(SIZES)):
            if client in counted:
                assert not method.cost.memory or after.memory[client] is not before.memory.get(
                    client
                )
            else:
                assert after.memory.get(client) is before.memory.get(client)
        check_means(method, after)
        seen |= record.keys()
    assert {"dropped", "late", "rejected", "hostile"} <= seen


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("kind", ["sign_flip", "huge", "random", "stale"])
def test_corrupted_uploads_leave_the_state_consistent(name, kind):
    method = METHODS[name]()
    corruption = Corruption(kind, 0.4, 2.0)
    federation = make_faulty_federation(
        method, corruption=corruption, stragglers=Stragglers(0.4, 2.0)
    )
    states, _ = run_rounds(federation, 4)
    for state in states[1:]:
        check_means(method, state)
        assert all(torch.isfinite(value).all() for value in state.server.values())


def test_a_round_in_which_nobody_answers_changes_nothing_and_counts():
    federation = make_faulty_federation(FedWMSAM())
    states, _ = run_rounds(federation, 2)
    silent = replace(federation, faults=replace(federation.faults, dropout=1.0))
    after, record = run_round(silent, states[-1])
    assert after.round == 3
    assert after.server is states[-1].server and after.memory is states[-1].memory
    assert record["cohort"] == record["bytes_up"] == record["backprops"] == 0
    assert "train_loss" not in record
    assert record["dropped"] == silent.schedule.cohort(2)
    _, usual = run_round(federation, states[-1])
    assert record["bytes_down"] == usual["bytes_down"]  # the server had sent it all


def test_only_hostile_nonsense_is_no_divergence():
    federation = make_faulty_federation(FedAvg(), corruption=Corruption("nan", 1.0))
    states, records = run_rounds(federation, 2)
    assert states[-1].round == 2 and torch.equal(states[-1].server["w"], states[0].server["w"])
    assert records[0]["rejected"] == records[0]["hostile"] == federation.schedule.cohort(0)


class Shortened(SeededSchedule):
    """A schedule that gives the slow clients fewer steps in the first place."""

    def steps(self, round, client, samples):
        return super().steps(round, client, samples)[: self.step_count(round, client, samples)]

    def step_count(self, round, client, samples):
        planned = super().step_count(round, client, samples)
        return int(planned / 2.5) if client in SLOW else planned


SLOW = Faults(seed=2, clients=len(SIZES), stragglers=Stragglers(0.6)).slow


@pytest.mark.parametrize(
    "method", [FedAvg(), FedCM(), SCAFFOLD(), FedWMSAM(), FedSMOO(), MimeLite()], ids=repr
)
def test_partial_work_is_the_work_of_fewer_steps(method):
    """Methods divide by the number of steps that a client did.

    So the result is that of a client which had no more steps to do.
    """
    assert len(SLOW) == 3
    plain = make_federation(method, FULL_RULES, per_round=4)
    short = replace(plain, schedule=Shortened(**vars(plain.schedule)))
    late = make_faulty_federation(method, stragglers=Stragglers(0.6, 2.5))
    expected = run_rounds(short)[0][-1]
    states, records = run_rounds(late)
    assert all(torch.equal(states[-1].server[k], v) for k, v in expected.server.items())
    assert any(record.get("late") for record in records)
    assert not torch.equal(run_rounds(plain)[0][-1].server["w"], states[-1].server["w"])


def test_unfinished_work_can_be_lost():
    class Quick(SeededSchedule):
        def cohort(self, round):
            return [client for client in super().cohort(round) if client not in SLOW]

    plain = make_federation(SCAFFOLD(), FULL_RULES, per_round=4)
    expected = run_rounds(replace(plain, schedule=Quick(**vars(plain.schedule))))[0][-1]
    stragglers = Stragglers(0.6, 2.5, partial=False)
    state = run_rounds(make_faulty_federation(SCAFFOLD(), stragglers=stragglers))[0][-1]
    assert torch.equal(expected.server["w"], state.server["w"])
    assert set(state.memory) == set(range(5)) - SLOW


def test_a_deadline_too_short_for_a_single_step_is_a_missed_one():
    faults = Faults(seed=0, clients=1, stragglers=Stragglers(1.0, 10.0, deadline=2.0))
    assert [faults.completed_steps(0, planned) for planned in (1, 4, 5, 10, 50)] == [0, 0, 1, 2, 10]
    quick = Faults(seed=0, clients=1, stragglers=Stragglers(0.0, 10.0, deadline=2.0))
    assert quick.completed_steps(0, 7) == 7
    rounded = Faults(seed=0, clients=1, stragglers=Stragglers(deadline=0.29))
    assert rounded.completed_steps(0, 100) == 29  # 28.999… in floats


@pytest.mark.parametrize("kind", ["huge", "sign_flip", "random"])
def test_hostile_clients_corrupt_all_vectors_and_others_none(kind):
    honest = make_federation(MimeLite(), FULL_RULES, per_round=5)
    states, _ = run_rounds(honest, 2)
    federation = replace(
        honest, faults=Faults(seed=2, clients=5, corruption=Corruption(kind, 0.4, 3.0))
    )
    true = collect_results(honest, states[-1])
    sent = collect_results(federation, states[-1])
    assert len(federation.faults.hostile) == 2
    for client, (_, result) in sent.items():
        for name, value in result.up.items():  # both vectors that MimeLite sends
            expected = true[client][1].up[name]
            if client not in federation.faults.hostile:
                assert torch.equal(value, expected)
            elif kind == "random":
                assert float(value.norm()) == pytest.approx(3 * float(expected.norm()))
                cosine = torch.nn.functional.cosine_similarity(value, expected, dim=0)
                assert abs(float(cosine)) < 0.6
            else:
                assert torch.equal(value, expected * (3.0 if kind == "huge" else -3.0))


def test_a_stale_client_trains_from_the_first_model():
    federation = make_faulty_federation(
        FedWMSAM(), per_round=5, corruption=Corruption("stale", 0.2)
    )
    states, _ = run_rounds(federation, 3)
    (stale,) = federation.faults.hostile
    for client, (job, _) in collect_results(federation, states[-1]).items():
        assert torch.equal(job.down["w"], states[0 if client == stale else -1].server["w"])
    assert float(job.down["m"].norm()) > 0


def test_flipped_labels_are_the_hostile_clients_own():
    federation = replace(
        make_federation(FedAvg(), FULL_RULES, per_round=5),
        faults=Faults(2, 5, corruption=Corruption("label_flip", 0.4), classes=3),
    )
    flipped = 0
    for client, samples in enumerate(federation.clients):
        _, true = samples.batch(torch.arange(5))
        _, seen = federation.faults.training_samples(client, samples).batch(torch.arange(5))
        hostile = client in federation.faults.hostile
        assert torch.equal(seen, 2 - true if hostile else true)
        flipped += hostile
    assert flipped == 2
    plain = run_rounds(make_federation(FedAvg(), FULL_RULES, per_round=5), 2)[0][-1]
    assert not torch.equal(run_rounds(federation, 2)[0][-1].server["w"], plain.server["w"])


def test_the_draws_have_the_given_shares():
    def dropped(seed, round):
        faults = Faults(seed=seed, clients=50, dropout=0.3)
        return frozenset(client for client in range(50) if faults.drops_out(round, client))

    draws = itertools.product(range(20), range(5))
    share = sum(len(dropped(seed, round)) for seed, round in draws) / 5000
    assert share == pytest.approx(0.3, abs=0.02)
    assert len({dropped(0, round) for round in range(5)}) == 5
    few, many = (Faults(1, 50, corruption=Corruption("nan", s)).hostile for s in (0.1, 0.2))
    assert len(few) == 5 and len(many) == 10 and few < many
    assert len({Faults(s, 50, corruption=Corruption("nan", 0.1)).hostile for s in range(5)}) == 5


FAULTS = {"dropout": 0.3, "stragglers": "0.4:3", "corrupt": "random:0.3"}


def fit(rounds=4, **settings):
    generator = torch.Generator().manual_seed(0)
    clients = [(torch.randn(12, 4, generator=generator), torch.arange(12) % 3) for _ in range(6)]
    return fedwmsam.fit(
        partial(torch.nn.Linear, 4, 3),
        clients,
        rounds=rounds,
        participation=0.7,
        batch_size=4,
        **{**FAULTS, **settings},
    )


def test_faults_are_the_same_on_workers_and_after_a_resume(tmp_path):
    whole = fit(aggregation="norm_bound", run_folder=tmp_path / "whole")
    fit(aggregation="norm_bound", run_folder=tmp_path / "cut", rounds=2, workers=2)
    fit(aggregation="norm_bound", run_folder=tmp_path / "cut", resume=True)
    lines = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("whole", "cut")]
    assert lines[0] == lines[1]
    assert all(
        torch.equal(whole.model[k], v)
        for k, v in fedwmsam.Result.load(tmp_path / "cut").model.items()
    )
    assert {"dropped", "late", "hostile"} <= set(whole.columns)
    with pytest.raises(InputError, match="dropout"):
        fit(aggregation="norm_bound", run_folder=tmp_path / "cut", resume=True, dropout=0.2)


def test_without_faults_nothing_is_recorded_about_them(tmp_path):
    result = fit(dropout=None, stragglers=None, corrupt=None, run_folder=tmp_path / "run")
    assert not {"dropped", "late", "hostile", "epsilon"} & set(result.columns)
    assert "dropout" not in (tmp_path / "run" / "config.toml").read_text()
    for nothing in (
        {"dropout": 0.0},
        {"stragglers": "0.5:1"},
        {"corrupt": "nan:0"},
        {"deadline": 1.0},
    ):
        same = fit(**{"dropout": None, "stragglers": None, "corrupt": None, **nothing})
        assert all(torch.equal(same.model[k], v) for k, v in result.model.items())


def test_labels_of_other_losses_cannot_be_flipped():
    clients = [(torch.randn(4, 2), torch.randn(4, 1))] * 2
    with pytest.raises(InputError, match="class labels"):
        fedwmsam.fit(
            torch.nn.Linear(2, 1), clients, loss="regression", corrupt="label_flip:0.5", rounds=1
        )


def test_rules_are_read_as_written():
    assert parse_stragglers("0.3:4", None) == Stragglers(0.3, 4.0, True, 1.0)
    assert parse_stragglers("0.3:4:drop", 2.0) == Stragglers(0.3, 4.0, False, 2.0)
    assert parse_corruption("sign_flip:0.2:10") == Corruption("sign_flip", 0.2, 10.0)
    assert parse_corruption("huge:0.2") == Corruption("huge", 0.2, 1000.0)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("dropout", 1.5),
        ("dropout", float("nan")),
        ("deadline", 0.0),
        *(
            ("stragglers", text)
            for text in ("", "0.3", "4:0.3", "0.3:0.5", "0.3:x", "0.3:4:late", "0.3:4:5", "nan:2")
        ),
        *(
            ("corrupt", t)
            for t in (
                "",
                "nan",
                "nan:2",
                "nan:0.1:3",
                "flip:0.1",
                "huge:0.1:0",
                "huge:0.1:inf",
                "huge",
            )
        ),
    ],
)
def test_wrong_faults_are_refused_by_name(setting, value):
    with pytest.raises(InputError, match=setting):  # also in "kind of corruption"
        Settings(**{setting: value})


def test_faults_can_be_given_on_the_command_line(cli, tmp_path):
    outcome = cli(
        "run",
        "--model",
        "linear",
        "--rounds",
        2,
        "--local-epochs",
        1,
        "--dropout",
        0.5,
        "--stragglers",
        "0.5:3",
        "--corrupt",
        "nan:0.6",
        "--out",
        tmp_path,
        "--name",
        "faulty",
        "-q",
    )
    assert outcome.code == 0, outcome.err
    config = (tmp_path / "faulty" / "config.toml").read_text()
    for line in ('stragglers = "0.5:3"', 'corrupt = "nan:0.6"', "dropout = 0.5"):
        assert line in config
    lines = (tmp_path / "faulty" / "metrics.jsonl").read_text().splitlines()
    columns = set().union(*map(json.loads, lines))
    assert {"dropped", "late", "rejected"} <= columns
    refused = cli("run", "--corrupt", "nan:7", "--out", tmp_path)
    assert refused.code == 2
    assert "corrupt must be nan:SHARE" in refused.err and "'nan:7'" in refused.err
