"""Recipes: the paper's tables, figures and claims as data.

A `Recipe` compares contenders (the rows of a table or the curves of a figure) in columns. A
`Contender` is a method with its options, a `Column` is a setting in which the contenders are
compared, and its `Quantity` is what is read off their runs: an accuracy, rounds to reach one, time.
Every recipe has two scales: "paper" is the paper's own setting, "small" fits a small machine.

A `Recipe` becomes a `Plan` once scale, seeds and overrides are known; the plan knows its runs. A
run is named after its configuration alone, so recipes that need the same run share it.

To add a table, a figure or a claim, append a `Recipe` to `TABLES` (tables.py), `FIGURES`
(figures.py) or `CLAIMS` (claims.py): `reproduction.RECIPES` collects all three. The numbers that
the paper prints go to `numbers.PAPER_NUMBERS` under the label of the table or figure.
"""

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from fedwmsam.comparison.grid import RunSpec, SettingValues, accepts_key
from fedwmsam.engine.records import Record
from fedwmsam.errors import InputError
from fedwmsam.experiment.experiment import load_config, prepare, with_absolute_paths
from fedwmsam.experiment.result import Result
from fedwmsam.paper.numbers import PaperNumbers
from fedwmsam.report.summary import ACCURACY as ACCURACY_GOAL
from fedwmsam.report.summary import Goal, ResultRow
from fedwmsam.report.text_tables import MISSING, cost_cell, spread_cell
from fedwmsam.settings.config import (
    RESULT_NEUTRAL_SETTINGS,
    RunConfig,
    requested_method,
    resolve_config,
)
from fedwmsam.settings.method_table import method_title
from fedwmsam.statistics import Spread, mean_spread

if TYPE_CHECKING:
    from fedwmsam.paper.figures import Embeddings
    from fedwmsam.paper.results import Curves, Lines, Results
    from fedwmsam.report.text_tables import TextTable


@dataclass(frozen=True)
class Quantity:
    """What is read off the runs of a cell, and how it is shown and compared."""

    title: str
    header: tuple[str, ...]
    cells: Callable[[ResultRow], tuple[str, ...]]
    """Returns our values as text, one for each column of the header."""
    value: Callable[[ResultRow], float]
    """Returns the value that is compared with the paper's; NaN if there is none."""
    goal: Goal = ACCURACY_GOAL
    """The metric that the runs are scored by."""
    decimals: int = 4
    """Decimals of a difference."""
    is_cost: bool = False
    """Whether it is a cost, which is compared with the reference by ratio, not by difference."""
    remark: str = ""
    """What a reader of the values must know."""

    def difference(self, value: float, other: float) -> str:
        """Return value − other as text, a dash if either is missing."""
        return MISSING if math.isnan(value - other) else f"{value - other:+.{self.decimals}f}"

    def comparison(self, value: float, reference: float) -> str:
        """Return the ratio to the reference for a cost, else the difference, as text."""
        if not self.is_cost:
            return self.difference(value, reference)
        return MISSING if math.isnan(value / reference) else f"× {value / reference:.2f}"

    def gain(self, row: ResultRow, reference: ResultRow) -> str:
        """Compare our runs with the reference's, over the seeds and partitions that both have."""
        keys = {score.run.pairing_key for score in row.scores}
        common = keys & {score.run.pairing_key for score in reference.scores}
        ours = self.value(keep_scores(row, common))
        theirs = self.value(keep_scores(reference, common))
        return self.comparison(ours, theirs)


def keep_scores(row: ResultRow, pairing_keys: Container[object]) -> ResultRow:
    """Return the row with only the scores of runs that have one of these pairing keys."""
    scores = tuple(score for score in row.scores if score.run.pairing_key in pairing_keys)
    return replace(row, scores=scores)


def mean_of_last(row: ResultRow) -> float:
    """Return the mean over the seeds of the mean of the last evaluations, NaN without runs."""
    spread = row.spread("tail")
    return spread.mean if spread else math.nan


ACCURACY = Quantity(
    title="Accuracy",
    header=("last", "mean of last 10", "best on test (selected on test)"),
    cells=lambda row: tuple(
        spread_cell(row.spread(name)) for name in ("last", "tail", "best_on_test")
    ),
    value=mean_of_last,
    remark=(
        "“Ours” in differences is the mean of the last 10 evaluations; the paper does not say "
        "which of the three its accuracies are. Best on test is the best round picked on the test "
        "data: too good, only for comparison."
    ),
)
"""Test accuracy, in the three readings that the paper may mean."""


