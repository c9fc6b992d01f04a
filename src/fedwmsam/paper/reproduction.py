"""Reproducing the paper: the checklist of all recipes, a plan's runs, its tables and plots."""

import shlex
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from fedwmsam.comparison.comparison import ComparisonRunner, ProgressDisplay, RunPlace
from fedwmsam.comparison.grid import RunSpec, SettingValues
from fedwmsam.comparison.queue_folder import lock_folder
from fedwmsam.data.image_folder import DOMAIN_DATASETS, find_domain_dataset
from fedwmsam.errors import InputError, unknown_name_message
from fedwmsam.experiment.experiment import load_data
from fedwmsam.paper.claims import CLAIMS
from fedwmsam.paper.figures import FIGURES
from fedwmsam.paper.recipe import SCALES, Plan, Recipe, overrides_of_preset
from fedwmsam.paper.results import Results
from fedwmsam.paper.tables import TABLES
from fedwmsam.report.output_files import write_text
from fedwmsam.report.plots import save_plots
from fedwmsam.report.text_tables import TextTable, markdown_text

RECIPES = {recipe.name: recipe for recipe in (*TABLES, *FIGURES, *CLAIMS)}
"""All recipes by name, in the paper's order."""


def find_recipe(name: str) -> Recipe:
    """Return the recipe of that name; raise InputError if there is none."""
    if name not in RECIPES:
        raise InputError(unknown_name_message("recipe", name, RECIPES))
    return RECIPES[name]


def check_scale(scale: str) -> str:
    """Return the scale's name; raise InputError if there is no such scale."""
    if scale not in SCALES:
        raise InputError(unknown_name_message("scale", scale, SCALES))
    return scale


def runs_folder(out: Path) -> Path:
    """Return the folder of all recipes' runs; they share it, so that a shared run is done once."""
    return out / "runs"


def finished_runs(specs: Sequence[RunSpec], out: Path) -> list[RunSpec]:
    """Return the specs of those runs that are finished below `out`."""
    return [
        spec for spec in specs if (spec.find_folder(runs_folder(out)) / "summary.json").exists()
    ]


# The checklist


def checklist(
    scales: Sequence[str], seeds: Sequence[int], overrides: SettingValues, out: Path
) -> list[TextTable]:
    """Return what of the paper has been run below `out`, with these seeds and overrides.

    One table has a row for each label of the paper's tables and figures, the other one for each
    claim of its text.
    """
    by_label: dict[str, list[Recipe]] = {}
    claims = []
    for recipe in RECIPES.values():
        for label in recipe.labels:
            by_label.setdefault(label, []).append(recipe)
        if not recipe.labels:
            claims.append(("", [recipe]))

    def make_table(title: str, groups: Iterable[tuple[str, list[Recipe]]]) -> TextTable:
        rows = []
        for label, recipes in groups:
            names = ", ".join(recipe.name for recipe in recipes)
            titles = ", ".join(recipe.title for recipe in recipes)
            statuses = [recipe_status(recipes, scale, seeds, overrides, out) for scale in scales]
            rows.append((names, label, titles, *statuses))
        header = ("recipe", "label", "what it is", *(f"scale {scale}" for scale in scales))
        return TextTable(title, header, tuple(rows))

    return [
        make_table("The paper's tables and figures", by_label.items()),
        make_table("Claims of its text", claims),
    ]


def recipe_status(
    recipes: Sequence[Recipe], scale: str, seeds: Sequence[int], overrides: SettingValues, out: Path
) -> str:
    """Return in words how many of the runs that these recipes need are finished."""
    for recipe in recipes:
        if recipe.not_runnable_because:
            return f"not runnable: {recipe.not_runnable_because}"
    by_folder: dict[str, RunSpec] = {}
    try:
        for recipe in recipes:
            for spec in Plan(recipe, scale, seeds, overrides).run_specs():
                by_folder[spec.folder_name] = spec
    except InputError as error:  # the recipe varies a setting that is overridden
        return f"not runnable: {error}"
    specs = list(by_folder.values())
    count = len(specs)
    finished = len(finished_runs(specs, out))
    if finished:
        if finished == count:
            return f"run ({count} runs)"
        return f"partly run ({finished} of {count} runs)"
    lacking = describe_missing_data(specs)
    return f"not runnable: {lacking}" if lacking else f"not run ({count} runs)"


def describe_missing_data(specs: Sequence[RunSpec]) -> str:
    """Return which data set is neither here nor can be downloaded, or an empty text."""
    names = [(spec.config.dataset.split(",")[0], spec.config.data_dir) for spec in specs]
    for name, data_dir in dict.fromkeys(names):
        if name in DOMAIN_DATASETS:
            try:
                find_domain_dataset(name, Path(data_dir) if data_dir else None)
            except InputError:
                return f"the data set {name} is not here and cannot be downloaded"
    return ""


# One recipe


def describe_plan(plan: Plan, out: Path) -> str:
    """Return in words how many runs a plan has, on which data, and how many are finished."""
    specs = plan.run_specs()
    rounds = specs[0].config.rounds
    datasets = ", ".join(dict.fromkeys(spec.config.dataset for spec in specs))
    text = (
        f"{plan.recipe.name} at scale {plan.scale}: "
        f"{len(specs)} runs × {rounds} rounds on {datasets}, "
        f"{len(finished_runs(specs, out))} of them done before"
    )
    plots = ", ".join(plot.name for plot in plan.recipe.plots)
    return f"{text}; draws {plots}" if plots else text


def run_commands(plan: Plan, out: Path) -> Iterator[str]:
    """Yield for each run the command that does it alone, into the folder where it is looked for."""
    for spec in plan.run_specs():
        words = ["fedwmsam", "run", "--preset", "paper", "--method", spec.config.method]
        for key, value in overrides_of_preset(spec.config).items():
            words += ["--set", f"{key}={value}"]
        words += ["--seed", str(spec.config.seed)]
        folder = runs_folder(out)
        words += ["--out", folder.as_posix(), "--name", spec.find_folder(folder).name]
        yield shlex.join(words)


def run_plan(plan: Plan, out: Path, place: RunPlace, display: ProgressDisplay) -> bool:
    """Do the plan's runs that are not finished and return whether all are finished now."""
    specs = plan.run_specs()
    with lock_folder(runs_folder(out)):
        if len(finished_runs(specs, out)) < len(specs):
            # Data are loaded before any run, so that a message about missing data appears once.
            sources = [(spec.config.dataset, spec.config.data_dir) for spec in specs]
            for dataset, data_dir in dict.fromkeys(sources):
                load_data(dataset, data_dir)
        ComparisonRunner(runs_folder(out), place, display).run(specs)
    return len(finished_runs(specs, out)) == len(specs)


def write_recipe_results(plan: Plan, out: Path, format: str) -> tuple[list[TextTable], list[Path]]:
    """Write a plan's tables and plots; return the tables and the files."""
    results = Results(plan, runs_folder(out))
    folder = out / f"{plan.recipe.name}-{plan.scale}"
    tables = results.tables()
    path = folder / "table.md"
    write_text(path, markdown_text(tables))
    written = [path]
    if plan.recipe.plots:
        plots = chain.from_iterable(plot.plots(results) for plot in plan.recipe.plots)
        written += save_plots(plots, folder, format)
    return tables, written
