"""Make every table and plot of docs/results from what is kept in this folder: `make results`.

    python results/rebuild.py [--check]

A page has a pair of comments around each section that is made here, `<!-- NAME -->` and `<!-- end
of NAME -->`; PAGES says which sections are on which page. A note that tables on several pages need
is printed once, on the page of the protocol. With --check nothing is written, and the program fails
if one of these pages is not what it would write.
"""

import csv
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from statistics import mean

import all_methods
import eight_seeds
import fresh_candidate
import looks
import parts
import run_queue
import screened
import sharpness
import store
import tuned
from eight_seeds import EIGHT_SEEDS, OWN_STEPS
from pooled import POOLED
from sections import (
    PageSection,
    compare_command,
    comparison_section,
    dynamics_section,
    flatness_section,
    grid_section,
    load_run_specs,
    load_runs,
    notes_text,
    queue_command,
    recipe_section,
    table_section,
    target_section,
)
from verdict import VERDICTS

from fedwmsam.comparison.grid import RunSpec
from fedwmsam.methods import FedWMSAM
from fedwmsam.report.plots import save_plots
from fedwmsam.report.summary import summarise
from fedwmsam.report.text_tables import TextTable, number_cell, spread_cell
from fedwmsam.statistics import mean_spread

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "results"
PLOTS = ROOT / "docs" / "pictures" / "results"
PROTOCOL = FOLDER / "protocol.md"
APPENDIX = FOLDER / "appendix.md"
OF_ONE_TABLE = ("Where a row does not say otherwise", "Not the paper's setting")
"""Beginnings of notes that cannot be read away from their table."""


def length_tables(runs: Path) -> list[TextTable]:
    """Return the table of the norms of the models' weights, over three seeds."""
    index = store.read_index()
    (table,) = summarise(load_runs(THREE_SEEDS, runs)).tables
    rows = []
    for row in table.rows:
        norms = [index[score.run.path.name]["norm"] for score in row.scores]
        rows.append((row.label, str(len(norms)), spread_cell(mean_spread(norms))))
    header = ("method", "seeds", "‖w‖")
    return [TextTable("Length of the weights after 500 rounds", header, tuple(rows))]


def read_csv(name: str) -> list[list[str]]:
    """Return the lines of a file in this folder."""
    with (ROOT / "results" / name).open(newline="") as file:
        return list(csv.reader(file))


def validation_section(file: str, rounds: tuple[int, ...]) -> PageSection:
    """Return the section of variants that were tried for FedWMSAM-plus, on validation data.

    Its values are means over the ten evaluations up to each of the given rounds.
    """

    def make_tables(runs: Path) -> list[TextTable]:
        (_, *names), *lines = read_csv(file)
        rows = []
        for number, name in enumerate(names, start=1):
            accuracies = [float(line[number]) for line in lines]
            means = [mean(accuracies[last - 10 : last]) for last in rounds]
            rows.append((name, *map(number_cell, means)))
        header = ("tried", *(f"rounds {last - 9} to {last}" for last in rounds))
        return [TextTable("Validation accuracy, one seed", header, tuple(rows))]

    return PageSection(make_tables)


def regression_tables(runs: Path) -> list[TextTable]:
    """Return the table of other problems, which `python results/elsewhere.py` writes."""
    (data, method, *seeds), *lines = read_csv("elsewhere.csv")
    header = (data, method, "mean", *(f"seed {seed}" for seed in seeds))
    rows = tuple(
        (data, method, spread_cell(mean_spread([*map(float, errors)])), *errors)
        for data, method, *errors in lines
    )
    return [TextTable("Mean absolute error, lower is better", header, rows)]


def optimizer_tables(runs: Path) -> list[TextTable]:
    """Return the table of the clients' optimizers, from `python results/local_training.py`."""
    header, *lines = read_csv("local-training.csv")
    rows = []
    for *names, lr, first, second, third, tried in lines:
        accuracies = (first, second, third)
        mean_cell = spread_cell(mean_spread([*map(float, accuracies)]))
        rows.append((*names, lr, mean_cell, *accuracies, tried))
    columns = (*header[:4], "mean", *(f"seed {seed}" for seed in header[4:7]), header[7])
    title = "Test accuracy, mean of rounds 32 to 40"
    return [TextTable(title, columns, tuple(rows))]