SIMILARITY = Quantity(
    title="Similarity recorded",
    header=("last", "mean of last 10"),
    cells=lambda row: tuple(spread_cell(row.spread(name)) for name in ("last", "tail")),
    value=mean_of_last,
    goal=Goal("similarity", higher_is_better=None),
)
"""The similarity that FedWMSAM records."""


def rounds_to_accuracy(target: float) -> Quantity:
    """Return the quantity "rounds to the first evaluation of at least this accuracy"."""

    def cells(row: ResultRow) -> tuple[str, ...]:
        spread = row.reached(target, "rounds")
        cost = "not reached" if row.scores else MISSING
        if spread.n:
            cost = cost_cell(spread, 1.0)
        return cost, f"{spread.n} of {len(row.scores)} seeds"

    return Quantity(
        title="Rounds to the first evaluation of at least this accuracy",
        header=("ours", "reached by"),
        cells=cells,
        value=lambda row: row.reached(target, "rounds").mean,
        goal=Goal("accuracy", higher_is_better=True, targets=(target,), target_window=1),
        decimals=0,
        is_cost=True,
        remark=(
            "Where only some seeds reached an accuracy, the mean is over those, "
            "and so too favourable."
        ),
    )


def seconds_per_round(row: ResultRow) -> Spread:
    """Return mean and deviation over the seeds of the training seconds per round."""
    return mean_spread([score.total.seconds / score.total.rounds for score in row.scores])


SECONDS = Quantity(
    title="Seconds of training a round, all its clients together",
    header=("ours",),
    cells=lambda row: (cost_cell(seconds_per_round(row), 1.0),),
    value=lambda row: seconds_per_round(row).mean,
    decimals=2,
    is_cost=True,
    remark=(
        "Seconds are the machine's: only the ratios compare, "
        "and only if nothing ran beside the runs (--jobs 1)."
    ),
)
"""Training seconds per round."""


def domain_accuracy(domain: str) -> Quantity:
    """Return the quantity "accuracy on the test data of one domain"."""

    def spread(row: ResultRow) -> Spread:
        return mean_spread([accuracy_by_client(score.run.path)[domain] for score in row.scores])

    return Quantity(
        title="Accuracy by domain",
        header=("last",),
        cells=lambda row: (spread_cell(spread(row)) if row.scores else MISSING,),
        value=lambda row: spread(row).mean,
        remark=(
            "The metrics have no accuracy by domain: "
            "it is that of the saved models, so of the last round."
        ),
    )


@cache
def accuracy_by_client(run: Path) -> dict[str, float]:
    """Evaluate a run's last model and return its accuracy by the name of the client."""
    experiment = prepare(load_config(run))
    breakdown = experiment.evaluate_breakdown(Result.load(run).weights())
    by_client: dict[str, float] = breakdown["by_client"]
    return by_client


SCALES = ("small", "paper")
"""Names of the scales: "small" fits a small machine, "paper" is the paper's own setting."""


@dataclass(frozen=True)
class Contender:
    """A method with its options that is compared: a row of a table, a curve of a figure."""

    name: str
    values: SettingValues = field(default_factory=dict)
    """The method and its options."""
    best_of: tuple[str, ...] = ()
    """Names of other contenders, if this one has no runs of its own: it is in each column the best
    of these."""


@dataclass(frozen=True)
class Column:
    """A setting in which the contenders are compared, and the quantity that is read off their runs.

    Columns with the same setting share their runs.
    """

    name: str
    values: SettingValues = field(default_factory=dict)
    """Settings of the column's runs."""
    quantity: Quantity = ACCURACY
    x: float | None = None
    """Position on the x axis of a plot over the columns."""


@dataclass(frozen=True)
class ScaleConfig:
    """A recipe at one scale: the columns, and the settings that all runs share."""

    values: SettingValues
    """Settings beyond the preset `paper`."""
    columns: tuple[Column, ...]


