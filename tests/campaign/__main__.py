"""python -m campaign: seeded faults, a table of what became of the runs, and exit code 1 if any
went wrong."""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from campaign.trials import (
    CASES,
    FAULTS,
    REFUSED,
    SAME,
    FaultKind,
    Reference,
    Trial,
    run_reference,
    run_trial,
)

WRONG = "wrong"
OUTCOMES = (SAME, REFUSED, WRONG)
TrialResult = dict[str, Any]
"""Number, fault, case and outcome of a trial, and the reason if it went wrong."""


def main() -> int:
    options = parse_options()
    with tempfile.TemporaryDirectory(prefix="faults-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        start = time.monotonic()
        supported = {name: kind for name, kind in FAULTS.items() if kind.is_supported(folder)}
        skipped = [name for name in FAULTS if name not in supported]
        references = {
            case: run_reference(case, folder / "undisturbed" / str(number))
            for number, case in enumerate(CASES)
        }
        names = shuffle_faults(supported, options.seed)
        numbers = range(options.trials) if options.only is None else [options.only]
        results: list[TrialResult] = []
        for number in numbers:
            fault = names[number % len(names)]
            result = run_numbered_trial(number, fault, options.seed, references, folder)
            results.append(result)
            print_progress(results, options.trials, time.monotonic() - start)
            if result["outcome"] == WRONG and options.keep:
                copy_folder(folder / "trials" / str(number), options.keep / str(number))
    print(markdown_table(results, skipped))
    write_results(options.json, options.seed, results, skipped, time.monotonic() - start)
    return int(any(result["outcome"] == WRONG for result in results))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="campaign", description=__doc__)
    parser.add_argument("--trials", type=int, default=215)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, metavar="NUMBER", help="repeat one trial")
    parser.add_argument(
        "--json", type=Path, default=Path("build/faults.json"), help="where the results go"
    )
    parser.add_argument("--keep", type=Path, help="copy the folders of trials that went wrong here")
    return parser.parse_args()


def shuffle_faults(kinds: dict[str, FaultKind], seed: int) -> list[str]:
    """Return the names of the faults in a random order, each as often as its weight says."""
    names: list[str] = []
    for name, kind in kinds.items():
        names += [name] * kind.weight
    random.Random(seed).shuffle(names)
    return names


def run_numbered_trial(
    number: int, fault: str, seed: int, references: dict[str, Reference], folder: Path
) -> TrialResult:
    """Run a trial, which depends on its number and the seed only: it can be repeated alone."""
    rng = random.Random(f"{seed} {number}")
    kind = FAULTS[fault]
    case = rng.choice(kind.cases)
    trial = Trial(case, folder / "trials" / str(number), rng, references[case])
    result = {"trial": number, "fault": fault, "case": case}
    try:
        return result | {"outcome": run_trial(kind, trial)}
    except Exception as reason:
        # Also a mistake of the campaign itself: it must not hide what the other trials find.
        return result | {"outcome": WRONG, "reason": f"{type(reason).__name__}: {reason}"}


def copy_folder(source: Path, target: Path) -> None:
    """Copy a folder, as far as its files can be read."""
    subprocess.run(["cp", "-r", source, target], check=False)


def print_progress(results: list[TrialResult], total: int, seconds: float) -> None:
    last = results[-1]
    if last["outcome"] == WRONG:
        print(
            f"trial {last['trial']}: {last['fault']} ({last['case']}): {last['reason']}",
            file=sys.stderr,
            flush=True,
        )
    if len(results) % 20 == 0 or len(results) == total:
        print(f"{len(results)} of {total} trials, {seconds:.0f} s", file=sys.stderr, flush=True)


def markdown_table(results: list[TrialResult], skipped: list[str]) -> str:
    """Return the table of how often each fault had each outcome."""
    counts = Counter((result["fault"], result["outcome"]) for result in results)
    lines = [f"| fault | trials | {' | '.join(OUTCOMES)} |", "|---|---|---|---|---|"]
    for name in FAULTS:
        by_outcome = [counts[name, outcome] for outcome in OUTCOMES]
        if any(by_outcome):
            lines.append(table_line(name, by_outcome))
    outcomes = Counter(result["outcome"] for result in results)
    lines.append(table_line("all", [outcomes[outcome] for outcome in OUTCOMES]))
    lines += [f"Not possible on this machine: {name}" for name in skipped]
    return "\n".join(lines)


def table_line(name: str, counts: list[int]) -> str:
    return f"| {name} | {sum(counts)} | {' | '.join(map(str, counts))} |"


def write_results(
    path: Path, seed: int, results: list[TrialResult], skipped: list[str], seconds: float
) -> None:
    """Write the results as JSON, with one line per trial."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = {"seed": seed, "trials": len(results), "seconds": round(seconds), "skipped": skipped}
    lines = ",\n".join(map(json.dumps, results))
    path.write_text(f'{{"campaign": {json.dumps(head)}, "results": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    sys.exit(main())
