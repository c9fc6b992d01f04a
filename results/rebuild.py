"""Make every table and plot of RESULTS.md from what is kept in this folder: `make results`.

    python results/rebuild.py [--check]

RESULTS.md has a pair of comments around each section that is made here, `<!-- NAME -->` and `<!--
end of NAME -->`; README.md and docs/local-training.md have one such pair each. With --check nothing
is written, and the program fails if one of these pages is not what it would write.
"""

import csv
import sys
import tempfile
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

import store

from fedwmsam.analysis import dynamics, flatness
from fedwmsam.analysis.dynamics import DYNAMICS_FILE
from fedwmsam.comparison.grid import RunSpec, make_grid
from fedwmsam.engine.run_folder import is_run
from fedwmsam.methods import FedWMSAM
from fedwmsam.paper.recipe import Plan
from fedwmsam.paper.reproduction import find_recipe
from fedwmsam.paper.results import Results
from fedwmsam.report.plots import PlotSpec, comparison_plots, save_plots
from fedwmsam.report.runs import LoadedRun, add_averaged_model_runs, read_run
from fedwmsam.report.summary import ACCURACY, RunScores, make_goal, score_run, summarise
from fedwmsam.report.text_tables import (
    MISSING,
    TextTable,
    make_text_tables,
    markdown_table,
    number_cell,
    spread_cell,
)
from fedwmsam.statistics import mean_spread

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "RESULTS.md"
README = ROOT / "README.md"
LOCAL_TRAINING = ROOT / "docs" / "local-training.md"
PLANS = ROOT / "results" / "plans"
PLOTS = ROOT / "docs" / "pictures" / "results"
README_COLUMNS = ("method", "seeds", "last", "mean of last 10", "MB down + up", "backprops")
QUANTITIES = {
    "tail": "Mean of the last 10",
    "last": "Last",
    "best_on_test": "Best on test (selected on test)",
}
"""Scores of a run → the titles of their tables."""
Cell = tuple[tuple[str, ...], str]
"""A cell of a table, by the values that stand for its row and for its column."""
SHOWN_PLOTS = (
    "accuracy-over-rounds",
    "alpha-over-rounds",
    "alignment-over-rounds",
    "echo-over-rounds",
)
FLATNESS = "fedwmsam analyse flatness RUNS --clients 5"
DYNAMICS = "fedwmsam analyse dynamics RUNS"
SECONDS = "training s"
"""A column that is left out: the machine of these runs did other things at the same time."""
MakeTables = Callable[[Sequence[LoadedRun]], Sequence[TextTable]]
MakePlots = Callable[[Sequence[LoadedRun]], Iterable[PlotSpec]]


def no_plots(runs: Sequence[LoadedRun]) -> Sequence[PlotSpec]:
    """Return no plots; for sections of tables only."""
    return ()


@dataclass(frozen=True)
class PageSection:
    """A section of the page: the command that made its runs, these runs, their tables and plots."""

    command: str
    run_specs: Sequence[RunSpec]
    make_tables: Callable[[Path], Sequence[TextTable]]
    make_plots: MakePlots = no_plots
    has_result: Callable[[Path], bool] = is_run
    """Returns whether a run folder has what the command makes."""

    def text(self, name: str, runs: Path) -> str:
        """Return the section as Markdown; `runs` is the folder of the unpacked runs."""
        folders = [spec.find_folder(runs) for spec in self.run_specs]
        finished = [folder.name for folder in folders if self.has_result(folder)]
        if not finished:
            return f"Not run: `{self.command}` ({len(folders)} runs)\n"
        count = f"{len(folders)} runs"
        if len(finished) < len(folders):
            count = f"{len(finished)} of {len(folders)} runs so far"
        tables = [without_column(table, SECONDS) for table in self.make_tables(runs)]
        titles = [title for title, *_ in self.plots(name, runs)]
        images = [f"![{title}](docs/pictures/results/{title}.png)\n" for title in titles]
        links = ", ".join(f"[{run}](results/runs/{run}.csv)" for run in finished)
        parts = [
            f"`{self.command}`: {count}\n",
            "\n".join(markdown_table(table) for table in tables),
            "".join(images),
            f"<details><summary>Runs</summary>\n\n{links}\n\n</details>\n",
        ]
        return "\n".join(filter(None, parts))

    def plots(self, name: str, runs: Path) -> list[PlotSpec]:
        """Return the plots that the page shows; their titles begin with the section's name."""
        loaded = load_runs(self.run_specs, runs)
        if not loaded:
            return []
        return [
            (f"{name}-{title}", height, draw)
            for title, height, draw in self.make_plots(loaded)
            if title in SHOWN_PLOTS
        ]


