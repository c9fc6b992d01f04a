"""The time of each operation in a method's local steps, measured by torch.profiler.

    python benchmarks/step_profile.py [--method fedwmsam]

One client of the benchmark workload trains: Fashion-MNIST, MLP 784-200-200-10, 60 steps of batch
50, one thread. Times are microseconds per step of each operation itself. The profiler slows small
operations, so proportions count, not sums.
"""

import argparse

from method_cost import mlp_federations
from torch.profiler import ProfilerActivity, profile

from fedwmsam.engine.rounds import first_state, run_round
from fedwmsam.training.task import deterministic_torch

SHOWN = 16
"""Number of operations that are printed."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--method", default="fedwmsam")
    name = parser.parse_args().method
    with deterministic_torch():
        federation = mlp_federations([name])[name]
        # The first round warms up, and gives FedWMSAM its momentum.
        state, _ = run_round(federation, first_state(federation))
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            _, record = run_round(federation, state)
    steps = record["backprops"]
    operations = sorted(profiler.key_averages(), key=lambda event: -event.self_cpu_time_total)
    for operation in operations[:SHOWN]:
        microseconds = operation.self_cpu_time_total / steps
        calls = operation.count / steps
        print(f"{operation.key[:48]:48} {microseconds:8.1f} µs a step {calls:6.1f} calls")


if __name__ == "__main__":
    main()
