"""The engine of fedwmsam: the run that `fit` makes of the same tensors.

It has one worker (this process) or more.
"""

import argparse

import protocol
import workload
from torch import nn

from fedwmsam.data.adapter import make_data_adapter
from fedwmsam.engine.rounds import run_round
from fedwmsam.engine.run import Run
from fedwmsam.experiment.assembly import make_run, use_workers
from fedwmsam.methods import make_method
from fedwmsam.models import model_factory
from fedwmsam.settings.config import Settings
from fedwmsam.training.objectives import make_objective
from fedwmsam.training.task import Task, deterministic_torch

SETTINGS = Settings(
    clients_per_round=workload.COHORT,
    local_epochs=workload.EPOCHS,
    batch_size=workload.BATCH,
    lr=workload.LEARNING_RATE,
    lr_decay=1.0,
    weight_decay=workload.WEIGHT_DECAY,
    weight_decay_mode="sgd",
    clip_norm=workload.CLIP_NORM,
)
"""The settings with which every contender makes the same update.

Weight decay is added to the clipped gradient, as torch.optim.SGD does it.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    data = workload.load()
    with deterministic_torch():
        task = Task(own_model(data), make_objective("classification", None, None))
        client_data = [data.client(k) for k in range(workload.CLIENTS)]
        clients = make_data_adapter(task).to_clients(client_data, None)
        run = make_run(SETTINGS, make_method("fedavg"), task, clients, None, None)
        with use_workers(run, arguments.workers):
            protocol.serve(lambda rounds: train(run, rounds), lambda: accuracy(run, data))


def own_model(data: workload.Workload) -> nn.Module:
    """Return the workload's model as this library makes it, with its own convolutions."""
    model = model_factory(workload.MODEL, tuple(data.test_inputs.shape[1:]), 10)()
    model.load_state_dict(data.model.state_dict())
    return model


def train(run: Run, rounds: int) -> int:
    """Train some rounds and return the number of local steps."""
    steps = 0
    for _ in range(rounds):
        run.state, record = run_round(run.federation, run.state)
        steps += record["backprops"]
    return steps


def accuracy(run: Run, data: workload.Workload) -> float:
    """Return the test accuracy of the global model."""
    run.federation.task.load_weights(run.state.server["w"])
    return data.accuracy(run.federation.task.model)


if __name__ == "__main__":
    main()
