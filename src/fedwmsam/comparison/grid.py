"""The grid of a comparison: methods × variants × values of settings × seeds, as a list of runs.

Runs of one seed share the partition, the sampled clients, the batches and the initial weights, so
their differences are paired. The name of a run's folder ends with a fingerprint of its
configuration: runs of different configurations cannot be mixed up.
"""

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from fedwmsam import rng, toml
from fedwmsam.errors import InputError, unknown_name_message
from fedwmsam.files import own_folder
from fedwmsam.settings.config import (
    RESULT_NEUTRAL_SETTINGS,
    RunConfig,
    identifying_settings,
    method_name,
    parse_assignments,
    requested_method,
    resolve_config,
    setting_names,
)
from fedwmsam.settings.method_table import known_class, missing_option_message, option_names
from fedwmsam.settings.options import truncated_repr

SettingValues = dict[str, Any]
GridAxes = Mapping[str, Sequence[Any]]
GRID_KEYS = ("methods", "seeds", "grid", "variants", "tuning")
"""Keys of a comparison's file that are not settings of its runs."""
MAX_RUNS = 100_000
"""Runs of one comparison: a line of its file can ask for more than anybody waits for."""


@dataclass(frozen=True)
class RunSpec:
    """A run of a comparison: its configuration, and a label that tells it from the others."""

    label: str
    """The method and the varied values, without the seed: "fedwmsam rho=0.05"."""
    config: RunConfig

    @property
    def folder_name(self) -> str:
        """Return a folder name made of the label, the seed and the configuration's fingerprint."""
        words = re.sub(r"[^A-Za-z0-9._-]+", "-", self.label.replace("=", ""))
        return f"{words[:80]}-seed{self.config.seed}-{config_fingerprint(self.config)}"

    def find_folder(self, root: Path) -> Path:
        """Return the folder of this run below `root`, which need not exist yet.

        A folder with the fingerprint of this configuration holds this run, whatever its label was.
        """
        existing = sorted(root.glob(f"*-{config_fingerprint(self.config)}"))
        return own_folder(existing[0] if existing else root / self.folder_name)


@dataclass(frozen=True)
class Grid:
    """The settings of a comparison, from which the configuration of every run is made."""

    common: SettingValues
    """Values for all runs."""
    variants: Sequence[SettingValues]
    """Sets of values that belong together, such as a method and its options."""
    axes: GridAxes
    """Values of settings or options that are varied independently of each other."""
    seeds: Sequence[int]

    def run_specs(self) -> list[RunSpec]:
        """Return every run once, all methods of one seed before the next seed.

        Early results are comparable in this order. Raise InputError for an invalid configuration,
        and if there are too many.
        """
        if self.run_count() > MAX_RUNS:
            raise InputError(
                f"The comparison has {self.run_count():,} runs, expected at most {MAX_RUNS:,}: "
                "give fewer seeds, variants or values."
            )
        specs: dict[str, RunSpec] = {}
        for seed in self.seeds:
            for values in self.combinations():
                spec = self.make_spec(values, seed)
                specs.setdefault(spec.folder_name, spec)
        return list(specs.values())

    def make_spec(self, values: SettingValues, seed: int) -> RunSpec:
        """Return the run of a combination of values; raise InputError if it is invalid."""
        common = self.common_values_for(self.method_of(values))
        config = resolve_config(common, values | {"seed": seed})
        return RunSpec(make_spec_label(values, config), config)

    def run_count(self) -> int:
        """Return how many runs the grid has, those that are the same counted twice."""
        return len(self.seeds) * sum(
            math.prod(map(len, self.axes_of(variant).values())) for variant in self.variants
        )

    def method_of(self, values: SettingValues) -> str:
        """Return the method's name in a combination of values, or the common one."""
        return method_name(self.common, values)

    def common_values_for(self, method: str) -> SettingValues:
        """Return the common values without options that only other methods of the grid have."""
        options: set[str] = set()
        for variant in self.variants:
            options |= set(option_names(self.method_of(variant)))
        return {
            key: value
            for key, value in self.common.items()
            if accepts_key(key, method) or key not in options
        }

    def axes_of(self, variant: SettingValues) -> GridAxes:
        """Return the axes that the method of a variant accepts."""
        method = self.method_of(variant)
        return {key: values for key, values in self.axes.items() if accepts_key(key, method)}

    def combinations(self) -> Iterable[SettingValues]:
        """Yield each variant with each combination of the axes that its method accepts."""
        for variant in self.variants:
            for point in points_of(self.axes_of(variant)):
                yield variant | point


