"""python -m campaign: seeded faults, a table of what became of the runs, and exit code 1 if any
went wrong."""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from campaign.results import CampaignResult, markdown_table, shuffle_kinds, write_results
from campaign.trials import (
    CASES,
    FAULTS,
    REFUSED,
    SAME,
    Reference,
    Trial,
    run_reference,
    run_trial,
)

WRONG = "wrong"
OUTCOMES = (SAME, REFUSED, WRONG)


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
        names = shuffle_kinds(supported, options.seed)
        numbers = range(options.trials) if options.only is None else [options.only]
        results: list[CampaignResult] = []
        for number in numbers:
            fault = names[number % len(names)]
            result = run_numbered_trial(number, fault, options.seed, references, folder)
            results.append(result)
            print_progress(results, options.trials, time.monotonic() - start)
            if result["outcome"] == WRONG and options.keep:
                copy_folder(folder / "trials" / str(number), options.keep / str(number))
    order = list(FAULTS)
    by_fault = sorted(results, key=lambda result: order.index(result["fault"]))
    print(markdown_table(by_fault, ("fault", "trials"), OUTCOMES))
    for name in skipped:
        print(f"Not possible on this machine: {name}")
    seconds = round(time.monotonic() - start)
    head = {"seed": options.seed, "trials": len(results), "seconds": seconds, "skipped": skipped}
    write_results(options.json, head, results)
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


def run_numbered_trial(
    number: int, fault: str, seed: int, references: dict[str, Reference], folder: Path
) -> CampaignResult:
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


def print_progress(results: list[CampaignResult], total: int, seconds: float) -> None:
    last = results[-1]
    if last["outcome"] == WRONG:
        print(
            f"trial {last['trial']}: {last['fault']} ({last['case']}): {last['reason']}",
            file=sys.stderr,
            flush=True,
        )
    if len(results) % 20 == 0 or len(results) == total:
        print(f"{len(results)} of {total} trials, {seconds:.0f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
