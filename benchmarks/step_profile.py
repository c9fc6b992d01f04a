"""Where the time of a method's local steps goes: one client of the benchmark workload under torch.profiler.

    python benchmarks/step_profile.py [--method fedwmsam]

Fashion-MNIST, MLP 784-200-200-10, 60 steps of batch 50, one thread; microseconds a step of each operation itself. The
profiler slows small operations, so proportions count, not sums.
"""

import argparse

from method_cost import on_mlp
from torch.profiler import ProfilerActivity, profile

from fedwmsam.engine.rounds import first_state, run_round
from fedwmsam.training.task import deterministic_torch

SHOWN = 16


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--method", default="fedwmsam")
    name = parser.parse_args().method
    with deterministic_torch():
        federation = on_mlp([name])[name]
        state, _ = run_round(
            federation, first_state(federation)
        )  # warms up, and gives FedWMSAM its momentum
        with profile(activities=[ProfilerActivity.CPU]) as found:
            _, record = run_round(federation, state)
    operations = sorted(found.key_averages(), key=lambda one: -one.self_cpu_time_total)[:SHOWN]
    for one in operations:
        spent, calls = (
            one.self_cpu_time_total / record["backprops"],
            one.count / record["backprops"],
        )
        print(f"{one.key[:48]:48} {spent:8.1f} µs a step {calls:6.1f} calls")


if __name__ == "__main__":
    main()
