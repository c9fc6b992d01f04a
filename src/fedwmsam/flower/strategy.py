"""The server's side on Flower.

A run on Flower uses the round, the run loop, the checkpoints and the metrics of the simulator; only
the clients train on other machines. So the trained model is, bit for bit, that of the simulator.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from itertools import product
from pathlib import Path
from typing import Any, Never

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result as FlowerResult
from flwr.serverapp.strategy import Strategy

from fedwmsam import rng
from fedwmsam.data.adapter import make_data_adapter
from fedwmsam.data.clients import Collate
from fedwmsam.engine.provenance import package_version, script_name
from fedwmsam.engine.records import Record
from fedwmsam.engine.rounds import ClientFailure, Job, State, make_jobs, sample_cohort
from fedwmsam.engine.run import Callback, Progress
from fedwmsam.engine.run_folder import FolderBusy, RunFolder
from fedwmsam.errors import InputError, describe_error, same_meaning, unknown_name_message
from fedwmsam.experiment.assembly import config_values, execute_run, make_run, open_folder
from fedwmsam.experiment.result import Result
from fedwmsam.flower.identities import FILE, make_identities, read_identities
from fedwmsam.flower.replies import Evaluation
from fedwmsam.flower.sizes import make_size_rule, mean_evaluation
from fedwmsam.flower.training import (
    Outcome,
    RemoteClients,
    RemoteTraining,
    TooFewReplies,
    find_reply_layout,
    on_meta_device,
)
from fedwmsam.flower.wire import TRANSPORTS, TrainConfig
from fedwmsam.methods import Method, make_method, method_class
from fedwmsam.settings.config import Settings
from fedwmsam.settings.method_table import allow_import
from fedwmsam.training.objectives import MetricFunction, make_objective
from fedwmsam.training.task import ModelSource, Samples, Task, deterministic_torch

log = logging.getLogger("flwr.fedwmsam")
REFUSED = {
    f.name: f.metadata["flower_refusal"] for f in fields(Settings) if f.metadata["flower_refusal"]
}
"""Settings of the simulator that have no meaning on Flower → the reason."""
FLOWER_ARGUMENTS = {
    "fraction_train": "write participation",
    "fraction_evaluate": "write evaluate_clients=True for all connected clients, or leave it out",
    "min_train_nodes": "write quorum, the share of a round's clients that must answer",
    "min_evaluate_nodes": "all connected clients evaluate, however many they are",
    "min_available_nodes": "write clients, the number of all, and wait, the seconds for them",
    "weighted_by_key": 'write averaging="size"; clients count the same by default',
    "arrayrecord_key": "both ends know where the model is in a message",
    "configrecord_key": "both ends know where the settings are in a message",
    "train_metrics_aggr_fn": "metrics are averaged with the weights of the training",
    "evaluate_metrics_aggr_fn": "metrics are averaged with the weights of the training",
    "server_learning_rate": "write FedAvgM(global_lr=…) as the method",
    "server_momentum": "write FedAvgM(beta=…) as the method",
    "eta": "write FedAdam(global_lr=…) as the method",
    "eta_l": "write lr",
    "beta_1": "write FedAdam(beta1=…) as the method",
    "beta_2": "write FedAdam(beta2=…) as the method",
    "tau": "write FedAdam(tau=…) as the method",
    "proximal_mu": "write FedProx(lam=…) as the method",
}
"""What the strategies of Flower are given → what is written here instead."""
FOLDER_WAIT_SECONDS = 120
"""Seconds to wait for a run folder that another process holds."""
SERVER_EVALUATIONS = ("", "validation_", "averaged_")
"""What the columns of the server's evaluations begin with: test, validation, the averaged twin."""
CLIENT_EVALUATIONS = ("clients_",)
"""What the columns of the evaluation on the clients' own data begin with."""


def check_arguments(method: object, clients: int, quorum: float, transport: str) -> None:
    """Raise InputError if one of these arguments of FlowerStrategy cannot be used."""
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


def settings_from_values(values: Mapping[str, Any]) -> Settings:
    """Return the settings with these values.

    Raise InputError, with the reason, for a setting that has no meaning on Flower, and for a name
    that is no setting.
    """
    applicable = [f.name for f in fields(Settings) if f.name not in REFUSED]
    for name, value in values.items():
        if name in FLOWER_ARGUMENTS and name not in applicable:
            raise InputError(f"{name} of Flower's strategies: {FLOWER_ARGUMENTS[name]}.")
        if name in REFUSED and value is not None:
            raise InputError(f"{name} does not apply on Flower: {REFUSED[name]}.")
        if name not in applicable and name not in REFUSED:
            raise InputError(unknown_name_message("setting", name, applicable))
    return Settings(**values)


