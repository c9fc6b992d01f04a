"""fedwmsam's speed beside its peers', all in one run: `make bench`.

    python benchmarks/bench.py [--repeats 5] [--only plain,bare-1,methods] [--skip-peers]

Prints Markdown tables of ratios and writes them, with the machine and the versions, to benchmarks/results/latest.json.
Progress goes to the error stream. Linux only: CPU times of whole families of processes are read from /proc.
"""

import argparse
import datetime
import json
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import growth
import machine
import method_cost
import startup
from contestants import ENTRIES, ROUNDS, compare
from environments import PACKAGES, alone, python_of, versions
from measuring import Samples, cells, median, numbers, progress, ratio, table

from fedwmsam.methods import METHODS

RESULTS = Path(__file__).parent / "results" / "latest.json"
HEAD = [
    "contender",
    "processes",
    "wall s a round",
    "× fedwmsam",
    "CPU s a round",
    "× fedwmsam",
    "accuracy",
]
Numbers = dict[str, float]


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that contenders are ended, too
    arguments = parse()
    chosen = arguments.only.split(",") if arguments.only else [*ENTRIES, *PARTS]
    unknown = set(chosen) - ENTRIES.keys() - PARTS.keys()
    if unknown:
        sys.exit(
            f"--only: {', '.join(sorted(unknown))} unknown; choose from {', '.join([*ENTRIES, *PARTS])}"
        )
    names = contestants(chosen, arguments.skip_peers)
    with alone():
        found = measure(names, [part for part in PARTS if part in chosen], arguments.repeats)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    progress(f"written to {RESULTS}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--repeats", type=int, default=5, help="turns that count, after one that warms up"
    )
    parser.add_argument("--only", metavar="NAMES", help=f"some of {', '.join([*ENTRIES, *PARTS])}")
    parser.add_argument(
        "--skip-peers", action="store_true", help="leave out pfl-research and Flower"
    )
    return parser.parse_args()


def measure(names: list[str], parts: list[str], repeats: int) -> dict[str, object]:
    announce(names, parts, repeats)
    found: dict[str, object] = {"date": datetime.date.today().isoformat(), "repeats": repeats}
    found |= machine.describe() | versions(sys.executable, ["fedwmsam", "torch"])
    if names:
        found |= rounds(names, repeats)
    for part in parts:
        found |= PARTS[part](repeats)
    return found


def contestants(chosen: Sequence[str], skip_peers: bool) -> list[str]:
    """Those chosen and what they are compared with, in the table's order."""
    wanted = {
        name for name in chosen if name in ENTRIES and not (skip_peers and ENTRIES[name].peer)
    }
    wanted |= {ENTRIES[name].base for name in wanted}
    return [name for name in ENTRIES if name in wanted]


def rounds(names: list[str], repeats: int) -> dict[str, object]:
    """Everybody's round beside ours on as many processes."""
    samples, accuracies, failures = compare(names, repeats)
    for base in {ENTRIES[name].base for name in names} & failures.keys():
        sys.exit(f"{base} {failures[base]}: there is nothing to compare with")
    rows: list[list[str]] = []
    found: dict[str, object] = {}
    for peer in {ENTRIES[name].peer for name in samples} - {None}:
        found |= versions(python_of(peer), PACKAGES[peer])
    for name in names:
        entry = ENTRIES[name]
        if name in failures:
            rows.append([entry.title, str(entry.processes), failures[name], *[""] * 4])
            continue
        base = samples[entry.base]
        rows.append(
            [
                entry.title,
                str(entry.processes),
                *cells(samples[name], base),
                f"{accuracies[name]:.3f}",
            ]
        )
        found |= numbers(name, samples[name], base) | {f"{name}.accuracy": accuracies[name]}
    show(
        f"A round of 10 clients × 60 steps of batch 50 (FedAvg, MLP, Fashion-MNIST), {ROUNDS} rounds a turn",
        HEAD,
        rows,
    )
    return found | two_processes(samples)


def two_processes(samples: Samples) -> Numbers:
    """How much faster two processes are than one: ours, and loops that have nothing to do with each other."""
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
    show("Two processes", ["", "× as fast as one, wall"], rows)
    return {"speedup.fedwmsam": ours.value, "speedup.bare": bare.value, "efficiency": efficiency}


def methods(model: str, names: Sequence[str], repeats: int) -> Numbers:
    samples = method_cost.method_costs(model, names, repeats)
    show(f"Methods on {model}, one process", method_cost.HEAD, method_cost.rows(samples))
    return merged(
        numbers(f"{model}.{name}", one, samples["fedavg"]) for name, one in samples.items()
    )


def growing(repeats: int) -> Numbers:
    samples = growth.growth(repeats)
    show("Growth of a round (FedAvg unless named), one process", growth.HEAD, growth.rows(samples))
    return merged(
        numbers(f"growth.{series}.{label}", one, first)
        for series, label, one, first in growth.compared(samples)
    )


def starting(repeats: int) -> Numbers:
    samples = startup.startup(min(repeats, 3))
    show("`fedwmsam run` besides its training", startup.HEAD, startup.rows(samples))
    return {
        f"startup.{n}.{clock}": median(one, clock)
        for n, one in samples.items()
        for clock in ("wall", "cpu")
    }


PARTS: dict[str, Callable[[int], Numbers]] = {
    "methods": lambda repeats: methods("mlp", list(METHODS), repeats),
    "resnet18": lambda repeats: methods("resnet18", method_cost.FEW, repeats),
    "growth": growing,
    "startup": starting,
}
SECONDS = {"methods": 40, "resnet18": 15, "growth": 14, "startup": 12}
"""Of one repeat on a quiet machine; a contestant takes about three, and Ray twenty to start."""


def announce(names: Sequence[str], parts: Sequence[str], repeats: int) -> None:
    once = 3 * len(names) + sum(SECONDS[part] for part in parts)
    starts = 20 * sum(name.startswith("flower") for name in names)
    minutes = (once * (repeats + 1) + starts) / 60
    progress(
        f"about {minutes:.0f} minutes on a quiet machine, after what has to be installed: {', '.join([*names, *parts])}"
    )


def merged(parts) -> Numbers:
    return {key: value for part in parts for key, value in part.items()}


def show(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    print(f"### {title}\n\n{table(head, rows)}\n", flush=True)


if __name__ == "__main__":
    main()
