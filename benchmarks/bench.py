"""fedwmsam's speed beside its peers', all in one run: `make bench`.

    python benchmarks/bench.py [--repeats 5] [--only plain,bare-1,methods] [--skip-peers]

Prints Markdown tables of ratios and writes them, with the machine and the versions, to
benchmarks/results/latest.json. Progress goes to the error stream. Linux only: CPU times of whole
families of processes are read from /proc.
"""

import argparse
import datetime
import json
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import growth
import machine
import method_cost
import startup
from contenders.workload import ROUND_SIZES
from environments import PACKAGES, exclusive_lock, package_versions, python_of
from measuring import (
    CLOCKS,
    Samples,
    flat_results,
    log_progress,
    markdown_table,
    median,
    ratio,
    time_cells,
)
from round_comparison import CONTENDERS, compare

from fedwmsam.methods import METHODS

RESULTS = Path(__file__).parent / "results" / "latest.json"
HEADER = [
    "contender",
    "processes",
    "wall s a round",
    "× fedwmsam",
    "CPU s a round",
    "× fedwmsam",
    "accuracy",
]
FlatResults = dict[str, float | str]
"""Numbers by name, and the versions of what was measured."""


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that contenders are ended, too
    arguments = parse_arguments()
    available = [*CONTENDERS, *MEASUREMENTS]
    chosen = arguments.only.split(",") if arguments.only else available
    unknown = set(chosen) - set(available)
    if unknown:
        sys.exit(
            f"--only: {', '.join(sorted(unknown))} unknown; choose from {', '.join(available)}"
        )
    contenders = select_contenders(chosen, arguments.skip_peers)
    measurements = [name for name in MEASUREMENTS if name in chosen]
    with exclusive_lock():
        results = measure(contenders, measurements, arguments.repeats)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    log_progress(f"written to {RESULTS}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--repeats", type=int, default=5, help="turns that count, after one that warms up"
    )
    names = ", ".join([*CONTENDERS, *MEASUREMENTS])
    parser.add_argument("--only", metavar="NAMES", help=f"some of {names}")
    parser.add_argument(
        "--skip-peers", action="store_true", help="leave out pfl-research and Flower"
    )
    return parser.parse_args()


def measure(contenders: list[str], measurements: list[str], repeats: int) -> dict[str, object]:
    """Execute the chosen benchmarks, print their tables, and return all results."""
    announce(contenders, measurements, repeats)
    results: dict[str, object] = {"date": datetime.date.today().isoformat(), "repeats": repeats}
    results |= machine.describe() | package_versions(sys.executable, ["fedwmsam", "torch"])
    if contenders:
        results |= compare_rounds("mlp", contenders, repeats)
    for name in measurements:
        results |= MEASUREMENTS[name](repeats)
    return results


def select_contenders(chosen: Sequence[str], skip_others: bool) -> list[str]:
    """Return the chosen contenders and those they are compared with, in the table's order.

    With `skip_others`, contenders that need an environment of their own are left out.
    """
    selected = set()
    for name, spec in CONTENDERS.items():
        if name in chosen and not (skip_others and spec.environment):
            selected |= {name, spec.base}
    return [name for name in CONTENDERS if name in selected]


def compare_rounds(model: str, names: list[str], repeats: int) -> FlatResults:
    """Compare a round of each contender with one of this library on as many processes.

    Results begin with the name of the model, but for the MLP, which everybody trains.
    """
    samples, accuracies, failures = compare(model, names, repeats)
    prefix = "" if model == "mlp" else f"{model}."
    size = ROUND_SIZES[model]
    for base in {CONTENDERS[name].base for name in names} & failures.keys():
        sys.exit(f"{base} {failures[base]}: there is nothing to compare with")
    rows: list[list[str]] = []
    results: FlatResults = {}
    for environment in {CONTENDERS[name].environment for name in samples} - {None}:
        results |= package_versions(python_of(environment), PACKAGES[environment])
    for name in names:
        spec = CONTENDERS[name]
        title = [spec.title, str(spec.processes)]
        if name in failures:
            rows.append([*title, failures[name], *[""] * 4])
            continue
        base = samples[spec.base]
        rows.append([*title, *time_cells(samples[name], base), f"{accuracies[name]:.3f}"])
        results |= flat_results(f"{prefix}{name}", samples[name], base)
        results[f"{prefix}{name}.accuracy"] = accuracies[name]
    print_table(
        f"A round of {size.cohort} clients × {size.steps // size.cohort} steps of batch 50 "
        f"(FedAvg, {model}, Fashion-MNIST), {size.rounds} a turn",
        HEADER,
        rows,
    )
    return results | compare_two_processes(samples)


