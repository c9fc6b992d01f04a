"""What the recipes ask for: the paper's labels, its setting, its numbers."""

import itertools
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fedwmsam.comparison.grid import config_fingerprint
from fedwmsam.paper.numbers import PAPER_NUMBERS
from fedwmsam.paper.recipe import Plan
from fedwmsam.paper.reproduction import RECIPES
from fedwmsam.paper.tables import VARIANTS

DATA = Path(__file__).parents[1] / "data"
LABELS = (DATA / "paper_labels.txt").read_text().split()
"""Labels of all tables and figures in the paper's LaTeX source that are not commented out."""
EXPECTED: dict[str, Any] = json.loads((DATA / "paper_setting.json").read_text())
"""The paper's experiments as the specification describes them, written down by hand; MoFedSAM has
the ρ of Table 6."""
RUNNABLE = [name for name, recipe in RECIPES.items() if not recipe.not_runnable_because]


def test_every_label_of_the_paper_has_a_recipe_and_no_other() -> None:
    counts: Counter[str] = Counter()
    for recipe in RECIPES.values():
        counts.update(recipe.labels)
    assert set(counts) == set(LABELS) and len(LABELS) == 28
    assert [label for label, count in counts.items() if count > 1] == ["fig:sensitivity"], (
        "it has two halves"
    )


@pytest.mark.parametrize("name", EXPECTED["varied"])
def test_scale_paper_is_the_papers_setting(name: str) -> None:
    varied = EXPECTED["varied"][name]
    specs = Plan(RECIPES[name], "paper").run_specs()
    for spec in specs:
        flat = spec.config.to_flat_dict()
        expected = EXPECTED["every run"] | EXPECTED["methods"][flat["method"]]
        expected |= {"model": EXPECTED["models"][flat["dataset"]]}
        expected |= {"augmentation": EXPECTED["augmentation"][flat["dataset"]]}
        assert {key: flat[key] for key in expected if key not in varied} == {
            key: value for key, value in expected.items() if key not in varied
        }
    for key, values in varied.items():
        settings = [spec.config.to_flat_dict() for spec in specs]
        # Methods that are no part of a sweep of ρ keep their own.
        assert {flat[key] for flat in settings if key in flat} == set(values), key


def test_table_1_pairs_each_data_set_with_its_partitions() -> None:
    configs = [spec.config for spec in Plan(RECIPES["table-1"], "paper").run_specs()]
    assert len(configs) == 11 * 12
    found = Counter((config.dataset, config.partition) for config in configs)
    ten = {"dirichlet:0.6", "dirichlet:0.1", "pathological:6", "pathological:3"}
    hundred = {"dirichlet:0.6", "dirichlet:0.1", "pathological:20", "pathological:10"}
    assert set(found) == {("fashion-mnist", p) for p in ten} | {("cifar-10", p) for p in ten} | {
        ("cifar-100", p) for p in hundred
    }
    assert set(found.values()) == {11}


def test_table_2_is_four_domains_on_a_tenth_of_the_data() -> None:
    specs = Plan(RECIPES["table-2"], "paper").run_specs()
    assert len(specs) == 9, "a run for each method, whatever is read off it"
    config = specs[0].config
    assert (config.dataset.split(",")[0], config.model, config.partition) == (
        "office-home",
        "resnet50",
        "natural",
    )
    assert (config.clients, config.participation, config.rounds) == (4, 1.0, 500)
    assert 1 - config.validation == pytest.approx(0.1)


def test_every_row_of_table_5_switches_off_what_it_crosses_out() -> None:
    off = {"correction": "none", "perturbation": "none", "similarity": "fixed"}
    for contender in RECIPES["table-5"].contenders:
        for sign, (key, value) in zip(contender.name, off.items(), strict=True):
            assert (contender.values.get(key) == value) == (sign == "×"), (contender.name, key)


