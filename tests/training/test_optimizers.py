"""Local optimizers, schedules of the step size and batches, against torch.optim."""

import warnings

import numpy as np
import pytest
import torch
from helpers.small_federation import PLAIN_RULES, make_federation, run_rounds
from torch import nn
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    ExponentialLR,
    LinearLR,
    SequentialLR,
    StepLR,
)

from fedwmsam import METHODS, InputError, fit
from fedwmsam.engine.rounds import first_state, make_jobs, sample_cohort, train_client
from fedwmsam.engine.schedule import split_epoch
from fedwmsam.methods import FedAvg, FedSAM, FedWMSAM, MimeLite
from fedwmsam.training.local import LocalRules

X = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long() + (X[:, 1] > 0).long()
CLIENTS = [(X[:20], Y[:20]), (X[20:37], Y[20:37]), (X[37:], Y[37:])]
FIXED = {"participation": 1.0, "rounds": 2, "local_epochs": 3, "batch_size": 6, "lr": 0.05}


def local_training(rules, make_optimizer, decay=0.0):
    """Return the weights of one client's round, ours and those of an optimizer of torch."""
    federation = make_federation(FedAvg(), rules)
    state = first_state(federation)
    cohort, info = sample_cohort(federation, 0)
    job = next(iter(make_jobs(federation, state, cohort, info)))
    result = train_client(federation, job)
    task = federation.task
    task.load_weights(state.server["w"])
    task.model.train()
    optimizer = make_optimizer(task.model.parameters(), job.info.lr)
    samples = federation.clients[job.client]
    for step in federation.schedule.steps(0, job.client, len(samples)):
        inputs, targets = samples.batch(step.index)
        optimizer.zero_grad()
        task.objective.loss(task.model(inputs), targets).backward()
        optimizer.step()
    theirs = torch.cat([p.detach().reshape(-1) for p in task.model.parameters()])
    return state.server["w"] + result.up["delta"], theirs


