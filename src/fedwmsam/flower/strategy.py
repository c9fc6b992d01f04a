"""The server's side on Flower: the simulator's own round, run and checkpoints; only the training happens elsewhere."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Never

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result as FlowerResult
from flwr.serverapp.strategy import Strategy

from fedwmsam import rng
from fedwmsam.data.adapter import make_data_adapter
from fedwmsam.data.clients import Collate
from fedwmsam.engine.records import Record
from fedwmsam.engine.rounds import ClientFailure, Job, State, make_jobs, sample_cohort
from fedwmsam.engine.run import Callback, Progress
from fedwmsam.engine.run_folder import Busy, RunFolder
from fedwmsam.errors import InputError, unknown_name_message
from fedwmsam.experiment.assembly import configuration, execute, make_run, open_folder
from fedwmsam.experiment.result import Result
from fedwmsam.flower.exchange import mean_evaluation, read_evaluation
from fedwmsam.flower.training import (
    Outcome,
    RemoteClients,
    RemoteTraining,
    TooFewReplies,
    answer_layout,
    on_meta_device,
)
from fedwmsam.flower.wire import TRANSPORTS, TrainConfig, WireError
from fedwmsam.methods import Method, make_method, method_class
from fedwmsam.settings.config import Settings
from fedwmsam.training.objectives import MetricFunction, make_objective
from fedwmsam.training.task import ModelSource, Task, deterministic_torch

log = logging.getLogger("flwr.fedwmsam")
REFUSED = {f.name: f.metadata["flower"] for f in fields(Settings) if f.metadata["flower"]}
"""Settings of the simulator that have no meaning on Flower, and why."""


def check_arguments(method: object, clients: int, quorum: float, transport: str) -> None:
    if not isinstance(method, Method):
        raise InputError(
            f"method must be a method with its options, such as FedWMSAM(), not {method!r}."
        )
    if not isinstance(clients, int) or clients < 1:
        raise InputError(f"clients must be the number of clients, not {clients!r}.")
    if not 0 < quorum <= 1:
        raise InputError(f"quorum must be a share above 0 and at most 1, not {quorum!r}.")
    if transport not in TRANSPORTS:
        raise InputError(unknown_name_message("transport", str(transport), TRANSPORTS))


def settings_from_values(given: Mapping[str, Any]) -> Settings:
    """Refuses what has no meaning on Flower, with the reason, and what is no setting at all."""
    known = [f.name for f in fields(Settings) if f.name not in REFUSED]
    for name, value in given.items():
        if name in REFUSED and value is not None:
            raise InputError(f"{name} does not apply on Flower: {REFUSED[name]}.")
        if name not in known and name not in REFUSED:
            raise InputError(unknown_name_message("setting", name, known))
    return Settings(**given)


def from_run_config(config: Mapping[str, Any]) -> tuple[Method, dict[str, Any]]:
    """The method, and the other arguments of FlowerStrategy, from an app's run config; "none" is None."""
    values = {
        key.replace("-", "_"): None if value == "none" else value for key, value in config.items()
    }
    name = str(values.pop("method", "fedwmsam"))
    options = {f.name: values.pop(f.name) for f in fields(method_class(name)) if f.name in values}
    return make_method(name, **options), values


def absolute(folder: str | Path | None) -> Path | None:
    if not folder:
        return None
    path = Path(folder).expanduser()
    if not path.is_absolute():
        raise InputError(
            f"run_folder {str(folder)!r} must be an absolute path: Flower moves apps to a place of its own."
        )
    return path


def open_folder_when_free(path: Path, config: Record) -> RunFolder:
    """The process of a run that was cut off may take a minute to notice."""
    deadline = time.monotonic() + 120
    while True:
        try:
            return open_folder(path, config, resume=True)
        except Busy:
            if time.monotonic() > deadline:
                raise
            log.info("Another process still holds %s; waiting.", path)
            time.sleep(5)


