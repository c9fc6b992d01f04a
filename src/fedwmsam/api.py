"""`fit`: federated training of your model on your clients' data, in one call."""

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedwmsam import streams, toml
from fedwmsam.analysis.recording import Recorder
from fedwmsam.config import GOALS, WITHOUT_EFFECT, Settings
from fedwmsam.data.clients import Clients, Collate, LazyClients, Reader, split_validation
from fedwmsam.engine import privacy
from fedwmsam.engine.faults import Faults, Stragglers, parse_corruption, parse_stragglers
from fedwmsam.engine.folder import RunFolder, is_run
from fedwmsam.engine.nursery import cores
from fedwmsam.engine.observers import Callback
from fedwmsam.engine.privacy import Privacy
from fedwmsam.engine.robust import check_rule, parse_rule
from fedwmsam.engine.rounds import Federation
from fedwmsam.engine.run import Plan, Run
from fedwmsam.engine.saving import restore
from fedwmsam.engine.schedule import KeyedSchedule
from fedwmsam.engine.workers import Pool
from fedwmsam.errors import InputError
from fedwmsam.methods import Method, make_method
from fedwmsam.result import Result
from fedwmsam.training.local import LocalRules
from fedwmsam.training.objectives import OBJECTIVES, Measure, Objective, make_objective
from fedwmsam.training.task import ModelSource, Samples, Task, calm_torch
from fedwmsam.training.vectors import Vectors


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
    aggregation: str | None = None,
    dropout: float | None = None,
    stragglers: str | None = None,
    deadline: float | None = None,
    corrupt: str | None = None,
    dp_noise: float | None = None,
    dp_epsilon: float | None = None,
    dp_clip: float | None = None,
    dp_delta: float | None = None,
    loss: str | Measure = "classification",
    metrics: Mapping[str, Measure] | None = None,
    monitor: str | None = None,
    seed: int = Settings.seed,
    device: str = Settings.device,
    workers: int = Settings.workers,
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
    memory_budget: float = Settings.memory_budget,
    keep_states: int | None = Settings.keep_states,
    record: str | None = Settings.record,
    record_every: int = Settings.record_every,
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
    aggregation: "median", "trimmed:0.1" or "norm_bound:TAU" instead of the mean, against hostile clients.
    dropout, stragglers, deadline, corrupt: simulated faults; docs/faults.md.
    dp_noise, dp_epsilon, dp_clip, dp_delta: client-level differential privacy, by noise or by a target ε;
        docs/privacy.md.
    initial_weights: a state_dict to start from.
    workers: processes that train clients side by side, with the same numbers for any count (0: one for each core).
    memory_budget: megabytes of RAM for what a method keeps per client; the rest is on disk, with the same numbers.
    run_folder: where to keep the run; with `resume=True` an interrupted or finished run there goes on, for example
        from 500 to 800 rounds. Settings that would change its numbers must be the same; that the data are is up to you.
    keep_states: keep what the server knew before every so many rounds, so that they can be replayed exactly.
    record: "alignment", "drift" and "echo", or several with commas: measured every `record_every` rounds while the run
        goes on, into `Result.recordings` and the folder's recordings.jsonl; the run's own numbers stay the same.
    callbacks: called after each round with `.record`, `.history`, `.state_dict()` and `.stop(reason)`; trackers such as
        `fedwmsam.trackers.TensorBoard()` too.

    >>> result = fedwmsam.fit(model, clients, test=(x, y), rounds=100)
    >>> result.last("accuracy"), result.columns["loss"], result.model
    """
    settings = Settings(
        rounds=rounds, participation=participation, clients_per_round=clients_per_round, sampling=sampling,
        local_epochs=local_epochs, batch_size=batch_size, lr=lr, lr_decay=lr_decay, weight_decay=weight_decay,
        weight_decay_mode=weight_decay_mode, clip_norm=clip_norm, averaging=averaging, seed=seed,
        evaluate_every=evaluate_every, checkpoint_every=checkpoint_every, target_accuracy=target_accuracy,
        patience=patience, time_budget=time_budget, memory_budget=memory_budget, workers=workers, device=device,
        keep_states=keep_states, record=record, record_every=record_every,
        aggregation=aggregation, dropout=dropout, stragglers=stragglers, deadline=deadline,
        corrupt=corrupt, dp_noise=dp_noise, dp_epsilon=dp_epsilon, dp_clip=dp_clip, dp_delta=dp_delta,
    )  # fmt: skip
    if isinstance(method, str):
        method = make_method(method)
    if not isinstance(callbacks, Sequence) or not all(map(callable, callbacks)):
        raise InputError("callbacks must be a list of functions, for example callbacks=[print].")
    if not isinstance(method, Method):
        raise InputError(f"method must be a name or a method with its options, such as FedWMSAM(), not {method!r}.")
    objective = make_objective(loss, metrics, monitor)
    with calm_torch():
        task = Task(model, objective, seed=streams.key(seed, "init"), device=device)
        reader = make_reader(task, collate)
        members = reader.clients(clients, client_count)
        members, held = cut_validation(reader, members, validation, seed)
        tested = None if test is None else reader.samples(test, "The test data")
        run = make_run(settings, method, task, members, tested, held, callbacks, client_sizes)
        if initial_weights is not None:
            run.warm_start(initial_weights)
        config = configuration(settings, method, len(members), task, loss, validation)
        with side_by_side(run, settings.workers):
            if run_folder is not None:
                run.folder = open_folder(Path(run_folder), config, resume)
            return execute(run, config, reader)


def configuration(
    settings: Settings, method: Method, clients: int, task: Task, loss: str | Measure, validation: Any
) -> dict[str, Any]:
    """What the run's folder says it is."""
    config = {"method": method.name, "clients": clients} | asdict(settings) | asdict(method)
    config |= {"loss": name_of(loss), "monitor": task.objective.monitor, "validation": described(validation)}
    return config | {"architecture": streams.digest(repr(task.model))}