OPTIMIZERS = {
    "momentum": (
        {"momentum": 0.9},
        lambda p, lr: SGD(p, lr, momentum=0.9),
    ),
    "momentum with decay": (
        {"momentum": 0.9, "weight_decay": 0.01},
        lambda p, lr: SGD(p, lr, momentum=0.9, weight_decay=0.01),
    ),
    "nesterov": (
        {"optimizer": "nesterov", "momentum": 0.8},
        lambda p, lr: SGD(p, lr, momentum=0.8, nesterov=True),
    ),
    "adam": (
        {"optimizer": "adam"},
        Adam,
    ),
    "adam with decay": (
        {"optimizer": "adam", "weight_decay": 0.1},
        lambda p, lr: Adam(p, lr, weight_decay=0.1),
    ),
    "adam, other moments": (
        {"optimizer": "adam", "adam_beta1": 0.5, "adam_beta2": 0.9, "adam_epsilon": 1e-3},
        lambda p, lr: Adam(p, lr, betas=(0.5, 0.9), eps=1e-3),
    ),
    "adamw": (
        {"optimizer": "adamw", "weight_decay": 0.1},
        lambda p, lr: AdamW(p, lr, weight_decay=0.1),
    ),
    "adamw, decay after the clip": (
        {"optimizer": "adamw", "weight_decay": 0.1, "weight_decay_mode": "sgd"},
        lambda p, lr: AdamW(p, lr, weight_decay=0.1),
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_fedavg_with_an_optimizer_is_that_of_torch(name):
    values, make_optimizer = OPTIMIZERS[name]
    rules = LocalRules(**({"weight_decay": 0.0, "clip_norm": None} | values))
    ours, theirs = local_training(rules, make_optimizer)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)


def test_the_state_of_an_optimizer_is_fresh_in_every_round():
    rules = LocalRules(0.0, "objective", None, optimizer="adam")
    federation = make_federation(FedAvg(), rules)
    state = first_state(federation)
    cohort, info = sample_cohort(federation, 0)
    jobs = list(make_jobs(federation, state, cohort, info))
    first = train_client(federation, jobs[0])
    again = train_client(federation, jobs[0])
    assert torch.equal(first.up["delta"], again.up["delta"])


@pytest.mark.parametrize(
    "method", [name for name, cls in METHODS.items() if not cls.needs_plain_gradients]
)
@pytest.mark.parametrize("values", [{"momentum": 0.5}, {"optimizer": "adamw"}], ids=str)
def test_every_method_trains_with_every_optimizer(method, values):
    rules = LocalRules(1e-3, "objective", 10.0, **values)
    states, _ = run_rounds(make_federation(METHODS[method](), rules), 3)
    plain, _ = run_rounds(make_federation(METHODS[method](), PLAIN_RULES), 3)
    assert torch.isfinite(states[-1].server["w"]).all()
    assert not torch.equal(states[-1].server["w"], plain[-1].server["w"])


def test_of_two_backprops_only_the_last_is_preconditioned():
    """FedSAM ascends along the plain gradient, and Adam sees one gradient a step."""
    seen = []

    class Recorded(FedSAM):
        def direction(self, w, grad, down, scratch):
            def noted(at):
                seen.append(grad(at))
                return seen[-1].clone()

            return super().direction(w, noted, down, scratch)

    rules = LocalRules(0.0, "objective", None, optimizer="adam")
    federation = make_federation(Recorded(rho=0.05), rules, batch_size=100, epochs=1)
    cohort, info = sample_cohort(federation, 0)
    job = next(iter(make_jobs(federation, first_state(federation), cohort, info)))
    train_client(federation, job)
    first, last = seen
    plain, _ = federation.task.compute_gradient(
        job.down["w"],
        federation.clients[job.client].batch(torch.arange(len(federation.clients[job.client]))),
        seed=0,
        update_buffers=False,
    )
    torch.testing.assert_close(first, plain)
    assert last.abs().max() == pytest.approx(1.0, abs=1e-5)  # Adam's first step is ±1


def test_a_method_that_needs_plain_gradients_says_why():
    needy = {name for name, cls in METHODS.items() if cls.needs_plain_gradients}
    assert needy == {"mimelite", "mime", "fednova"}
    with pytest.raises(InputError, match="mimelite needs optimizer=sgd without momentum: its mom"):
        fit(nn.Linear(4, 3), CLIENTS, MimeLite(), optimizer="adam", **FIXED)
    fit(nn.Linear(4, 3), CLIENTS, MimeLite(), **FIXED)


def test_what_a_method_refuses_leaves_no_folder(cli, tmp_path):
    outcome = cli("run", "--method", "mimelite", "--momentum", "0.9", "--out", tmp_path / "runs")
    assert outcome.code == 2 and "mimelite needs optimizer=sgd" in outcome.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"optimizer": "adam", "momentum": 0.9}, "adam_beta1"),
        ({"optimizer": "nesterov"}, "needs a momentum"),
        ({"optimizer": "rmsprop"}, "rmsprop"),
        ({"lr_schedule": "cosine:0"}, "lr_schedule must be"),
        ({"lr_schedule": "step:10"}, "lr_schedule must be"),
        ({"lr_schedule": "linear"}, "Unknown lr_schedule 'linear'"),
        ({"lr_schedule": "function:f"}, "works in fit"),
        ({"lr_schedule": lambda r: 0.0}, "must be above 0"),
        ({"lr_schedule": lambda r: "x"}, "must be a function from the round"),
        ({"precision": "fp8"}, "fp8"),
        ({"last_batch": "pad"}, "pad"),
        ({"local_steps": 0}, "local_steps"),
    ],
)
def test_mistakes_are_named(values, words):
    with pytest.raises(InputError, match=words):
        fit(nn.Linear(4, 3), CLIENTS, **FIXED | values)


# Step sizes


def torch_schedule(make, rounds):
    optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=0.3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SequentialLR warns of itself
        scheduler = make(optimizer)
        values = []
        for _ in range(rounds):
            values.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
    return values


