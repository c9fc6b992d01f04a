"""Local training by a function of the user, in place of the library's own steps.

It can take their place where a method asks nothing of a client but to train the model that it is
sent: see `Method.needs_own_steps`.
"""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from flwr.app import MetricRecord
from torch import Tensor, nn
from torch.utils.data import DataLoader

from fedwmsam import rng
from fedwmsam.data.adapter import is_pair
from fedwmsam.engine.rounds import Job
from fedwmsam.errors import InputError
from fedwmsam.flower import wire
from fedwmsam.flower.replies import NUM_EXAMPLES
from fedwmsam.flower.wire import TrainConfig
from fedwmsam.methods import METHODS, Method, method_class
from fedwmsam.training.inputs import LABELS
from fedwmsam.training.local import LocalResult
from fedwmsam.training.task import Task

TrainLoop = Callable[[nn.Module, Any, dict[str, Any]], Mapping[str, float]]
"""A function that trains the model in place on the data, by the values that the server sends.

It returns what a Flower client puts into its MetricRecord: "train_loss", "num-examples" if it likes
to, and metrics of its own.
"""
LOSSES = ("train_loss", "loss")
"""The names under which a loop may return its loss."""


def require_replaceable_steps(method: Method) -> None:
    """Raise InputError if the method's own local steps are part of it."""
    if method.needs_own_steps:
        others = [name for name in METHODS if not method_class(name).needs_own_steps]
        raise InputError(
            f"This ClientApp trains with a loop of its own, which {method.name} does not allow: "
            f"{method.needs_own_steps}; leave out train=, or use {', '.join(others)}."
        )


def count_samples(data: Any, name: str) -> int:
    """Return how many samples data have: an (x, y) pair, a loader, or what else has a length.

    Raise InputError if that cannot be told, or is 0.
    """
    if is_pair(data) and any(isinstance(part, DataLoader) for part in data):
        raise InputError(
            f"{name}: load_data returned two loaders; let it return the one of the training data, "
            "and load_test= the other one."
        )
    if isinstance(data, DataLoader):
        counted: Any = data.dataset
    elif is_pair(data):
        counted = data[1]
    else:
        counted = data[LABELS] if isinstance(data, Mapping) and LABELS in data else data
    count = len(counted) if hasattr(counted, "__len__") else 0
    if not count:
        raise InputError(
            f"{name}: the number of samples in a {type(data).__name__} is 0 or unknown; let "
            "load_data return an (x, y) pair, a DataLoader, or something with a length."
        )
    return count


def loop_config(config: TrainConfig, job: Job) -> dict[str, Any]:
    """Return what a loop is told of the round: the server's settings, by the names of run config.

    The method's options are among them. The seed is one of this round and client.
    """
    settings = {
        "local_epochs": config.local_epochs,
        "local_steps": config.local_steps,
        "batch_size": config.batch_size,
        "last_batch": config.last_batch,
        **wire.fields_to_record(config.local_rules),
        **asdict(config.method),
    }
    return {name.replace("_", "-"): value for name, value in settings.items()} | {
        "lr": job.info.lr,
        "server-round": job.info.round + 1,
        "partition-id": job.client,
        "seed": rng.derive_seed(config.seed, "own training", job.info.round, job.client),
    }


def train_with_loop(
    loop: TrainLoop, task: Task, config: TrainConfig, job: Job, data: Any
) -> tuple[LocalResult, MetricRecord]:
    """Let the loop train the global model, and return the update and the loop's metrics.

    Raise InputError if the loop returns no loss, another number of samples, or spoils the model.
    """
    start = job.down["w"]
    state = task.state_dict(start, job.buffers)
    task.set_training_mode()
    model = copy.deepcopy(task.model)
    values = loop_config(config, job)
    torch.manual_seed(values["seed"])
    returned = loop(model, data, values)
    loss, metrics = check_metrics(returned, job.info.samples)
    trained = model.state_dict()
    for name in task.copy_frozen():
        if not torch.equal(trained[name], state[name]):
            raise InputError(f"The training loop changed {name!r}, which is frozen.")
    w, buffers = task.unpack_state_dict(trained)
    up = config.method.uplink(w - start, job.down, {}, job.info)
    return LocalResult(up, buffers, loss, backprops=0), MetricRecord({**metrics})


def check_metrics(returned: object, samples: int) -> tuple[float, dict[str, float]]:
    """Return the loss and the other metrics that a loop returned, with the number of samples.

    Raise InputError if there is no loss, a value is no finite number, or num-examples is not the
    number of samples that the server knows, by which it may weigh this client.
    """
    if not isinstance(returned, Mapping):
        raise InputError(
            f"The training loop returned {type(returned).__name__}, not its metrics: "
            'return {"train_loss": loss, "num-examples": count}.'
        )
    numbers = {}
    for name, value in returned.items():
        if isinstance(value, Tensor | np.generic) and math.prod(value.shape) == 1:
            value = value.item()
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise InputError(f"The training loop returned {name!r} = {value!r}, no finite number.")
        numbers[str(name)] = float(value)
    if numbers.pop(NUM_EXAMPLES, samples) != samples:
        raise InputError(
            f"The training loop returned {NUM_EXAMPLES!r} = {returned[NUM_EXAMPLES]}, but "
            f"load_data returned {samples} samples, by which this client counts."
        )
    losses = [numbers.pop(name) for name in LOSSES if name in numbers]
    if not losses:
        raise InputError(
            f"The training loop returned no 'train_loss', but {', '.join(returned) or 'nothing'}."
        )
    return losses[0], {NUM_EXAMPLES: samples, **numbers}
