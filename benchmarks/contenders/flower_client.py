"""Two Flower clients.

They have a module of their own because Ray's processes import it: a client in __main__ would be
sent along with every message.
"""

import copy
from collections.abc import Callable

import training
import workload
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

resident = ClientApp()
loader = ClientApp()


@resident.train()
def train_resident(message: Message, context: Context) -> Message:
    """Train with model and data that stay in the process, and batches gathered by index."""
    return train_client(message, context, workload.load().model, training.train_with_gathers)


@loader.train()
def train_loader(message: Message, context: Context) -> Message:
    """Train with a new model and a new DataLoader on each call, as in the tutorials."""
    model = copy.deepcopy(workload.load().model)
    return train_client(message, context, model, training.train_with_loader)


def train_client(
    message: Message,
    context: Context,
    model: nn.Module,
    train: Callable[[nn.Module, Tensor, Tensor], int],
) -> Message:
    """Train the model in the message on the data of this node, and return the reply."""
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    inputs, labels = workload.load().client(int(context.node_config["partition-id"]))
    metrics = {"num-examples": len(labels), "steps": train(model, inputs, labels)}
    content = RecordDict(
        {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)}
    )
    return Message(content, reply_to=message)
