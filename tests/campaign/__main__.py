"""python -m campaign: seeded faults, a table of what became of the runs, and exit code 1 if any went wrong."""

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

from campaign.trials import CASES, KINDS, REFUSED, SAME, Trial, carry_out, undisturbed

WRONG = "wrong"


def main() -> int:
    options = arguments()
    with tempfile.TemporaryDirectory(prefix="faults-", ignore_cleanup_errors=True) as folder:
        place, start = Path(folder), time.monotonic()
        possible = {name: kind for name, kind in KINDS.items() if kind.possible(place)}
        skipped = [name for name in KINDS if name not in possible]
        references = {
            case: undisturbed(case, place / "undisturbed" / str(n)) for n, case in enumerate(CASES)
        }
        names = [name for name, kind in possible.items() for _ in range(kind.share)]
        random.Random(options.seed).shuffle(names)
        results = []
        for number in [options.only] if options.only is not None else range(options.trials):
            results.append(one(number, names[number % len(names)], options.seed, references, place))
            progress(results, options.trials, time.monotonic() - start)
            if results[-1]["outcome"] == WRONG and options.keep:
                keep(place / "trials" / str(number), options.keep / str(number))
    print(table(results, skipped))
    write(options.json, options.seed, results, skipped, time.monotonic() - start)
    return int(any(result["outcome"] == WRONG for result in results))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="campaign", description=__doc__)
    parser.add_argument("--trials", type=int, default=215)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, metavar="NUMBER", help="repeat one trial")
    parser.add_argument(
        "--json", type=Path, default=Path("build/faults.json"), help="where the results go"
    )
    parser.add_argument("--keep", type=Path, help="copy the folders of trials that went wrong here")
    return parser.parse_args()


def one(
    number: int, name: str, seed: int, references: dict[str, Any], place: Path
) -> dict[str, Any]:
    """A trial depends on nothing but its number and the seed, so that it can be repeated alone."""
    chance, kind = random.Random(f"{seed} {number}"), KINDS[name]
    case = chance.choice(kind.cases)
    trial = Trial(case, place / "trials" / str(number), chance, references[case])
    result = {"trial": number, "fault": name, "case": case}
    try:
        return result | {"outcome": carry_out(kind, trial)}
    except (
        Exception
    ) as reason:  # a mistake of the campaign's own must not hide what the other trials find
        return result | {"outcome": WRONG, "reason": f"{type(reason).__name__}: {reason}"}


def keep(place: Path, target: Path) -> None:
    subprocess.run(["cp", "-r", place, target], check=False)


def progress(results: list[dict[str, Any]], total: int, seconds: float) -> None:
    last = results[-1]
    if last["outcome"] == WRONG:
        print(
            f"trial {last['trial']}: {last['fault']} ({last['case']}): {last['reason']}",
            file=sys.stderr,
            flush=True,
        )
    if len(results) % 20 == 0 or len(results) == total:
        print(f"{len(results)} of {total} trials, {seconds:.0f} s", file=sys.stderr, flush=True)


def table(results: list[dict[str, Any]], skipped: list[str]) -> str:
    """Fault × outcome, as a table for a page."""
    counts = Counter((result["fault"], result["outcome"]) for result in results)
    lines = [f"| fault | trials | {SAME} | {REFUSED} | {WRONG} |", "|---|---|---|---|---|"]
    for name in [name for name in KINDS if name not in skipped]:
        found = [counts[name, outcome] for outcome in (SAME, REFUSED, WRONG)]
        lines += (
            [f"| {name} | {sum(found)} | {' | '.join(map(str, found))} |"] if any(found) else []
        )
    total = [sum(counts[name, outcome] for name in KINDS) for outcome in (SAME, REFUSED, WRONG)]
    lines.append(f"| all | {sum(total)} | {' | '.join(map(str, total))} |")
    return "\n".join(lines + [f"Not possible on this machine: {name}" for name in skipped])


def write(
    path: Path, seed: int, results: list[dict[str, Any]], skipped: list[str], seconds: float
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    head = {"seed": seed, "trials": len(results), "seconds": round(seconds), "skipped": skipped}
    lines = ",\n".join(map(json.dumps, results))
    path.write_text(f'{{"campaign": {json.dumps(head)}, "results": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    sys.exit(main())
