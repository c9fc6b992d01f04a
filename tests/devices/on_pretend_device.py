"""Everything that trains, on a pretend accelerator: bit by bit as on the CPU, and how often it
waits.

`test_devices.py` runs this file in a process of its own, since the device must be registered before
the process computes its first gradient.
"""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from helpers import flower_in_process as flower
from helpers.fit_problems import (
    CLIENTS,
    QUICK,
    TEST,
    ArrayDataset,
    are_equal,
    linear_model,
    stateful_model,
)
from helpers.pretend_device import (
    NAME,
    Traffic,
    measure_traffic,
    refuse_type,
    register_pretend_device,
)
from torch import nn

from fedwmsam import METHODS, FedWMSAM, InputError, fit
from fedwmsam.data.adapter import make_data_adapter
from fedwmsam.data.augmentation import Augmentation, flip_and_crop
from fedwmsam.data.base import Normalise
from fedwmsam.data.clients import TensorSamples
from fedwmsam.engine.ray_workers import Desk, Parcel, current_versions, pack, unpack
from fedwmsam.engine.rounds import first_state, make_jobs, sample_cohort
from fedwmsam.engine.shared_memory import ArrayBlock, pickle_for_workers
from fedwmsam.engine.work import add_prefix, train_job
from fedwmsam.experiment.assembly import make_federation
from fedwmsam.flower import FlowerStrategy, make_client_app
from fedwmsam.methods.base import Info
from fedwmsam.methods.vectors import clip
from fedwmsam.models.convolution import Convolution
from fedwmsam.settings.config import Settings
from fedwmsam.settings.method_table import make_method
from fedwmsam.training import devices
from fedwmsam.training.local import LocalRules, Step, train_locally
from fedwmsam.training.objectives import make_objective
from fedwmsam.training.task import Task

register_pretend_device()


# The device itself


@pytest.mark.parametrize(
    ("compute", "expected"),
    [
        (lambda x: torch.tensor([1.0, 2.0], device=NAME), Traffic(uploads=1)),
        (lambda x: x.new_tensor(3.0), Traffic(uploads=1)),
        (lambda x: x[torch.tensor([0, 2])], Traffic(uploads=1)),
        (lambda x: x.cpu(), Traffic(downloads=1)),
        (lambda x: torch.zeros(3).copy_(x), Traffic(downloads=1)),
        (lambda x: x.tolist(), Traffic(downloads=1)),
        (lambda x: float(x[0]), Traffic(waits=1)),
        (lambda x: bool(x[0] > 0), Traffic(waits=1)),
        (lambda x: x.nonzero(), Traffic(waits=1)),
        (lambda x: x[x > 1], Traffic(waits=1)),
        (lambda x: x + torch.tensor(1.0) * 2, Traffic()),
        (lambda x: torch.arange(3, device=NAME) * x, Traffic()),
        (lambda x: torch.where(x > 1, x, 0.0).sum(), Traffic()),
    ],
)
def test_the_device_counts_what_moves_and_what_waits(compute, expected: Traffic):
    x = torch.tensor([1.0, 2.0, 3.0]).to(NAME)
    with measure_traffic() as traffic:
        compute(x)
    assert traffic == expected


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x + torch.ones(3),
        lambda x: torch.cat([x, torch.ones(3)]),
        lambda x: x.index_select(0, torch.tensor([0])),
        lambda x: torch.ones(3)[x.long()],
        lambda x: torch.add(x, x, out=torch.empty(3)),
        lambda x: torch.randn(3, device=NAME, generator=torch.Generator()),
        lambda x: x.numpy(),
    ],
)
def test_the_device_refuses_what_cuda_refuses(compute):
    with pytest.raises(RuntimeError):
        compute(torch.ones(3, device=NAME))


# Training


def train(model=stateful_model, clients=CLIENTS, **settings):
    """Return the results of the same short run on the CPU and on the device."""
    options = {"method": "fedwmsam", "test": TEST} | QUICK | settings
    return [fit(model, clients, device=device, **options) for device in ("cpu", NAME)]


def assert_same(on_cpu, on_device) -> None:
    """Assert that two results have the same metrics, recordings and weights, bit by bit."""
    assert on_device.rows == on_cpu.rows
    assert on_device.recordings == on_cpu.recordings
    assert {value.device.type for value in on_device.model.values()} == {NAME}
    weights = {name: value.cpu() for name, value in on_device.model.items()}
    assert are_equal(weights, on_cpu.model)


