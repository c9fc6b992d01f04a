"""The assembly of a run from settings, a method, a model and clients, and its execution.

`fit`, the command line and Flower make their runs here. `make_run` checks that the parts go
together and puts them into a `Run`; `execute` trains it and returns its `Result`.
"""

import logging
import math
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import torch

from fedwmsam import rng, toml
from fedwmsam.data.adapter import DataAdapter, infer_output_shape
from fedwmsam.data.clients import (
    Clients,
    LazyClients,
    NamedClients,
    TensorSamples,
    client_label,
    names_of,
)
from fedwmsam.data.fingerprint import describe_change
from fedwmsam.engine import privacy
from fedwmsam.engine.aggregation import check_rule
from fedwmsam.engine.faults import Faults
from fedwmsam.engine.privacy import Privacy
from fedwmsam.engine.provenance import describe_session
from fedwmsam.engine.ray_workers import RayCrew
from fedwmsam.engine.records import Record, read_json
from fedwmsam.engine.rounds import Federation
from fedwmsam.engine.run import Callback, Run, client_accuracies, restore
from fedwmsam.engine.run_folder import FINGERPRINT, RunFolder, is_run
from fedwmsam.engine.schedule import LearningRate, SeededSchedule
from fedwmsam.engine.worker_process import cores
from fedwmsam.engine.workers import Pool
from fedwmsam.errors import InputError
from fedwmsam.experiment.evaluation import AccuracyBreakdown
from fedwmsam.experiment.result import Result
from fedwmsam.methods import Method
from fedwmsam.methods.base import check_functions
from fedwmsam.recording.recorder import DynamicsRecorder
from fedwmsam.settings.config import (
    ALWAYS_IDENTIFYING,
    STOPPING_SETTINGS,
    Settings,
    defaults_of,
    identifying_settings,
)
from fedwmsam.settings.options import LARGEST
from fedwmsam.settings.parsers import (
    NO_STRAGGLERS,
    LearningRateRule,
    RayWorkers,
    parse_aggregation,
    parse_corruption,
    parse_lr_schedule,
    parse_stragglers,
    parse_workers,
)
from fedwmsam.training.local import LocalRules
from fedwmsam.training.objectives import MetricFunction, Objective
from fedwmsam.training.task import Samples, Task

log = logging.getLogger("fedwmsam")


def make_run(
    settings: Settings,
    method: Method,
    task: Task,
    clients: Clients,
    test: Samples | None,
    validation: Samples | None,
    callbacks: Sequence[Callback] = (),
    sizes: Sequence[int] | None = None,
    lr_function: Callable[[int], float] | None = None,
) -> Run:
    """Return a run that is ready to be executed.

    `sizes` are the clients' numbers of samples, for clients that are loaded lazily; `lr_function`
    is the step size by round, if the user has given a function. Raise InputError for settings that
    do not go with the method, the model or the data.
    """
    check_stopping(settings, task.objective, test, validation)
    federation = make_federation(settings, method, task, clients, sizes, lr_function)
    warn_of_clipped_adam(settings, task.parameter_count)
    if task.dtype == torch.bfloat16:  # as transformers loads a model that was saved so
        log.warning(
            "The model's weights are bfloat16, which loses small steps; convert it with .float() "
            "and use precision='bf16', or keep it for its size."
        )
    kinds = settings.recording_kinds()
    recorder = DynamicsRecorder(kinds, settings.record_every, settings.seed) if kinds else None
    return Run(federation, settings, test, validation, recorder=recorder, callbacks=callbacks)


def check_stopping(
    settings: Settings, objective: Objective, test: object, validation: object
) -> None:
    """Raise InputError if early stopping is asked for without the data or the metric it needs."""
    if settings.patience is not None and validation is None:
        raise InputError(
            "patience needs validation data: "
            "stopping by the test data would choose the model on them."
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
    lr_function: Callable[[int], float] | None = None,
) -> Federation:
    """Return the federation of a run: its method, model, clients, schedule and faults.

    `sizes` and `lr_function` are as for `make_run`. Raise InputError for settings that do not go
    with the method, the model or the data.
    """
    total = count_samples(settings, clients, sizes)
    schedule = SeededSchedule(
        seed=settings.seed,
        clients=len(clients),
        cohort_size=settings.cohort_size(len(clients)),
        sampling=settings.sampling,
        local_epochs=settings.local_epochs,
        batch_size=settings.batch_size,
        learning_rate=make_learning_rate(settings, lr_function),
        empty_rounds=settings.uses_privacy,
        local_steps=settings.local_steps,
        last_batch=settings.last_batch,
    )
    check_method_settings(settings, method, task)
    check_single_samples(settings, task, clients)
    return Federation(
        method,
        task,
        clients,
        schedule,
        make_local_rules(settings),
        settings.averaging,
        total,
        parse_aggregation(settings.aggregation or "mean"),
        make_faults(settings, task, clients),
        make_privacy(settings, method, task, schedule, total),
        settings.twin,
    )