def cut_validation(reader: Reader, clients: Clients, validation: Any, seed: int) -> tuple[Clients, Samples | None]:
    """The clients to train on and the validation data: given, or a share cut from each client."""
    if validation is None:
        return clients, None
    if not isinstance(validation, float):
        return clients, reader.samples(validation, "The validation data")
    if not 0 < validation < 1:
        raise InputError(f"A validation share must lie between 0 and 1, not {validation!r}.")
    return split_validation(clients, validation, seed)


def name_of(loss: str | Measure) -> str:
    return loss if isinstance(loss, str) else getattr(loss, "__qualname__", type(loss).__name__)


def described(validation: Any) -> Any:
    return validation if isinstance(validation, float) else 0.0 if validation is None else "given"


def make_run(
    settings: Settings, method: Method, task: Task, clients: Clients, test: Samples | None, validation: Samples | None,
    callbacks: Sequence[Callback] = (), sizes: Sequence[int] | None = None,
) -> Run:  # fmt: skip
    """What `fit` and the command line both run."""
    check_stopping(settings, task.objective, test, validation)
    plan = Plan(
        settings.rounds, settings.evaluate_every, settings.checkpoint_every, settings.target_accuracy,
        settings.patience, settings.time_budget, settings.memory_budget, settings.keep_states,
    )  # fmt: skip
    federation, kinds = make_federation(settings, method, task, clients, sizes), settings.recorded()
    recorder = Recorder(kinds, settings.record_every, settings.seed) if kinds else None
    return Run(federation, plan, test, validation, recorder=recorder, callbacks=callbacks)


def execute(run: Run, config: dict[str, Any], reader: Reader) -> Result:
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
        status=run.status, rows=run.history, timings=run.timings, recordings=run.recordings,
        model=run.model(), best_model=run.best_model(),
        best_round=run.best.round if run.best else None, config=config, folder=run.folder.path if run.folder else None,
        task=run.federation.task, reader=reader,
    )  # fmt: skip


@contextmanager
def side_by_side(run: Run, workers: int) -> Iterator[None]:
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
    before, now = toml.load(path / "config.toml"), tomllib.loads(toml.dump(config))
    for key in [key for key in (now | before) if key not in GOALS + WITHOUT_EFFECT]:
        if before.get(key) != now.get(key):
            folder.close()
            raise InputError(
                f"{path} was run with {key} = {before.get(key)!r}, not {now.get(key)!r}; use the same, or a new folder."
            )
    return folder


def make_federation(
    settings: Settings, method: Method, task: Task, clients: Clients, sizes: Sequence[int] | None = None
) -> Federation:
    total = None
    if settings.averaging == "size" or settings.private:
        if isinstance(clients, LazyClients) and sizes is None:
            what = "Averaging by size" if settings.averaging == "size" else "Differential privacy"
            raise InputError(f"{what} over lazily loaded clients needs client_sizes, their numbers of samples.")
        if sizes is not None and len(sizes) != len(clients):
            raise InputError(f"client_sizes names {len(sizes)} clients, but there are {len(clients)}.")
        total = sum(sizes) if sizes is not None else sum(len(clients[k]) for k in range(len(clients)))
    schedule = KeyedSchedule(
        seed=settings.seed, clients=len(clients), per_round=settings.per_round(len(clients)),
        sampling=settings.sampling, local_epochs=settings.local_epochs, batch_size=settings.batch_size,
        learning_rate=settings.lr, lr_decay=settings.lr_decay, empty_rounds=settings.private,
    )  # fmt: skip
    rules = LocalRules(settings.weight_decay, settings.weight_decay_mode, settings.clip_norm)
    check_method(settings, method, task)
    return Federation(
        method, task, clients, schedule, rules, settings.averaging, total, parse_rule(settings.aggregation or "mean"),
        make_faults(settings, task, clients), make_privacy(settings, method, task, schedule, total),
    )  # fmt: skip


def check_method(settings: Settings, method: Method, task: Task) -> None:
    """Refuse settings that do not go with the method or the model."""
    check_rule(parse_rule(settings.aggregation or "mean"), method, task.initial_weights, settings.averaging)
    if settings.private:
        privacy.check_method(method, task.initial_weights, task.initial_buffers)
        privacy.accounting()