def points_of(axes: GridAxes) -> Iterator[SettingValues]:
    """Yield each combination of the values of the axes, the last axis first."""
    for point in itertools.product(*axes.values()):
        yield dict(zip(axes, point, strict=True))


def accepts_key(key: str, method: str) -> bool:
    """Return whether the key is a setting, or an option that the method has."""
    return key in setting_names() or key in option_names(method)


def make_spec_label(values: SettingValues, config: RunConfig) -> str:
    """Return the method and the values that tell a run from the others, without the seed."""
    unlabelled = ("method", "seed", *RESULT_NEUTRAL_SETTINGS)
    words = [f"{key}={value}" for key, value in values.items() if key not in unlabelled]
    return " ".join([config.method, *words])


def config_fingerprint(config: RunConfig) -> str:
    """Return eight hexadecimal digits that depend on every setting that can change results."""
    settings = identifying_settings(config.to_flat_dict())
    return rng.digest(toml.dump(dict(sorted(settings.items()))))[:8]


def make_grid(file_values: SettingValues, cli_values: SettingValues) -> Grid:
    """Return the grid that a file and the command line describe; the command line overrides.

    Raise InputError for values of the wrong form and for settings that are given twice.
    """
    merged = file_values | cli_values
    common = {key: value for key, value in merged.items() if key not in GRID_KEYS}
    common = with_requested_method(common)
    if "seed" in common:
        raise InputError(
            "A comparison has several seeds: use seeds (a number, or a list), not seed."
        )
    methods = parse_method_names(merged.get("methods", []))
    variants = check_variants(merged.get("variants", []))
    if methods:
        if "method" in common or any("method" in variant for variant in variants):
            raise InputError(
                "Give the methods either in methods or as method of the variants, not both."
            )
        pairs = itertools.product(methods, variants or [{}])
        variants = [{"method": name} | variant for name, variant in pairs]
    axes = merged.get("grid", {})
    if not isinstance(axes, dict) or not all(map(is_nonempty_list, axes.values())):
        raise InputError("grid must be a table of lists, such as rho = [0.01, 0.05].")
    grid = Grid(common, variants or [{}], axes, parse_seeds(merged.get("seeds", 1)))
    check_keys(grid)
    check_axes(grid, axes)
    variant_keys = set(itertools.chain.from_iterable(grid.variants))
    given_twice = variant_keys & set(common)
    if given_twice:
        raise InputError(
            f"{min(given_twice)} is given a value and also set by a variant; leave one out."
        )
    return grid


def is_nonempty_list(value: Any) -> bool:
    """Return whether the value is a list with at least one element."""
    return isinstance(value, list) and bool(value)


def check_keys(grid: Grid) -> None:
    """Raise InputError for a value of all runs that no method of the comparison knows.

    The configuration of a run would find it, too, but not know what else a comparison's file has.
    """
    known_keys = keys_of_methods(grid)
    for key in grid.common:
        if key not in known_keys:
            methods = dict.fromkeys(map(grid.method_of, grid.variants))
            message = missing_option_message(key, list(methods))
            known = {*known_keys, *GRID_KEYS}
            raise InputError(message or unknown_name_message("key of a comparison", key, known))


def keys_of_methods(grid: Grid) -> set[str]:
    """Return all settings, and the options of the methods of a grid."""
    known_keys = set(setting_names())
    for variant in grid.variants:
        known_keys |= set(option_names(grid.method_of(variant)))
    return known_keys


