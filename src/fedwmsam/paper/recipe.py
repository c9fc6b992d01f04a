"""A table or figure of the paper as data: who is compared, in which settings, what is read off the runs.

A `Recipe` becomes a `Plan` once scale, seeds and overrides are known; the plan knows its runs. A run is named after
its configuration alone, so recipes that need the same run share it.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from fedwmsam.report.summary import MetricSpec, ResultRow
from fedwmsam.report.text_tables import MISSING, cost_cell, spread_cell
from fedwmsam.settings.config import RESULT_NEUTRAL_SETTINGS, RunConfig, resolve
from fedwmsam.statistics import Spread, mean_spread

if TYPE_CHECKING:
    from fedwmsam.paper.figures import Embeddings
    from fedwmsam.paper.results import Curves, Lines, Results
    from fedwmsam.report.text_tables import TextTable


@dataclass(frozen=True)
class Quantity:
    title: str
    header: tuple[str, ...]
    cells: Callable[[ResultRow], tuple[str, ...]]
    """Our numbers as text, one for each column of the header."""
    value: Callable[[ResultRow], float]
    """The one that is compared with the paper's; NaN if there is none."""
    goal: MetricSpec = ACCURACY_GOAL
    digits: int = 4
    is_cost: bool = False
    """Costs are set against the reference by division, all else by subtraction."""
    remark: str = ""

    def apart(self, value: float, other: float) -> str:
        return MISSING if math.isnan(value - other) else f"{value - other:+.{self.digits}f}"

    def relation(self, value: float, reference: float) -> str:
        if not self.is_cost:
            return self.apart(value, reference)
        return MISSING if math.isnan(value / reference) else f"× {value / reference:.2f}"

    def gain(self, row: ResultRow, reference: ResultRow) -> str:
        """Of our runs, over the seeds that both have on the same partition."""
        common = {score.run.pair for score in row.scores} & {
            score.run.pair for score in reference.scores
        }
        ours, theirs = (
            replace(one, scores=tuple(score for score in one.scores if score.run.pair in common))
            for one in (row, reference)
        )
        return self.relation(self.value(ours), self.value(theirs))


def mean_of_last(row: ResultRow) -> float:
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
        "“Ours” in differences is the mean of the last 10 evaluations; the paper does not say which of the three its "
        "accuracies are. Best on test is the best round picked on the test data: too good, only for comparison."
    ),
)


SIMILARITY = Quantity(
    title="Similarity recorded",
    header=("last", "mean of last 10"),
    cells=lambda row: tuple(spread_cell(row.spread(name)) for name in ("last", "tail")),
    value=mean_of_last,
    goal=MetricSpec("similarity", higher_is_better=None),
)


def rounds_to(target: float) -> Quantity:
    def cells(row: ResultRow) -> tuple[str, ...]:
        spread = row.reached(target, "rounds")
        missed = "not reached" if row.scores else MISSING
        return cost_cell(
            spread, 1.0
        ) if spread.n else missed, f"{spread.n} of {len(row.scores)} seeds"

    return Quantity(
        title="Rounds to the first evaluation of at least this accuracy",
        header=("ours", "reached by"),
        cells=cells,
        value=lambda row: row.reached(target, "rounds").mean,
        goal=MetricSpec("accuracy", higher_is_better=True, targets=(target,)),
        digits=0,
        is_cost=True,
        remark="Where only some seeds reached an accuracy, the mean is over those, and so too favourable.",
    )


def seconds_a_round(row: ResultRow) -> Spread:
    return mean_spread([score.total.seconds / score.total.rounds for score in row.scores])


SECONDS = Quantity(
    title="Seconds of training a round, all its clients together",
    header=("ours",),
    cells=lambda row: (cost_cell(seconds_a_round(row), 1.0),),
    value=lambda row: seconds_a_round(row).mean,
    digits=2,
    is_cost=True,
    remark="Seconds are the machine's: only the ratios compare, and only if nothing ran beside the runs (--jobs 1).",
)


def domain_accuracy(domain: str) -> Quantity:
    def spread(row: ResultRow) -> Spread:
        return mean_spread([accuracy_by_client(score.run.path)[domain] for score in row.scores])

    return Quantity(
        title="Accuracy by domain",
        header=("last",),
        cells=lambda row: (spread_cell(spread(row)) if row.scores else MISSING,),
        value=lambda row: spread(row).mean,
        remark="The metrics have no accuracy by domain: it is that of the saved models, so of the last round.",
    )


