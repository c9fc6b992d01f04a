"""Make every table and picture of RESULTS.md from the kept runs: `make results`.

    python results/rebuild.py [--check]      # --check changes nothing and fails if RESULTS.md or README.md is old

RESULTS.md has a pair of comments around each table, `<!-- NAME -->` and `<!-- end of NAME -->`; what is between them is
written here. README.md has one such pair.
"""

import csv
import sys
import tempfile
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

import store

from fedwmsam.analysis import dynamics, flatness
from fedwmsam.analysis.dynamics import DYNAMICS_FILE
from fedwmsam.comparison.grid import RunSpec, make_grid
from fedwmsam.methods import FedWMSAM
from fedwmsam.paper.recipe import Plan
from fedwmsam.paper.reproduction import find_recipe
from fedwmsam.paper.results import Results
from fedwmsam.report.plots import PlotSpec, comparison_plots, save_plots
from fedwmsam.report.runs import LoadedRun, add_averaged_model_runs, is_run, read_run
from fedwmsam.report.summary import ACCURACY, make_goal, score_run, summarise
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
PAGE, README = ROOT / "RESULTS.md", ROOT / "README.md"
PLANS, PICTURES = ROOT / "results" / "plans", ROOT / "docs" / "pictures" / "results"
IN_README = ("method", "seeds", "last", "mean of last 10", "MB down + up", "backprops")
QUANTITIES = {
    "tail": "Mean of the last 10",
    "last": "Last",
    "best_on_test": "Best on test (selected on test)",
}
Place = tuple[tuple[str, ...], str]
"""A cell: its row's values, its column's."""
DRAWN = ("accuracy-over-rounds", "alpha-over-rounds", "alignment-over-rounds", "echo-over-rounds")
FLATNESS, DYNAMICS = "fedwmsam analyse flatness RUNS --clients 5", "fedwmsam analyse dynamics RUNS"
SECONDS = "training s"
"""Left out: the runs were made over days on a machine that did other things, too."""
Sheets = Callable[[Sequence[LoadedRun]], Sequence[TextTable]]
Draw = Callable[[Sequence[LoadedRun]], Sequence[PlotSpec]]


@dataclass(frozen=True)
class Part:
    """A part of the page: the command that made its runs, which these are, and what is made of them."""

    command: str
    members: Sequence[RunSpec]
    sheets: Callable[[Path], Sequence[TextTable]]
    draw: Draw = lambda _: ()
    made: Callable[[Path], bool] = is_run
    """Whether a run's folder has what the command makes."""

    def text(self, name: str, runs: Path) -> str:
        places = [member.place(runs) for member in self.members]
        made = [place.name for place in places if self.made(place)]
        if not made:
            return f"Not run: `{self.command}` ({len(places)} runs)\n"
        count = (
            f"{len(places)} runs"
            if len(made) == len(places)
            else f"{len(made)} of {len(places)} runs so far"
        )
        tables = "\n".join(
            markdown_table(only(sheet, {*sheet.header} - {SECONDS})) for sheet in self.sheets(runs)
        )
        shown = "".join(
            f"![{title}](docs/pictures/results/{title}.png)\n"
            for title, *_ in self.pictures(name, runs)
        )
        listed = ", ".join(f"[{run}](results/runs/{run}.csv)" for run in made)
        folded = f"<details><summary>Runs</summary>\n\n{listed}\n\n</details>\n"
        return "\n".join(filter(None, [f"`{self.command}`: {count}\n", tables, shown, folded]))

    def pictures(self, name: str, runs: Path) -> list[PlotSpec]:
        found = found_runs(self.members, runs)
        every = self.draw(found) if found else ()
        return [
            (f"{name}-{title}", height, drawing)
            for title, height, drawing in every
            if title in DRAWN
        ]


def only(sheet: TextTable, names: Collection[str]) -> TextTable:
    """With these columns."""
    kept = [number for number, name in enumerate(sheet.header) if name in names]
    header, *rows = [tuple(line[number] for number in kept) for line in (sheet.header, *sheet.rows)]
    return replace(sheet, header=header, rows=tuple(rows))


def found_runs(members: Sequence[RunSpec], runs: Path) -> list[LoadedRun]:
    return [
        read_run(place) for place in (member.place(runs) for member in members) if is_run(place)
    ]


def members_of(plan: str) -> list[RunSpec]:
    return make_grid(tomllib.loads((PLANS / plan).read_text()), {}).members()


def compared(plan: str, baselines: Sequence[str] = (), targets: Sequence[float] = ()) -> Part:
    return tabled(f"fedwmsam compare results/plans/{plan}", members_of(plan), baselines, targets)