def without_column(table: TextTable, name: str) -> TextTable:
    """Return the table without the column of this name."""
    return select_columns(table, {*table.header} - {name})


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


def comparison_section(
    plan: str, baselines: Sequence[str] = (), targets: Sequence[float] = ()
) -> PageSection:
    """Return the section of a plan that is run with `fedwmsam compare`."""
    command = f"fedwmsam compare results/plans/{plan}"
    return table_section(command, load_run_specs(plan), baselines, targets)


def table_section(
    command: str, specs: Sequence[RunSpec], baselines: Sequence[str], targets: Sequence[float]
) -> PageSection:
    """Return a section with the tables of a comparison, and the differences to each baseline.

    Averaged models (twins) have rows of their own.
    """

    def make_tables(runs: Path) -> Sequence[TextTable]:
        loaded = add_averaged_model_runs(load_runs(specs, runs))
        goal = make_goal("accuracy", targets)
        tables = make_text_tables(summarise(loaded, goal), paper_columns=True)
        methods = {run.config["method"] for run in loaded}
        for baseline in baselines:
            if baseline.split()[0] in methods:
                tables.append(make_text_tables(summarise(loaded, goal, baseline))[-1])
        return tables

    def make_plots(runs: Sequence[LoadedRun]) -> Iterable[PlotSpec]:
        return comparison_plots(summarise(add_averaged_model_runs(runs)))

    return PageSection(command, specs, make_tables, make_plots)


def printed_run_specs() -> list[RunSpec]:
    """Return the runs with the perturbation as the paper prints it, and defaults otherwise."""
    method = FedWMSAM(perturbation="literal", rho=0.05)
    specs = load_run_specs("candidates.toml")
    return [spec for spec in specs if spec.config.make_method() == method]


def grid_section(plan: str, rows: Sequence[str], column: str) -> PageSection:
    """Return a section with one table per score of a plan's runs.

    A table has one row for each combination of the options `rows`, and one column for each value of
    the option `column`.
    """
    specs = load_run_specs(plan)
    cells = [cell_of(spec.config.to_flat_dict(), rows, column) for spec in specs]
    row_values = list(dict.fromkeys(row for row, _ in cells))
    column_values = list(dict.fromkeys(value for _, value in cells))

    def make_tables(runs: Path) -> Sequence[TextTable]:
        scores = {
            cell_of(run.config, rows, column): score_run(run, ACCURACY)
            for run in load_runs(specs, runs)
        }
        header = (*rows, *(f"{column} = {value}" for value in column_values))
        tables = []
        for quantity, title in QUANTITIES.items():
            lines = []
            for row in row_values:
                row_scores = [scores.get((row, value)) for value in column_values]
                lines.append((*row, *(score_cell(score, quantity) for score in row_scores)))
            tables.append(TextTable(title, header, tuple(lines)))
        return tables

    return PageSection(f"fedwmsam compare results/plans/{plan}", specs, make_tables)


def cell_of(config: Mapping[str, object], rows: Sequence[str], column: str) -> Cell:
    """Return the cell of the run with this configuration."""
    return tuple(str(config.get(name, MISSING)) for name in rows), str(config[column])


def score_cell(score: RunScores | None, quantity: str) -> str:
    """Return a score of a run as text, also if there is no such run."""
    return MISSING if score is None else number_cell(getattr(score, quantity))


def recipe_section(recipe: str, rounds: int, columns: Sequence[str] = ()) -> PageSection:
    """Return the section of a recipe that is run with `fedwmsam reproduce`."""
    plan = Plan(find_recipe(recipe), "small", (0,), {"rounds": rounds}, columns)
    options = "".join(f' --column "{column}"' for column in columns)
    command = f"fedwmsam reproduce {recipe} --rounds {rounds}{options}"
    return PageSection(command, plan.run_specs(), lambda runs: Results(plan, runs).tables())


