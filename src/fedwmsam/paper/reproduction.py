"""What `fedwmsam reproduce` does: all recipes in the paper's order, the checklist, a plan's runs and tables."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedwmsam.comparison.comparison import ComparisonRunner, ProgressDisplay
from fedwmsam.comparison.grid import RunSpec, SettingValues
from fedwmsam.comparison.queue import lock_folder
from fedwmsam.data.image_folder import DOMAIN_DATASETS, find_domain_dataset
from fedwmsam.errors import InputError, unknown_name_message
from fedwmsam.experiment.experiment import load_data
from fedwmsam.paper.claims import CLAIMS
from fedwmsam.paper.figures import FIGURES
from fedwmsam.paper.recipe import SCALES, Plan, Recipe, overrides_of_preset
from fedwmsam.paper.results import Results
from fedwmsam.paper.tables import TABLES
from fedwmsam.report.plots import save_plots
from fedwmsam.report.text_tables import TextTable, markdown_text, write_text

RECIPES = {recipe.name: recipe for recipe in (*TABLES, *FIGURES, *CLAIMS)}


def find_recipe(name: str) -> Recipe:
    if name not in RECIPES:
        raise InputError(unknown_name_message("recipe", name, RECIPES))
    return RECIPES[name]


def check_scale(scale: str) -> str:
    if scale not in SCALES:
        raise InputError(unknown_name_message("scale", scale, SCALES))
    return scale


def runs_of(out: Path) -> Path:
    """All recipes' runs are in one place, so that what two of them need is run once."""
    return out / "runs"


def finished_runs(members: Sequence[RunSpec], out: Path) -> list[RunSpec]:
    return [member for member in members if (member.place(runs_of(out)) / "summary.json").exists()]


# The checklist


def checklist(
    scales: Sequence[str], seeds: Sequence[int], overrides: SettingValues, out: Path
) -> list[TextTable]:
    """What of the paper has been run below `out`: a row for each label, and for each claim of the text."""
    labels = dict.fromkeys(label for recipe in RECIPES.values() for label in recipe.labels)
    groups = [
        (label, [recipe for recipe in RECIPES.values() if label in recipe.labels])
        for label in labels
    ]
    claims = [("", [recipe]) for recipe in RECIPES.values() if not recipe.labels]

    def sheet(title: str, groups: Sequence[tuple[str, list[Recipe]]]) -> TextTable:
        rows = tuple(
            (
                ", ".join(recipe.name for recipe in recipes),
                label,
                ", ".join(recipe.title for recipe in recipes),
                *(recipe_status(recipes, scale, seeds, overrides, out) for scale in scales),
            )
            for label, recipes in groups
        )
        return TextTable(
            title, ("recipe", "label", "what it is", *(f"scale {scale}" for scale in scales)), rows
        )

    return [sheet("The paper's tables and figures", groups), sheet("Claims of its text", claims)]


def recipe_status(
    recipes: Sequence[Recipe], scale: str, seeds: Sequence[int], overrides: SettingValues, out: Path
) -> str:
    obstacle = next((recipe.obstacle for recipe in recipes if recipe.obstacle), "")
    if obstacle:
        return f"not runnable: {obstacle}"
    try:
        wanted = [
            member
            for recipe in recipes
            for member in Plan(recipe, scale, seeds, overrides).members()
        ]
    except InputError as error:  # it varies what was to have one value
        return f"not runnable: {error}"
    members = list({member.folder: member for member in wanted}.values())
    over, count = len(finished_runs(members, out)), len(members)
    if over:
        return f"run ({count} runs)" if over == count else f"partly run ({over} of {count} runs)"
    lacking = missing_data(members)
    return f"not runnable: {lacking}" if lacking else f"not run ({count} runs)"


def missing_data(members: Sequence[RunSpec]) -> str:
    """What is neither here nor can be downloaded."""
    for name, data_dir in dict.fromkeys(
        (m.config.dataset.split(",")[0], m.config.data_dir) for m in members
    ):
        if name in DOMAIN_DATASETS:
            try:
                find_domain_dataset(name, Path(data_dir) if data_dir else None)
            except InputError:
                return f"the data set {name} is not here and cannot be downloaded"
    return ""


# One recipe


def describe_plan(plan: Plan, out: Path) -> str:
    members = plan.members()
    rounds = members[0].config.rounds
    datasets = ", ".join(dict.fromkeys(member.config.dataset for member in members))
    pictures = ", ".join(picture.name for picture in plan.recipe.pictures)
    return (
        f"{plan.recipe.name} at scale {plan.scale}: {len(members)} runs × {rounds} rounds on {datasets}, "
        f"{len(finished_runs(members, out))} of them done before"
        + (f"; draws {pictures}" if pictures else "")
    )


def commands(plan: Plan, out: Path) -> Iterator[str]:
    """For each run the command that would do it alone, into the folder where it is looked for."""
    for member in plan.members():
        settings = [
            part
            for key, value in overrides_of_preset(member.config).items()
            for part in ("--set", f"{key}={value}")
        ]
        place = [
            "--seed",
            str(member.config.seed),
            "--out",
            str(runs_of(out)),
            "--name",
            member.place(runs_of(out)).name,
        ]
        yield shlex.join(
            [
                "fedwmsam",
                "run",
                "--preset",
                "paper",
                "--method",
                member.config.method,
                *settings,
                *place,
            ]
        )


def run_plan(plan: Plan, out: Path, jobs: int, display: ProgressDisplay) -> bool:
    """Run what is not done; False if some runs failed."""
    members = plan.members()
    with lock_folder(runs_of(out)):
        if len(finished_runs(members, out)) < len(members):
            # Before any run: if data are missing, theirs is the message to show, once.
            for dataset, data_dir in dict.fromkeys(
                (m.config.dataset, m.config.data_dir) for m in members
            ):
                load_data(dataset, data_dir)
        ComparisonRunner(runs_of(out), jobs, display).run(members)
    return len(finished_runs(members, out)) == len(members)


def write_recipe_results(plan: Plan, out: Path, format: str) -> tuple[list[TextTable], list[Path]]:
    """The tables, and the files they and the pictures were written to."""
    results, place = Results(plan, runs_of(out)), out / f"{plan.recipe.name}-{plan.scale}"
    sheets = results.sheets()
    write_text(place / "table.md", markdown_text(sheets))
    pictures = (found for picture in plan.recipe.pictures for found in picture.pictures(results))
    return sheets, [
        place / "table.md",
        *(save_plots(pictures, place, format) if plan.recipe.pictures else []),
    ]