def tabled(
    command: str, members: Sequence[RunSpec], baselines: Sequence[str], targets: Sequence[float]
) -> Part:
    """A comparison's tables, averaged twins as rows; its differences to each of the baselines."""

    def tables_of(runs: Path) -> Sequence[TextTable]:
        found, goal = (
            add_averaged_model_runs(found_runs(members, runs)),
            make_goal("accuracy", targets),
        )
        tables = make_text_tables(summarise(found, goal), paper_columns=True)
        made = {run.config["method"] for run in found}
        for baseline in (name for name in baselines if name.split()[0] in made):
            tables.append(make_text_tables(summarise(found, goal, baseline))[-1])
        return tables

    return Part(
        command,
        members,
        tables_of,
        lambda found: comparison_plots(summarise(add_averaged_model_runs(found))),
    )


def printed_members() -> list[RunSpec]:
    """The printed perturbation, and else the default."""
    return [
        one
        for one in members_of("candidates.toml")
        if one.config.make_method() == FedWMSAM(perturbation="literal", rho=0.05)
    ]


def crossed(plan: str, rows: Sequence[str], column: str) -> Part:
    """A comparison over a grid, by two or more of its options: a table for each way to read a run off."""
    members = members_of(plan)
    across = list(dict.fromkeys(key(member.config.flat(), rows, column)[1] for member in members))
    down = list(dict.fromkeys(key(member.config.flat(), rows, column)[0] for member in members))

    def made(runs: Path) -> Sequence[TextTable]:
        found = {
            key(run.config, rows, column): score_run(run, ACCURACY)
            for run in found_runs(members, runs)
        }

        def cell(place: Place, quantity: str) -> str:
            return number_cell(getattr(found[place], quantity)) if place in found else MISSING

        header = (*rows, *(f"{column} = {value}" for value in across))
        return [
            TextTable(
                title,
                header,
                tuple((*names, *(cell((names, x), quantity) for x in across)) for names in down),
            )
            for quantity, title in QUANTITIES.items()
        ]

    return Part(f"fedwmsam compare results/plans/{plan}", members, made)


def key(config: Mapping[str, object], rows: Sequence[str], column: str) -> Place:
    return tuple(str(config.get(name, MISSING)) for name in rows), str(config[column])


def reproduced(recipe: str, rounds: int, columns: Sequence[str] = ()) -> Part:
    plan = Plan(find_recipe(recipe), "small", (0,), {"rounds": rounds}, columns)
    chosen = "".join(f' --column "{column}"' for column in columns)
    command = f"fedwmsam reproduce {recipe} --rounds {rounds}{chosen}"
    return Part(command, plan.members(), lambda runs: Results(plan, runs).sheets())


def analysed(
    command: str,
    members: Sequence[RunSpec],
    file: str,
    sheets_of: Sheets,
    draw: Draw = lambda _: (),
) -> Part:
    """What an analysis found beside the runs of a comparison."""
    return Part(
        command,
        members,
        lambda runs: sheets_of(found_runs(members, runs)),
        draw,
        lambda place: (place / "analysis" / file).exists(),
    )


def flatness_sheets(runs: Sequence[LoadedRun]) -> list[TextTable]:
    return [sheet for table in summarise(runs).tables if (sheet := flatness.seeds_sheet(table))]


def dynamics_sheets(runs: Sequence[LoadedRun]) -> list[TextTable]:
    return dynamics.dynamics_tables(dynamics.groups_of(runs))


def lengths(runs: Path) -> str:
    """How long the weights of the three seeds' models are."""
    known = {name: entry["norm"] for name, entry in store.entries().items() if "norm" in entry}
    (table,) = summarise(found_runs(members_of("b.toml"), runs)).tables
    found = [
        (row, [known[one.run.path.name] for one in row.scores if one.run.path.name in known])
        for row in table.rows
    ]
    rows = tuple(
        (row.label, str(len(norms)), spread_cell(mean_spread(norms)))
        for row, norms in found
        if norms
    )
    return markdown_table(
        TextTable("Length of the weights after 500 rounds", ("method", "seeds", "‖w‖"), rows)
    )


def screened(file: str, rounds: Sequence[int]) -> str:
    """What was tried for FedWMSAM-plus, on validation data: the means of ten evaluations up to a few rounds."""
    with (ROOT / "results" / file).open(newline="") as opened:
        lines = [
            {name: float(text) for name, text in row.items()} for row in csv.DictReader(opened)
        ]
    header = ("tried", *(f"rounds {last - 9} to {last}" for last in rounds))
    rows = tuple(
        (
            name,
            *(number_cell(mean(line[name] for line in lines[last - 10 : last])) for last in rounds),
        )
        for name in list(lines[0])[1:]
    )
    return markdown_table(TextTable("Validation accuracy, one seed", header, rows))


