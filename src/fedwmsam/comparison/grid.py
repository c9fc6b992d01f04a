"""What a comparison asks for, as a list of runs: methods × variants × grid × seeds over common settings.

Runs of one seed share the partition, the sampled clients, the batches and the initial weights, so their differences are
paired. A run's folder carries a fingerprint of its configuration: runs of different configurations cannot be mixed.
"""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedwmsam import rng, toml
from fedwmsam.errors import InputError, unknown_name_message
from fedwmsam.methods import METHODS
from fedwmsam.settings.config import (
    RESULT_NEUTRAL_SETTINGS,
    RunConfig,
    identifying_settings,
    option_names,
    parse_assignments,
    resolve,
    setting_names,
)
from fedwmsam.settings.options import truncated_repr

SettingValues = dict[str, Any]
GridAxes = Mapping[str, Sequence[Any]]
GRID_KEYS = ("methods", "seeds", "grid", "variants")
"""What a comparison's file has beside the settings of its runs."""


@dataclass(frozen=True)
class RunSpec:
    """One run of a comparison."""

    label: str
    """What sets it apart from the others, without the seed: "fedwmsam rho=0.05"."""
    config: RunConfig

    @property
    def folder(self) -> str:
        words = re.sub(r"[^A-Za-z0-9._-]+", "-", self.label.replace("=", ""))
        return f"{words[:80]}-seed{self.config.seed}-{config_fingerprint(self.config)}"

    def place(self, below: Path) -> Path:
        """Where its run is or will be: one of the same configuration is the same run, whatever it is called."""
        same = sorted(below.glob(f"*-{config_fingerprint(self.config)}"))
        return same[0] if same else below / self.folder


@dataclass(frozen=True)
class Grid:
    """`variants` are sets of values that belong together; `axes` are varied independently of each other."""

    common: SettingValues
    variants: Sequence[SettingValues]
    axes: GridAxes
    seeds: Sequence[int]

    def members(self) -> list[RunSpec]:
        """Every run once, all methods of one seed before the next seed: early results are then comparable."""
        found: dict[str, RunSpec] = {}
        for seed in self.seeds:
            for values in self.combinations():
                config = resolve(self.shared(self.method(values)), values | {"seed": seed})
                member = RunSpec(make_label(values, config), config)
                found.setdefault(member.folder, member)
        return list(found.values())

    def method(self, values: SettingValues) -> str:
        return str(values.get("method", self.common.get("method", RunConfig.method)))

    def shared(self, method: str) -> SettingValues:
        """The common values without the options that only others of the methods have."""
        others = {name for variant in self.variants for name in option_names(self.method(variant))}
        return {
            key: value
            for key, value in self.common.items()
            if accepts_key(key, method) or key not in others
        }

    def combinations(self) -> Iterable[SettingValues]:
        for variant in self.variants:
            method = self.method(variant)
            own = {key: values for key, values in self.axes.items() if accepts_key(key, method)}
            for point in itertools.product(*own.values()):
                yield variant | dict(zip(own, point, strict=True))


def accepts_key(key: str, method: str) -> bool:
    """An option is varied for the methods that have it; for the others there is nothing to vary."""
    return key in setting_names() or key in option_names(method)


def make_label(values: SettingValues, config: RunConfig) -> str:
    others = [
        f"{key}={value}"
        for key, value in values.items()
        if key not in ("method", "seed", *RESULT_NEUTRAL_SETTINGS)
    ]
    return " ".join([config.method, *others])


def config_fingerprint(config: RunConfig) -> str:
    return rng.digest(toml.dump(dict(sorted(identifying_settings(config.flat()).items()))))[:8]


