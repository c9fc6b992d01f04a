"""From settings to a run and its result, alike for `fit`, the command line and Flower."""

import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from fedwmsam import rng, toml
from fedwmsam.data.adapter import DataAdapter, infer_output_shape
from fedwmsam.data.clients import Clients, LazyClients
from fedwmsam.engine import privacy
from fedwmsam.engine.aggregation import check_rule
from fedwmsam.engine.faults import Faults
from fedwmsam.engine.privacy import Privacy
from fedwmsam.engine.rounds import Federation
from fedwmsam.engine.run import Callback, Run, restore
from fedwmsam.engine.run_folder import RunFolder, is_run
from fedwmsam.engine.schedule import KeyedSchedule
from fedwmsam.engine.worker_process import cores
from fedwmsam.engine.workers import Pool
from fedwmsam.errors import InputError
from fedwmsam.experiment.result import Result
from fedwmsam.methods import Method
from fedwmsam.recording.recorder import DynamicsRecorder
from fedwmsam.settings.config import (
    ALWAYS_IDENTIFYING,
    STOPPING_SETTINGS,
    Settings,
    defaults_of,
    identifying_settings,
)
from fedwmsam.settings.parsers import (
    NO_STRAGGLERS,
    parse_aggregation,
    parse_corruption,
    parse_stragglers,
)
from fedwmsam.training.local import LocalRules
from fedwmsam.training.objectives import MetricFunction, Objective
from fedwmsam.training.task import Samples, Task


def make_run(
    settings: Settings,
    method: Method,
    task: Task,
    clients: Clients,
    test: Samples | None,
    validation: Samples | None,
    callbacks: Sequence[Callback] = (),
    sizes: Sequence[int] | None = None,
) -> Run:
    """A run that has not begun."""
    check_stopping(settings, task.objective, test, validation)
    federation, kinds = make_federation(settings, method, task, clients, sizes), settings.recorded()
    recorder = DynamicsRecorder(kinds, settings.record_every, settings.seed) if kinds else None
    return Run(federation, settings, test, validation, recorder=recorder, callbacks=callbacks)


def check_stopping(
    settings: Settings, objective: Objective, test: object, validation: object
) -> None:
    if settings.patience is not None and validation is None:
        raise InputError(
            "patience needs validation data: stopping by the test data would choose the model on them."
        )
    if settings.target_accuracy is not None and (
        "accuracy" not in objective.metrics or (test is None and validation is None)
    ):
        raise InputError(
            "target_accuracy needs test or validation data and a metric called 'accuracy'."
        )


def make_federation(
    settings: Settings,
    method: Method,
    task: Task,
    clients: Clients,
    sizes: Sequence[int] | None = None,
) -> Federation:
    total = total_samples(settings, clients, sizes)
    schedule = KeyedSchedule(
        seed=settings.seed,
        clients=len(clients),
        per_round=settings.per_round(len(clients)),
        sampling=settings.sampling,
        local_epochs=settings.local_epochs,
        batch_size=settings.batch_size,
        learning_rate=settings.lr,
        lr_decay=settings.lr_decay,
        empty_rounds=settings.private,
    )
    rules = LocalRules(settings.weight_decay, settings.weight_decay_mode, settings.clip_norm)
    check_method(settings, method, task)
    return Federation(
        method,
        task,
        clients,
        schedule,
        rules,
        settings.averaging,
        total,
        parse_aggregation(settings.aggregation or "mean"),
        make_faults(settings, task, clients),
        make_privacy(settings, method, task, schedule, total),
        settings.twin,
    )


def total_samples(settings: Settings, clients: Clients, sizes: Sequence[int] | None) -> int | None:
    """Of all clients; None where nothing depends on it, so that lazily loaded ones need not be counted."""
    if settings.averaging != "size" and not settings.private:
        return None
    if isinstance(clients, LazyClients) and sizes is None:
        what = "Averaging by size" if settings.averaging == "size" else "Differential privacy"
        raise InputError(
            f"{what} over lazily loaded clients needs client_sizes, their numbers of samples."
        )
    if sizes is not None and len(sizes) != len(clients):
        raise InputError(f"client_sizes names {len(sizes)} clients, but there are {len(clients)}.")
    return sum(sizes) if sizes is not None else sum(len(clients[k]) for k in range(len(clients)))


def check_method(settings: Settings, method: Method, task: Task) -> None:
    """Refuse settings that do not go with the method or the model."""
    check_rule(
        parse_aggregation(settings.aggregation or "mean"),
        method,
        task.initial_weights,
        settings.averaging,
    )
    if settings.private:
        privacy.check_method(method, task.initial_weights, task.initial_buffers)
        privacy.accounting()


