"""`fit`: federated training of your model on your clients' data, in one call."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec

import torch

from fedwmsam import rng
from fedwmsam.data.adapter import DataAdapter, make_data_adapter
from fedwmsam.data.clients import Clients, Collate, hold_out_per_client
from fedwmsam.data.fingerprint import fingerprint
from fedwmsam.engine.provenance import script_name
from fedwmsam.engine.run import Callback
from fedwmsam.errors import InputError, same_meaning, unknown_name_message
from fedwmsam.experiment.assembly import (
    check_client_data,
    config_values,
    execute_run,
    make_breakdown,
    make_run,
    open_folder,
    use_workers,
)
from fedwmsam.experiment.progress import make_progress
from fedwmsam.experiment.result import Result
from fedwmsam.methods import METHODS, Method, make_method
from fedwmsam.methods.vectors import Vectors
from fedwmsam.settings.config import Settings
from fedwmsam.settings.method_table import (
    allow_import,
    method_class,
    methods_with_option,
    option_names,
)
from fedwmsam.training.objectives import MetricFunction, make_objective
from fedwmsam.training.task import ModelSource, Samples, Task, deterministic_torch

Parameters = ParamSpec("Parameters")


def refuse_unknown_names(
    function: Callable[Parameters, Result],
) -> Callable[Parameters, Result]:
    """Return the function such that it names the most similar argument of one it does not have.

    For editors and type checkers the signature is the function's own.
    """
    names = inspect.signature(function).parameters

    @functools.wraps(function)
    def checked(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        for name in kwargs:
            if name not in names:
                what = f"argument of {function.__name__}"
                message = option_message(
                    name, kwargs.get("method", args[2] if len(args) > 2 else "fedwmsam")
                )
                raise InputError(message or unknown_name_message(what, name, names))
        return function(*args, **kwargs)

    return checked


def option_message(name: str, method: object) -> str | None:
    """Return how an option of a method is passed, or None if no method has one of that name."""
    owners = methods_with_option(name)
    chosen = method if isinstance(method, str) else getattr(method, "name", None)
    if chosen in METHODS and chosen not in owners:
        # What other papers call mu is lam here: a name of the chosen method's means more.
        for meant in same_meaning(name, option_names(str(chosen))):
            name = meant
            owners = [str(chosen)]
    if not owners:
        return None
    owner = method_class(str(chosen) if chosen in owners else owners[0]).__name__
    return f"{name} is an option of the method: pass method={owner}({name}=...)."


@refuse_unknown_names
def fit(
    model: ModelSource,
    clients: Sequence[Any] | Mapping[str, Any] | Callable[[int], Any],
    method: str | Method = "fedwmsam",
    *,
    test: Any = None,
    validation: Any = None,
    rounds: int = Settings.rounds,
    participation: float = Settings.participation,
    clients_per_round: int | None = None,
    local_epochs: int = Settings.local_epochs,
    batch_size: int = Settings.batch_size,
    lr: float = Settings.lr,
    lr_decay: float = Settings.lr_decay,
    lr_schedule: str | Callable[[int], float] | None = None,
    lr_warmup: int = Settings.lr_warmup,
    local_steps: int | None = None,
    last_batch: str = Settings.last_batch,
    optimizer: str = Settings.optimizer,
    momentum: float = Settings.momentum,
    adam_beta1: float = Settings.adam_beta1,
    adam_beta2: float = Settings.adam_beta2,
    adam_epsilon: float = Settings.adam_epsilon,
    micro_batch: int | None = None,
    precision: str = Settings.precision,
    weight_decay: float = Settings.weight_decay,
    weight_decay_mode: str = Settings.weight_decay_mode,
    clip_norm: float | None = Settings.clip_norm,
    averaging: str = Settings.averaging,
    sampling: str = Settings.sampling,
    aggregation: str | None = None,
    twin: float | None = None,
    dropout: float | None = None,
    stragglers: str | None = None,
    deadline: float | None = None,
    corrupt: str | None = None,
    dp_noise: float | None = None,
    dp_epsilon: float | None = None,
    dp_clip: float | None = None,
    dp_delta: float | None = None,
    loss: str | MetricFunction = "classification",
    metrics: Mapping[str, MetricFunction] | None = None,
    monitor: str | None = None,
    seed: int = Settings.seed,
    device: str | torch.device = Settings.device,
    workers: int | str = Settings.workers,
    client_count: int | None = None,
    client_sizes: Sequence[int] | None = None,
    collate: Collate | None = None,
    target: str | None = None,
    initial_weights: Vectors | None = None,
    run_folder: str | Path | None = None,
    resume: bool = False,
    evaluate_every: int = Settings.evaluate_every,
    checkpoint_every: int = Settings.checkpoint_every,
    target_accuracy: float | None = None,
    patience: int | None = None,
    time_budget: float | None = None,
    memory_budget: float = Settings.memory_budget,
    keep_states: int | None = Settings.keep_states,
    record: str | None = Settings.record,
    record_every: int = Settings.record_every,
    record_host: bool = Settings.record_host,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
) -> Result:
    """Train `model` over `clients` and return a `Result`.

    Raise InputError, before training starts, for settings or data that are wrong or do not go
    together.

    model: an nn.Module (copied, never changed) or a function that returns a new one (initialised
        from `seed`).
    clients: a list with the data of each client: (x, y) arrays or tensors, where x may also be a
        tuple or a mapping of them (the model is called with its parts as arguments); mappings with
        "labels", as transformers has them; DataFrames with the column `target`; map-style datasets
        (`collate` for their batches); DataLoaders. Or a dict from the clients' names to any of
        these; messages, recordings and `Result.client_accuracies` then use the names. Or a function
        client → any of these, with `client_count`, called when a client is sampled (`client_sizes`
        if averaging by size).
    method: a name (`fedwmsam.METHODS`, or "package.module:Class" for your own) or an instance with
        options, such as FedWMSAM(rho=0.05).
    test, validation: data like a client's. `validation` may be a share (0.1) to cut from each
        client; the best model is chosen on it, never on `test`.
    loss: "classification", "regression", "multilabel", or a function of (outputs, targets).
        `metrics` maps names to such functions, called once on all outputs, and replaces the loss's
        own (accuracy, mae …); `monitor` names the one that defines "best" ("-mae": lower wins).
    optimizer: what becomes of a gradient before the method uses it: "sgd" and "nesterov" with
        `momentum`, "adam", "adamw"; its state is fresh in every round. `local_steps` instead of
        epochs; `last_batch` "drop" or "merge" for samples that do not fill one; `lr_schedule`
        "cosine", "step:100:0.1", "exponential:0.99" or a function of the round (from 0) that
        returns the step size, after `lr_warmup` rounds; `micro_batch` samples at a time through
        the model; `precision` "bf16". docs/local-training.md has a table.
    aggregation: "median", "trimmed:0.1" or "norm_bound:TAU" instead of the mean, against hostile
        clients.
    twin: γ (try 8) of an averaged model (the twin): an average of the global models, evaluated
        beside them (`averaged_accuracy` …) and never trained on; see `Result.averaged_model`.
        docs/compare.md says what it is good for.
    dropout, stragglers, deadline, corrupt: simulated faults; docs/trust.md.
    dp_noise, dp_epsilon, dp_clip, dp_delta: client-level differential privacy, by noise or by a
        target ε; docs/trust.md.
    initial_weights: a state_dict to start from.
    workers: processes that train clients in parallel (0: one for each core), or "ray", "ray:4" for
        actors of a Ray cluster (docs/clusters.md); the results are the same for any number.
    device: "cpu", "cuda", "cuda:1", "mps", or "auto" for the first of CUDA, MPS and CPU that is
        there; docs/project/versions.md says what was tried. Several worker processes need the CPU.
    memory_budget: megabytes of RAM for what a method keeps per client; the rest is on disk, with
        the same results.
    run_folder: where to keep the run; with `resume=True` an interrupted or finished run there goes
        on, for example from 500 to 800 rounds. Settings that would change its results must be the
        same, and so must the clients' data: those in memory are compared by a digest, datasets by
        their size; clients that are loaded lazily are up to you.
    keep_states: keep the server's state before every so many rounds, so that these rounds can be
        replayed exactly.
    record: "alignment", "drift" and "echo", or several with commas: measured every `record_every`
        rounds during the run, into `Result.recordings` and the folder's recordings.jsonl; the
        results of the run stay the same.
    record_host: also note the name of this machine in the run folder's provenance.json.
    callbacks: called after each round with `.record`, `.history`, `.state_dict()` and
        `.stop(reason)`; trackers such as `fedwmsam.trackers.TensorBoard()` too.
    progress: None shows a bar on the terminal's standard error or in the notebook, and elsewhere
        writes lines of level INFO to the logger "fedwmsam"; False does neither.

    >>> result = fedwmsam.fit(model, clients, test=(x, y), rounds=100)
    >>> result.last("accuracy"), result.columns["loss"], result.model
    """
    settings = Settings(
        rounds=rounds,
        participation=participation,
        clients_per_round=clients_per_round,
        sampling=sampling,
        local_epochs=local_epochs,
        batch_size=batch_size,
        lr=lr,
        lr_decay=lr_decay,
        lr_schedule=lr_schedule_name(lr_schedule),
        lr_warmup=lr_warmup,
        local_steps=local_steps,
        last_batch=last_batch,
        optimizer=optimizer,
        momentum=momentum,
        adam_beta1=adam_beta1,
        adam_beta2=adam_beta2,
        adam_epsilon=adam_epsilon,
        micro_batch=micro_batch,
        precision=precision,
        weight_decay=weight_decay,
        weight_decay_mode=weight_decay_mode,
        clip_norm=clip_norm,
        averaging=averaging,
        twin=twin,
        seed=seed,
        evaluate_every=evaluate_every,
        checkpoint_every=checkpoint_every,
        target_accuracy=target_accuracy,
        patience=patience,
        time_budget=time_budget,
        memory_budget=memory_budget,
        workers=workers,
        device=str(device),
        keep_states=keep_states,
        record=record,
        record_every=record_every,
        record_host=record_host,
        aggregation=aggregation,
        dropout=dropout,
        stragglers=stragglers,
        deadline=deadline,
        corrupt=corrupt,
        dp_noise=dp_noise,
        dp_epsilon=dp_epsilon,
        dp_clip=dp_clip,
        dp_delta=dp_delta,
    )
    if isinstance(method, str):
        allow_import(method)
        method = make_method(method)
    if not isinstance(callbacks, Sequence) or not all(map(callable, callbacks)):
        raise InputError("callbacks must be a list of functions, for example callbacks=[print].")
    if not isinstance(method, Method):
        raise InputError(
            "method must be a name or a method with its options, such as FedWMSAM(), "
            f"not {method!r}."
        )
    if resume and run_folder is None:
        raise InputError("resume=True needs run_folder=, the folder of the run that is to go on.")
    objective = make_objective(loss, metrics, monitor)
    if monitor is not None and validation is None and test is None:
        raise InputError(
            f"monitor={monitor!r} needs data to measure it on: give validation= (by which the best "
            "model is chosen) or test=, or leave monitor out."
        )
    display = make_progress(progress, settings, objective)
    with deterministic_torch():
        task = Task(model, objective, seed=rng.derive_seed(seed, "init"), device=device)
        adapter = make_data_adapter(task, collate, target)
        all_clients = adapter.to_clients(clients, client_count)
        train_clients, validation_data = choose_validation(adapter, all_clients, validation, seed)
        test_data = None if test is None else adapter.to_samples(test, "The test data")
        run = make_run(
            settings,
            method,
            task,
            train_clients,
            test_data,
            validation_data,
            [*callbacks, *display],
            client_sizes,
            lr_schedule if callable(lr_schedule) else None,
        )
        run.breakdown = make_breakdown(settings, task, all_clients, test_data)
        if initial_weights is not None:
            run.warm_start(initial_weights)
        config = config_values(settings, method, len(train_clients), task, loss, validation)
        with use_workers(run, settings.workers):
            if run_folder is not None:
                # A digest of their data would tell of clients what a private run must not.
                data = None if settings.uses_privacy else fingerprint(all_clients, client_sizes)
                run.folder = open_folder(Path(run_folder), config, resume, data)
                if data:
                    check_client_data(run.folder, data, all_clients)
            return execute_run(run, config, adapter, ["fit", script_name()])


def lr_schedule_name(lr_schedule: str | Callable[[int], float] | None) -> str | None:
    """Return a schedule of the step size as the settings hold it; of a function the name."""
    if callable(lr_schedule):
        return f"function:{getattr(lr_schedule, '__name__', type(lr_schedule).__name__)}"
    return lr_schedule


def choose_validation(
    adapter: DataAdapter, clients: Clients, validation: Any, seed: int
) -> tuple[Clients, Samples | None]:
    """Return the clients to train on, and the validation data or None.

    `validation` is None, data, or the share of samples to cut from each client. Raise InputError
    for a share outside of (0, 1) and for data that the model cannot take.
    """
    if validation is None:
        return clients, None
    if not isinstance(validation, float):
        return clients, adapter.to_samples(validation, "The validation data")
    if not 0 < validation < 1:
        raise InputError(f"A validation share must lie between 0 and 1, not {validation!r}.")
    return hold_out_per_client(clients, validation, seed)
