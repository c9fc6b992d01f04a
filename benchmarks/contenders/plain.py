"""A plain loop as public simulators write it.

For each client and round it makes a copy of the model and a DataLoader; it uses one thread.
"""

import copy

import protocol
import torch
import training
import workload


class PlainLoop:
    """FedAvg as a plain loop over rounds and clients."""

    def __init__(self) -> None:
        self.data = workload.load()
        self.model = copy.deepcopy(self.data.model)
        self.generator = torch.Generator().manual_seed(0)

    def run(self, rounds: int) -> int:
        """Train some rounds and return the number of local steps."""
        return sum(self.run_round() for _ in range(rounds))

    def run_round(self) -> int:
        """Train one round and return the number of local steps."""
        states = []
        steps = 0
        for client in workload.draw_cohort(self.generator):
            local_model = copy.deepcopy(self.model)
            steps += training.train_with_loader(local_model, *self.data.client(client))
            states.append(local_model.state_dict())
        mean = {}
        for name in states[0]:
            mean[name] = sum(state[name] for state in states) / len(states)
        self.model.load_state_dict(mean)
        return steps


if __name__ == "__main__":
    loop = PlainLoop()
    protocol.serve(loop.run, lambda: loop.data.accuracy(loop.model))