class FlowerStrategy(Strategy):
    """Drives any method over Flower's nodes: `FlowerStrategy(FedWMSAM(), model, clients=10).start(grid)`.

    method, model, test, validation, loss, metrics, monitor, collate, callbacks: as for `fedwmsam.fit`; the data are the
        server's own. The settings (rounds, participation, local_epochs, lr, seed …) are those of `fit`, but for the few
        that only a simulator can have. A round takes long on a network: unless told otherwise each one is kept.
    clients: how many there are; a SuperNode says which it is: `--node-config "partition-id=3"`.
    run_folder: where the run is kept, an absolute path. If it holds a run, that one goes on.
    quorum: the share of a round's clients without whose answers the round does not count.
    timeout: seconds from a round's first message to its deadline; later answers are not used.
    grace: seconds to wait for the others once the quorum has answered (None: until the deadline).
    wait: seconds to wait for nodes before the first round, and for a quorum later.
    transport: "float16" halves the traffic; the error it makes is in the metrics.
    evaluate_clients: also evaluate on the clients' own test data (`load_test` of their app).
    """

    def __init__(
        self,
        method: Method,
        model: ModelSource,
        *,
        clients: int,
        test: Any = None,
        validation: Any = None,
        loss: str | MetricFunction = "classification",
        metrics: Mapping[str, MetricFunction] | None = None,
        monitor: str | None = None,
        collate: Collate | None = None,
        run_folder: str | Path | None = None,
        quorum: float = 0.5,
        grace: float | None = None,
        timeout: float = 3600.0,
        wait: float = 300.0,
        transport: str = "float32",
        evaluate_clients: bool = False,
        callbacks: Sequence[Callback] = (),
        rounds: int = Settings.rounds,
        participation: float = Settings.participation,
        clients_per_round: int | None = None,
        sampling: str = Settings.sampling,
        local_epochs: int = Settings.local_epochs,
        batch_size: int = Settings.batch_size,
        lr: float = Settings.lr,
        lr_decay: float = Settings.lr_decay,
        weight_decay: float = Settings.weight_decay,
        weight_decay_mode: str = Settings.weight_decay_mode,
        clip_norm: float | None = Settings.clip_norm,
        twin: float | None = None,
        averaging: str = Settings.averaging,
        aggregation: str | None = None,
        seed: int = Settings.seed,
        evaluate_every: int = Settings.evaluate_every,
        checkpoint_every: int = 1,
        target_accuracy: float | None = None,
        patience: int | None = None,
        time_budget: float | None = None,
        memory_budget: float = Settings.memory_budget,
        device: str = Settings.device,
        **others: Never,
    ) -> None:
        check_arguments(method, clients, quorum, transport)
        given = {
            "rounds": rounds,
            "participation": participation,
            "clients_per_round": clients_per_round,
            "sampling": sampling,
            "local_epochs": local_epochs,
            "batch_size": batch_size,
            "lr": lr,
            "lr_decay": lr_decay,
            "weight_decay": weight_decay,
            "weight_decay_mode": weight_decay_mode,
            "clip_norm": clip_norm,
            "twin": twin,
            "averaging": averaging,
            "aggregation": aggregation,
            "seed": seed,
            "evaluate_every": evaluate_every,
            "checkpoint_every": checkpoint_every,
            "target_accuracy": target_accuracy,
            "patience": patience,
            "time_budget": time_budget,
            "memory_budget": memory_budget,
            "device": device,
        }
        self.settings = settings_from_values(given | others)
        self.folder = absolute(run_folder)
        self.evaluate_clients = evaluate_clients
        self.clients = RemoteClients(clients)
        with deterministic_torch():
            seed = rng.derive_seed(self.settings.seed, "init")
            task = Task(
                model,
                make_objective(loss, metrics, monitor),
                seed=seed,
                device=self.settings.device,
            )
            self.reader = make_data_adapter(task, collate)
            tested, held = (
                None if data is None else self.reader.samples(data, name)
                for data, name in ((test, "The test data"), (validation, "The validation data"))
            )
            self.run = make_run(
                self.settings, method, task, self.clients, tested, held, [*callbacks, self.tell]
            )
        self.config = configuration(self.settings, method, clients, task, loss, validation) | {
            "transport": transport
        }
        self.run.further = self.further
        self.terms = TrainConfig.of(self.run.federation, transport)
        self.answer = answer_layout(self.run.federation, self.run.state)
        self.training = RemoteTraining(
            self.run,
            self.clients,
            self.terms,
            self.answer,
            quorum=quorum,
            grace=grace,
            timeout=timeout,
            wait=wait,
        )
        self.asked: list[tuple[Job, Message | None]] = []
        self.evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None
        self.result: Result | None = None

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> FlowerResult:
        """Train until done, from the run folder's last completed round if it holds one.

        The outcome is also in `self.result`, as `fedwmsam.fit` returns it.
        """
        if train_config or evaluate_config:
            raise InputError(
                "Give settings to FlowerStrategy itself; it sends the clients what they need."
            )
        self.training.timeout, self.evaluate_fn = timeout or self.training.timeout, evaluate_fn
        if num_rounds is not None:
            self.config["rounds"] = num_rounds
            self.run.settings = replace(self.run.settings, rounds=num_rounds)
        self.training.connect(grid)
        self.summary()
        with deterministic_torch():
            if initial_arrays:
                self.run.warm_start(initial_arrays.to_torch_state_dict())
            self.run.federation = replace(
                self.run.federation, trainer=self.training.train, total_samples=self.total_samples()
            )
            if self.folder:
                self.run.folder = open_folder_when_free(self.folder, self.config)
            self.result = execute(self.run, self.config, self.reader)
        log.info("The run is over: %s after %d rounds.", self.result.status, self.result.rounds)
        return flower_result(self.result)

    def total_samples(self) -> int | None:
        if self.settings.averaging != "size":
            return None
        sizes = [len(self.clients[client]) for client in range(len(self.clients))]
        if 0 in sizes:
            raise InputError(
                f"Averaging by size needs all clients at the start; client {sizes.index(0)} is missing."
            )
        return sum(sizes)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The next round's messages, for whoever drives the rounds without `start`; the model is the strategy's own."""
        with deterministic_torch():
            cohort, info = sample_cohort(self.run.federation, self.run.state.round)
            self.training.connect(grid)
            self.training.begin(cohort)
            todo = make_jobs(self.run.federation, self.run.state, cohort, info)
            self.asked = [(on_meta_device(job), self.training.order(job)) for job in todo]
        return [message for _, message in self.asked if message is not None]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Finish the round that `configure_train` began; None if too few answers can be used."""
        outcome: Outcome = {
            job.client: (job, ClientFailure("no answer", rejected=False)) for job, _ in self.asked
        }
        sent = {
            message.metadata.message_id: job for job, message in self.asked if message is not None
        }
        with deterministic_torch():
            for reply in replies:
                job = sent.get(reply.metadata.reply_to_message_id)
                if job is None:
                    log.warning(
                        "An answer to no question of round %d is not used.",
                        self.run.state.round + 1,
                    )
                else:
                    outcome[job.client] = job, self.training.judge(job, reply)
            self.run.federation = replace(
                self.run.federation, trainer=lambda *_: self.training.counted(outcome)
            )
            try:
                self.run.one_round()
            except TooFewReplies as reason:
                log.warning("%s", reason)
                return None, None
        return ArrayRecord(self.run.model()), metric_record(
            self.run.history[-1]
        ) if self.run.history else None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The global model to every connected client, if clients evaluate."""
        return self.training.evaluation_orders(self.run.state) if self.evaluate_clients else []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Means over the clients' own test data; None if there are none."""
        records = []
        for reply in replies:
            try:
                records.append(read_evaluation(reply))
            except WireError as reason:
                log.warning("An evaluation is not used: %s", reason)
        return (
            MetricRecord({**mean_evaluation(records), "clients_evaluated": len(records)})
            if records
            else None
        )

    def further(self, state: State, due: bool) -> Record:
        """What a round's line in the metrics holds beside the engine's own columns."""
        record: Record = {}
        if due and self.evaluate_clients and self.training.post:
            record |= self.aggregate_evaluate(state.round, self.training.evaluations(state)) or {}
        if due and self.evaluate_fn:
            arrays = ArrayRecord(
                self.run.federation.task.state_dict(state.server["w"], state.buffers)
            )
            record |= self.evaluate_fn(state.round, arrays) or {}
        return self.training.traffic.record(self.terms.transport) | record

    def tell(self, progress: Progress) -> None:
        record = progress.record
        shown = {
            key: record[key]
            for key in ("train_loss", "loss", "accuracy", "clients_accuracy")
            if record.get(key)
        }
        numbers = ", ".join(f"{key} {value:.4f}" for key, value in shown.items())
        log.info(
            "Round %d of %d: %d clients, %s",
            record["round"],
            self.run.settings.rounds,
            record["cohort"],
            numbers,
        )

    def summary(self) -> None:
        federation = self.run.federation
        log.info(
            "%s over %d clients, %d parameters, quorum %g, transport %s; run folder: %s",
            federation.method,
            len(federation.clients),
            federation.task.size,
            self.training.quorum,
            self.terms.transport,
            self.folder or "none",
        )


def metric_record(record: Record) -> MetricRecord:
    return MetricRecord(
        {key: value for key, value in record.items() if isinstance(value, int | float)}
    )


def flower_result(result: Result) -> FlowerResult:
    metrics = {row["round"]: metric_record(row) for row in result.rows}
    return FlowerResult(arrays=ArrayRecord(result.model), train_metrics_clientapp=metrics)