def printed_run_specs() -> list[RunSpec]:
    """Return the runs with the perturbation as the paper prints it, and defaults otherwise."""
    method = FedWMSAM(perturbation="literal", rho=0.05)
    specs = load_run_specs("candidates.toml")
    return [spec for spec in specs if spec.config.make_method() == method]


THREE_SEEDS = load_run_specs("fashion-mnist-seeds.toml")
READINGS = [*THREE_SEEDS, *printed_run_specs()]
ADAPT_RATES = recipe_section("table-9", 150)
NOT_COMPARABLE = ("last", "best on test (selected on test)", "ours − paper")
"""Columns that say little where data and model are not the paper's."""
LATE_TABLES = ("Alignment of perturbations (late)", "Momentum echo (late)")
READING_ROWS = ["perturbation", "similarity"]
PAGES: dict[Path, dict[str, PageSection]] = {
    ROOT / "README.md": {"measured": PageSection(lambda runs: [eight_seeds.readme_table(runs)])},
    ROOT / "docs" / "local-training.md": {"optimizers": PageSection(optimizer_tables)},
    FOLDER / "README.md": {"verdict": VERDICTS, "eight-seeds": eight_seeds.FOREST},
    FOLDER / "accuracy.md": {
        "accuracies": EIGHT_SEEDS.accuracy_section(),
        "differences": EIGHT_SEEDS.difference_section(),
        "own-steps": OWN_STEPS.accuracy_section(),
        "own-steps-differences": OWN_STEPS.difference_section(),
        "pooled": POOLED,
        "seeds": comparison_section("fashion-mnist-seeds.toml", ["fedavg", "scaffold"]),
    },
    FOLDER / "all-methods.md": {"all-methods": all_methods.TABLE},
    FOLDER / "ranking.md": {
        "table-1": recipe_section("table-1", 500, ["β = 0.1"]),
        "decay": comparison_section("fashion-mnist-methods.toml"),
        "lengths": PageSection(length_tables),
    },
    FOLDER / "tuning.md": {
        "steps": tuned.STEPS,
        "small-decay": tuned.DECAY,
        "radii": tuned.RADII,
    },
    FOLDER / "speed.md": {
        "targets": eight_seeds.TARGET_SECTION,
        "costs": eight_seeds.COST_SECTION,
        "seeds-targets": target_section(
            compare_command("fashion-mnist-seeds.toml"), THREE_SEEDS, [0.8, 0.84]
        ),
    },
    FOLDER / "flatness.md": {
        "fresh-flatness": flatness_section(EIGHT_SEEDS.specs, EIGHT_SEEDS.complete_runs),
        "flatness": flatness_section(READINGS),
    },
    FOLDER / "sharpness.md": {
        "sharpness": sharpness.LAW,
        "by-alpha": sharpness.BY_ALPHA,
        "by-radius": sharpness.BY_RADIUS,
    },
    FOLDER / "alignment.md": {"dynamics": dynamics_section(READINGS, LATE_TABLES)},
    FOLDER / "ablation.md": {
        "table-5": recipe_section("table-5", 200, left_out=NOT_COMPARABLE),
        "parts": parts.TABLE,
        "readings": grid_section("fedwmsam-readings.toml", READING_ROWS, "rho", ["tail"]),
        "candidates": comparison_section(
            "candidates.toml", ["fedwmsam rho=0.01 perturbation=trajectory"]
        ),
        "corrections": comparison_section("corrections.toml"),
        "table-6": recipe_section("table-6", 150, left_out=NOT_COMPARABLE),
        "rates": table_section(ADAPT_RATES.command, ADAPT_RATES.run_specs),
        "rates-targets": target_section(ADAPT_RATES.command, ADAPT_RATES.run_specs, [0.8, 0.83]),
    },
    FOLDER / "other-data.md": {
        "heterogeneity": grid_section(
            "heterogeneity.toml", ["method", "perturbation", "rho"], "partition", ["tail"]
        ),
        "elsewhere": PageSection(regression_tables),
        "skew": looks.SKEW,
        "epochs": looks.EPOCHS,
        "shakespeare": looks.SHAKESPEARE,
    },
    FOLDER / "plus.md": {
        "plus": comparison_section("plus.toml", ["fedwmsam", "scaffold averaged twin=8"]),
        "plus-targets": target_section(
            compare_command("plus.toml"), load_run_specs("plus.toml"), eight_seeds.TARGETS
        ),
        "candidates-screening": screened.FIRST,
        "candidates-second": screened.SECOND,
        "candidates-fresh": fresh_candidate.TABLE,
    },
    APPENDIX: {
        "screening": validation_section("screening.csv", (20, 30, 50, 100, 150)),
        "averages": validation_section("averages.csv", (50, 100, 200, 300, 400, 500)),
        "more-readings": grid_section(
            "fedwmsam-readings.toml", READING_ROWS, "rho", ["last", "best_on_test"]
        ),
        "table-9": ADAPT_RATES,
        "drift": dynamics_section(READINGS, ["Client drift (late)"], has_plots=False),
    },
}
"""Pages → their sections, by the name in the comments around them."""
UNSHOWN = (
    comparison_section("cifar-10-methods.toml"),
    recipe_section("table-1", 200, ["β = 0.6", "γ"]),
    recipe_section("table-4", 100),
    recipe_section("figure-6-clients", 100),
    recipe_section("figure-6-sampling", 100),
)
"""What is planned and has no table; the appendix says how many of its runs there are."""


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