def check_axes(grid: Grid, axes: GridAxes, verb: str = "varied") -> None:
    """Raise InputError if an axis is unknown to all methods or has a fixed value as well.

    `verb` says what is done with the values of the axes.
    """
    known_keys = keys_of_methods(grid)
    for key in axes:
        if key in ("seed", "method"):
            raise InputError(f"{key} cannot be {verb} like an option; use {key}s.")
        if key not in known_keys:
            methods = dict.fromkeys(map(grid.method_of, grid.variants))
            message = missing_option_message(key, list(methods))
            what = f"setting or option to be {verb}"
            raise InputError(message or unknown_name_message(what, key, known_keys))
        if key in grid.common or any(key in variant for variant in grid.variants):
            raise InputError(f"{key} is {verb} and also given a value; leave one out.")


def parse_axes(texts: Sequence[str], values: SettingValues) -> dict[str, list[Any]]:
    """Return the axes in texts such as `rho=0.01,0.05`, each value as its option's type.

    `values` holds the comparison's other settings, whose methods decide on the types. Raise
    InputError for a text of another form or a value of the wrong type.
    """
    axes = {}
    for text in texts:
        key, equals, value_list = text.partition("=")
        parts = [part.strip() for part in value_list.split(",") if part.strip()]
        if not equals or not parts:
            raise InputError(f"A range of values is written key=a,b,c, not {text!r}.")
        key = normalise_key(key)
        axes[key] = [parse_settings([f"{key}={part}"], values)[key] for part in parts]
    return axes


def parse_settings(texts: Sequence[str], values: SettingValues) -> SettingValues:
    """Return the settings in texts such as `rho=0.05`, each value as its option's type.

    The type is that of the first of the comparison's methods, which `values` names, that has the
    option. Raise InputError for an unknown key or a value of the wrong type.
    """
    variants = check_variants(values.get("variants", []))
    methods = [
        *parse_method_names(values.get("methods", [])),
        *filter(None, [variant.get("method") for variant in variants]),
        requested_method(values),
    ]
    settings: SettingValues = {}
    for text in texts:
        key = normalise_key(text.partition("=")[0])
        method = next((name for name in methods if has_option(name, key)), methods[0])
        settings |= parse_assignments([text], method)
    return settings


def normalise_key(text: str) -> str:
    """Return the key as Python writes it: `local-epochs` is `local_epochs`."""
    return text.strip().replace("-", "_")


def has_option(method: str, key: str) -> bool:
    """Return whether there is such a method and it has such an option."""
    cls = known_class(method)
    return cls is not None and key in {f.name for f in fields(cls)}


def parse_method_names(value: Any) -> list[str]:
    """Return the method names of a list or of a text with commas, each once.

    The comparison may import them. Raise InputError for another value or an unknown method.
    """
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise InputError(f"methods must be a list of names, not {truncated_repr(value)}.")
    return list(dict.fromkeys(requested_method({"method": name}) for name in value))


def check_variants(value: Any) -> list[SettingValues]:
    """Return the variants of a list of tables; raise InputError for another value."""
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise InputError(
            "variants must be tables: [[variants]] and then the values that set one apart."
        )
    return list(map(with_requested_method, value))


def with_requested_method(values: SettingValues) -> SettingValues:
    """Return values of the user's with the canonical name of their method, if they name one."""
    if "method" not in values:
        return values
    return values | {"method": requested_method(values)}


def parse_seeds(value: Any) -> list[int]:
    """Return the seeds of a list or text such as "0,7,8", or 0, 1, 2 for the number 3.

    Raise InputError for anything else.
    """
    if isinstance(value, str):
        if "," in value:
            value = [part.strip() for part in value.split(",")]
        try:
            value = [int(part) for part in value] if isinstance(value, list) else int(value)
        except ValueError as error:
            raise InputError(
                f"seeds must be a number or a list of numbers, not {truncated_repr(value)}."
            ) from error
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        if value > MAX_RUNS:
            raise InputError(
                f"seeds is {truncated_repr(value)}, expected at most {MAX_RUNS}: give fewer."
            )
        return list(range(value))
    if not is_nonempty_list(value) or not all(type(seed) is int and seed >= 0 for seed in value):
        raise InputError(
            "seeds must be a number of at least 1 or a list of whole numbers, "
            f"not {truncated_repr(value)}."
        )
    return list(dict.fromkeys(value))
