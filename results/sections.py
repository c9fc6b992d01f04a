"""Sections of the pages in docs/results: tables and plots of kept runs, as Markdown.

`rebuild.py` says which section is on which page. A section of one subject with tables of its own is
in the module of that subject: `eight_seeds.py`, `tuned.py`, `verdict.py`.
"""

import math
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedwmsam.analysis import dynamics, flatness
from fedwmsam.comparison.grid import RunSpec, make_grid
from fedwmsam.engine.run_folder import is_run
from fedwmsam.paper.recipe import Plan
from fedwmsam.paper.reproduction import find_recipe
from fedwmsam.paper.results import Results
from fedwmsam.report.plots import PlotSpec, comparison_plots
from fedwmsam.report.runs import LoadedRun, add_averaged_model_runs, read_run
from fedwmsam.report.summary import (
    ACCURACY,
    ResultRow,
    RunScores,
    find_cost_to_target,
    make_goal,
    score_run,
    summarise,
)
from fedwmsam.report.text_tables import (
    MISSING,
    TextTable,
    escape_markdown,
    make_text_tables,
    markdown_table,
    number_cell,
)
from fedwmsam.statistics import mean_spread

PLANS = Path(__file__).resolve().parent / "plans"
QUANTITIES = {
    "tail": "Mean of the last ten",
    "last": "Last",
    "best_on_test": "Best on test (selected on test)",
}
"""Scores of a run → the titles of their tables."""
Cell = tuple[tuple[str, ...], str]
"""A cell of a table, by the values that stand for its row and for its column."""
LEFT_OUT = ("MB down + up", "backprops", "training s")
"""Columns of a comparison that the pages leave out.

Traffic and backprops are the same in every run of a method, and on the page of costs. The machine
of these runs did other things at the same time, so their seconds say nothing.
"""
SHOWN_PLOTS = (
    "accuracy-over-rounds",
    "alpha-over-rounds",
    "alignment-over-rounds",
    "echo-over-rounds",
)
MakeTables = Callable[[Sequence[LoadedRun]], Sequence[TextTable]]
SelectRuns = Callable[[Sequence[LoadedRun]], Sequence[LoadedRun]]
MakePlots = Callable[[Sequence[LoadedRun]], Iterable[PlotSpec]]
RunQuantity = Callable[[LoadedRun], float]
"""A number of one run."""


def no_plots(runs: Sequence[LoadedRun]) -> Sequence[PlotSpec]:
    """Return no plots; for sections of tables only."""
    return ()


@dataclass(frozen=True)
class PageSection:
    """A section of a page: tables and plots, the command that made the runs, and these runs."""

    make_tables: Callable[[Path], Sequence[TextTable]]
    """Returns the tables, given the folder of the unpacked runs."""
    command: str = ""
    run_specs: Sequence[RunSpec] = ()
    make_plots: MakePlots = no_plots
    shown_plots: Collection[str] = SHOWN_PLOTS
    has_result: Callable[[Path], bool] = is_run
    """Returns whether a run folder has what the command makes."""

    def finished(self, runs: Path) -> list[str]:
        """Return the names of the runs that have what the command makes."""
        folders = [spec.find_folder(runs) for spec in self.run_specs]
        return [folder.name for folder in folders if self.has_result(folder)]

    def count(self, runs: Path) -> str:
        """Return how many runs there are, for example "5 of 15 runs so far"."""
        total = len(self.run_specs)
        finished = len(self.finished(runs))
        return f"{total} runs" if finished == total else f"{finished} of {total} runs so far"

    def text(self, name: str, tables: Sequence[TextTable], runs: Path, said: set[str]) -> str:
        """Return the section with its tables as Markdown.

        Notes that are in `said` are left out; those that are printed are added to it.
        """
        parts = []
        if self.command:
            parts.append(f"`{self.command}`: {self.count(runs)}\n")
        parts += [table_text(table, said) for table in tables]
        titles = [title for title, *_ in self.plots(name, runs)]
        parts.append("".join(f"![{title}](../pictures/results/{title}.png)\n" for title in titles))
        return "\n".join(filter(None, parts))

    def plots(self, name: str, runs: Path) -> list[PlotSpec]:
        """Return the plots that the page shows; their titles begin with the section's name."""
        loaded = load_runs(self.run_specs, runs)
        if not loaded:
            return []
        return [
            (f"{name}-{title}", height, draw)
            for title, height, draw in self.make_plots(loaded)
            if title in self.shown_plots
        ]