@cache
def accuracy_by_client(run: Path) -> dict[str, float]:
    found: dict[str, float] = prepare(load_config(run)).examine(Result.load(run).weights())[
        "by_client"
    ]
    return found


SCALES = ("small", "paper")


@dataclass(frozen=True)
class Contender:
    """What is compared: a row of a table, a curve of a figure."""

    name: str
    values: SettingValues = field(default_factory=dict)
    """The method and its options."""
    best_of: tuple[str, ...] = ()
    """No runs of its own: in each column the best of these."""


@dataclass(frozen=True)
class Column:
    """A setting in which the contenders are compared, or what is read off their runs."""

    name: str
    values: SettingValues = field(default_factory=dict)
    quantity: Quantity = ACCURACY
    x: float | None = None
    """Its place on the axis of a figure."""


@dataclass(frozen=True)
class ScaleConfig:
    """A recipe at one scale: what its runs share, above the preset `paper`."""

    values: SettingValues
    columns: tuple[Column, ...]


@dataclass(frozen=True)
class Recipe:
    name: str
    labels: tuple[str, ...]
    """Of the paper's LaTeX source; none for a claim that is only in its text."""
    title: str
    contenders: tuple[Contender, ...] = ()
    settings: Mapping[str, ScaleConfig] = field(default_factory=dict)
    """By scale."""
    printed: PaperNumbers = field(default_factory=dict)
    """The paper's numbers, by contender and column."""
    reference: str = "FedAvg"
    """The contender that the others are measured against."""
    views: tuple[tuple[str, ...], ...] = ()
    """Tables of some of the contenders each; none: one table of all."""
    pictures: "tuple[Curves | Lines | Embeddings, ...]" = ()
    analyses: "tuple[Callable[[Results], TextTable], ...]" = ()
    """Further tables."""
    remarks: tuple[str, ...] = ()
    """What a reader of its numbers must know."""
    obstacle: str = ""
    """Why it cannot be run at all."""

    def contender(self, name: str) -> Contender:
        return next(contender for contender in self.contenders if contender.name == name)


@dataclass(frozen=True)
class Plan:
    """A recipe at a scale, over seeds, with what the user wants otherwise."""

    recipe: Recipe
    scale: str
    seeds: Sequence[int] = (0,)
    overrides: SettingValues = field(default_factory=dict)
    parts: Sequence[str] = ()
    """Only columns whose name has one of these in it; none: all."""

    def __post_init__(self) -> None:
        if self.recipe.obstacle:
            raise InputError(f"{self.recipe.name} cannot be run: {self.recipe.obstacle}.")
        names = [column.name for column in self.recipe.settings[self.scale].columns]
        for part in self.parts:
            if not any(part in name for name in names):
                raise InputError(
                    f"{self.recipe.name} has no column with {part!r} in its name, but {', '.join(names)}."
                )
        runners = [contender.values for contender in self.recipe.contenders]
        varied = {
            key
            for values in (*runners, *(column.values for column in self.columns))
            for key in values
        }
        for key in self.overrides:
            if key in varied:
                raise InputError(f"{self.recipe.name} itself sets {key}; leave it out.")

    @property
    def columns(self) -> tuple[Column, ...]:
        every = self.recipe.settings[self.scale].columns
        return tuple(
            column
            for column in every
            if not self.parts or any(part in column.name for part in self.parts)
        )

    def cells(self) -> Iterator[tuple[Contender, Column]]:
        """Those with runs of their own."""
        for column in self.columns:
            for contender in self.recipe.contenders:
                if not contender.best_of:
                    yield contender, column

    def members(self) -> list[RunSpec]:
        """Every run once, all contenders of one seed before the next seed."""
        found = [self.member(*cell, seed) for seed in self.seeds for cell in self.cells()]
        return list({member.folder: member for member in found}.values())

    def member(self, contender: Contender, column: Column, seed: int) -> RunSpec:
        method = contender.values["method"]
        own = {k: v for k, v in (column.values | self.overrides).items() if accepts_key(k, method)}
        shared = {"preset": "paper"} | self.recipe.settings[self.scale].values
        config = with_absolute_paths(resolve(shared | contender.values | own | {"seed": seed}))
        return RunSpec(
            " ".join(
                [method, *(f"{key}={value}" for key, value in overrides_of_preset(config).items())]
            ),
            config,
        )

    def departures(self) -> list[str]:
        """What the paper has otherwise, as words: settings that differ from those of the scale `paper`."""
        theirs = Plan(self.recipe, "paper")
        contender = next(contender for contender in self.recipe.contenders if not contender.best_of)
        alike = {column.name: column for column in theirs.columns}
        found: dict[str, str] = {}
        for column in self.columns:
            counterpart = alike.get(column.name, theirs.columns[0])
            ours, paper = (
                plan.member(contender, of, 0).config
                for plan, of in ((self, column), (theirs, counterpart))
            )
            for key, (here, there) in config_differences(ours, paper):
                found.setdefault(key, f"{key} {here} instead of {there}")
        return list(found.values())