def common_notes(tables: Mapping[Path, Mapping[str, Sequence[TextTable]]]) -> list[str]:
    """Return the notes of tables that are on more than one page of docs/results.

    What speaks of the rows of one table stays with it.
    """
    pages: Counter[str] = Counter()
    for page, sections in tables.items():
        if page.parent == FOLDER:
            page_notes = [table.notes for table in chain.from_iterable(sections.values())]
            pages.update(list(dict.fromkeys(chain.from_iterable(page_notes))))
    notes = [note for note, count in pages.items() if count > 1]
    return [note for note in notes if not note.startswith(OF_ONE_TABLE)]


def commands() -> dict[str, Sequence[RunSpec]]:
    """Return the commands that make runs, and these runs: of all sections, then of the queue."""
    specs: dict[str, Sequence[RunSpec]] = {}
    for section in (*chain.from_iterable(page.values() for page in PAGES.values()), *UNSHOWN):
        if section.command and not section.command.startswith("fedwmsam analyse"):
            specs.setdefault(section.command, section.run_specs)
    for plan in run_queue.QUEUED_PLANS:
        command = queue_command(plan.plan) if plan.chosen_by else compare_command(plan.plan)
        specs.setdefault(command, plan.run_specs(store.HERE))
    return {command: members for command, members in specs.items() if members}


def runs_text(runs: Path) -> str:
    """Return all commands with their runs, as links to what is kept of them."""
    lines = []
    for command, specs in commands().items():
        section = PageSection(lambda _: (), command, specs)
        names = section.finished(runs)
        links = ", ".join(f"[{name}](../../results/runs/{name}.csv)" for name in names)
        lines.append(f"- `{command}`, {section.count(runs)}{': ' if links else ''}{links}\n")
    return "".join(lines)


def make_texts(runs: Path) -> dict[Path, dict[str, str]]:
    """Return the texts of the sections of all pages."""
    tables: dict[Path, dict[str, Sequence[TextTable]]] = {}
    for page, sections in PAGES.items():
        tables[page] = {name: section.make_tables(runs) for name, section in sections.items()}
    common = common_notes(tables)
    texts: dict[Path, dict[str, str]] = {PROTOCOL: {"notes": notes_text(common)}}
    for page, sections in PAGES.items():
        said = set(common)
        texts[page] = {}
        for name, section in sections.items():
            text = section.text(name, tables[page][name], runs, said)
            texts[page][name] = text.replace(f"{runs}/", "")
    texts[APPENDIX]["runs"] = runs_text(runs)
    return texts


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        runs = store.unpack_runs(Path(folder))
        pages = {
            page: replace_sections(page.read_text(), texts)
            for page, texts in make_texts(runs).items()
        }
        if "--check" in sys.argv:
            old = [
                str(page.relative_to(ROOT))
                for page, text in pages.items()
                if page.read_text() != text
            ]
            sys.exit(f"{', '.join(old)}: not what `make results` makes of the runs." if old else 0)
        for sections in PAGES.values():
            for name, section in sections.items():
                save_plots(section.plots(name, runs), PLOTS)
        for page, text in pages.items():
            page.write_text(text)


if __name__ == "__main__":
    main()