def table_text(table: TextTable, said: set[str]) -> str:
    """Return a table as Markdown with those of its notes that are not in `said`, and add them.

    What the runs of nearly all tables have in common is left out of its title.
    """
    title = table.title.partition(": fashion-mnist")[0].replace(" at scale small", "")
    title = title.capitalize() if title.islower() and title.isascii() else title
    notes = tuple(note for note in table.notes if note not in said)
    said.update(notes)
    return markdown_table(replace(table, title=title, notes=notes))


def notes_text(notes: Iterable[str]) -> str:
    """Return the notes as a list in Markdown."""
    return "".join(f"- {escape_markdown(note)}\n" for note in notes)


def without_columns(table: TextTable, names: Collection[str]) -> TextTable:
    """Return the table without the columns of these names."""
    return select_columns(table, {*table.header} - {*names})


def select_columns(table: TextTable, names: Collection[str]) -> TextTable:
    """Return the table with the columns of these names only."""
    columns = [number for number, name in enumerate(table.header) if name in names]

    def select(row: Sequence[str]) -> tuple[str, ...]:
        return tuple(row[number] for number in columns)

    return replace(table, header=select(table.header), rows=tuple(map(select, table.rows)))


def load_runs(specs: Sequence[RunSpec], runs: Path) -> list[LoadedRun]:
    """Return those of the given runs that are in the folder."""
    folders = [spec.find_folder(runs) for spec in specs]
    return [read_run(folder) for folder in folders if is_run(folder)]


def load_run_specs(plan: str) -> list[RunSpec]:
    """Return the runs of a plan in results/plans."""
    return make_grid(tomllib.loads((PLANS / plan).read_text()), {}).run_specs()


def compare_command(plan: str) -> str:
    """Return the command that makes the runs of a plan."""
    return f"fedwmsam compare results/plans/{plan}"


def queue_command(plan: str) -> str:
    """Return the command for the runs of a plan whose step sizes another plan chooses."""
    return f"python results/run_queue.py FOLDER --only {plan}"


def comparison_section(plan: str, baselines: Sequence[str] = ()) -> PageSection:
    """Return the section of a plan that is run with `fedwmsam compare`."""
    return table_section(compare_command(plan), load_run_specs(plan), baselines)


def table_section(
    command: str, specs: Sequence[RunSpec], baselines: Sequence[str] = ()
) -> PageSection:
    """Return a section with the accuracies of a comparison, and the differences to each baseline.

    Averaged models (twins) have rows of their own.
    """

    def make_tables(runs: Path) -> Sequence[TextTable]:
        loaded = add_averaged_model_runs(load_runs(specs, runs))
        tables = make_text_tables(summarise(loaded))
        for baseline in baselines:
            tables.append(make_text_tables(summarise(loaded, baseline=baseline))[-1])
        return [without_columns(table, LEFT_OUT) for table in tables]

    def make_plots(runs: Sequence[LoadedRun]) -> Iterable[PlotSpec]:
        return comparison_plots(summarise(add_averaged_model_runs(runs)))

    return PageSection(make_tables, command, specs, make_plots)


def grid_section(
    plan: str, rows: Sequence[str], column: str, quantities: Collection[str]
) -> PageSection:
    """Return a section with one table per score of a plan's runs.

    A table has one row for each combination of the options `rows`, and one column for each value of
    the option `column`.
    """
    specs = load_run_specs(plan)

    def make_tables(runs: Path) -> Sequence[TextTable]:
        loaded = load_runs(specs, runs)
        cells = [cell_of(run.config, rows, column) for run in loaded]
        row_values = list(dict.fromkeys(row for row, _ in cells))
        column_values = list(dict.fromkeys(value for _, value in cells))
        scores = {cell: score_run(run, ACCURACY) for cell, run in zip(cells, loaded, strict=True)}
        header = (*rows, *(f"{column} = {value}" for value in column_values))
        tables = []
        for quantity in quantities:
            lines = []
            for row in row_values:
                row_scores = [scores.get((row, value)) for value in column_values]
                lines.append((*row, *(score_cell(score, quantity) for score in row_scores)))
            tables.append(TextTable(QUANTITIES[quantity], header, tuple(lines)))
        return tables

    return PageSection(make_tables, compare_command(plan), specs)


def cell_of(config: Mapping[str, object], rows: Sequence[str], column: str) -> Cell:
    """Return the cell of the run with this configuration."""
    return tuple(str(config.get(name) or MISSING) for name in rows), str(config[column])


def score_cell(score: RunScores | None, quantity: str) -> str:
    """Return a score of a run as text, also if there is no such run."""
    return MISSING if score is None else number_cell(getattr(score, quantity))