def compare_image_models(repeats: int) -> FlatResults:
    """Compare rounds of the convolutional networks with a plain loop and the bare one."""
    return merge(
        compare_rounds(model, ["fedwmsam-1", "plain", "bare-1"], repeats)
        for model in ROUND_SIZES
        if model != "mlp"
    )


def compare_two_processes(samples: Samples) -> FlatResults:
    """Compare the speedup by a second process with that of two independent loops."""
    if not {"fedwmsam-1", "fedwmsam-2", "bare-1", "bare-2"} <= samples.keys():
        return {}
    ours = ratio(samples["fedwmsam-1"], samples["fedwmsam-2"], "wall")
    bare = ratio(samples["bare-1"], samples["bare-2"], "wall")
    efficiency = ours.value / bare.value
    rows = [
        ["fedwmsam", str(ours)],
        ["bare loops", str(bare)],
        ["efficiency (the one by the other)", f"{efficiency:.2f}"],
    ]
    print_table("Two processes", ["", "× as fast as one, wall"], rows)
    return {"speedup.fedwmsam": ours.value, "speedup.bare": bare.value, "efficiency": efficiency}


def measure_methods(model: str, names: Sequence[str], repeats: int) -> FlatResults:
    """Compare a round of each method with one of FedAvg."""
    samples = method_cost.method_costs(model, names, repeats)
    rows = method_cost.table_rows(samples)
    print_table(f"Methods on {model}, one process", method_cost.HEADER, rows)
    base = samples["fedavg"]
    return merge(flat_results(f"{model}.{name}", times, base) for name, times in samples.items())


def measure_growth(repeats: int) -> FlatResults:
    """Measure how the time of a round grows."""
    samples = growth.growth(repeats)
    rows = growth.table_rows(samples)
    print_table("Growth of a round (FedAvg unless named), one process", growth.HEADER, rows)
    return merge(
        flat_results(f"growth.{series}.{label}", times, first)
        for series, label, times, first in growth.with_first(samples)
    )


def measure_startup(repeats: int) -> FlatResults:
    """Measure what `fedwmsam run` takes besides training."""
    samples = startup.startup(min(repeats, 3))
    print_table("`fedwmsam run` besides its training", startup.HEADER, startup.table_rows(samples))
    results = {}
    for workers, times in samples.items():
        for clock in CLOCKS:
            results[f"startup.{workers}.{clock}"] = median(times, clock)
    return results


MEASUREMENTS: dict[str, Callable[[int], FlatResults]] = {
    "images": compare_image_models,
    "methods": lambda repeats: measure_methods("mlp", list(METHODS), repeats),
    "resnet18": lambda repeats: measure_methods("resnet18", method_cost.FEW, repeats),
    "growth": measure_growth,
    "startup": measure_startup,
}
"""What is measured besides the contenders."""
SECONDS = {"images": 50, "methods": 40, "resnet18": 35, "growth": 14, "startup": 12}
"""Seconds of one repeat of a measurement on a quiet machine."""
CONTENDER_SECONDS = 3
"""Seconds of one turn of a contender on a quiet machine."""
RAY_START_SECONDS = 20


def announce(contenders: Sequence[str], measurements: Sequence[str], repeats: int) -> None:
    """Print what is going to be measured and how long that takes."""
    once = CONTENDER_SECONDS * len(contenders) + sum(SECONDS[name] for name in measurements)
    starts = RAY_START_SECONDS * sum(name.startswith("flower") for name in contenders)
    minutes = (once * (repeats + 1) + starts) / 60
    log_progress(
        f"about {minutes:.0f} minutes on a quiet machine, after what has to be installed: "
        f"{', '.join([*contenders, *measurements])}"
    )


def merge(parts: Iterable[Mapping[str, float]]) -> FlatResults:
    """Return the entries of all parts."""
    results: FlatResults = {}
    for part in parts:
        results |= part
    return results


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    print(f"### {title}\n\n{markdown_table(header, rows)}\n", flush=True)


if __name__ == "__main__":
    main()
