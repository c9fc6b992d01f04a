"""What recording costs a run: the share of its time spent looking, measured within the run itself.

python benchmarks/recording.py [--rounds 30] [--methods fedwmsam,fedsam] [--record alignment]

Fashion-MNIST, MLP, 100 clients with Dirichlet(0.1) label skew, 10 a round: the paper preset. Both sums come from one
process, `record_seconds` against `train_seconds` + `evaluate_seconds`, so a busy machine slows both alike.
"""

import argparse
import tempfile
from pathlib import Path

from fedwmsam.config import resolve
from fedwmsam.engine.folder import read_lines
from fedwmsam.experiment import prepare


def share(method: str, rounds: int, kinds: str) -> tuple[float, float]:
    config = resolve(
        {"preset": "paper", "dataset": "fashion-mnist", "method": method, "rounds": rounds, "record": kinds}
    )
    experiment = prepare(config)
    with tempfile.TemporaryDirectory() as folder:
        experiment.run(experiment.create(Path(folder) / "run"))
        timings = read_lines(Path(folder) / "run" / "timings.jsonl")
    looking = sum(timing["record_seconds"] for timing in timings)
    running = sum(timing["train_seconds"] + timing["evaluate_seconds"] for timing in timings)
    return looking / running, running / rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30, help="a multiple of ten, so that every tenth is a tenth")
    parser.add_argument("--methods", default="fedwmsam,fedsam,fedavg")
    parser.add_argument("--record", default="alignment")
    given = parser.parse_args()
    print(f"Recording {given.record} every tenth of {given.rounds} rounds:")
    for method in given.methods.split(","):
        part, seconds = share(method, given.rounds, given.record)
        print(f"{method:10} {part:6.1%} of the run's other time ({seconds:.2f} s a round)", flush=True)


if __name__ == "__main__":
    main()