def recipe_section(
    recipe: str, rounds: int, columns: Sequence[str] = (), left_out: Collection[str] = ()
) -> PageSection:
    """Return the section of a recipe that is run with `fedwmsam reproduce`.

    Of a table that the paper has in two forms the last one is shown, which is as printed. `columns`
    are those of the paper, `left_out` is not printed.
    """
    plan = Plan(find_recipe(recipe), "small", (0,), {"rounds": rounds}, columns)
    options = "".join(f' --column "{column}"' for column in columns)
    command = f"fedwmsam reproduce {recipe} --rounds {rounds}{options}"

    def make_tables(runs: Path) -> Sequence[TextTable]:
        return [without_columns(table, left_out) for table in Results(plan, runs).tables()[-1:]]

    return PageSection(make_tables, command, plan.run_specs())


def target_section(command: str, specs: Sequence[RunSpec], targets: Sequence[float]) -> PageSection:
    """Return the section of the rounds that runs need to reach targets."""

    def make_tables(runs: Path) -> Sequence[TextTable]:
        (table,) = summarise(add_averaged_model_runs(load_runs(specs, runs))).tables
        title = "Rounds until ten of them have this mean accuracy"
        return [targets_table(title, {row.label: row for row in table.rows}, targets)]

    return PageSection(make_tables, command, specs)


def targets_table(title: str, rows: Mapping[str, ResultRow], targets: Sequence[float]) -> TextTable:
    """Return the table of the rounds to each target; `rows` has them by the names to print."""
    lines = []
    for name, row in rows.items():
        lines.append((name, *(rounds_cell(row, target) for target in targets)))
    header = ("method", *(f"to {target:g}" for target in targets))
    return TextTable(title, header, tuple(lines))


def rounds_cell(row: ResultRow, target: float) -> str:
    """Return the rounds to a target over the seeds that reached it, and how many did if not all."""
    values = [rounds_to(target)(score.run) for score in row.scores]
    reached = [value for value in values if not math.isnan(value)]
    if not reached:
        return "not reached"
    spread = mean_spread(reached)
    text = f"{spread.mean:.1f} ± {spread.deviation:.1f}" if spread.n > 1 else f"{spread.mean:.0f}"
    return text if len(reached) == len(values) else f"{text} ({len(reached)} of {len(values)})"


def rounds_to(target: float) -> RunQuantity:
    """Return the function that counts the rounds until ten of them have this mean accuracy."""
    goal = make_goal("accuracy", [target])

    def quantity(run: LoadedRun) -> float:
        cost = find_cost_to_target(run, target, goal)
        return cost.rounds if cost else math.nan

    return quantity


def analysis_section(
    command: str,
    specs: Sequence[RunSpec],
    file: str,
    make_tables: MakeTables,
    make_plots: MakePlots = no_plots,
) -> PageSection:
    """Return the section of an analysis, which wrote `file` for each of the runs."""
    return PageSection(
        lambda runs: make_tables(load_runs(specs, runs)),
        command,
        specs,
        make_plots,
        has_result=lambda folder: (folder / "analysis" / file).exists(),
    )


def flatness_section(
    specs: Sequence[RunSpec], select: SelectRuns = lambda runs: runs
) -> PageSection:
    """Return the section of the flatness of runs, over seeds; `select` may leave out some."""

    def make_tables(runs: Sequence[LoadedRun]) -> list[TextTable]:
        tables = [flatness.seeds_table(table) for table in summarise(select(runs)).tables]
        columns = ("round", "rise within ρ = 0.01", "adaptive, ρ = 0.1", "adaptive, ρ = 1")
        return [without_columns(table, columns) for table in tables if table]

    command = "fedwmsam analyse flatness RUNS --clients 5"
    return analysis_section(command, specs, flatness.FLATNESS_FILE, make_tables)


def dynamics_section(
    specs: Sequence[RunSpec], titles: Collection[str], has_plots: bool = True
) -> PageSection:
    """Return the section of the training dynamics of runs, with the tables of these titles."""

    def make_tables(runs: Sequence[LoadedRun]) -> list[TextTable]:
        tables = dynamics.dynamics_tables(dynamics.load_groups(runs))
        columns = ("lag 1", "lag 2", "straightness", "the same at the first step")
        return [without_columns(table, columns) for table in tables if table.title in titles]

    def make_plots(runs: Sequence[LoadedRun]) -> Iterable[PlotSpec]:
        return dynamics.dynamics_plots(dynamics.load_groups(runs))

    return analysis_section(
        "fedwmsam analyse dynamics RUNS",
        specs,
        dynamics.DYNAMICS_FILE,
        make_tables,
        make_plots if has_plots else no_plots,
    )
