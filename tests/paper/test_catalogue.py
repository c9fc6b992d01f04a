"""What the recipes ask for: the paper's labels, its setting, its numbers."""

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
"""Of every table and figure in the paper's LaTeX source that is not commented out."""
EXPECTED: dict[str, Any] = json.loads((DATA / "paper_setting.json").read_text())
"""The specification's account of the paper's experiments, written down by hand; MoFedSAM with Table 6's ρ."""
RUNNABLE = [name for name, recipe in RECIPES.items() if not recipe.obstacle]


def test_every_label_of_the_paper_has_a_recipe_and_no_other() -> None:
    found = Counter(label for recipe in RECIPES.values() for label in recipe.labels)
    assert set(found) == set(LABELS) and len(LABELS) == 28
    assert [label for label, count in found.items() if count > 1] == ["fig:sensitivity"], (
        "it has two halves"
    )


@pytest.mark.parametrize("name", EXPECTED["varied"])
def test_scale_paper_is_the_papers_setting(name: str) -> None:
    varied = EXPECTED["varied"][name]
    members = Plan(RECIPES[name], "paper").members()
    for member in members:
        flat = member.config.flat()
        expected = EXPECTED["every run"] | EXPECTED["methods"][flat["method"]]
        expected |= {"model": EXPECTED["models"][flat["dataset"]]}
        expected |= {"augmentation": EXPECTED["augmentation"][flat["dataset"]]}
        assert {key: flat[key] for key in expected if key not in varied} == {
            key: value for key, value in expected.items() if key not in varied
        }
    for key, values in varied.items():
        found = {flat[key] for member in members if key in (flat := member.config.flat())}
        # Methods outside a sweep of ρ keep their own.
        assert found == set(values), key


def test_table_1_pairs_each_data_set_with_its_partitions() -> None:
    configs = [member.config for member in Plan(RECIPES["table-1"], "paper").members()]
    assert len(configs) == 11 * 12
    found = Counter((config.dataset, config.partition) for config in configs)
    ten = {"dirichlet:0.6", "dirichlet:0.1", "pathological:6", "pathological:3"}
    hundred = {"dirichlet:0.6", "dirichlet:0.1", "pathological:20", "pathological:10"}
    assert set(found) == {("fashion-mnist", p) for p in ten} | {("cifar-10", p) for p in ten} | {
        ("cifar-100", p) for p in hundred
    }
    assert set(found.values()) == {11}


def test_table_2_is_four_domains_on_a_tenth_of_the_data() -> None:
    members = Plan(RECIPES["table-2"], "paper").members()
    assert len(members) == 9, "a run for each method, whatever is read off it"
    config = members[0].config
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
    members = plan.members()
    assert {member.config.seed for member in members} == {0, 3}
    assert len({member.folder for member in members}) == len(
        {config_fingerprint(member.config) for member in members}
    )
    names = [contender.name for contender in recipe.contenders]
    assert recipe.reference in names and len(set(names)) == len(names)
    assert len({column.name for column in plan.columns}) == len(plan.columns)
    assert all(set(view) <= set(names) for view in recipe.views)
    if scale == "small":
        assert {member.config.dataset.split(",")[0] for member in members} <= {
            "fashion-mnist",
            "digits",
            "office-caltech10",
        }
        assert max(member.config.rounds for member in members) <= 100


def test_what_two_recipes_need_is_one_run() -> None:
    def folders(name: str) -> set[str]:
        return {member.folder for member in Plan(RECIPES[name], "paper").members()}

    assert folders("figure-14") == folders("table-3") <= folders("table-1")
    assert len(folders("table-5") & folders("table-9") & folders("table-6")) == 1, (
        "FedWMSAM as it is"
    )


@pytest.mark.parametrize("label", PAPER_NUMBERS)
def test_every_cell_has_its_printed_number_and_every_number_its_cell(label: str) -> None:
    recipe = next(recipe for recipe in RECIPES.values() if label in recipe.labels)
    cells = {
        (contender.name, column.name)
        for contender in recipe.contenders
        for column in recipe.settings["paper"].columns
        if not (label == "tab:performance_comparison" and contender.name in VARIANTS)
    }
    assert recipe.printed is PAPER_NUMBERS[label] and set(PAPER_NUMBERS[label]) == cells
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
def test_printed_numbers(label: str, row: str, column: str, number: str) -> None:
    assert PAPER_NUMBERS[label][row, column] == number


def test_the_guide_lists_every_recipe_with_its_runs() -> None:
    guide = (DATA.parents[1] / "docs" / "reproduce.md").read_text()
    for name, recipe in RECIPES.items():
        (row,) = re.findall(rf"^\| `{name}` \|.*$", guide, re.MULTILINE)
        assert all(f"`{label}`" in row for label in recipe.labels)
        for scale in recipe.settings:
            members = Plan(recipe, scale).members()
            assert f"| {len(members)} × {members[0].config.rounds}, " in row, (name, scale)