def with_warmup(optimizer, after):
    first = LinearLR(optimizer, start_factor=1 / 4, total_iters=3)
    return SequentialLR(optimizer, [first, after], milestones=[4])


SCHEDULES = {
    "cosine": ({"lr_schedule": "cosine"}, lambda o: CosineAnnealingLR(o, 12)),
    "cosine with an end": (
        {"lr_schedule": "cosine:12:0.1"},
        lambda o: CosineAnnealingLR(o, 12, eta_min=0.03),
    ),
    "step": ({"lr_schedule": "step:5:0.1"}, lambda o: StepLR(o, 5, 0.1)),
    "exponential": ({"lr_schedule": "exponential:0.9"}, lambda o: ExponentialLR(o, 0.9)),
    "decay": ({"lr_decay": 0.9}, lambda o: ExponentialLR(o, 0.9)),
    "warm-up, then cosine": (
        {"lr_schedule": "cosine", "lr_warmup": 4},
        lambda o: with_warmup(o, CosineAnnealingLR(o, 8)),
    ),
    "warm-up, then step": (
        {"lr_schedule": "step:3:0.5", "lr_warmup": 4},
        lambda o: with_warmup(o, StepLR(o, 3, 0.5)),
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_step_sizes_are_those_of_torch(name):
    values, make = SCHEDULES[name]
    settings = FIXED | {"rounds": 12, "local_epochs": 1, "lr": 0.3} | values
    result = fit(nn.Linear(4, 3), CLIENTS, "fedavg", **settings)
    np.testing.assert_allclose(result.columns["lr"], torch_schedule(make, 12), rtol=1e-6)


def test_a_function_of_the_round_is_the_step_size():
    settings = FIXED | {"rounds": 4}
    result = fit(
        nn.Linear(4, 3), CLIENTS, "fedavg", lr_schedule=lambda r: 0.1 / (r + 1), **settings
    )
    np.testing.assert_allclose(result.columns["lr"], [0.1, 0.05, 0.1 / 3, 0.025])


def test_a_run_that_is_extended_keeps_its_cosine(tmp_path):
    settings = FIXED | {"rounds": 4, "lr_schedule": "cosine", "run_folder": tmp_path / "run"}
    fit(nn.Linear(4, 3), CLIENTS, "fedavg", **settings)
    with pytest.raises(InputError, match="lr_schedule = 'cosine:4', not 'cosine:6'"):
        fit(nn.Linear(4, 3), CLIENTS, "fedavg", resume=True, **settings | {"rounds": 6})
    longer = settings | {"rounds": 6, "lr_schedule": "cosine:4"}
    rates = fit(nn.Linear(4, 3), CLIENTS, "fedavg", resume=True, **longer).columns["lr"]
    assert rates[3] == rates[4] == rates[5] > 0


# Batches


def test_batches_that_are_not_full():
    order = torch.arange(7)
    lengths = {}
    for rule in ("keep", "drop", "merge"):
        lengths[rule] = [len(batch) for batch in split_epoch(order, 3, rule)]
    assert lengths == {"keep": [3, 3, 1], "drop": [3, 3], "merge": [3, 4]}
    for rule in ("keep", "drop", "merge"):
        assert [len(batch) for batch in split_epoch(order[:2], 3, rule)] == [2]
        assert [len(batch) for batch in split_epoch(order[:6], 3, rule)] == [3, 3]


@pytest.mark.parametrize("last_batch", ["keep", "drop", "merge"])
@pytest.mark.parametrize("local_steps", [None, 1, 4, 11])
def test_local_steps_are_counted(last_batch, local_steps):
    settings = FIXED | {"last_batch": last_batch, "local_steps": local_steps, "local_epochs": 2}
    result = fit(nn.Linear(4, 3), CLIENTS, "fedavg", **settings)
    per_epoch = {"keep": (4, 3, 4), "drop": (3, 2, 3), "merge": (3, 2, 3)}[last_batch]
    expected = 3 * local_steps if local_steps else 2 * sum(per_epoch)
    assert result.columns["backprops"] == [expected, expected]


def test_a_full_gradient_is_full_even_with_fewer_steps_than_an_epoch():
    """MimeLite's F_k is over all data; with one step it was that of one batch."""
    full = {}
    for steps in (None, 1):
        federation = make_federation(MimeLite(), PLAIN_RULES)
        schedule = federation.schedule
        object.__setattr__(schedule, "local_steps", steps)
        cohort, info = sample_cohort(federation, 0)
        job = next(iter(make_jobs(federation, first_state(federation), cohort, info)))
        full[steps] = train_client(federation, job).up["F_k"]
    torch.testing.assert_close(full[1], full[None])


def batch_norm():
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))


