"""What recording costs a run: the share of its time spent looking, measured within the run itself.

python benchmarks/recording.py [--rounds 30] [--methods fedwmsam,fedsam] [--record alignment]

Fashion-MNIST, MLP, 100 clients with Dirichlet(0.1) label skew, 10 a round: the paper preset. In seconds of the clock,
`record_seconds` against `train_seconds` + `evaluate_seconds`, and in seconds of the processor, which a busy machine
disturbs less: what the recorded rounds took beyond the median of the others, against all the rest.
"""

import argparse
import tempfile
from pathlib import Path
from statistics import median

from fedwmsam.engine.records import read_lines
from fedwmsam.experiment.experiment import prepare
from fedwmsam.settings.config import resolve

EVERY = 10


def timings_of(method: str, rounds: int, kinds: str) -> list[dict[str, float]]:
    config = resolve(
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
    """By the clock and by the processor."""
    looking = sum(timing["record_seconds"] for timing in timings)
    running = sum(timing["train_seconds"] + timing["evaluate_seconds"] for timing in timings)
    usual = median(timing["cpu_seconds"] for timing in timings if timing["round"] % EVERY != 1)
    spent = sum(timing["cpu_seconds"] - usual for timing in timings if timing["round"] % EVERY == 1)
    return looking / running, spent / (sum(timing["cpu_seconds"] for timing in timings) - spent)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rounds", type=int, default=30, help="a multiple of ten, so that every tenth is a tenth"
    )
    parser.add_argument("--methods", default="fedwmsam,fedsam,fedavg")
    parser.add_argument("--record", default="alignment")
    given = parser.parse_args()
    print(f"Recording {given.record} every tenth of {given.rounds} rounds:")
    for method in given.methods.split(","):
        clock, processor = shares(timings_of(method, given.rounds, given.record))
        print(
            f"{method:10} {clock:6.1%} of the clock, {processor:6.1%} of the processor", flush=True
        )


if __name__ == "__main__":
    main()