def make_learning_rate(settings: Settings, function: Callable[[int], float] | None) -> LearningRate:
    """Return the step size by round.

    Raise InputError if a function is missing, or returns anything but a number above 0.
    """
    if settings.lr_schedule is None:
        rule = LearningRateRule("exponential", value=settings.lr_decay)
        return LearningRate(settings.lr, rule, settings.lr_warmup)
    rule = parse_lr_schedule(settings.lr_schedule)
    if rule.kind == "function":
        if function is None:
            raise InputError(
                f"lr_schedule {settings.lr_schedule!r} is a function of Python: it works in fit()."
            )
        values = tuple(step_size_of(function, round) for round in range(settings.rounds))
        return LearningRate(1.0, replace(rule, values=values))
    return LearningRate(settings.lr, rule, settings.lr_warmup)


def step_size_of(function: Callable[[int], float], round: int) -> float:
    """Return the step size that the user's function gives a round, counted from 0.

    Raise InputError if it is no number above 0.
    """
    try:
        value = float(function(round))
    except (TypeError, ValueError) as error:
        raise InputError(
            f"lr_schedule must be a function from the round to the step size: {error}."
        ) from error
    if not 0 < value < LARGEST:
        raise InputError(f"lr_schedule returns {value!r} for round {round}; it must be above 0.")
    return value


def make_local_rules(settings: Settings) -> LocalRules:
    """Return the rules of a local step, whose fields are settings of the same names."""
    return LocalRules(**{f.name: getattr(settings, f.name) for f in fields(LocalRules)})


def check_single_samples(settings: Settings, task: Task, clients: Clients) -> None:
    """Raise InputError if the model cannot train on a batch of one sample that a client has.

    BatchNorm has no variance of one value. Clients that are loaded lazily are not looked at.
    """
    if not task.has_batch_norm or isinstance(clients, LazyClients):
        return
    for client in range(len(clients)):
        samples = len(clients[client])
        single = settings.last_batch == "keep" or 1 in (samples, settings.batch_size)
        if single and samples % settings.batch_size == 1 % settings.batch_size:
            batch = clients[client].batch(torch.arange(1))
            if not task.can_train_on(batch):
                raise InputError(single_sample_message(settings, clients, client))


def single_sample_message(settings: Settings, clients: Clients, client: int) -> str:
    """Return why a client has a batch of one sample, and what helps."""
    label = f"Client {client_label(clients, client)}"
    if len(clients[client]) == 1:
        return (
            f"{label} has one sample, and BatchNorm needs two in a batch, whatever last_batch is: "
            "leave the client out, or use a model with GroupNorm."
        )
    if settings.batch_size == 1:
        return f"{label} has batches of one sample, and BatchNorm needs two: raise batch_size."
    return (
        f"{label} has {len(clients[client])} samples, so that its last batch of "
        f"{settings.batch_size} has one, and BatchNorm needs two: use last_batch=merge or drop, "
        "or another batch_size."
    )


def count_samples(settings: Settings, clients: Clients, sizes: Sequence[int] | None) -> int | None:
    """Return the number of samples of all clients, or None if no setting depends on it.

    Lazily loaded clients are not loaded to be counted: raise InputError if `sizes` is missing for
    them, or has another length than there are clients.
    """
    if settings.averaging != "size" and not settings.uses_privacy:
        return None
    if isinstance(clients, LazyClients) and sizes is None:
        what = "Averaging by size" if settings.averaging == "size" else "Differential privacy"
        raise InputError(
            f"{what} over lazily loaded clients needs client_sizes, their numbers of samples."
        )
    if sizes is not None and len(sizes) != len(clients):
        raise InputError(f"client_sizes names {len(sizes)} clients, but there are {len(clients)}.")
    if sizes is not None:
        return sum(sizes)
    return sum(len(clients[k]) for k in range(len(clients)))


def check_method_settings(settings: Settings, method: Method, task: Task) -> None:
    """Raise InputError if the method or the model does not support a setting.

    These are the aggregation rule, averaging by size, the clients' optimizer and differential
    privacy. Nor may a function of the method be misspelt or take other arguments.
    """
    check_functions(type(method))
    if method.needs_plain_gradients and make_local_rules(settings).make_preconditioner():
        raise InputError(
            f"{method.name} needs optimizer=sgd without momentum: {method.needs_plain_gradients}."
        )
    rule = parse_aggregation(settings.aggregation or "mean")
    check_rule(rule, method, task.initial_weights, settings.averaging)
    if settings.uses_privacy:
        privacy.check_privacy_support(method, task.initial_weights, task.initial_buffers)
        privacy.import_accounting()


