"""Dynamics and theory of saved runs: measured, written beside the runs, and laid out as tables."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from fedwmsam.analysis import dynamics, estimates
from fedwmsam.analysis.results import load_analysis, save_analysis
from fedwmsam.analysis.theory import Setting
from fedwmsam.engine.records import Record
from fedwmsam.errors import InputError
from fedwmsam.report import dynamics as tables
from fedwmsam.report.plots import draw_pictures
from fedwmsam.report.runs import Run, State, find_runs
from fedwmsam.report.sheets import Sheet
from fedwmsam.report.theory import general_sheets, run_sheets


def run_dynamics(
    places: Sequence[Path], states: int, sample: int, again: bool, plots: tuple[Path, str] | None,
    say: Callable[[str], None],
) -> tuple[list[Sheet], list[Path]]:  # fmt: skip
    """One run after the other, each written when it is done; a run that went on since is analysed again.

    `plots` are a folder for pictures and their format. Returns the tables and what was written.
    """
    runs, care = readable(places), replace(dynamics.THOROUGH, sample=sample)
    written = []
    for run in runs:
        before = load_analysis(run.path, dynamics.FILE)
        if again or before is None or before["rounds"] != len(run.rows):
            say(f"Replaying {run.path} …")
            found = dynamics.dynamics(run.path, states, care)
            written.append(save_analysis(run.path, dynamics.FILE, found))
            for remark in remarks(found):
                say(f"- {remark}")
    groups = tables.groups_of(runs)
    if plots is not None:
        written += draw_pictures(tables.pictures(groups), *plots)
    return tables.sheets(groups), written


def remarks(found: Record) -> list[str]:
    """What a reader of the numbers must know of this run."""
    notes = []
    if not found["recorded"] and not found["replayed"]:
        notes.append("It kept no states and recorded nothing: run it with --record or --set keep_states=10.")
    if found["not_as_it_was"]:
        rounds = ", ".join(map(str, found["not_as_it_was"]))
        notes.append(f"Rounds {rounds} did not repeat exactly: another machine or version made the run.")
    if found["last_rounds"] is None:
        notes.append("Its last rounds could not be replayed: it is not finished, or has one checkpoint only.")
    return notes


def run_theory(
    places: Sequence[Path], states: int, sample: int, setting: Setting, say: Callable[[str], None]
) -> tuple[list[Sheet], list[Path]]:
    sheets, written = [] if places else general_sheets(setting), []
    for run in readable(places) if places else []:
        say(f"Measuring {run.path} …")
        found = estimates.theory(run.path, states, sample)
        written.append(save_analysis(run.path, estimates.FILE, found))
        sheets += run_sheets(run.path.name, found)
    return sheets, written


def readable(places: Sequence[Path]) -> list[Run]:
    """Runs that have a round; the others cannot be analysed."""
    runs = [run for run in find_runs(places)[0] if run.rows and run.state is not State.DAMAGED]
    if not runs:
        raise InputError(f"No run in {', '.join(map(str, places))} has done a round that can be read.")
    return runs