def analysis_section(
    command: str,
    specs: Sequence[RunSpec],
    file: str,
    make_tables: MakeTables,
    make_plots: MakePlots = no_plots,
) -> PageSection:
    """Return the section of an analysis, which wrote `file` for each of the runs."""
    return PageSection(
        command,
        specs,
        lambda runs: make_tables(load_runs(specs, runs)),
        make_plots,
        lambda folder: (folder / "analysis" / file).exists(),
    )


def flatness_tables(runs: Sequence[LoadedRun]) -> list[TextTable]:
    """Return the tables of the flatness over seeds."""
    tables = [flatness.seeds_table(table) for table in summarise(runs).tables]
    return [table for table in tables if table]


def dynamics_tables(runs: Sequence[LoadedRun]) -> list[TextTable]:
    """Return the tables of the training dynamics."""
    return dynamics.dynamics_tables(dynamics.load_groups(runs))


def dynamics_plots(runs: Sequence[LoadedRun]) -> Iterable[PlotSpec]:
    """Return the plots of the training dynamics."""
    return dynamics.dynamics_plots(dynamics.load_groups(runs))


def norm_table(runs: Path) -> str:
    """Return the table of the norms of the models' weights, over three seeds."""
    index = store.read_index()
    loaded = load_runs(load_run_specs("fashion-mnist-seeds.toml"), runs)
    (table,) = summarise(loaded).tables
    rows = []
    for row in table.rows:
        entries = [index.get(score.run.path.name, {}) for score in row.scores]
        norms = [entry["norm"] for entry in entries if "norm" in entry]
        if norms:
            rows.append((row.label, str(len(norms)), spread_cell(mean_spread(norms))))
    header = ("method", "seeds", "‖w‖")
    return markdown_table(TextTable("Length of the weights after 500 rounds", header, tuple(rows)))


def validation_table(file: str, rounds: Sequence[int]) -> str:
    """Return the table of the variants that were tried for FedWMSAM-plus, on validation data.

    Its values are means over the ten evaluations up to each of the given rounds.
    """
    with (ROOT / "results" / file).open(newline="") as opened:
        lines = list(csv.DictReader(opened))
    rows = []
    for name in list(lines[0])[1:]:
        accuracies = [float(line[name]) for line in lines]
        means = [mean(accuracies[last - 10 : last]) for last in rounds]
        rows.append((name, *map(number_cell, means)))
    header = ("tried", *(f"rounds {last - 9} to {last}" for last in rounds))
    return markdown_table(TextTable("Validation accuracy, one seed", header, tuple(rows)))


def regression_table() -> str:
    """Return the table of other problems, which `python results/elsewhere.py` writes."""
    with (ROOT / "results" / "elsewhere.csv").open(newline="") as opened:
        (data, method, *seeds), *lines = csv.reader(opened)
    header = (data, method, "mean", *(f"seed {seed}" for seed in seeds))
    rows = tuple(
        (data, method, spread_cell(mean_spread([*map(float, errors)])), *errors)
        for data, method, *errors in lines
    )
    return markdown_table(TextTable("Mean absolute error, lower is better", header, rows))


def optimizer_table() -> str:
    """Return the table of the clients' optimizers, from `python results/local_training.py`."""
    with (ROOT / "results" / "local-training.csv").open(newline="") as opened:
        header, *lines = csv.reader(opened)
    rows = []
    for *names, lr, first, second, third, tried in lines:
        accuracies = (first, second, third)
        mean_cell = spread_cell(mean_spread([*map(float, accuracies)]))
        rows.append((*names, lr, mean_cell, *accuracies, tried))
    columns = (*header[:4], "mean", *(f"seed {seed}" for seed in header[4:7]), header[7])
    title = "Test accuracy, mean of rounds 32 to 40"
    return markdown_table(TextTable(title, columns, tuple(rows)))


