"""The origin of the results: commands that make the runs again, versions and machines."""

import os
import platform
import shlex
from collections import Counter
from itertools import chain
from typing import Any

from fedwmsam.engine.provenance import package_version
from fedwmsam.engine.records import Record
from fedwmsam.errors import InputError
from fedwmsam.machine import cpu_name
from fedwmsam.page.figures import runs_behind
from fedwmsam.report.environments import PROPERTIES, UNKNOWN, environments
from fedwmsam.report.runs import LoadedRun, RunStatus
from fedwmsam.report.summary import Comparison
from fedwmsam.report.text_tables import MISSING, TextTable
from fedwmsam.settings.config import resolve_config, setting_names, settings_in_help_order
from fedwmsam.settings.method_table import is_path, known_class
from fedwmsam.version import __version__

FLAGS = tuple(f.name for f in settings_in_help_order())
"""Settings for which `fedwmsam run` has a flag; a method's options go to --set."""
PACKAGES = ("torch", "numpy", "scikit-learn")
"""Packages on whose versions the results depend."""


# Commands


def rerun_commands(comparison: Comparison) -> tuple[str, list[str]]:
    """Return the shell commands that make the runs again, one per line, under their rows' labels.

    The list says for each run without a command why it has none.
    """
    lines: list[str] = []
    problems = []
    for row in comparison.rows:
        row_lines = []
        for run in runs_behind(row):
            try:
                row_lines += [*status_comment(run), rerun_command(run)]
            except InputError as error:
                problems.append(f"{row.label}, seed {run.seed} ({run.path}): {error}")
        if row_lines:
            # A line break in a name must not begin a command.
            lines += [f"# {' '.join(row.label.split())}", *row_lines]
    return "\n".join(lines), problems


def status_comment(run: LoadedRun) -> list[str]:
    """Return the comment above the command of a run that was not completed."""
    return [] if run.status is RunStatus.COMPLETED else [f"# {run.status}:"]


def rerun_command(run: LoadedRun) -> str:
    """Return the shell command that makes a run again.

    Raise InputError if there is none: the run was made in Python, or a setting no longer exists.
    """
    if "dataset" not in run.config:
        raise InputError("made by fit() in Python, which does not record its data")
    settings = non_default_settings(run.config)
    words = ["fedwmsam", "run"]
    for key in FLAGS:
        if key in settings and settings[key] is True:
            words.append(f"--{key.replace('_', '-')}")
        elif key in settings:
            words += [f"--{key.replace('_', '-')}", format_argument(settings[key])]
    for key, value in settings.items():
        if key not in FLAGS:
            words += ["--set", f"{key}={format_argument(value)}"]
    return shlex.join(words)


def non_default_settings(config: Record) -> Record:
    """Return the settings that are not the method's defaults or its preset's values.

    The method and the preset are always among them; so are all options of a method that only a
    path names, as a page imports nothing. Raise InputError if a setting does not exist.
    """
    if known_class(config.get("method")) is None and is_path(str(config.get("method"))):
        names = setting_names()
        settings = {key: config[key] for key in names if key in config and key != "method"}
        options = {key: value for key, value in config.items() if key not in names}
        own = non_default_settings(settings | {"method": "fedavg"})
        return own | {"method": config["method"]} | options
    base = {key: config[key] for key in ("method", "preset") if config.get(key) is not None}
    defaults = resolve_config(base).to_flat_dict()
    resolve_config({key: value for key, value in config.items() if value is not None})
    return base | {key: value for key, value in config.items() if value != defaults.get(key)}


def format_argument(value: Any) -> str:
    """Return a value as it is written on the command line."""
    if value is None:
        return "none"
    return value if isinstance(value, str) else repr(value)


# Versions and machines


def environments_table(comparison: Comparison) -> TextTable:
    """Return the environments in which the runs were made, each with how many runs it made."""
    runs = list(chain.from_iterable(map(runs_behind, comparison.rows)))
    counts = Counter(chain.from_iterable(environments(run) for run in runs))
    known = dict(chain.from_iterable(counts))
    columns = [name for name in PROPERTIES if name in known]
    rows = []
    for environment, count in counts.items():
        values = dict(environment)
        rows.append((str(count), *(values.get(name, MISSING) for name in columns)))
    unknown = sum(not run.sessions for run in runs)
    if unknown:
        columns = columns or ["what"]
        rows.append((str(unknown), UNKNOWN, *(MISSING for _ in columns[1:])))
    notes = ["A run that was resumed elsewhere is counted in each row."] if counts else []
    return TextTable("What made the runs", ("runs", *columns), tuple(rows), tuple(notes))


def environment_table() -> TextTable:
    """Return the versions and the machine with which the page was made."""
    versions = {
        "fedwmsam": __version__,
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        **{name: package_version(name) for name in PACKAGES},
        "system": platform.platform(),
        "processor": f"{cpu_name()}, {os.cpu_count()} cores",
    }
    return TextTable("The machine that made this page", ("what", "value"), tuple(versions.items()))