def make_faults(settings: Settings, task: Task, clients: Clients) -> Faults | None:
    corruption = None if settings.corrupt is None else parse_corruption(settings.corrupt)
    stragglers = parse_stragglers(settings.stragglers, settings.deadline)
    if not settings.dropout and stragglers == Stragglers() and corruption is None:
        return None
    classes = 0
    if corruption and corruption.kind == "label_flip":
        if not task.objective.class_labels:
            raise InputError("corrupt=label_flip needs class labels; this loss has none.")
        inputs, _ = clients[0].batch(torch.arange(1))
        classes = probe(task, "Client 0", inputs)[1]
    return Faults(settings.seed, len(clients), settings.dropout or 0.0, stragglers, corruption, classes)


def make_privacy(
    settings: Settings, method: Method, task: Task, schedule: KeyedSchedule, total: int | None
) -> Privacy | None:
    if not settings.private:
        return None
    assert settings.dp_clip and settings.dp_delta and total
    rate, noise, delta = schedule.per_round / schedule.clients, settings.dp_noise, settings.dp_delta
    if noise is None:
        assert settings.dp_epsilon is not None
        noise = privacy.noise_for(settings.dp_epsilon, delta, rate, settings.rounds)
    samples = max(1, round(total / schedule.clients))
    return Privacy(method, settings.seed, noise, settings.dp_clip, delta, rate, schedule.count(0, 0, samples), samples)


def make_reader(task: Task, collate: Collate | None = None) -> Reader:
    return Reader(task.dtype, task.device, DataCheck(task), collate, task.objective.class_labels)


class DataCheck:
    """Refuses data that the model or the loss cannot take, before they are trained on."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.accepted: dict[Any, torch.Size] = {}

    def __call__(self, whose: str, inputs: Any, targets: Tensor | None) -> None:
        if isinstance(inputs, Tensor) and inputs.is_floating_point() and not bool(torch.isfinite(inputs).all()):
            raise InputError(f"{whose}: the inputs hold NaN or infinity; clean them first.")
        kind = (inputs.shape[1:], inputs.dtype) if isinstance(inputs, Tensor) else type(inputs)
        if kind not in self.accepted:
            self.accepted[kind] = probe(self.task, whose, inputs)
        if targets is not None:
            check_targets(whose, targets, self.accepted[kind], self.task.objective)


def probe(task: Task, whose: str, inputs: Any) -> torch.Size:
    """The shape of the model's output for one sample; says so if the model cannot take the inputs."""
    task.model.eval()
    first = inputs[:1] if isinstance(inputs, Tensor) else inputs
    try:
        with torch.no_grad():
            outputs = task.model(first)
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
        shape = tuple(first.shape) if isinstance(first, Tensor) else type(first).__name__
        reason = " ".join(str(error).split())
        raise InputError(f"{whose}: the model cannot take inputs of shape {shape}: {reason}.") from error
    if not isinstance(outputs, Tensor):
        raise InputError(
            f"The model must return a tensor, not {type(outputs).__name__}; wrap it in a module that does."
        )
    return outputs.shape


def check_targets(whose: str, targets: Tensor, outputs: torch.Size, objective: Objective) -> None:
    if targets.is_floating_point() and not bool(torch.isfinite(targets).all()):
        raise InputError(f"{whose}: the targets hold NaN or infinity; clean them first.")
    if not objective.class_labels:
        return
    if targets.is_floating_point() or targets.dtype == torch.bool:
        raise InputError(f"{whose}: class labels must be whole numbers, not {targets.dtype}; use y.long().")
    if targets.ndim != len(outputs) - 1:
        raise InputError(
            f"{whose}: labels of shape {tuple(targets.shape)} do not fit the model's outputs of shape "
            f"(n, {', '.join(map(str, outputs[1:]))}); give one class number a sample: y.argmax(1) of one-hot labels."
        )
    classes = outputs[1]
    if targets.numel() and not 0 <= int(targets.min()) <= int(targets.max()) < classes:
        wrong = int(targets.min()) if int(targets.min()) < 0 else int(targets.max())
        raise InputError(
            f"{whose}: label {wrong} is out of range: the model has {classes} outputs, labels 0 to {classes - 1}."
        )


def rebuild(
    folder: Path,
    config: dict[str, Any],
    model: ModelSource | None,
    loss: str | Measure | None,
    metrics: Mapping[str, Measure] | None,
    collate: Collate | None,
) -> tuple[Task | None, Reader | None]:
    """The task and reader of a saved run: from the given model, or from the data set and model the folder names."""
    if model is None and (folder / "data.json").exists():
        from fedwmsam.experiment import model_of

        model = model_of(folder)
    if model is None:
        return None, None
    wanted = loss or config.get("loss", "classification")
    if isinstance(wanted, str) and wanted not in OBJECTIVES:
        raise InputError(
            f"The run was made with its own loss {wanted!r}; pass it: Result.load(folder, model, loss=...)."
        )
    with calm_torch():
        task = Task(model, make_objective(wanted, metrics))
        return task, make_reader(task, collate)
