"""pfl-research (PyPI: pfl) with its PyTorch adapter.

It runs FederatedAveraging on the SimulatedBackend with tensors in memory. Started by together.py it
is one of two processes that share each cohort, which pfl joins by torch.distributed. The batches of
its in-memory data set are the same slices in every epoch: it neither shuffles nor gathers, as all
others do, and that is left so.
"""

import asyncio
import copy
import functools
import os

import numpy as np
import protocol
import torch
import workload
from torch import Tensor, nn

RANK = os.environ.get("BENCH_RANK")
if RANK is not None:
    # pfl reads these variables while it is imported; only the first address is ever used.
    addresses = f"localhost:{os.environ['BENCH_PORT']},localhost:0"
    os.environ |= {"PFL_WORKER_RANK": RANK, "PFL_WORKER_ADDRESSES": addresses}

from pfl.aggregate.simulate import SimulatedBackend  # noqa: E402
from pfl.algorithm.base import NNAlgorithmParams  # noqa: E402
from pfl.algorithm.federated_averaging import FederatedAveraging  # noqa: E402
from pfl.data.federated_dataset import FederatedDataset  # noqa: E402
from pfl.data.pytorch import PyTorchTensorDataset  # noqa: E402
from pfl.data.sampling import get_user_sampler  # noqa: E402
from pfl.hyperparam.base import NNTrainHyperParams  # noqa: E402
from pfl.metrics import Weighted  # noqa: E402
from pfl.model.pytorch import PyTorchModel  # noqa: E402


class ModelWithLoss(nn.Module):
    """A model with the loss and the metrics that pfl asks a module for."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.steps = 0

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        self.steps += 1
        return nn.functional.cross_entropy(self.inner(inputs), labels)

    def metrics(self, inputs: Tensor, labels: Tensor) -> dict[str, Weighted]:
        return {"samples": Weighted(len(labels), 1)}


class PflResearch:
    """FederatedAveraging of pfl-research, which continues from round to round."""

    def __init__(self) -> None:
        np.random.seed(0)  # all processes must draw the same cohorts
        self.data = workload.load()
        self.module = ModelWithLoss(copy.deepcopy(self.data.model))
        self.model = PyTorchModel(
            model=self.module,
            local_optimizer_create=functools.partial(
                torch.optim.SGD, weight_decay=workload.WEIGHT_DECAY
            ),
            central_optimizer=torch.optim.SGD(self.module.parameters(), lr=1.0),
        )
        users = [
            PyTorchTensorDataset(self.data.client(k), user_id=str(k))
            for k in range(workload.CLIENTS)
        ]
        sampler = get_user_sampler("minimize_reuse", range(workload.CLIENTS))
        clients = FederatedDataset(users.__getitem__, sampler)
        self.backend = SimulatedBackend(training_data=clients, val_data=clients)
        self.algorithm = FederatedAveraging()
        self.rounds = 0

    def run(self, rounds: int) -> int:
        """Train some rounds and return the number of local steps."""
        before = self.module.steps
        self.rounds += rounds
        central = NNAlgorithmParams(
            central_num_iterations=self.rounds,
            evaluation_frequency=10**9,
            train_cohort_size=workload.COHORT,
            val_cohort_size=0,
        )
        local = NNTrainHyperParams(
            local_batch_size=workload.BATCH,
            local_num_epochs=workload.EPOCHS,
            local_learning_rate=workload.LEARNING_RATE,
            local_max_grad_norm=workload.CLIP_NORM,
        )
        self.algorithm.run(central, self.backend, self.model, local, send_metrics_to_platform=False)
        return self.module.steps - before


if __name__ == "__main__":
    asyncio.set_event_loop(asyncio.new_event_loop())  # pfl expects one
    contender = PflResearch()
    protocol.serve(contender.run, lambda: contender.data.accuracy(contender.module.inner))
