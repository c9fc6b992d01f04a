"""The cost of recording: the share of a run's time that it takes, measured within the run itself.

    python benchmarks/recording.py [--rounds 30] [--methods fedwmsam,fedsam] [--record alignment]

The run is the paper preset: Fashion-MNIST, MLP, 100 clients with Dirichlet(0.1) label skew, 10 per
round. By the clock, `record_seconds` is compared with `train_seconds` + `evaluate_seconds`. By CPU
time, which a busy machine disturbs less, what the recorded rounds took beyond the median of the
others is compared with all the rest.
"""

import argparse
import tempfile
from pathlib import Path
from statistics import median

from fedwmsam.engine.records import read_lines
from fedwmsam.experiment.experiment import prepare
from fedwmsam.settings.config import resolve_config

EVERY = 10
"""Rounds from one recorded round to the next."""


def run_and_read_timings(method: str, rounds: int, kinds: str) -> list[dict[str, float]]:
    """Execute a run that records, and return the timings of its rounds."""
    config = resolve_config(
        {
            "preset": "paper",
            "dataset": "fashion-mnist",
            "method": method,
            "rounds": rounds,
            "record": kinds,
        }
    )
    experiment = prepare(config)
    with tempfile.TemporaryDirectory() as folder:
        experiment.run(experiment.create(Path(folder) / "run"))
        return read_lines(Path(folder) / "run" / "timings.jsonl")


def shares(timings: list[dict[str, float]]) -> tuple[float, float]:
    """Return the time of recording over that of everything else, by the clock and by CPU time."""
    recording = sum(timing["record_seconds"] for timing in timings)
    running = sum(timing["train_seconds"] + timing["evaluate_seconds"] for timing in timings)
    recorded = [timing["cpu_seconds"] for timing in timings if timing["round"] % EVERY == 1]
    others = [timing["cpu_seconds"] for timing in timings if timing["round"] % EVERY != 1]
    usual = median(others)
    recording_cpu = sum(seconds - usual for seconds in recorded)
    running_cpu = sum(timing["cpu_seconds"] for timing in timings) - recording_cpu
    return recording / running, recording_cpu / running_cpu


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rounds", type=int, default=30, help="a multiple of ten, so that every tenth is a tenth"
    )
    parser.add_argument("--methods", default="fedwmsam,fedsam,fedavg")
    parser.add_argument("--record", default="alignment")
    arguments = parser.parse_args()
    print(f"Recording {arguments.record} every tenth of {arguments.rounds} rounds:")
    for method in arguments.methods.split(","):
        timings = run_and_read_timings(method, arguments.rounds, arguments.record)
        clock, processor = shares(timings)
        print(
            f"{method:10} {clock:6.1%} of the clock, {processor:6.1%} of the processor", flush=True
        )


if __name__ == "__main__":
    main()
