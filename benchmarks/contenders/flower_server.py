"""Flower's simulation on Ray with its own FedAvg: two clients at a time, one CPU each.

    python flower_server.py resident|loader

One simulation stays alive and its server app replies to the benchmark's commands, so that the start
of Ray is not part of any measurement.
"""

import copy
import sys

import flower_client
import protocol
import workload
from flwr.app import ArrayRecord, Context, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

app = ServerApp()


@app.main()
def main(grid: Grid, _context: Context) -> None:
    server = FlowerServer(grid)
    server.run(1)  # Ray's processes have started once they have replied
    protocol.serve(server.run, server.accuracy)


class FlowerServer:
    """FedAvg of Flower, which continues from round to round."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.data = workload.load()
        self.arrays = ArrayRecord(self.data.model.state_dict())
        self.strategy = FedAvg(
            fraction_train=workload.COHORT / workload.CLIENTS,
            fraction_evaluate=0.0,
            min_available_nodes=workload.CLIENTS,
            train_metrics_aggr_fn=sum_steps,
        )

    def run(self, rounds: int) -> int:
        """Train some rounds and return the number of local steps."""
        result = self.strategy.start(self.grid, self.arrays, num_rounds=rounds)
        self.arrays = result.arrays
        return sum(int(metrics["steps"]) for metrics in result.train_metrics_clientapp.values())

    def accuracy(self) -> float:
        """Return the test accuracy of the global model."""
        model = copy.deepcopy(self.data.model)
        model.load_state_dict(self.arrays.to_torch_state_dict())
        return self.data.accuracy(model)


def sum_steps(replies: list[RecordDict], _weight: str) -> MetricRecord:
    return MetricRecord({"steps": sum(int(reply["metrics"]["steps"]) for reply in replies)})


if __name__ == "__main__":
    run_simulation(
        server_app=app,
        client_app=getattr(flower_client, sys.argv[1]),
        num_supernodes=workload.CLIENTS,
        backend_config={
            "init_args": {"num_cpus": 2},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