@dataclass(frozen=True)
class Recipe:
    """A table, figure or claim of the paper as an experiment: contenders, columns and outputs."""

    name: str
    labels: tuple[str, ...]
    """Labels in the paper's LaTeX source; none for a claim that is only in its text."""
    title: str
    contenders: tuple[Contender, ...] = ()
    scales: Mapping[str, ScaleConfig] = field(default_factory=dict)
    """The columns and settings at each scale."""
    paper_numbers: PaperNumbers = field(default_factory=dict)
    """The numbers that the paper prints, by contender and column."""
    reference: str = "FedAvg"
    """Name of the contender that the others are compared with."""
    views: tuple[tuple[str, ...], ...] = ()
    """Tables of some of the contenders each; none: one table of all."""
    plots: "tuple[Curves | Lines | Embeddings, ...]" = ()
    """Kinds of plots that are drawn."""
    analyses: "tuple[Callable[[Results], TextTable], ...]" = ()
    """Functions that make further tables."""
    remarks: tuple[str, ...] = ()
    """What a reader of its numbers must know."""
    not_runnable_because: str = ""
    """The reason why it cannot be run at any scale, if it cannot."""

    def contender(self, name: str) -> Contender:
        """Return the contender of that name."""
        return next(contender for contender in self.contenders if contender.name == name)

    def with_methods(self, names: Sequence[str]) -> "Recipe":
        """Return the recipe with these methods of the user's as further contenders.

        Each is a row of every table; those that the recipe has already are not added. Raise
        InputError if there is no such method.
        """
        present = {contender.values.get("method") for contender in self.contenders}
        methods = dict.fromkeys(requested_method({"method": name}) for name in names)
        added = [Contender(name, {"method": name}) for name in methods if name not in present]
        added_names = tuple(contender.name for contender in added)
        views = tuple(view + added_names for view in self.views)
        return replace(self, contenders=(*self.contenders, *added), views=views)


@dataclass(frozen=True)
class Plan:
    """A recipe at a scale, over seeds, with the user's overrides."""

    recipe: Recipe
    scale: str
    seeds: Sequence[int] = (0,)
    overrides: SettingValues = field(default_factory=dict)
    """Settings that the user wants otherwise, for all runs."""
    parts: Sequence[str] = ()
    """Only columns whose name contains one of these are run; none: all."""

    def __post_init__(self) -> None:
        """Raise InputError if the recipe cannot be run, or the columns or overrides do not fit."""
        name = self.recipe.name
        if self.recipe.not_runnable_because:
            raise InputError(f"{name} cannot be run: {self.recipe.not_runnable_because}.")
        column_names = [column.name for column in self.recipe.scales[self.scale].columns]
        for part in self.parts:
            if not any(part in column_name for column_name in column_names):
                raise InputError(
                    f"{name} has no column with {part!r} in its name, "
                    f"but {', '.join(column_names)}."
                )
        varied: set[str] = set()
        for contender in self.recipe.contenders:
            varied.update(contender.values)
        for column in self.columns:
            varied.update(column.values)
        for key in self.overrides:
            if key in varied:
                raise InputError(f"{name} itself sets {key}; leave it out.")

    @property
    def columns(self) -> tuple[Column, ...]:
        """Return the columns that are run."""
        columns = self.recipe.scales[self.scale].columns
        if not self.parts:
            return columns
        return tuple(column for column in columns if self._is_chosen(column))

    def _is_chosen(self, column: Column) -> bool:
        return any(part in column.name for part in self.parts)

    def cells(self) -> Iterator[tuple[Contender, Column]]:
        """Yield each contender and column that has runs of its own."""
        for column in self.columns:
            for contender in self.recipe.contenders:
                if not contender.best_of:
                    yield contender, column

    def run_specs(self) -> list[RunSpec]:
        """Return the spec of every run once, all contenders of one seed before the next seed."""
        specs: dict[str, RunSpec] = {}
        for seed in self.seeds:
            for contender, column in self.cells():
                spec = self.run_spec(contender, column, seed)
                specs[spec.folder_name] = spec
        return list(specs.values())

    def run_spec(self, contender: Contender, column: Column, seed: int) -> RunSpec:
        """Return the spec of a cell's run with this seed."""
        method = contender.values["method"]
        values = column.values | self.overrides
        accepted = {key: value for key, value in values.items() if accepts_key(key, method)}
        shared = {"preset": "paper"} | self.recipe.scales[self.scale].values
        config = with_absolute_paths(
            resolve_config(shared | contender.values | accepted | {"seed": seed})
        )
        options = [f"{key}={value}" for key, value in overrides_of_preset(config).items()]
        return RunSpec(" ".join([method, *options]), config)

    def differences_to_paper_scale(self) -> list[str]:
        """Return in words the settings that differ from those of the scale `paper`.

        A column is compared with the one of the same name, or else with the first one.
        """
        paper_plan = Plan(self.recipe, "paper")
        contender = next(contender for contender in self.recipe.contenders if not contender.best_of)
        paper_columns = {column.name: column for column in paper_plan.columns}
        differences: dict[str, str] = {}
        for column in self.columns:
            paper_column = paper_columns.get(column.name, paper_plan.columns[0])
            config = self.run_spec(contender, column, 0).config
            paper_config = paper_plan.run_spec(contender, paper_column, 0).config
            for key, (value, paper_value) in config_differences(config, paper_config):
                differences.setdefault(key, f"{key} {value} instead of {paper_value}")
        return list(differences.values())