def warn_of_clipped_adam(settings: Settings, parameters: int) -> None:
    """Log a warning if the clip, whose default suits gradients, shortens all of Adam's steps."""
    length = math.sqrt(parameters)
    is_adam = settings.optimizer in ("adam", "adamw")
    if is_adam and settings.clip_norm is not None and settings.clip_norm < length:
        log.warning(
            "clip_norm=%g shortens every step: the directions of %s in a model of %d parameters "
            "are about %.0f long. Use clip_norm=None (--clip-norm none) unless you mean it.",
            settings.clip_norm,
            settings.optimizer,
            parameters,
            length,
        )


def make_faults(settings: Settings, task: Task, clients: Clients) -> Faults | None:
    """Return the simulated faults of a run, or None if it has none.

    Raise InputError if labels are to be flipped but the loss has no class labels.
    """
    corruption = None if settings.corrupt is None else parse_corruption(settings.corrupt)
    stragglers = parse_stragglers(settings.stragglers, settings.deadline)
    if not settings.dropout and stragglers == NO_STRAGGLERS and corruption is None:
        return None
    classes = 0
    if corruption and corruption.kind == "label_flip":
        if not task.objective.class_labels:
            raise InputError("corrupt=label_flip needs class labels; this loss has none.")
        inputs, _ = clients[0].batch(torch.arange(1))
        classes = infer_output_shape(task, f"Client {client_label(clients, 0)}", inputs)[1]
    return Faults(
        settings.seed, len(clients), settings.dropout or 0.0, stragglers, corruption, classes
    )


def make_privacy(
    settings: Settings, method: Method, task: Task, schedule: SeededSchedule, total: int | None
) -> Privacy | None:
    """Return the differential privacy of a run, or None if it has none.

    Where the settings give a target ε instead of the noise, the noise is calibrated to it. `total`
    is the number of samples of all clients.
    """
    if not settings.uses_privacy:
        return None
    assert settings.dp_clip and settings.dp_delta and total
    rate = schedule.cohort_size / schedule.clients
    noise = settings.dp_noise
    delta = settings.dp_delta
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
        schedule.step_count(0, 0, samples),
        samples,
    )


@contextmanager
def use_workers(run: Run, workers: int | str) -> Iterator[None]:
    """Train the run's clients and evaluate its models on workers while the context lasts.

    0 workers means a process for each core, one worker means this process, and a text such as
    "ray:4" means actors of a Ray cluster. Raise InputError if the model is on a device that these
    workers do not have.
    """
    request = parse_workers(str(workers))
    if (request or cores()) == 1:
        yield
        return
    check_device(request, run.federation.task.device)
    data = {"the test data": run.test, "the validation data": run.validation}
    given = {name: samples for name, samples in data.items() if samples is not None}
    with make_crew(run.federation, request, given) as crew:
        run.federation = replace(run.federation, trainer=crew.train)
        run.helpers = crew
        yield


def make_crew(
    federation: Federation, request: int | RayWorkers, data: Mapping[str, Samples]
) -> Pool | RayCrew:
    """Return the worker processes or the actors of Ray that are asked for, to be entered."""
    if isinstance(request, RayWorkers):
        return RayCrew(federation, request, data)
    return Pool(federation, request or cores(), data)


def check_device(request: int | RayWorkers, device: torch.device) -> None:
    """Raise InputError unless these workers compute on the device."""
    if isinstance(request, RayWorkers):
        if bool(request.num_gpus) != (device.type != "cpu"):
            raise InputError(
                f"Actors of Ray compute on the device of the run, which is {str(device)!r}, and "
                f"reserve num_gpus={request.num_gpus:g}: use device='cuda' with a num_gpus, such "
                "as workers='ray:4,num_gpus=0.25', or neither."
            )
    elif device.type != "cpu":
        raise InputError(
            f"workers={request} needs device='cpu', and here it is {str(device)!r}: an accelerator "
            "is used from one process. Leave workers at 1, or compute on the CPU."
        )


def config_values(
    settings: Settings,
    method: Method,
    clients: int,
    task: Task,
    loss: str | MetricFunction,
    validation: Any,
) -> dict[str, Any]:
    """Return the configuration that config.toml holds for a run of `fit` or of Flower."""
    return (
        {"method": method.name, "clients": clients}
        | asdict(settings)
        | asdict(method)
        | {
            "loss": loss_name(loss),
            "monitor": task.objective.monitor,
            "validation": describe_validation(validation),
            "architecture": rng.digest(repr(task.model)),
        }
    )