def elsewhere() -> str:
    """Other problems: `python results/elsewhere.py`."""
    with (ROOT / "results" / "elsewhere.csv").open(newline="") as opened:
        (data, method, *seeds), *lines = csv.reader(opened)
    header = (data, method, "mean", *(f"seed {seed}" for seed in seeds))
    rows = tuple(
        (data, method, spread_cell(mean_spread([*map(float, errors)])), *errors)
        for data, method, *errors in lines
    )
    return markdown_table(TextTable("Mean absolute error, lower is better", header, rows))


PARTS = {
    "table-1": reproduced("table-1", 500, ["β = 0.1"]),
    "decay": compared("a.toml", targets=[0.8, 0.84]),
    "seeds": compared("b.toml", baselines=["fedavg", "scaffold"], targets=[0.8, 0.84]),
    "flatness": analysed(
        FLATNESS, (five := members_of("b.toml")), flatness.FLATNESS_FILE, flatness_sheets
    ),
    "dynamics": analysed(
        DYNAMICS,
        five,
        DYNAMICS_FILE,
        dynamics_sheets,
        lambda runs: dynamics.dynamics_plots(dynamics.groups_of(runs)),
    ),
    "plus": compared("plus.toml", ["fedwmsam", "scaffold", "scaffold twin=8"], [0.8, 0.84, 0.86]),
    "table-5": reproduced("table-5", 200),
    "ablation": crossed("ablation.toml", ["correction", "perturbation"], "similarity"),
    "readings": crossed("d.toml", ["perturbation", "similarity"], "rho"),
    "corrections": compared("corrections.toml"),
    "candidates": compared(
        "candidates.toml", ["fedwmsam rho=0.01 perturbation=trajectory"], [0.8, 0.84, 0.86]
    ),
    "printed-dynamics": analysed(
        DYNAMICS, (printed := printed_members()), DYNAMICS_FILE, dynamics_sheets
    ),
    "printed-flatness": analysed(FLATNESS, printed, flatness.FLATNESS_FILE, flatness_sheets),
    "table-6": reproduced("table-6", 150),
    "table-9": (by_rate := reproduced("table-9", 150)),
    "rates": tabled(by_rate.command, by_rate.members, [], [0.8, 0.83]),
    "heterogeneity": crossed("heterogeneity.toml", ["method", "perturbation", "rho"], "partition"),
    "table-1-others": reproduced("table-1", 200, ["β = 0.6", "γ"]),
    "table-4": reproduced("table-4", 100),
    "figure-6-clients": reproduced("figure-6-clients", 100),
    "figure-6-sampling": reproduced("figure-6-sampling", 100),
    "cifar-10": compared("g.toml"),
}


def rebuilt(page: str, texts: Mapping[str, str]) -> str:
    for name, text in texts.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, found, rest = page.partition(begin)
        _, closed, after = rest.partition(end)
        if not (found and closed):
            sys.exit(f"A page lacks {begin.strip()} or {end}.")
        page = f"{before}{begin}\n{text}\n{end}{after}"
    return page


def measured(runs: Path) -> str:
    """README's table: accuracy and cost of every method on Table 1's first column, over the seeds there are."""
    found = found_runs(
        [one for plan in ("a.toml", "b.toml", "plus.toml") for one in members_of(plan)], runs
    )
    table = make_text_tables(summarise(list({run.path: run for run in found}.values())))[0]
    return markdown_table(replace(only(table, IN_README), notes=()))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        runs = store.unpacked(Path(folder))
        texts = {
            name: part.text(name, runs).replace(f"{folder}/", "") for name, part in PARTS.items()
        }
        texts |= {
            "lengths": lengths(runs),
            "screening": screened("screening.csv", (20, 30, 50, 100, 150)),
        }
        texts["elsewhere"] = elsewhere()
        texts["averages"] = screened("averages.csv", (50, 100, 200, 300, 400, 500))
        pages = {page: page.read_text() for page in (PAGE, README)}
        new = {
            page: rebuilt(pages[page], of)
            for page, of in ((PAGE, texts), (README, {"measured": measured(runs)}))
        }
        if "--check" in sys.argv:
            old = [page.name for page in pages if new[page] != pages[page]]
            sys.exit(f"{', '.join(old)}: not what `make results` makes of the runs." if old else 0)
        for name, text in texts.items():
            print(f"## {name}\n\n{text}")
        for name, part in PARTS.items():
            save_plots(part.pictures(name, runs), PICTURES)
        for page, text in new.items():
            page.write_text(text)


if __name__ == "__main__":
    main()
