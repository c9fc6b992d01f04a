"""A small problem for Ray's actors, whose model tells where it trains and may end its process.

The module lies here and not in a test because actors import it.
"""

import os
import signal
import time
from pathlib import Path

import torch
from torch import nn

CLIENTS = 6


def make_data(count=2600):
    """Return inputs and labels of three classes, in three batches of the evaluation."""
    inputs = torch.randn(count, 6, generator=torch.Generator().manual_seed(3))
    return inputs, (inputs[:, 0] > 0).long() + (inputs[:, 1] > 0).long()


def make_clients():
    """Return a tenth of the data for each client; the first input of each is its number."""
    inputs, labels = make_data()
    clients = {}
    for client in range(CLIENTS):
        rows = inputs[40 * client : 40 * client + 40].clone()
        rows[:, 5] = client
        clients[f"c{client}"] = (rows, labels[40 * client : 40 * client + 40])
    return clients


class Watched(nn.Module):
    """A model with BatchNorm that leaves a file for the node on which it trains.

    An actor that trains the client whose number is `deadly` dies: once, if there is a file to
    remove, else each time. `pause` seconds a step make a round long enough to disturb it.
    """

    def __init__(self, folder=None, pause=0.0, deadly=None, once=None):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(6, 800)
        self.norm = nn.BatchNorm1d(800)
        self.last = nn.Linear(800, 3)
        self.folder = folder
        self.pause = pause
        self.deadly = deadly
        self.once = once
        self.main_process = os.getpid()

    def forward(self, inputs):
        if self.training and os.getpid() != self.main_process:
            self.disturb(int(inputs[0, 5]))
        return self.last(torch.relu(self.norm(self.first(inputs))))

    def disturb(self, client):
        """Do what the model is watched for, in an actor."""
        if self.folder:
            import ray

            node = ray.get_runtime_context().get_node_id()
            (Path(self.folder) / f"{node} {client}").touch()
        time.sleep(self.pause)
        if client == self.deadly and (self.once is None or Path(self.once).exists()):
            if self.once:
                Path(self.once).unlink()
            os.kill(os.getpid(), signal.SIGKILL)