def loss_name(loss: str | MetricFunction) -> str:
    """Return the name of a loss, or that of the function that computes it."""
    if isinstance(loss, str):
        return loss
    return getattr(loss, "__qualname__", type(loss).__name__)


def describe_validation(validation: Any) -> Any:
    """Return the validation share, 0.0 without validation data, or "given" for data."""
    if isinstance(validation, float):
        return validation
    return 0.0 if validation is None else "given"


def open_folder(
    path: Path, config: dict[str, Any], resume: bool, data: Record | None = None
) -> RunFolder:
    """Return a new run folder or, with `resume`, that of an earlier run if there is one.

    `data` is the fingerprint of the clients' data, which a new folder keeps. Raise InputError if
    the folder holds a run and is not to be resumed, or if a setting differs that would change
    results.
    """
    if not resume or not is_run(path):
        return RunFolder.create(path, config, {FINGERPRINT: data} if data else None)
    folder = RunFolder.open(path)
    saved = identifying_settings(toml.load(path / "config.toml"))
    requested = identifying_settings(tomllib.loads(toml.dump(config)))
    defaults = {
        key: value
        for key, value in defaults_of(config["method"]).items()
        if key not in ALWAYS_IDENTIFYING
    }
    for key in requested | saved:
        if key not in STOPPING_SETTINGS and saved.get(key) != requested.get(key):
            folder.close()
            old = saved.get(key, defaults.get(key))
            new = requested.get(key, defaults.get(key))
            raise InputError(
                f"{path} was run with {key} = {old!r}, not {new!r}; use the same, or a new folder."
            )
    return folder


def check_client_data(folder: RunFolder, data: Record, clients: Clients) -> None:
    """Raise InputError if the clients' data are not those that the run was begun with.

    Folders of older versions have no fingerprint to compare with.
    """
    path = folder.path / FINGERPRINT
    if path.exists() and (change := describe_change(read_json(path), data, clients)):
        folder.close()
        raise InputError(
            f"{folder.path} was begun with other data: {change}; "
            "put the old ones back, or use a new folder."
        )


def make_breakdown(
    settings: Settings, task: Task, clients: Clients, test: Samples | None
) -> AccuracyBreakdown | None:
    """Return what splits the test accuracy by client, if the clients have names, or None.

    Their data must be class labels in memory, one a sample, for their classes to be known. A
    private run must not tell what classes a client has.
    """
    if not isinstance(clients, NamedClients) or test is None or settings.uses_privacy:
        return None
    data = [samples for samples in clients if isinstance(samples, TensorSamples)]
    flat = all(
        samples.targets.ndim == 1 and not samples.targets.is_floating_point() for samples in data
    )
    if not task.objective.class_labels or not flat or len(data) < len(clients):
        return None
    inputs, _ = data[0].batch(torch.arange(1))
    shape = infer_output_shape(task, f"Client {client_label(clients, 0)}", inputs)
    counted = [samples.targets[samples.targets >= 0].cpu() for samples in data]
    counts = torch.stack([torch.bincount(targets, minlength=shape[1]) for targets in counted])
    return AccuracyBreakdown(shape[1], counts)


def accuracies_by_name(run: Run) -> dict[str, float | None]:
    """Return the last model's accuracy for each client that has a name."""
    names = names_of(run.federation.clients)
    if not names or run.breakdown is None or run.test is None:
        return {}
    record = client_accuracies(run.predict, run.state, run.test, run.breakdown)
    return dict(zip(names, record["accuracy"], strict=True))


@contextmanager
def recorded_session(
    run: Run, folder: RunFolder, command: Sequence[str], packages: Mapping[str, str]
) -> Iterator[None]:
    """Note in the run's folder what trains it while the context lasts, and its settings.

    A resumed run may have another number of rounds than its config.toml had.
    """
    if run.helpers:
        packages = {**packages, **run.helpers.packages}
    session = describe_session(
        command, run.federation.task.device, packages, run.settings.record_host
    )
    session |= run.helpers.describe() if run.helpers else {"workers": 1}
    folder.begin_session(run.config, session | {"first_round": run.state.round + 1})
    try:
        yield
    finally:
        folder.end_session(run.state.round)


def execute_run(
    run: Run,
    config: dict[str, Any],
    adapter: DataAdapter,
    command: Sequence[str],
    packages: Mapping[str, str] | None = None,
) -> Result:
    """Train a run to its end and return its result; resume it if its folder has a checkpoint.

    The command and the versions of further packages are for the folder's provenance.json.
    """
    run.config = config
    try:
        if run.folder:
            restore(run, run.folder)
            with recorded_session(run, run.folder, command, packages or {}):
                run.execute()
        else:
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
        adapter=adapter,
        client_names=names_of(run.federation.clients),
        client_accuracies=accuracies_by_name(run),
    )