@pytest.mark.parametrize("method", METHODS)
def test_a_method_trains_with_batchnorm_and_dropout_as_on_the_cpu(method: str):
    assert_same(*train(method=method))


PRIVATE = {"method": "fedcm", "sampling": "bernoulli", "dp_noise": 1.0, "dp_clip": 1.0}
HOSTILE = ("nan", "huge", "sign_flip", "random", "label_flip", "stale")
SETTINGS = [
    *[{"corrupt": f"{kind}:0.3"} for kind in HOSTILE],
    {"aggregation": "median", "method": "fedavg"},
    {"aggregation": "trimmed:0.2", "method": "fedavg"},
    {"aggregation": "norm_bound"},
    {"dropout": 0.3},
    {"stragglers": "0.5:3", "deadline": 0.5},
    {"model": linear_model} | PRIVATE,
    {"record": "alignment,drift,echo", "record_every": 1},
    {"twin": 8.0},
    {"averaging": "size"},
    {"optimizer": "adamw", "lr": 0.01},
    {"optimizer": "nesterov", "momentum": 0.9},
    {"micro_batch": 4, "model": linear_model},
    {"weight_decay_mode": "sgd"},
    {"clip_norm": 0.1},
    {"validation": 0.3},
    {"clients": [ArrayDataset(*data) for data in CLIENTS]},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: " ".join(settings))
def test_a_setting_acts_as_on_the_cpu(settings):
    assert_same(*train(**settings))


def test_the_memory_of_clients_on_disk_comes_back_to_the_device(tmp_path: Path):
    options = {"test": TEST, "method": "scaffold"} | QUICK
    in_memory = fit(stateful_model, CLIENTS, **options)
    options |= {"memory_budget": 0.0, "run_folder": tmp_path / "run"}
    assert_same(in_memory, fit(stateful_model, CLIENTS, device=NAME, **options))


def test_a_run_goes_on_on_the_device_as_it_would_have_without_a_stop(tmp_path: Path):
    options = {"test": TEST, "method": "fedwmsam", "twin": 8.0} | QUICK
    whole = fit(stateful_model, CLIENTS, **options)
    options |= {"device": NAME, "run_folder": tmp_path / "run"}
    fit(stateful_model, CLIENTS, **options | {"rounds": 1})
    assert_same(whole, fit(stateful_model, CLIENTS, resume=True, **options))


def test_flower_s_clients_and_server_train_as_on_the_cpu():
    data = [flower.load_data(client, {}) for client in range(flower.CLIENTS)]
    test = flower.load_test(0, {})
    strategy = FlowerStrategy(
        FedWMSAM(),
        flower.network,
        clients=flower.CLIENTS,
        test=test,
        device=NAME,
        **flower.SETTINGS,
    )
    strategy.start(flower.FakeGrid(make_client_app(flower.network, flower.load_data, device=NAME)))
    assert_same(fit(flower.network, data, test=test, **flower.SETTINGS), strategy.result)


def test_training_needs_no_numbers_of_64_bits():
    """Apple's devices have none."""
    doubles = [(x.astype("float64"), y) for x, y in CLIENTS]
    on_cpu = fit(stateful_model, doubles, test=TEST, **QUICK)
    with refuse_type(torch.float64):
        assert_same(on_cpu, fit(stateful_model, doubles, test=TEST, device=NAME, **QUICK))


# Images, and runs of the command line

SMALL_RUN = [
    *["--model", "cnn", "--augmentation", "paper", "--partition", "dirichlet:0.5"],
    *["--clients", "8", "--participation", "0.25", "--local-steps", "3", "--rounds", "2"],
    *["--keep-states", "1"],
]