def refuse_configs(train_config: ConfigRecord | None, evaluate_config: ConfigRecord | None) -> None:
    """Raise InputError, with what to write instead, if there are values to send to clients."""
    applicable = [f.name for f in fields(Settings) if f.name not in REFUSED]
    for name, value in (train_config or {}).items():
        known = name.replace("-", "_")
        setting = known if known in applicable else next(iter(same_meaning(known, applicable)), "")
        if setting:
            advice = f"write FlowerStrategy(…, {setting}={value!r}), which sends it to the clients"
        else:
            advice = "it is no setting: let the client's own code have it, or its --node-config"
        raise InputError(f"train_config has {name!r}: {advice}.")
    for name in evaluate_config or {}:
        raise InputError(
            f"evaluate_config has {name!r}: clients evaluate by the app's own code, with "
            "make_client_app(…, load_test=…) and FlowerStrategy(…, evaluate_clients=True)."
        )


def from_run_config(config: Mapping[str, Any]) -> tuple[Method, dict[str, Any]]:
    """Return the method and the other arguments of FlowerStrategy that a run config holds.

    Hyphens in its keys stand for underscores, and the value "none" for None. Flower turns the table
    `identities = {0 = "SHA256:…"}` into keys such as "identities.0".
    """
    values: dict[str, Any] = {}
    for key, value in config.items():
        name, _, client = key.replace("-", "_").partition(".")
        if name == "identities" and client:
            values[name] = values.get(name, {}) | {client: value}
        else:
            values[key.replace("-", "_")] = None if value == "none" else value
    name = str(values.pop("method", "fedwmsam"))
    allow_import(name)  # the configuration is the app's own, as its code is
    options = {f.name: values.pop(f.name) for f in fields(method_class(name)) if f.name in values}
    return make_method(name, **options), values


def absolute_run_folder(folder: str | Path | None) -> Path | None:
    """Return the path of the run folder, if one is set; raise InputError if it is relative."""
    if not folder:
        return None
    path = Path(folder).expanduser()
    if not path.is_absolute():
        raise InputError(
            f"run_folder {str(folder)!r} must be an absolute path: "
            "Flower moves apps to a place of its own."
        )
    return path


def open_folder_when_free(path: Path, config: Record) -> RunFolder:
    """Open the run folder, and wait if another process still holds it.

    The server process of a run that was cut off may take a minute to notice.
    """
    deadline = time.monotonic() + FOLDER_WAIT_SECONDS
    while True:
        try:
            return open_folder(path, config, resume=True)
        except FolderBusy:
            if time.monotonic() > deadline:
                raise
            log.info("Another process still holds %s; waiting.", path)
            time.sleep(5)