def overrides_of_preset(config: RunConfig) -> Record:
    """Where a run is not what the preset `paper` makes of its method."""
    usual = resolve({"preset": "paper", "method": config.method})
    return {key: values[0] for key, values in config_differences(config, usual)}


def config_differences(
    config: RunConfig, other: RunConfig
) -> Iterator[tuple[str, tuple[object, object]]]:
    theirs = other.flat()
    for key, value in config.flat().items():
        if value != theirs[key] and key not in (*RESULT_NEUTRAL_SETTINGS, "seed"):
            yield key, (value, theirs[key])


TITLES = {
    "fedavg": "FedAvg",
    "fedcm": "FedCM",
    "scaffold": "SCAFFOLD",
    "fedsam": "FedSAM",
    "mofedsam": "MoFedSAM",
    "fedgamma": "FedGAMMA",
    "fedsmoo": "FedSMOO",
    "fedlesam": "FedLESAM",
    "fedlesam-s": "FedLESAM-S",
    "fedlesam-d": "FedLESAM-D",
    "fedwmsam": "FedWMSAM",
}


def methods(*names: str) -> tuple[Contender, ...]:
    return tuple(Contender(TITLES[name], {"method": name}) for name in names)


ALL_METHODS = methods(*TITLES)
SENSITIVITY_METHODS = methods("fedavg", "mofedsam", "fedsam", "fedsmoo", "fedwmsam")
"""Those of the paper's sensitivity studies."""
LAMBDAS = tuple(
    Contender(f"λ={rate:g}", {"method": "fedwmsam", "adapt_rate": rate})
    for rate in (1.0, 0.5, 0.1, 0.05, 0.01, 0.005)
)

FASHION: SettingValues = {"dataset": "fashion-mnist", "model": "mlp"}
CIFAR10: SettingValues = {"dataset": "cifar-10", "model": "resnet18", "augmentation": "paper"}
CIFAR100: SettingValues = {"dataset": "cifar-100", "model": "resnet34", "augmentation": "paper"}
SMALL: SettingValues = FASHION | {"rounds": 100}
SMALLER: SettingValues = FASHION | {"rounds": 50}
"""For recipes some of whose rounds are many times as long."""
UNSTATED_PARTITION = (
    "The paper does not say which partition this is; Dirichlet 0.1, its default, fits the numbers."
)


def scales(
    columns: Iterable[Column], small: SettingValues = SMALL, paper: SettingValues = CIFAR10
) -> Mapping[str, ScaleConfig]:
    """The same columns on other data."""
    same = tuple(columns)
    return {"small": ScaleConfig(small, same), "paper": ScaleConfig(paper, same)}


def sweep_columns(option: str, names: Mapping[str, float]) -> list[Column]:
    """A column for each value of a setting or option."""
    return [Column(name, {option: value}, x=float(value)) for name, value in names.items()]


def columns_by_partition(
    dataset: str, values: SettingValues, partitions: Sequence[str]
) -> list[Column]:
    """A column of Table 1 for each partition."""
    signs = {"dirichlet": "β", "pathological": "γ"}
    parts = [(partition, *partition.split(":")) for partition in partitions]
    return [
        Column(
            f"{dataset} {signs[rule]} = {value}", values | {"partition": partition}, x=float(value)
        )
        for partition, rule, value in parts
    ]
