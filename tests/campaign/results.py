"""What both campaigns do with their results: an order of kinds, a table, a file."""

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

CampaignResult = dict[str, Any]
"""Number, kind and outcome of a trial or an input, and the reason if it went wrong."""


class Weighted(Protocol):
    """A kind of trial with its number, relative to the others."""

    @property
    def weight(self) -> int:
        """Return the number of trials of this kind, relative to the others."""


def shuffle_kinds(kinds: Mapping[str, Weighted], seed: int) -> list[str]:
    """Return the names of the kinds in a random order, each as often as its weight says."""
    names: list[str] = []
    for name, kind in kinds.items():
        names += [name] * kind.weight
    random.Random(seed).shuffle(names)
    return names


def markdown_table(
    results: Sequence[CampaignResult], columns: tuple[str, str], outcomes: Sequence[str]
) -> str:
    """Return the table of how often each kind had each outcome.

    `columns` says what a kind is called, which is also its key in a result, and what is counted.
    """
    what, counted = columns
    counts = Counter((result[what], result["outcome"]) for result in results)
    totals = Counter(("all", result["outcome"]) for result in results)
    lines = [
        f"| {what} | {counted} | {' | '.join(outcomes)} |",
        "|---" * (2 + len(outcomes)) + "|",
    ]
    for name in [*dict.fromkeys(result[what] for result in results), "all"]:
        by_outcome = [(counts + totals)[name, outcome] for outcome in outcomes]
        lines.append(f"| {name} | {sum(by_outcome)} | {' | '.join(map(str, by_outcome))} |")
    return "\n".join(lines)


def write_results(path: Path, head: Mapping[str, Any], results: Sequence[CampaignResult]) -> None:
    """Write the results as JSON, with one line per trial."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(map(json.dumps, results))
    path.write_text(f'{{"campaign": {json.dumps(head)}, "results": [\n{lines}\n]}}\n')