@pytest.fixture(scope="module", autouse=True)
def same_convolutions() -> Iterator[None]:
    """Let the CPU convolve as the device does: its own forms differ in the last digits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Convolution, "forward", nn.Conv2d.forward)
        yield


@pytest.fixture(scope="module")
def image_runs(cli, tmp_path_factory) -> dict[str, Path]:
    """Return the folders of the same short run on augmented images, on the CPU and the device."""
    folder = tmp_path_factory.mktemp("runs")
    for device in ("cpu", NAME):
        outcome = cli("run", *SMALL_RUN, "--device", device, "--out", folder, "--name", device)
        assert outcome.code == 0, outcome.err
    return {device: folder / device for device in ("cpu", NAME)}


def test_an_image_model_trains_on_augmented_images_as_on_the_cpu(image_runs):
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (image_runs[NAME] / name).read_bytes() == (image_runs["cpu"] / name).read_bytes()


def test_the_provenance_names_the_device(image_runs):
    assert '"device": "pretend"' in (image_runs[NAME] / "provenance.json").read_text()


SAMPLE = ["--samples", "20"]
ANALYSES = {
    "flatness": [
        *[*SAMPLE, "--clients", "1", "--eigenvalues", "1", "--probes", "1", "--steps", "1"],
        *["--directions", "2", "--rho", "0.05", "--adaptive-rho", "0.5"],
    ],
    "landscape": [*SAMPLE, "--clients", "1", "--points", "2"],
    "embedding": [*SAMPLE, "--perplexity", "5"],
}


@pytest.mark.slow
@pytest.mark.parametrize("analysis", ANALYSES)
def test_an_analysis_measures_as_on_the_cpu(analysis: str, cli, image_runs, tmp_path: Path):
    findings = {}
    for device, run in image_runs.items():
        out = tmp_path / device
        outcome = cli("analyse", analysis, run, *ANALYSES[analysis], "--out", out)
        assert outcome.code == 0, outcome.err
        (path,) = out.rglob("*.json")
        findings[device] = path.read_text().replace(str(run), "RUN")
    assert findings[NAME] == findings["cpu"]


@pytest.mark.slow
def test_a_replayed_round_is_measured_as_on_the_cpu(cli, image_runs, tmp_path: Path):
    tables = {}
    for device, run in image_runs.items():
        path = tmp_path / f"{device}.md"
        outcome = cli("analyse", "dynamics", run, "--sample", "20", "--markdown", path)
        assert outcome.code == 0, outcome.err
        tables[device] = path.read_text()
    assert tables[NAME] == tables["cpu"]


def test_a_data_set_is_moved_once_for_all_clients(cli, tmp_path: Path):
    uploads = []
    for clients in (4, 8):
        options = ["--clients", clients, "--participation", 1 / clients, "--rounds", 1]
        with measure_traffic() as traffic:
            outcome = cli("run", "--device", NAME, "--out", tmp_path, *map(str, options))
        assert outcome.code == 0, outcome.err
        uploads.append(traffic.uploads)
    assert uploads[1] - uploads[0] == 4  # each client's own indices, and nothing else


def test_workers_with_a_device_are_refused():
    with pytest.raises(InputError, match="here it is 'pretend': an accelerator is used from one"):
        fit(linear_model, CLIENTS, device=NAME, workers=2, **QUICK)


def test_auto_is_resolved_when_the_run_starts(monkeypatch, tmp_path: Path):
    monkeypatch.setattr(devices, "best_device", lambda: torch.device(NAME, 0))
    options = {"test": TEST} | QUICK
    result = fit(linear_model, CLIENTS, device="auto", run_folder=tmp_path / "run", **options)
    assert_same(fit(linear_model, CLIENTS, **options), result)
    assert result.config["device"] == "auto"
    assert '"device": "pretend:0"' in (tmp_path / "run/provenance.json").read_text()
    with pytest.raises(
        InputError, match="workers=2 needs device='cpu', and here it is 'pretend:0'"
    ):
        fit(linear_model, CLIENTS, device="auto", workers=2, **options)


def test_an_actor_of_ray_trains_on_its_own_device():
    """What an actor does, in this process: Ray is not needed for it."""
    uploads = []
    for device in ("cpu", NAME):
        task = Task(stateful_model, make_objective("classification", None, None), device=device)
        clients = make_data_adapter(task).to_clients(CLIENTS, None)
        federation = make_federation(Settings(), FedWMSAM(), task, clients)
        block = ArrayBlock()
        message = pickle_for_workers((federation, {}), block)
        desk = Desk()
        assert desk.keep(current_versions(), message, block.content) is None
        job = next(
            make_jobs(federation, first_state(federation), [1], sample_cohort(federation, 0)[1])
        )
        tensors = add_prefix("down", job.down) | add_prefix("buffers", job.buffers)
        locations, content = pack(tensors)
        names, content, _, _, error = desk.perform(
            train_job, (1, job.info), list(tensors), locations, content, *pack({})
        )
        assert error is None
        uploads.append(unpack(Parcel(names, content)))
    assert len(uploads[0]) > 1 and are_equal(*uploads)


# How often a program waits for the device


def local_traffic(
    method_name: str, steps: int, augment: Augmentation | None, rules: LocalRules
) -> Traffic:
    """Return the traffic of one client's round of so many steps on images."""
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, 3))
    task = Task(network, make_objective("classification", None, None), device=NAME)
    samples = TensorSamples(
        torch.zeros(8, 1, 8, 8, dtype=torch.uint8, device=NAME),
        torch.zeros(8, dtype=torch.int64, device=NAME),
        torch.arange(8),
        Normalise((0.5,), (0.5,)),
        augment,
    )
    method = make_method(method_name)
    info = Info(
        round=0, lr=0.1, clients=4, cohort=2, share=0.5, steps=steps, samples=8, layout=task.layout
    )
    w = task.initial_weights
    down = method.downlink(method.server_init(w), method.memory_init(w), info)
    batches = [Step(torch.arange(4) + 4 * (step % 2), seed=step) for step in range(steps)]
    samples.batch(torch.arange(1))  # the mean colour is moved once and kept
    with measure_traffic() as traffic:
        train_locally(task, method, down, task.initial_buffers, samples, batches, info, rules, 2)
    return traffic


