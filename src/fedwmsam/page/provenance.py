"""The origin of the results: commands that make the runs again, and the machine of the page."""

import os
import platform
import shlex
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fedwmsam.engine.records import Record
from fedwmsam.errors import InputError
from fedwmsam.page.figures import runs_behind
from fedwmsam.report.runs import LoadedRun, RunStatus
from fedwmsam.report.summary import Comparison
from fedwmsam.report.text_tables import TextTable
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
        if key in settings:
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


# Machine


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


def package_version(package: str) -> str:
    """Return the version of an installed package, or that there is none."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def cpu_name() -> str:
    """Return the processor's name where the system tells it (Linux), else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