def make_faults(settings: Settings, task: Task, clients: Clients) -> Faults | None:
    corruption = None if settings.corrupt is None else parse_corruption(settings.corrupt)
    stragglers = parse_stragglers(settings.stragglers, settings.deadline)
    if not settings.dropout and stragglers == NO_STRAGGLERS and corruption is None:
        return None
    classes = 0
    if corruption and corruption.kind == "label_flip":
        if not task.objective.class_labels:
            raise InputError("corrupt=label_flip needs class labels; this loss has none.")
        inputs, _ = clients[0].batch(torch.arange(1))
        classes = infer_output_shape(task, "Client 0", inputs)[1]
    return Faults(
        settings.seed, len(clients), settings.dropout or 0.0, stragglers, corruption, classes
    )


def make_privacy(
    settings: Settings, method: Method, task: Task, schedule: KeyedSchedule, total: int | None
) -> Privacy | None:
    if not settings.private:
        return None
    assert settings.dp_clip and settings.dp_delta and total
    rate, noise, delta = schedule.per_round / schedule.clients, settings.dp_noise, settings.dp_delta
    if noise is None:
        assert settings.dp_epsilon is not None
        noise = privacy.calibrate_noise(settings.dp_epsilon, delta, rate, settings.rounds)
    samples = max(1, round(total / schedule.clients))
    return Privacy(
        method,
        settings.seed,
        noise,
        settings.dp_clip,
        delta,
        rate,
        schedule.count(0, 0, samples),
        samples,
    )


@contextmanager
def with_workers(run: Run, workers: int) -> Iterator[None]:
    """Train on so many processes; one means this one."""
    count = workers or cores()
    if count == 1:
        yield
        return
    if run.federation.task.device.type != "cpu":
        raise InputError(f"workers={workers} needs device='cpu'; a GPU is used from one process.")
    with Pool(run.federation, count) as pool:
        run.federation, run.pool = replace(run.federation, trainer=pool.train), pool
        yield


def configuration(
    settings: Settings,
    method: Method,
    clients: int,
    task: Task,
    loss: str | MetricFunction,
    validation: Any,
) -> dict[str, Any]:
    """What the run's folder says it is."""
    config = {"method": method.name, "clients": clients} | asdict(settings) | asdict(method)
    config |= {
        "loss": name_of(loss),
        "monitor": task.objective.monitor,
        "validation": describe_validation(validation),
    }
    return config | {"architecture": rng.digest(repr(task.model))}


def name_of(loss: str | MetricFunction) -> str:
    return loss if isinstance(loss, str) else getattr(loss, "__qualname__", type(loss).__name__)


def describe_validation(validation: Any) -> Any:
    return validation if isinstance(validation, float) else 0.0 if validation is None else "given"


def open_folder(path: Path, config: dict[str, Any], resume: bool) -> RunFolder:
    """A new folder, or with `resume` the one of an earlier run with the same settings."""
    if not resume or not is_run(path):
        return RunFolder.create(path, config)
    folder = RunFolder.open(path)
    before, now = (
        identifying_settings(told)
        for told in (toml.load(path / "config.toml"), tomllib.loads(toml.dump(config)))
    )
    usual = {
        key: value
        for key, value in defaults_of(config["method"]).items()
        if key not in ALWAYS_IDENTIFYING
    }
    for key in [key for key in (now | before) if key not in STOPPING_SETTINGS]:
        if before.get(key) != now.get(key):
            folder.close()
            old, new = (told.get(key, usual.get(key)) for told in (before, now))
            raise InputError(
                f"{path} was run with {key} = {old!r}, not {new!r}; use the same, or a new folder."
            )
    return folder


def execute(run: Run, config: dict[str, Any], reader: DataAdapter) -> Result:
    """Go on from the run's folder if it holds something, train, and hand over the outcome."""
    run.config = config
    try:
        if run.folder:
            restore(run, run.folder)
            run.folder.write_config(config)  # a resumed run may have a new goal
        run.execute()
    finally:
        run.close()
    return Result(
        status=run.status,
        rows=run.history,
        timings=run.timings,
        recordings=run.recordings,
        model=run.model(),
        best_model=run.best_model(),
        averaged_model=run.averaged_model(),
        best_round=run.best.round if run.best else None,
        config=config,
        folder=run.folder.path if run.folder else None,
        task=run.federation.task,
        reader=reader,
    )