class FlowerStrategy(Strategy):
    """A Flower strategy that trains any method of this library on Flower's nodes.

    Use it as `FlowerStrategy(FedWMSAM(), model, clients=10).start(grid)`.

    method, model, test, validation, loss, metrics, monitor, collate, target, callbacks: as for
        `fedwmsam.fit`; the data are the server's own. The settings (rounds, participation,
        local_epochs, lr, seed …) are those of `fit`, except for the few that only a simulator can
        have. A round takes long on a network: by default each one is saved in a checkpoint.
    clients: the number of clients; a SuperNode says which one it is:
        `--node-config "partition-id=3"`.
    run_folder: the folder of the run, an absolute path. If it holds a run, that run is continued.
    quorum: the share of a round's clients whose replies the round needs to count.
    timeout: seconds from a round's first message to its deadline; later replies are not used.
    grace: seconds to wait for the others once the quorum has replied (None: until the deadline).
    wait: seconds to wait for nodes before the first round, and for a quorum later.
    transport: "float16" halves the traffic; the error that it makes is in the metrics.
    evaluate_clients: also evaluate on the clients' own test data (`load_test` of their app, which
        must have the same metrics).
    authenticated: the SuperLink authenticates SuperNodes (`--enable-supernode-auth`): a client
        belongs to the key of the first node that is it, for the rest of the run.
    identities: the keys that clients belong to, given beforehand: {0: "SHA256:…"} or
        "0=SHA256:…,1=SHA256:…", as `fedwmsam flower keys` writes them.
    client_sizes, largest_share, sizes: with averaging="size" one of them: your own numbers of
        samples ([120, 80] or "120,80"), the largest share of one client in a mean, or "reported"
        to believe the nodes.
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
        target: str | None = None,
        run_folder: str | Path | None = None,
        quorum: float = 0.5,
        grace: float | None = None,
        timeout: float = 3600.0,
        wait: float = 300.0,
        transport: str = "float32",
        evaluate_clients: bool = False,
        authenticated: bool = False,
        identities: Mapping[int, str] | str | None = None,
        client_sizes: Sequence[int] | str | None = None,
        largest_share: float | None = None,
        sizes: str | None = None,
        callbacks: Sequence[Callback] = (),
        rounds: int = Settings.rounds,
        participation: float = Settings.participation,
        clients_per_round: int | None = None,
        sampling: str = Settings.sampling,
        local_epochs: int = Settings.local_epochs,
        batch_size: int = Settings.batch_size,
        lr: float = Settings.lr,
        lr_decay: float = Settings.lr_decay,
        lr_schedule: str | None = None,
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
        record_host: bool = Settings.record_host,
        device: str | torch.device = Settings.device,
        **others: Never,
    ) -> None:
        check_arguments(method, clients, quorum, transport)
        values = {
            "rounds": rounds,
            "participation": participation,
            "clients_per_round": clients_per_round,
            "sampling": sampling,
            "local_epochs": local_epochs,
            "batch_size": batch_size,
            "lr": lr,
            "lr_decay": lr_decay,
            "lr_schedule": lr_schedule,
            "lr_warmup": lr_warmup,
            "local_steps": local_steps,
            "last_batch": last_batch,
            "optimizer": optimizer,
            "momentum": momentum,
            "adam_beta1": adam_beta1,
            "adam_beta2": adam_beta2,
            "adam_epsilon": adam_epsilon,
            "micro_batch": micro_batch,
            "precision": precision,
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
            "record_host": record_host,
            "device": str(device),
        }
        self.settings = settings_from_values(values | others)
        self.folder = absolute_run_folder(run_folder)
        self.identities = make_identities(clients, authenticated, identities)
        self.sizes = make_size_rule(clients, averaging, client_sizes, largest_share, sizes)
        self.evaluate_clients = evaluate_clients
        self.clients = RemoteClients(clients)
        with deterministic_torch():
            task = Task(
                model,
                make_objective(loss, metrics, monitor),
                seed=rng.derive_seed(self.settings.seed, "init"),
                device=self.settings.device,
            )
            self.adapter = make_data_adapter(task, collate, target)
            test_samples = self.optional_samples(test, "The test data")
            validation_samples = self.optional_samples(validation, "The validation data")
            self.run = make_run(
                self.settings,
                method,
                task,
                self.clients,
                test_samples,
                validation_samples,
                [*callbacks, self.log_round],
                self.sizes.client_sizes,
            )
        self.config = config_values(self.settings, method, clients, task, loss, validation)
        # A None is not written: runs that began before these two existed go on.
        self.config |= {"client_sizes": self.sizes.client_sizes, "largest_share": largest_share}
        self.config["transport"] = transport
        self.run.extra_columns = self.extra_metrics
        self.train_config = TrainConfig.of(self.run.federation, transport)
        self.reply_layout = find_reply_layout(self.run.federation, self.run.state)
        self.training = RemoteTraining(
            self.run,
            self.clients,
            self.train_config,
            self.reply_layout,
            quorum=quorum,
            grace=grace,
            timeout=timeout,
            wait=wait,
            sizes=self.sizes,
            identities=self.identities,
        )
        self.train_messages: list[tuple[Job, Message | None]] = []
        """The jobs of the round that `configure_train` began; None for a client not connected."""
        self.evaluate_messages: list[tuple[int, Message]] = []
        """The clients that `configure_evaluate` has asked, with the messages to them."""
        self.evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None
        self.result: Result | None = None

    def optional_samples(self, data: Any, name: str) -> Samples | None:
        """Return data of the server as samples, and None if there are none."""
        return None if data is None else self.adapter.to_samples(data, name)

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
        """Train all rounds and return the model and the metrics; Flower calls this method.

        If the run folder holds a run, training continues after its last completed round. What
        `fedwmsam.fit` would return is in `self.result` afterwards.
        """
        refuse_configs(train_config, evaluate_config)
        self.training.timeout = timeout or self.training.timeout
        self.evaluate_fn = evaluate_fn
        if num_rounds is not None:
            self.config["rounds"] = num_rounds
            self.run.settings = replace(self.run.settings, rounds=num_rounds)
        try:
            self.open_run_folder()
            self.training.connect(grid)
            self.summary()
            with deterministic_torch():
                if initial_arrays:
                    self.run.warm_start(initial_arrays.to_torch_state_dict())
                self.run.federation = replace(
                    self.run.federation,
                    trainer=self.training.train,
                    total_samples=self.total_samples(),
                )
                self.result = execute_run(
                    self.run,
                    self.config,
                    self.adapter,
                    ["flower", script_name()],
                    {"Flower": package_version("flwr")},
                )
        except Exception as error:
            self.training.save_status(f"stopped by {describe_error(error)}")
            raise
        finally:
            self.run.close()
        self.log_end(self.result)
        return self.flower_result(self.result)

    def open_run_folder(self) -> None:
        """Open the run folder, if there is to be one, and bind clients to the keys noted in it.

        Raise InputError if it notes keys but authentication is not in use.
        """
        if not self.folder:
            return
        if self.identities is None and read_identities(self.folder):
            raise InputError(
                f"{self.folder / FILE} binds clients to keys; set authenticated=true, "
                "or remove that file to let any node be any client."
            )
        self.run.folder = open_folder_when_free(self.folder, self.config)
        self.training.status.folder = self.run.folder
        if self.identities is not None:
            self.identities.open(self.run.folder)

    def total_samples(self) -> int | None:
        """Return the samples of all clients together, or None if clients count equally.

        Raise InputError if a client is not connected whose number of samples is needed.
        """
        if self.settings.averaging != "size":
            return None
        missing = [client for client in range(len(self.clients)) if not len(self.clients[client])]
        if missing and self.sizes.client_sizes is None:
            raise InputError(
                f"Averaging by size needs all clients at the start; client {missing[0]} is missing."
            )
        return sum(self.training.weigh_clients(range(len(self.clients))).values())

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the train messages of the next round, for a loop over rounds other than `start`.

        The model in them is that of the strategy: `arrays` and `config` are not used.
        """
        with deterministic_torch():
            cohort, info = sample_cohort(self.run.federation, self.run.state.round)
            self.training.connect(grid)
            self.training.start_round(cohort)
            self.train_messages = []
            for job in make_jobs(self.run.federation, self.run.state, cohort, info):
                message = self.training.make_train_message(job)
                self.train_messages.append((on_meta_device(job), message))
        return [message for _, message in self.train_messages if message is not None]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Finish the round that `configure_train` began, and return the model and the metrics.

        Both are None if too few replies can be used.
        """
        no_reply = ClientFailure("no answer within the timeout of Flower's loop", rejected=False)
        outcome: Outcome = {}
        jobs: dict[str, Job] = {}
        for job, message in self.train_messages:
            outcome[job.client] = job, no_reply
            if message is not None:
                jobs[message.metadata.message_id] = job
        with deterministic_torch():
            for reply in replies:
                sent_job = jobs.get(reply.metadata.reply_to_message_id)
                if sent_job is None:
                    number = self.run.state.round + 1
                    log.warning("An answer to no question of round %d is not used.", number)
                else:
                    result = self.training.check_reply(sent_job, reply)
                    outcome[sent_job.client] = sent_job, result
            self.run.federation = replace(
                self.run.federation, trainer=lambda *_: self.training.require_quorum(outcome)
            )
            try:
                self.run.train_one_round()
            except TooFewReplies as reason:
                log.warning("%s", reason)
                return None, None
        metrics = metric_record(self.run.history[-1]) if self.run.history else None
        return ArrayRecord(self.run.model()), metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return messages with the global model to all connected clients, if clients evaluate."""
        if not self.evaluate_clients:
            return []
        self.evaluate_messages = self.training.make_evaluate_messages(self.run.state)
        return [message for _, message in self.evaluate_messages]

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the means of the clients' metrics on their own test data; None if none came."""
        clients = {
            message.metadata.message_id: client for client, message in self.evaluate_messages
        }
        evaluations = {}
        for reply in replies:
            client = clients.get(reply.metadata.reply_to_message_id)
            if client is None:
                log.warning("An evaluation that was not asked for is not used.")
            elif evaluation := self.training.check_evaluation(client, reply):
                evaluations[client] = evaluation
        means = self.mean_evaluations(evaluations)
        return MetricRecord(means) if means else None

    def mean_evaluations(self, evaluations: Mapping[int, Evaluation]) -> Record:
        """Return the means of the clients' evaluations, and how many there are, if any."""
        if not evaluations:
            return {}
        means = mean_evaluation(evaluations, self.training.weigh_clients(evaluations))
        for name in self.run.federation.task.objective.metrics:
            if f"clients_{name}" not in means:
                log.warning(
                    "The clients report no %r; give make_client_app the metrics of the strategy.",
                    name,
                )
        return {**means, "clients_evaluated": len(evaluations)}

    def extra_metrics(self, state: State, is_due: bool) -> Record:
        """Return what a round's line in the metrics holds besides the columns of the engine.

        `is_due` says whether the round is evaluated.
        """
        loops = self.training.loop_metrics
        means = mean_evaluation(loops, self.training.weigh_clients(loops))
        # A loop's accuracy is that of its training data, and no mean of the clients' evaluations.
        record: Record = {
            f"clients_train_{name.removeprefix('clients_').removeprefix('train_')}": value
            for name, value in means.items()
        }
        if is_due and self.evaluate_clients and self.training.mailbox:
            record |= self.mean_evaluations(self.training.collect_evaluations(state))
        if is_due and self.evaluate_fn:
            arrays = ArrayRecord(
                self.run.federation.task.state_dict(state.server["w"], state.buffers)
            )
            record |= self.evaluate_fn(state.round, arrays) or {}
        return self.training.traffic.record(self.train_config.transport) | record

    def log_round(self, progress: Progress) -> None:
        """Log the losses and metrics of a round that is done."""
        record = progress.record
        log.info(
            "Round %d of %d: %d clients, %s",
            record["round"],
            self.run.settings.rounds,
            record["cohort"],
            self.describe_scores(record),
        )

    def log_end(self, result: Result) -> None:
        """Log how the run ended, with the last losses and metrics and where the model is."""
        scores = self.describe_scores({name: result.last(name) for name in result.columns})
        log.info(
            "The run is over: %s after %d rounds: %s; %s.",
            result.status,
            result.rounds,
            scores or "nothing was trained",
            f"the model is in {self.folder}" if self.folder else "no run folder was asked for",
        )

    def describe_scores(self, record: Record) -> str:
        """Return the losses and metrics in a round's line of the metrics, as text."""
        names = ("train_loss", *self.score_names(SERVER_EVALUATIONS + CLIENT_EVALUATIONS))
        return ", ".join(f"{name} {value:.4f}" for name, value in pick(record, names).items())

    def score_names(self, evaluations: Iterable[str]) -> list[str]:
        """Return the names of the columns with the loss and the metrics of these evaluations."""
        scores = ("loss", *self.run.federation.task.objective.metrics)
        return [evaluation + score for evaluation, score in product(evaluations, scores)]

    def flower_result(self, result: Result) -> FlowerResult:
        """Return the model and the metrics of a run as Flower's result.

        All columns of a round are among its metrics of training; the losses and metrics of
        evaluations also where Flower has them, of the server's data and of the clients'.
        """
        server = self.score_names(SERVER_EVALUATIONS)
        clients = self.score_names(CLIENT_EVALUATIONS)
        return FlowerResult(
            arrays=ArrayRecord(result.model),
            train_metrics_clientapp=metrics_by_round(result.rows),
            evaluate_metrics_clientapp=metrics_by_round(pick(row, clients) for row in result.rows),
            evaluate_metrics_serverapp=metrics_by_round(pick(row, server) for row in result.rows),
        )

    def summary(self) -> None:
        """Log the method, the size of the federation and the main settings."""
        federation = self.run.federation
        log.info(
            "%s over %d clients, %d parameters, quorum %g, transport %s; run folder: %s",
            federation.method,
            len(federation.clients),
            federation.task.parameter_count,
            self.training.quorum,
            self.train_config.transport,
            self.folder or "none",
        )
        if self.identities is None:
            log.warning(
                "SuperNodes are not authenticated (authenticated=false): "
                "any node can say that it is any client."
            )
        else:
            log.info("Clients belong to the keys of their nodes: %s", self.identities)
        if self.sizes.believes_nodes:
            log.warning(
                "sizes='reported': a node that reports many samples can take over the model."
            )


def metric_record(record: Record) -> MetricRecord:
    """Return the numbers in a round's line of the metrics as Flower's record."""
    return MetricRecord(
        {key: value for key, value in record.items() if isinstance(value, int | float)}
    )


def metrics_by_round(rows: Iterable[Record]) -> dict[int, MetricRecord]:
    """Return the numbers in the lines of all rounds, from round 1, without those that have none."""
    records = {number: metric_record(row) for number, row in enumerate(rows, 1)}
    return {number: record for number, record in records.items() if record}


def pick(record: Record, names: Iterable[str]) -> Record:
    """Return the values of these columns that a round's line has, in the order of the names."""
    return {name: record[name] for name in names if record.get(name) is not None}