THREE_SEEDS = load_run_specs("fashion-mnist-seeds.toml")
PRINTED = printed_run_specs()
ADAPT_RATES = recipe_section("table-9", 150)
SECTIONS = {
    "table-1": recipe_section("table-1", 500, ["β = 0.1"]),
    "decay": comparison_section("fashion-mnist-methods.toml", targets=[0.8, 0.84]),
    "seeds": comparison_section(
        "fashion-mnist-seeds.toml", baselines=["fedavg", "scaffold"], targets=[0.8, 0.84]
    ),
    "flatness": analysis_section(FLATNESS, THREE_SEEDS, flatness.FLATNESS_FILE, flatness_tables),
    "dynamics": analysis_section(
        DYNAMICS,
        THREE_SEEDS,
        DYNAMICS_FILE,
        dynamics_tables,
        dynamics_plots,
    ),
    "plus": comparison_section(
        "plus.toml", ["fedwmsam", "scaffold", "scaffold averaged twin=8"], [0.8, 0.84, 0.86]
    ),
    "table-5": recipe_section("table-5", 200),
    "ablation": grid_section("ablation.toml", ["correction", "perturbation"], "similarity"),
    "readings": grid_section("fedwmsam-readings.toml", ["perturbation", "similarity"], "rho"),
    "corrections": comparison_section("corrections.toml"),
    "candidates": comparison_section(
        "candidates.toml", ["fedwmsam rho=0.01 perturbation=trajectory"], [0.8, 0.84, 0.86]
    ),
    "printed-dynamics": analysis_section(DYNAMICS, PRINTED, DYNAMICS_FILE, dynamics_tables),
    "printed-flatness": analysis_section(
        FLATNESS, PRINTED, flatness.FLATNESS_FILE, flatness_tables
    ),
    "table-6": recipe_section("table-6", 150),
    "table-9": ADAPT_RATES,
    "rates": table_section(ADAPT_RATES.command, ADAPT_RATES.run_specs, [], [0.8, 0.83]),
    "heterogeneity": grid_section(
        "heterogeneity.toml", ["method", "perturbation", "rho"], "partition"
    ),
    "table-1-others": recipe_section("table-1", 200, ["β = 0.6", "γ"]),
    "table-4": recipe_section("table-4", 100),
    "figure-6-clients": recipe_section("figure-6-clients", 100),
    "figure-6-sampling": recipe_section("figure-6-sampling", 100),
    "cifar-10": comparison_section("cifar-10-methods.toml"),
}


def replace_sections(page: str, texts: Mapping[str, str]) -> str:
    """Return the page with these texts between their pairs of comments; exit if one is missing."""
    for name, text in texts.items():
        begin = f"<!-- {name} -->\n"
        end = f"<!-- end of {name} -->"
        before, has_begin, rest = page.partition(begin)
        _, has_end, after = rest.partition(end)
        if not (has_begin and has_end):
            sys.exit(f"A page lacks {begin.strip()} or {end}.")
        page = f"{before}{begin}\n{text}\n{end}{after}"
    return page


def readme_table(runs: Path) -> str:
    """Return README's table: accuracy and cost of every method on Table 1's first column."""
    specs = []
    for plan in ("fashion-mnist-methods.toml", "fashion-mnist-seeds.toml", "plus.toml"):
        specs += load_run_specs(plan)
    loaded = {run.path: run for run in load_runs(specs, runs)}
    table = make_text_tables(summarise(add_averaged_model_runs(loaded.values())))[0]
    return markdown_table(replace(select_columns(table, README_COLUMNS), notes=()))


def make_texts(runs: Path) -> dict[str, str]:
    """Return the texts of all sections of RESULTS.md."""
    texts = {}
    for name, section in SECTIONS.items():
        texts[name] = section.text(name, runs).replace(f"{runs}/", "")
    texts["lengths"] = norm_table(runs)
    texts["screening"] = validation_table("screening.csv", (20, 30, 50, 100, 150))
    texts["elsewhere"] = regression_table()
    texts["averages"] = validation_table("averages.csv", (50, 100, 200, 300, 400, 500))
    return texts


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        runs = store.unpack_runs(Path(folder))
        texts = make_texts(runs)
        pages = {
            PAGE: replace_sections(PAGE.read_text(), texts),
            README: replace_sections(README.read_text(), {"measured": readme_table(runs)}),
            LOCAL_TRAINING: replace_sections(
                LOCAL_TRAINING.read_text(), {"optimizers": optimizer_table()}
            ),
        }
        if "--check" in sys.argv:
            old = [page.name for page, text in pages.items() if page.read_text() != text]
            sys.exit(f"{', '.join(old)}: not what `make results` makes of the runs." if old else 0)
        for name, text in texts.items():
            print(f"## {name}\n\n{text}")
        for name, section in SECTIONS.items():
            save_plots(section.plots(name, runs), PLOTS)
        for page, text in pages.items():
            page.write_text(text)


if __name__ == "__main__":
    main()