def make_grid(file: SettingValues, given: SettingValues) -> Grid:
    """From a file's content and what the command line gives, which is stronger."""
    merged = file | given
    common = {key: value for key, value in merged.items() if key not in GRID_KEYS}
    if "seed" in common:
        raise InputError(
            "A comparison has several seeds: use seeds (a number, or a list), not seed."
        )
    methods = parse_method_names(merged.get("methods", []))
    variants = check_variants(merged.get("variants", []))
    if methods:
        both = [variant for variant in variants if "method" in variant]
        if both or "method" in common:
            raise InputError(
                "Give the methods either in methods or as method of the variants, not both."
            )
        variants = [{"method": name} | variant for name in methods for variant in variants or [{}]]
    axes = merged.get("grid", {})
    if not isinstance(axes, dict) or not all(
        isinstance(values, list) and values for values in axes.values()
    ):
        raise InputError("grid must be a table of lists, such as rho = [0.01, 0.05].")
    grid = Grid(common, variants or [{}], axes, parse_seeds(merged.get("seeds", 1)))
    check_axes(grid, axes)
    varied = {key for variant in grid.variants for key in variant} & set(common)
    if varied:
        raise InputError(
            f"{min(varied)} is given a value and also set by a variant; leave one out."
        )
    return grid


def check_axes(grid: Grid, axes: GridAxes) -> None:
    """Refuse to vary what no method has, or what has a value already."""
    methods = {grid.method(variant) for variant in grid.variants} & set(METHODS)
    known = {*setting_names(), *(name for method in methods for name in option_names(method))}
    for key in axes:
        if key in ("seed", "method"):
            raise InputError(f"{key} cannot be varied like an option; use {key}s.")
        if key not in known:
            raise InputError(unknown_name_message("setting or option to vary", key, known))
        if key in grid.common or any(key in variant for variant in grid.variants):
            raise InputError(f"{key} is varied and also given a value; leave one out.")


def parse_axes(texts: Sequence[str], values: SettingValues) -> dict[str, list[Any]]:
    """`rho=0.01,0.05` as typed values."""
    axes = {}
    for text in texts:
        key, equals, listed = text.partition("=")
        parts = [part.strip() for part in listed.split(",") if part.strip()]
        if not equals or not parts:
            raise InputError(f"A range of values is written key=a,b,c, not {text!r}.")
        key = key.strip().replace("-", "_")
        axes[key] = [parse_settings([f"{key}={part}"], values)[key] for part in parts]
    return axes


def parse_settings(texts: Sequence[str], values: SettingValues) -> SettingValues:
    """`key=value` texts, typed as the first of the comparison's methods that has the option types it."""
    variants = [v.get("method") for v in check_variants(values.get("variants", []))]
    methods = [
        *parse_method_names(values.get("methods", [])),
        *filter(None, variants),
        values.get("method", RunConfig.method),
    ]
    found: SettingValues = {}
    for text in texts:
        key = text.partition("=")[0].strip().replace("-", "_")
        able = next(
            (method for method in methods if method in METHODS and key in option_names(method)),
            methods[0],
        )
        found |= parse_assignments([text], able)
    return found


def parse_method_names(value: Any) -> list[str]:
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise InputError(f"methods must be a list of names, not {truncated_repr(value)}.")
    for name in value:
        if name not in METHODS:
            raise InputError(unknown_name_message("method", name, METHODS))
    return list(dict.fromkeys(value))


def check_variants(value: Any) -> list[SettingValues]:
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise InputError(
            "variants must be tables: [[variants]] and then the values that set one apart."
        )
    return value


def parse_seeds(value: Any) -> list[int]:
    """Three seeds are 0, 1, 2; a list names them."""
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",")] if "," in value else value
        try:
            value = [int(part) for part in value] if isinstance(value, list) else int(value)
        except ValueError as error:
            raise InputError(
                f"seeds must be a number or a list of numbers, not {truncated_repr(value)}."
            ) from error
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return list(range(value))
    if (
        not isinstance(value, list)
        or not value
        or not all(type(seed) is int and seed >= 0 for seed in value)
    ):
        raise InputError(
            f"seeds must be a number of at least 1 or a list of whole numbers, not {truncated_repr(value)}."
        )
    return list(dict.fromkeys(value))