LOCAL_RULES = {
    "plain": LocalRules(),
    "clipped": LocalRules(clip_norm=1e-3, weight_decay_mode="sgd"),
    "adamw": LocalRules(optimizer="adamw"),
    "nesterov": LocalRules(optimizer="nesterov", momentum=0.9, micro_batch=2),
}


QUICKLY_MEASURED = ("fedavg", "scaffold", "fedwmsam", "fedsam")
SLOWLY_MEASURED = [
    pytest.param(method, marks=pytest.mark.slow)
    for method in METHODS
    if method not in QUICKLY_MEASURED
]


@pytest.mark.parametrize("rules", LOCAL_RULES)
@pytest.mark.parametrize("method", QUICKLY_MEASURED)
def test_a_local_step_neither_moves_data_nor_waits(method: str, rules: str):
    short = local_traffic(method, 2, None, LOCAL_RULES[rules])
    assert short == Traffic(uploads=1, waits=1)  # the round's indices, and its loss
    assert local_traffic(method, 6, None, LOCAL_RULES[rules]) == short


@pytest.mark.parametrize("method", [*QUICKLY_MEASURED, *SLOWLY_MEASURED])
def test_a_local_step_on_augmented_images_moves_its_random_numbers(method: str):
    short = local_traffic(method, 2, flip_and_crop, LocalRules())
    long = local_traffic(method, 6, flip_and_crop, LocalRules())
    assert long - short == Traffic(uploads=4)


def test_a_full_pass_beside_fewer_steps_needs_no_indices_from_the_host():
    assert local_traffic("mimelite", 1, None, LocalRules()) == Traffic(uploads=1, waits=1)


def test_a_step_on_a_dataset_moves_its_inputs_and_targets():
    clients = [ArrayDataset(*data) for data in CLIENTS]
    options = QUICK | {"rounds": 1, "method": "fedavg"}
    counted = []
    for steps in (2, 4):
        with measure_traffic() as traffic:
            fit(linear_model, clients, device=NAME, local_steps=steps, **options)
        counted.append(traffic)
    # Two clients take two steps more, each with inputs and targets.
    assert counted[1] - counted[0] == Traffic(uploads=2 * 2 * 2)


@pytest.mark.parametrize(
    ("method", "server_waits"),
    # Whether each vector of the new state is finite; FedWMSAM also tells α and the similarities.
    [("fedavg", 1), ("scaffold", 2), ("fedwmsam", 4 + 1 + 4), ("fedsam", 1)],
)
def test_a_round_waits_a_few_times_for_each_client(method: str, server_waits: int):
    options = QUICK | {"method": method, "participation": 1.0}
    counted = []
    for rounds in (1, 2):
        with measure_traffic() as traffic:
            fit(linear_model, CLIENTS, device=NAME, **options | {"rounds": rounds})
        counted.append(traffic)
    # Of each client: its indices, its loss, whether its update is finite, the update's length.
    assert counted[1] - counted[0] == Traffic(uploads=4, waits=4 * 3 + server_waits)


@pytest.mark.parametrize("length", [1e-3, 0.9999, 1.0, 1.0001, 5.0, 1e30, math.nan, math.inf])
def test_a_vector_is_clipped_as_on_the_cpu(length: float):
    v = torch.linspace(-1, 1, 7) * length / torch.linspace(-1, 1, 7).norm()
    clipped = clip(v.to(NAME), 1.0).cpu()
    assert clipped.equal(clip(v, 1.0)) or (clipped.isnan() & clip(v, 1.0).isnan()).all()