def test_one_sample_left_over_with_batch_norm():
    clients = [(X[:13], Y[:13]), (X[20:32], Y[20:32])]
    with pytest.raises(InputError, match=r"Client 0 has 13 samples.*last_batch=merge"):
        fit(batch_norm(), clients, **FIXED)
    for rule in ("merge", "drop"):
        assert fit(batch_norm(), clients, last_batch=rule, **FIXED).status == "completed"
    fit(nn.Linear(4, 3), clients, **FIXED)


@pytest.mark.parametrize("method", ["fedavg", "fedsam", "fedwmsam", "mimelite"])
def test_accumulated_gradients_are_those_of_the_whole_batch(method):
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    whole = fit(model, CLIENTS, method, **FIXED)
    parts = fit(model, CLIENTS, method, micro_batch=4, **FIXED)
    for name, value in whole.model.items():
        torch.testing.assert_close(parts.model[name], value, rtol=0, atol=1e-6)
    np.testing.assert_allclose(parts.columns["train_loss"], whole.columns["train_loss"], atol=1e-6)


def test_bfloat16_trains_float32_weights():
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    full = fit(model, CLIENTS, "fedwmsam", test=(X, Y), **FIXED)
    half = fit(model, CLIENTS, "fedwmsam", test=(X, Y), precision="bf16", **FIXED)
    assert {value.dtype for value in half.model.values()} == {torch.float32}
    assert half.last("loss") != full.last("loss")
    assert half.last("loss") == pytest.approx(full.last("loss"), abs=0.01)


def test_defaults_leave_names_and_configurations_as_they_were(tmp_path):
    """A run of before can be resumed, and one with AdamW differs in its settings."""
    folder = tmp_path / "run"
    fit(nn.Linear(4, 3), CLIENTS, FedWMSAM(), run_folder=folder, **FIXED)
    lines = (folder / "config.toml").read_text().splitlines()
    old = ("lr_schedule", "lr_warmup", "local_steps", "last_batch", "optimizer", "momentum")
    old += ("adam_", "micro_batch", "precision")
    (folder / "config.toml").write_text(
        "".join(f"{line}\n" for line in lines if not line.startswith(old))
    )
    (folder / "provenance.json").unlink()  # runs of before have none
    resumed = fit(nn.Linear(4, 3), CLIENTS, FedWMSAM(), run_folder=folder, resume=True, **FIXED)
    assert resumed.rounds == 2
    with pytest.raises(InputError, match="optimizer = 'sgd', not 'adamw'"):
        settings = FIXED | {"optimizer": "adamw"}
        fit(nn.Linear(4, 3), CLIENTS, FedWMSAM(), run_folder=folder, resume=True, **settings)


def test_a_clip_that_shortens_all_of_adams_steps_is_warned_of(caplog):
    settings = {"rounds": 1, "lr": 0.001, "local_epochs": 1}
    clients = [(torch.randn(8, 30), torch.arange(8) % 5)] * 2
    for clip_norm, expected in ((10.0, 1), (None, 0), (50.0, 0)):
        caplog.clear()
        fit(nn.Linear(30, 5), clients, "fedavg", optimizer="adamw", clip_norm=clip_norm, **settings)
        assert caplog.text.count("clip_norm=10 shortens every step") == expected
