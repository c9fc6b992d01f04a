"""The compared metric in percent, as papers print accuracies."""

import math
from collections.abc import Sequence
from dataclasses import replace

from fedwmsam.engine.records import Record
from fedwmsam.engine.run import AVERAGED
from fedwmsam.errors import InputError
from fedwmsam.report.runs import LoadedRun
from fedwmsam.report.summary import Goal


def in_percent(runs: Sequence[LoadedRun], goal: Goal) -> tuple[list[LoadedRun], Goal]:
    """Return the runs and the goal with the metric, also that of averaged models, in percent.

    It is called "accuracy (%)" then. Raise InputError if the metric is not a share between 0 and 1.
    """
    for run in runs:
        for round, value in run.values_by_round(goal.metric).items():
            if math.isfinite(value) and not 0 <= value <= 1:
                raise InputError(
                    f"--percent is for shares between 0 and 1, and {goal.metric} is {value:g} in "
                    f"round {round} of {run.path}; leave it out."
                )
    percent = f"{goal.metric} (%)"
    names = {goal.metric: percent, AVERAGED + goal.metric: AVERAGED + percent}
    converted_runs = []
    for run in runs:
        records = [rename_and_scale(record, names) for record in run.round_records]
        converted_runs.append(replace(run, round_records=records))
    targets = tuple(100 * target for target in goal.targets)
    return converted_runs, replace(goal, metric=percent, targets=targets, is_percent=True)


def rename_and_scale(record: Record, names: dict[str, str]) -> Record:
    """Return a round's record with these columns under their new names, a hundred times as large.

    A value that was not finite stays None.
    """
    converted: Record = {}
    for name, value in record.items():
        if name in names and isinstance(value, int | float):
            converted[names[name]] = 100 * value
        else:
            converted[names.get(name, name)] = value
    return converted
