"""How the values of a table's rows were chosen, as the folders of their comparisons tell.

A comparison with tuning keeps what it tried, scored and chose beside its runs. That file may be a
stranger's like any other of a run folder: it is checked before a report believes it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from fedwmsam.comparison.tuning import (
    TUNING_FILE,
    TriedValues,
    TuningResult,
    fingerprint_in,
    superseded_runs,
)
from fedwmsam.engine.records import read_json
from fedwmsam.errors import InputError, printable
from fedwmsam.report.runs import to_float
from fedwmsam.report.stored_values import (
    MAX_KEY,
    damaged,
    list_of,
    number,
    scalar,
    text,
    whole_number,
)
from fedwmsam.report.summary import ResultRow, ResultTable


@dataclass(frozen=True)
class TableTuning:
    """The choices behind the rows of a table."""

    by_row: Mapping[str, tuple[TuningResult, ...]]
    """The choices by the label of the row; rows with values that nobody tuned are not there."""
    problems: tuple[str, ...] = ()
    """Why files that should tell cannot be read."""
    earlier: tuple[TuningResult, ...] = ()
    """Choices of these rows that later ones have replaced, and whose runs are not counted."""

    @property
    def results(self) -> list[TuningResult]:
        """Return all choices in the order of the rows, each once."""
        return list(dict.fromkeys(chain.from_iterable(self.by_row.values())))


def find_tuning(table: ResultTable) -> TableTuning:
    """Return how the values of the rows of a table were chosen, as far as their folders tell."""
    results: dict[tuple[Path, str], TuningResult] = {}
    problems = []
    replaced = []
    paths = chain.from_iterable(map(run_paths, table.rows))
    for folder in dict.fromkeys(path.parent for path in paths):
        try:
            left_out = superseded_runs(folder / TUNING_FILE)
            for result in read_tuning_file(folder / TUNING_FILE):
                fingerprints = list(map(fingerprint_in, result.runs))
                results |= {(folder, fingerprint): result for fingerprint in fingerprints}
                if left_out.issuperset(fingerprints):
                    replaced.append(result)
        except InputError as error:
            problems.append(printable(error).rstrip("."))
    by_row = {}
    for row in table.rows:
        keys = [(path.parent, fingerprint_in(path.name)) for path in run_paths(row)]
        found = dict.fromkeys(results[key] for key in keys if key in results)
        if found:
            by_row[row.label] = tuple(found)
    asked = {result.asked for result in chain.from_iterable(by_row.values())}
    earlier = tuple(result for result in replaced if result.asked in asked)
    return TableTuning(by_row, tuple(problems), earlier)


def run_paths(row: ResultRow) -> Iterator[Path]:
    """Yield the folders of the runs of a row, also of those that are not counted."""
    for score in row.scores:
        yield score.run.path.resolve()
    for run in row.excluded_runs:
        yield run.path.resolve()


def read_tuning_file(path: Path) -> list[TuningResult]:
    """Return the choices in a comparison's file, none if there is no such file.

    Raise InputError if the file is damaged.
    """
    if not path.exists():
        return []
    entries = list_of((path, "rows"), read_json(path).get("rows"))
    return [check_result(path, entry) for entry in entries]


def check_result(path: Path, entry: object) -> TuningResult:
    """Return a choice from the file; raise InputError for a value of another form."""
    values = table_of(path, "rows", entry)
    seeds = [whole_number((path, "seeds"), seed) for seed in list_at(path, values, "seeds")]
    candidates = []
    for candidate in list_at(path, values, "candidates"):
        candidates.append(check_candidate(path, candidate, len(seeds)))
    result = TuningResult(
        row=text((path, "row"), values.get("row")),
        method=text((path, "method"), values.get("method")),
        rounds=whole_number((path, "rounds"), values.get("rounds"), low=1),
        validation=to_float(number((path, "validation"), values.get("validation"))),
        seeds=tuple(seeds),
        candidates=tuple(candidates),
        runs=tuple(text((path, "runs"), name) for name in list_at(path, values, "runs")),
        asked=text((path, "asked"), values.get("asked", "")),
    )
    keys = [list(candidate.values) for candidate in candidates]
    if not seeds or not keys or any(names != keys[0] for names in keys):
        raise damaged((path, "candidates"), "values of the same keys with scores", keys)
    if result.best.values != values.get("chosen"):
        raise damaged((path, "chosen"), "the values with the best score", values.get("chosen"))
    return result


def check_candidate(path: Path, entry: object, seeds: int) -> TriedValues:
    """Return values that were tried; raise InputError unless they have a score for each seed."""
    candidate = table_of(path, "candidates", entry)
    values = table_of(path, "values", candidate.get("values"))
    scores = [number((path, "scores"), score) for score in list_at(path, candidate, "scores")]
    if len(scores) != seeds:
        raise damaged((path, "scores"), "a score for each seed", scores)
    checked = {printable(key, MAX_KEY): scalar((path, key), values[key]) for key in values}
    return TriedValues(checked, tuple(map(to_float, scores)))


def table_of(path: Path, key: str, value: object) -> Mapping[str, Any]:
    """Return a JSON object; raise InputError for anything else."""
    if isinstance(value, dict):
        return value
    raise damaged((path, key), "a table", value)


def list_at(path: Path, values: Mapping[str, Any], key: str) -> Any:
    """Return the list at a key; raise InputError if there is none."""
    return list_of((path, key), values.get(key))