@pytest.mark.parametrize("name", RUNNABLE)
@pytest.mark.parametrize("scale", ["small", "paper"])
def test_every_recipe_can_be_planned(name: str, scale: str) -> None:
    recipe = RECIPES[name]
    plan = Plan(recipe, scale, seeds=(0, 3))
    specs = plan.run_specs()
    assert {spec.config.seed for spec in specs} == {0, 3}
    assert len({spec.folder_name for spec in specs}) == len(
        {config_fingerprint(spec.config) for spec in specs}
    )
    names = [contender.name for contender in recipe.contenders]
    assert recipe.reference in names and len(set(names)) == len(names)
    assert len({column.name for column in plan.columns}) == len(plan.columns)
    assert all(set(view) <= set(names) for view in recipe.views)
    if scale == "small":
        assert {spec.config.dataset.split(",")[0] for spec in specs} <= {
            "fashion-mnist",
            "digits",
            "office-caltech10",
        }
        assert max(spec.config.rounds for spec in specs) <= 100


def test_what_two_recipes_need_is_one_run() -> None:
    def folders(name: str) -> set[str]:
        return {spec.folder_name for spec in Plan(RECIPES[name], "paper").run_specs()}

    assert folders("figure-14") == folders("table-3") <= folders("table-1")
    assert len(folders("table-5") & folders("table-9") & folders("table-6")) == 1, (
        "FedWMSAM as it is"
    )


@pytest.mark.parametrize("label", PAPER_NUMBERS)
def test_every_cell_has_its_printed_number_and_every_number_its_cell(label: str) -> None:
    recipe = next(recipe for recipe in RECIPES.values() if label in recipe.labels)
    names = [contender.name for contender in recipe.contenders]
    if label == "tab:performance_comparison":
        names = [name for name in names if name not in VARIANTS]
    columns = [column.name for column in recipe.scales["paper"].columns]
    cells = set(itertools.product(names, columns))
    assert recipe.paper_numbers is PAPER_NUMBERS[label] and set(PAPER_NUMBERS[label]) == cells
    assert all(number == "-" or float(number) > 0 for number in PAPER_NUMBERS[label].values())


@pytest.mark.parametrize(
    ("label", "row", "column", "number"),
    [
        ("tab:performance_comparison", "FedWMSAM", "CIFAR-10 β = 0.1", "0.7664"),
        ("tab:performance_comparison", "FedGAMMA", "CIFAR-100 γ = 10", "0.0198"),
        ("tab:performance_comparison", "FedSMOO", "Fashion-MNIST β = 0.6", "0.8846"),
        ("tab:performance_comparison", "FedLESAM(-S/-D)", "CIFAR-10 γ = 6", "0.8127"),
        ("tab:comparison_domains", "SCAFFOLD", "Real World", "0.9749"),
        ("tab:comparison", "FedLESAM-D", "0.76", "255"),
        ("tab:comparison", "FedCM", "0.78", "-"),
        ("tab:comparison", "FedSMOO", "Time(s)", "29.77"),
        ("tab:local_epoch_comparison", "FedSMOO", "Epoch 1", "0.7888"),
        ("tab:ablation", "×✓✓", "Acc.", "0.7265"),
        ("tab:ablation", "✓×✓", "Acc.", "0.7326"),
        ("tab:ablation-results", "MoFedSAM", "ρ = 0.1", "0.5562"),
        ("tab:sensitivity_analysis", "λ=0.005", "0.76", "234"),
        ("fig:client_num", "MoFedSAM", "20 clients", ".216"),
        ("fig:sample", "FedWMSAM", "100 %", ".811"),
    ],
)
def test_the_printed_numbers_are_those_of_the_paper(
    label: str, row: str, column: str, number: str
) -> None:
    assert PAPER_NUMBERS[label][row, column] == number


def test_the_guide_lists_every_recipe_with_its_runs() -> None:
    guide = (DATA.parents[1] / "docs" / "paper-and-code.md").read_text()
    for name, recipe in RECIPES.items():
        (row,) = re.findall(rf"^\| `{name}` \|.*$", guide, re.MULTILINE)
        assert all(f"`{label}`" in row for label in recipe.labels)
        for scale in recipe.scales:
            specs = Plan(recipe, scale).run_specs()
            assert f"| {len(specs)} × {specs[0].config.rounds}, " in row, (name, scale)
