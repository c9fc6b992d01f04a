"""A table or figure of the paper as data: who is compared, in which settings, what is read off the runs.

A `Recipe` becomes a `Plan` once scale, seeds and overrides are known; the plan knows its runs. A run is named after
its configuration alone, so recipes that need the same run share it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fedwmsam.comparison.grid import Member, Values, applies
from fedwmsam.engine.records import Record
from fedwmsam.errors import InputError
from fedwmsam.experiment.experiment import anchored
from fedwmsam.recipes.paper import Printed
from fedwmsam.recipes.quantities import ACCURACY, Quantity
from fedwmsam.settings.config import WITHOUT_EFFECT, RunConfig, resolve

if TYPE_CHECKING:
    from fedwmsam.recipes.drawing import Curves, Lines
    from fedwmsam.recipes.embeddings import Embeddings
    from fedwmsam.recipes.results import Results
    from fedwmsam.report.text_tables import Sheet

SCALES = ("small", "paper")


@dataclass(frozen=True)
class Contender:
    """What is compared: a row of a table, a curve of a figure."""

    name: str
    values: Values = field(default_factory=dict)
    """The method and its options."""
    best_of: tuple[str, ...] = ()
    """No runs of its own: in each column the best of these."""


@dataclass(frozen=True)
class Column:
    """A setting in which the contenders are compared, or what is read off their runs."""

    name: str
    values: Values = field(default_factory=dict)
    quantity: Quantity = ACCURACY
    x: float | None = None
    """Its place on the axis of a figure."""


@dataclass(frozen=True)
class Setting:
    """A recipe at one scale: what its runs share, above the preset `paper`."""

    values: Values
    columns: tuple[Column, ...]


@dataclass(frozen=True)
class Recipe:
    name: str
    labels: tuple[str, ...]
    """Of the paper's LaTeX source; none for a claim that is only in its text."""
    title: str
    contenders: tuple[Contender, ...] = ()
    settings: Mapping[str, Setting] = field(default_factory=dict)
    """By scale."""
    printed: Printed = field(default_factory=dict)
    """The paper's numbers, by contender and column."""
    reference: str = "FedAvg"
    """The contender that the others are measured against."""
    views: tuple[tuple[str, ...], ...] = ()
    """Tables of some of the contenders each; none: one table of all."""
    pictures: "tuple[Curves | Lines | Embeddings, ...]" = ()
    analyses: "tuple[Callable[[Results], Sheet], ...]" = ()
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
    overrides: Values = field(default_factory=dict)
    parts: Sequence[str] = ()
    """Only columns whose name has one of these in it; none: all."""

    def __post_init__(self) -> None:
        if self.recipe.obstacle:
            raise InputError(f"{self.recipe.name} cannot be run: {self.recipe.obstacle}.")
        names = [column.name for column in self.recipe.settings[self.scale].columns]
        for part in self.parts:
            if not any(part in name for name in names):
                raise InputError(f"{self.recipe.name} has no column with {part!r} in its name, but {', '.join(names)}.")
        runners = [contender.values for contender in self.recipe.contenders]
        varied = {key for values in (*runners, *(column.values for column in self.columns)) for key in values}
        for key in self.overrides:
            if key in varied:
                raise InputError(f"{self.recipe.name} itself sets {key}; leave it out.")

    @property
    def columns(self) -> tuple[Column, ...]:
        every = self.recipe.settings[self.scale].columns
        return tuple(column for column in every if not self.parts or any(part in column.name for part in self.parts))

    def cells(self) -> Iterator[tuple[Contender, Column]]:
        """Those with runs of their own."""
        for column in self.columns:
            for contender in self.recipe.contenders:
                if not contender.best_of:
                    yield contender, column

    def members(self) -> list[Member]:
        """Every run once, all contenders of one seed before the next seed."""
        found = [self.member(*cell, seed) for seed in self.seeds for cell in self.cells()]
        return list({member.folder: member for member in found}.values())

    def member(self, contender: Contender, column: Column, seed: int) -> Member:
        method = contender.values["method"]
        own = {k: v for k, v in (column.values | self.overrides).items() if applies(k, method)}
        shared = {"preset": "paper"} | self.recipe.settings[self.scale].values
        config = anchored(resolve(shared | contender.values | own | {"seed": seed}))
        return Member(" ".join([method, *(f"{key}={value}" for key, value in departures(config).items())]), config)

    def departures(self) -> list[str]:
        """What the paper has otherwise, as words: settings that differ from those of the scale `paper`."""
        theirs = Plan(self.recipe, "paper")
        contender = next(contender for contender in self.recipe.contenders if not contender.best_of)
        alike = {column.name: column for column in theirs.columns}
        found: dict[str, str] = {}
        for column in self.columns:
            counterpart = alike.get(column.name, theirs.columns[0])
            ours, paper = (plan.member(contender, of, 0).config for plan, of in ((self, column), (theirs, counterpart)))
            for key, (here, there) in differing(ours, paper):
                found.setdefault(key, f"{key} {here} instead of {there}")
        return list(found.values())


def departures(config: RunConfig) -> Record:
    """Where a run is not what the preset `paper` makes of its method."""
    usual = resolve({"preset": "paper", "method": config.method})
    return {key: values[0] for key, values in differing(config, usual)}


def differing(config: RunConfig, other: RunConfig) -> Iterator[tuple[str, tuple[object, object]]]:
    theirs = other.flat()
    for key, value in config.flat().items():
        if value != theirs[key] and key not in (*WITHOUT_EFFECT, "seed"):
            yield key, (value, theirs[key])
