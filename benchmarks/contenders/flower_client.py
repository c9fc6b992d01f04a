"""Two Flower clients, in a module of their own because Ray's processes import it: one in __main__ would be sent along
with every message."""

import copy
from collections.abc import Callable

import training
import workload
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

resident, loader = ClientApp(), ClientApp()


@resident.train()
def train_resident(message: Message, context: Context) -> Message:
    """The model and the data stay in the process; batches are gathered by index."""
    return answer(message, context, workload.load().model, training.with_gathers)


@loader.train()
def train_loader(message: Message, context: Context) -> Message:
    """As in the tutorials: a new model and a new DataLoader on each call."""
    return answer(message, context, copy.deepcopy(workload.load().model), training.with_loader)


def answer(
    message: Message,
    context: Context,
    model: nn.Module,
    train: Callable[[nn.Module, Tensor, Tensor], int],
) -> Message:
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    inputs, labels = workload.load().client(int(context.node_config["partition-id"]))
    metrics = {"num-examples": len(labels), "steps": train(model, inputs, labels)}
    content = RecordDict(
        {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)}
    )
    return Message(content, reply_to=message)
