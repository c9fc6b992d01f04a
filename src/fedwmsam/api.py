"""`fit`: federated training of your model on your clients' data, in one call."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedwmsam import streams, toml
from fedwmsam.config import RunConfig, Settings
from fedwmsam.data.clients import Clients, Collate, LazyClients, Reader, split_validation
from fedwmsam.engine.folder import RunFolder, is_run
from fedwmsam.engine.rounds import Federation
from fedwmsam.engine.run import Callback, Plan, Run
from fedwmsam.engine.schedule import KeyedSchedule
from fedwmsam.errors import InputError
from fedwmsam.methods import Method, make_method
from fedwmsam.result import Result
from fedwmsam.training.local import LocalRules
from fedwmsam.training.objectives import Measure, Objective, make_objective
from fedwmsam.training.task import ModelSource, Samples, Task
from fedwmsam.training.vectors import Vectors

FREE_TO_CHANGE = ("rounds", "target_accuracy", "patience", "time_budget", "checkpoint_every", "device")
"""What may differ when a run goes on: nothing that would change its numbers."""


def fit(
    model: ModelSource,
    clients: Sequence[Any] | Callable[[int], Any],
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
    weight_decay: float = Settings.weight_decay,
    weight_decay_mode: str = Settings.weight_decay_mode,
    clip_norm: float | None = Settings.clip_norm,
    averaging: str = Settings.averaging,
    sampling: str = Settings.sampling,
    loss: str | Measure = "classification",
    metrics: Mapping[str, Measure] | None = None,
    monitor: str | None = None,
    seed: int = Settings.seed,
    device: str = Settings.device,
    client_count: int | None = None,
    client_sizes: Sequence[int] | None = None,
    collate: Collate | None = None,
    initial_weights: Vectors | None = None,
    run_folder: str | Path | None = None,
    resume: bool = False,
    evaluate_every: int = Settings.evaluate_every,
    checkpoint_every: int = Settings.checkpoint_every,
    target_accuracy: float | None = None,
    patience: int | None = None,
    time_budget: float | None = None,
    callbacks: Sequence[Callback] = (),
) -> Result:
    """Train `model` over `clients` and return a `Result`.

    model: an nn.Module (copied, never changed) or a function that returns a new one (initialised from `seed`).
    clients: a list of (x, y) arrays or tensors, a list of map-style datasets (`collate` for their batches), or a
        function client → either, with `client_count`, called when a client is sampled (`client_sizes` if averaging by
        size).
    method: a name (`fedwmsam.METHODS`) or an instance with options, such as FedWMSAM(rho=0.05).
    test, validation: data like a client's. `validation` may be a share (0.1) to cut from each client; the best model
        is chosen on it, never on `test`.
    loss: "classification", "regression", "multilabel", or a function of (outputs, targets); `metrics` maps names to
        such functions, called once on all outputs; `monitor` names the one that defines "best" ("-mae": lower wins).
    initial_weights: a state_dict to start from.
    run_folder: where to keep the run; with `resume=True` an interrupted or finished run there goes on, for example
        from 500 to 800 rounds.
    callbacks: called after each round with `.record`, `.history`, `.state_dict()` and `.stop(reason)`.

    >>> result = fedwmsam.fit(model, clients, test=(x, y), rounds=100)
    >>> result.last("accuracy"), result.columns["loss"], result.model
    """
    settings = Settings(
        rounds=rounds, participation=participation, clients_per_round=clients_per_round, sampling=sampling,
        local_epochs=local_epochs, batch_size=batch_size, lr=lr, lr_decay=lr_decay, weight_decay=weight_decay,
        weight_decay_mode=weight_decay_mode, clip_norm=clip_norm, averaging=averaging, seed=seed,
        evaluate_every=evaluate_every, checkpoint_every=checkpoint_every, target_accuracy=target_accuracy,
        patience=patience, time_budget=time_budget, device=device,
    )  # fmt: skip
    if isinstance(method, str):
        method = make_method(method)
    objective = make_objective(loss, metrics, monitor)
    with calm_torch():
        task = Task(model, objective, seed=streams.key(seed, "init"), device=device)
        reader = make_reader(task, collate)
        members = reader.clients(clients, client_count)
        held: Samples | None
        if isinstance(validation, float):
            if not 0 < validation < 1:
                raise InputError(f"A validation share must lie between 0 and 1, not {validation!r}.")
            members, held = split_validation(members, validation, seed)
        else:
            held = None if validation is None else reader.samples(validation, "The validation data")
        tested = None if test is None else reader.samples(test, "The test data")
        config = {"method": method.name, "clients": len(members)} | asdict(settings) | asdict(method)
        federation = make_federation(settings, method, task, members, client_sizes)
        folder = None if run_folder is None else open_folder(Path(run_folder), config, resume)
        return execute(settings, federation, tested, held, folder, callbacks, initial_weights, config, reader)


def execute(
    settings: Settings, federation: Federation, test: Samples | None, validation: Samples | None,
    folder: RunFolder | None, callbacks: Sequence[Callback], initial_weights: Vectors | None, config: dict[str, Any],
    reader: Reader,
) -> Result:  # fmt: skip
    """Run what `fit` or the command line has put together."""
    plan = Plan(
        settings.rounds, settings.evaluate_every, settings.checkpoint_every, settings.target_accuracy,
        settings.patience, settings.time_budget,
    )  # fmt: skip
    try:
        check_stopping(settings, federation.task.objective, test, validation)
        run = Run(federation, plan, test, validation, folder, callbacks)
        if initial_weights is not None:
            run.warm_start(initial_weights)
        if folder:
            run.restore()
        run.execute()
    finally:
        if folder:
            folder.close()
    return Result(
        status=run.status, rows=run.history, timings=run.timings, model=run.model(), best_model=run.best_model(),
        best_round=run.best.round if run.best else None, config=config, folder=folder.path if folder else None,
        task=federation.task, reader=reader,
    )  # fmt: skip


def check_stopping(settings: Settings, objective: Objective, test: object, validation: object) -> None:
    if settings.patience is not None and validation is None:
        raise InputError("patience needs validation data: stopping by the test data would choose the model on them.")
    if settings.target_accuracy is not None and (
        "accuracy" not in objective.metrics or (test is None and validation is None)
    ):
        raise InputError("target_accuracy needs test or validation data and a metric called 'accuracy'.")


def open_folder(path: Path, config: dict[str, Any], resume: bool) -> RunFolder:
    """A new folder, or with `resume` the one of an earlier run with the same settings."""
    if not resume or not is_run(path):
        return RunFolder.create(path, config)
    folder = RunFolder.open(path)
    before = toml.load(path / "config.toml")
    for key in (before.keys() | config.keys()) - set(FREE_TO_CHANGE):
        if before.get(key) != config.get(key):
            folder.close()
            raise InputError(
                f"{path} was run with {key} = {before.get(key)!r}, not {config.get(key)!r}; "
                "use the same, or a new folder."
            )
    return folder


def make_federation(
    settings: Settings, method: Method, task: Task, clients: Clients, sizes: Sequence[int] | None = None
) -> Federation:
    total = None
    if settings.averaging == "size":
        if isinstance(clients, LazyClients) and sizes is None:
            raise InputError(
                "Averaging by size over lazily loaded clients needs client_sizes, their numbers of samples."
            )
        total = sum(sizes) if sizes is not None else sum(len(clients[k]) for k in range(len(clients)))
    schedule = KeyedSchedule(
        seed=settings.seed, clients=len(clients), per_round=settings.per_round(len(clients)),
        sampling=settings.sampling, local_epochs=settings.local_epochs, batch_size=settings.batch_size,
        learning_rate=settings.lr, lr_decay=settings.lr_decay,
    )  # fmt: skip
    rules = LocalRules(settings.weight_decay, settings.weight_decay_mode, settings.clip_norm)
    return Federation(method, task, clients, schedule, rules, settings.averaging, total)


def make_reader(task: Task, collate: Collate | None = None) -> Reader:
    """Reads data for this task; checks them once against what the model and the loss can take."""
    classes: dict[str, int] = {}

    def check(whose: str, inputs: Any, targets: Tensor) -> None:
        if isinstance(inputs, Tensor) and inputs.is_floating_point() and not bool(torch.isfinite(inputs).all()):
            raise InputError(f"{whose}: the inputs hold NaN or infinity; clean them first.")
        if targets.is_floating_point() and not bool(torch.isfinite(targets).all()):
            raise InputError(f"{whose}: the targets hold NaN or infinity; clean them first.")
        if "outputs" not in classes:
            classes["outputs"] = probe(task, whose, inputs)
        if task.objective.class_labels:
            check_labels(whose, targets, classes["outputs"])

    return Reader(task.dtype, task.device, check, collate, task.objective.class_labels)


def probe(task: Task, whose: str, inputs: Any) -> int:
    """The model's number of outputs, found with one sample; says so if the model cannot take the inputs."""
    task.model.eval()
    first = inputs[:1] if isinstance(inputs, Tensor) else inputs
    try:
        with torch.no_grad():
            return int(task.model(first).shape[-1])
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
        shape = tuple(first.shape) if isinstance(first, Tensor) else type(first).__name__
        reason = " ".join(str(error).split())
        raise InputError(f"{whose}: the model cannot take inputs of shape {shape}: {reason}.") from error


def check_labels(whose: str, targets: Tensor, classes: int) -> None:
    if targets.is_floating_point() or targets.dtype == torch.bool:
        raise InputError(f"{whose}: class labels must be whole numbers, not {targets.dtype}; use y.long().")
    if targets.numel() and not 0 <= int(targets.min()) <= int(targets.max()) < classes:
        wrong = int(targets.min()) if int(targets.min()) < 0 else int(targets.max())
        raise InputError(
            f"{whose}: label {wrong} is out of range: the model has {classes} outputs, labels 0 to {classes - 1}."
        )


def rebuild(folder: Path, model: ModelSource | None) -> tuple[Task | None, Reader | None]:
    """The task and reader of a saved run: from the given model, or from the data set and model the folder names."""
    if model is None and (folder / "data.json").exists():
        from fedwmsam.experiment import model_of

        model = model_of(folder)
    if model is None:
        return None, None
    with calm_torch():
        task = Task(model, make_objective("classification"))
        return task, make_reader(task)


@contextmanager
def calm_torch() -> Iterator[None]:
    """One thread, so that sums always add in one order; the caller's thread count and random state come back after."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(threads)


__all__ = ["RunConfig", "fit"]
