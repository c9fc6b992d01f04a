"""One `fedwmsam compare` command that makes all runs of a page again, where there is one."""

import shlex
from collections.abc import Sequence
from itertools import chain
from typing import Any

from fedwmsam import toml
from fedwmsam.comparison.grid import config_fingerprint, make_grid
from fedwmsam.engine.records import Record
from fedwmsam.errors import InputError
from fedwmsam.page.figures import runs_behind
from fedwmsam.page.provenance import format_argument, non_default_settings
from fedwmsam.report.runs import LoadedRun
from fedwmsam.report.summary import Comparison
from fedwmsam.settings.config import resolve_config
from fedwmsam.settings.method_table import known_class

MISSING = object()
"""Stands for a setting that a run leaves at its default."""


def compare_command(comparison: Comparison) -> str:
    """Return a command that makes all runs again, or an empty text if no single one does.

    Where rows differ in more than their method, it reads a file that it writes first. That the
    comparison has just these runs is checked; methods that would have to be imported are not named.
    """
    runs = list(chain.from_iterable(map(runs_behind, comparison.rows)))
    if len(runs) < 2 or any(known_class(run.config.get("method")) is None for run in runs):
        return ""
    try:
        settings = [dict(non_default_settings(run.config)) for run in runs]
        values = comparison_values(settings)
        specs = make_grid(values, {}).run_specs()
    except InputError:
        return ""
    planned = {config_fingerprint(spec.config) for spec in specs}
    if planned != {fingerprint_of(run) for run in runs}:
        return ""
    return write_command(values)


def fingerprint_of(run: LoadedRun) -> str:
    """Return the fingerprint of the configuration of a run."""
    config = {key: value for key, value in run.config.items() if value is not None}
    return config_fingerprint(resolve_config(config))


def comparison_values(settings: Sequence[Record]) -> dict[str, Any]:
    """Return the values of a comparison's file whose runs have these settings."""
    seeds = sorted({run.pop("seed", 0) for run in settings})
    keys = list(dict.fromkeys(chain.from_iterable(settings)))
    common = {}
    for key in keys:
        values_of_key = [run.get(key, MISSING) for run in settings]
        if all(value == values_of_key[0] for value in values_of_key):
            common[key] = values_of_key[0]
    variants: list[Record] = []
    for run in settings:
        variant = {key: value for key, value in run.items() if key not in common}
        if variant not in variants:
            variants.append(variant)
    values = common | {"seeds": seeds}
    if any(variants):
        values["variants"] = variants
    return values


def write_command(values: dict[str, Any]) -> str:
    """Return the command of a comparison with these values."""
    variants = values.pop("variants", [])
    methods = [variant["method"] for variant in variants if list(variant) == ["method"]]
    if len(methods) < len(variants):
        tables = [f"[[variants]]\n{toml.dump(variant)}" for variant in variants]
        text = "\n".join([toml.dump(values), *tables])
        return f"cat > again.toml <<'END'\n{text}END\nfedwmsam compare again.toml --out again"
    words = ["fedwmsam", "compare"]
    words += ["--methods", ",".join(methods or [values.pop("method")])]
    seeds = values.pop("seeds")
    if len(seeds) > 1:
        words += ["--seeds", ",".join(map(str, seeds))]
    else:
        words += ["--seed", str(seeds[0])]
    for key, value in values.items():
        words += ["--set", f"{key}={format_argument(value)}"]
    return shlex.join([*words, "--out", "again"])
