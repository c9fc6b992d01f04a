"""What `fedwmsam analyse dynamics` and `fedwmsam analyse theory` do."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedwmsam.analysis import dynamics, estimates
from fedwmsam.analysis.results import load_analysis, save_analysis
from fedwmsam.analysis.theory import Setting
from fedwmsam.cli import console
from fedwmsam.engine.folder import Record
from fedwmsam.errors import InputError
from fedwmsam.report import dynamics as tables
from fedwmsam.report.formats import markdown_text, write
from fedwmsam.report.plots import draw_pictures
from fedwmsam.report.runs import Run, State, find_runs
from fedwmsam.report.sheets import Sheet
from fedwmsam.report.terminal import show_sheets
from fedwmsam.report.theory import general_sheets, run_sheets


def analyse_dynamics(
    places: Sequence[Path], states: int, sample: int, again: bool, plots: Path | None, format: str,
    markdown: Path | None, quiet: bool,
) -> None:  # fmt: skip
    """One run after the other, each written when it is done; a run that went on since is analysed again."""
    runs, care = readable(places), replace(dynamics.THOROUGH, sample=sample)
    written = []
    for run in runs:
        before = load_analysis(run.path, dynamics.FILE)
        if again or before is None or before["rounds"] != len(run.rows):
            say(quiet, f"Replaying {run.path} …")
            found = dynamics.dynamics(run.path, states, care)
            written.append(save_analysis(run.path, dynamics.FILE, found))
            for remark in remarks(found):
                say(quiet, f"- {remark}")
    groups = tables.groups_of(runs)
    if plots is not None:
        written += draw_pictures(tables.pictures(groups), plots, format)
    present(tables.sheets(groups), written, markdown, quiet)


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


def analyse_theory(
    places: Sequence[Path], states: int, sample: int, setting: Setting, markdown: Path | None, quiet: bool
) -> None:
    sheets, written = [] if places else general_sheets(setting), []
    for run in readable(places) if places else []:
        say(quiet, f"Measuring {run.path} …")
        found = estimates.theory(run.path, states, sample)
        written.append(save_analysis(run.path, estimates.FILE, found))
        sheets += run_sheets(run.path.name, found)
    present(sheets, written, markdown, quiet)


def readable(places: Sequence[Path]) -> list[Run]:
    """Runs that have a round; the others cannot be analysed."""
    runs = [run for run in find_runs(places)[0] if run.rows and run.state is not State.DAMAGED]
    if not runs:
        raise InputError(f"No run in {', '.join(map(str, places))} has done a round that can be read.")
    return runs


def present(sheets: Sequence[Sheet], written: list[Path], markdown: Path | None, quiet: bool) -> None:
    if markdown is not None:
        write(markdown, markdown_text(sheets))
        written.append(markdown)
    if not quiet:
        show_sheets(console, sheets)
    for path in written:
        say(quiet, f"Written: {path}")


def say(quiet: bool, text: str) -> None:
    if not quiet:
        console.print(text, soft_wrap=True)