def overrides_of_preset(config: RunConfig) -> Record:
    """Return the settings that are not what the preset `paper` makes of the method."""
    preset = resolve_config({"preset": "paper", "method": config.method})
    return {key: values[0] for key, values in config_differences(config, preset)}


def config_differences(
    config: RunConfig, other: RunConfig
) -> Iterator[tuple[str, tuple[object, object]]]:
    """Yield each setting that differs, with both values.

    The seed and settings that do not affect results are left out.
    """
    other_values = other.to_flat_dict()
    for key, value in config.to_flat_dict().items():
        if value != other_values[key] and key not in (*RESULT_NEUTRAL_SETTINGS, "seed"):
            yield key, (value, other_values[key])


PAPER_METHODS = (
    "fedavg",
    "fedcm",
    "scaffold",
    "fedsam",
    "mofedsam",
    "fedgamma",
    "fedsmoo",
    "fedlesam",
    "fedlesam-s",
    "fedlesam-d",
    "fedwmsam",
)
"""The eleven methods of the paper, in its order."""


def method_contenders(*names: str) -> tuple[Contender, ...]:
    """Return a contender for each of these methods, with its default options."""
    return tuple(Contender(method_title(name), {"method": name}) for name in names)


ALL_METHODS = method_contenders(*PAPER_METHODS)
"""A contender for each of them."""
SENSITIVITY_METHODS = method_contenders("fedavg", "mofedsam", "fedsam", "fedsmoo", "fedwmsam")
"""The methods of the paper's sensitivity studies."""
LAMBDAS = tuple(
    Contender(f"λ={rate:g}", {"method": "fedwmsam", "adapt_rate": rate})
    for rate in (1.0, 0.5, 0.1, 0.05, 0.01, 0.005)
)
"""FedWMSAM with different adaptation rates λ."""

FASHION: SettingValues = {"dataset": "fashion-mnist", "model": "mlp"}
CIFAR10: SettingValues = {"dataset": "cifar-10", "model": "resnet18", "augmentation": "paper"}
CIFAR100: SettingValues = {"dataset": "cifar-100", "model": "resnet34", "augmentation": "paper"}
SMALL: SettingValues = FASHION | {"rounds": 100}
SMALLER: SettingValues = FASHION | {"rounds": 50}
"""The small scale of recipes in which some rounds take many times as long."""
UNSTATED_PARTITION = (
    "The paper does not say which partition this is; Dirichlet 0.1, its default, fits the numbers."
)


def make_scales(
    columns: Iterable[Column], small: SettingValues = SMALL, paper: SettingValues = CIFAR10
) -> Mapping[str, ScaleConfig]:
    """Return both scales with the same columns, but other data and rounds."""
    same = tuple(columns)
    return {"small": ScaleConfig(small, same), "paper": ScaleConfig(paper, same)}


def sweep_columns(option: str, names: Mapping[str, float]) -> list[Column]:
    """Return a column for each value of a setting or option, given by the column's name."""
    return [Column(name, {option: value}, x=float(value)) for name, value in names.items()]


def columns_by_partition(
    dataset: str, values: SettingValues, partitions: Sequence[str]
) -> list[Column]:
    """Return a column for each partition, named as in the paper's Table 1.

    The paper writes β for Dirichlet partitions and γ for pathological ones.
    """
    symbols = {"dirichlet": "β", "pathological": "γ"}
    columns = []
    for partition in partitions:
        rule, value = partition.split(":")
        name = f"{dataset} {symbols[rule]} = {value}"
        columns.append(Column(name, values | {"partition": partition}, x=float(value)))
    return columns
