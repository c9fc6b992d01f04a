"""A plain loop as public simulators write it: a model copy and a DataLoader per client and round, one thread."""

import copy

import protocol
import torch
import training
import workload


class PlainLoop:
    def __init__(self) -> None:
        self.data = workload.load()
        self.model = copy.deepcopy(self.data.model)
        self.random = torch.Generator().manual_seed(0)

    def run(self, rounds: int) -> int:
        return sum(self.round() for _ in range(rounds))

    def round(self) -> int:
        states, steps = [], 0
        for client in workload.draw_cohort(self.random):
            local = copy.deepcopy(self.model)
            steps += training.with_loader(local, *self.data.client(client))
            states.append(local.state_dict())
        mean = {name: sum(state[name] for state in states) / len(states) for name in states[0]}
        self.model.load_state_dict(mean)
        return steps


if __name__ == "__main__":
    loop = PlainLoop()
    protocol.serve(loop.run, lambda: loop.data.accuracy(loop.model))
