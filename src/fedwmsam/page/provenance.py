"""Where the numbers come from: the commands that make the runs again, and the machine that made the page."""

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
from fedwmsam.settings.config import resolve, settings_by_panel
from fedwmsam.version import __version__

FLAGS = tuple(f.name for f in settings_by_panel())
"""What `fedwmsam run` has an option of its own for; a method's options go to --set."""
PACKAGES = ("torch", "numpy", "scikit-learn")


# Commands


def rerun_commands(comparison: Comparison) -> tuple[str, list[str]]:
    """Every run as a shell would take it, a line each; and those that have no command, in words."""
    lines: list[str] = []
    problems = []
    for row in (row for table in comparison.tables for row in table.rows):
        own = []
        for run in runs_behind(row):
            try:
                own += [*status_comment(run), rerun_command(run)]
            except InputError as error:
                problems.append(f"{row.label}, seed {run.seed} ({run.path}): {error}")
        if own:
            # A line break in a name must not begin a command.
            lines += [f"# {' '.join(row.label.split())}", *own]
    return "\n".join(lines), problems


def status_comment(run: LoadedRun) -> list[str]:
    return [] if run.state is RunStatus.COMPLETED else [f"# {run.state}:"]


def rerun_command(run: LoadedRun) -> str:
    """What to type; an InputError says why there is no such command."""
    if "dataset" not in run.config:
        raise InputError("made by fit() in Python, which does not record its data")
    given = non_default_settings(run.config)
    words = ["fedwmsam", "run"]
    for key in (key for key in FLAGS if key in given):
        words += [f"--{key.replace('_', '-')}", format_argument(given[key])]
    for key in (key for key in given if key not in FLAGS):
        words += ["--set", f"{key}={format_argument(given[key])}"]
    return shlex.join(words)


def non_default_settings(config: Record) -> Record:
    """The settings that must be given because the method's defaults, or its preset's values, are others."""
    base = {key: config[key] for key in ("method", "preset") if config.get(key) is not None}
    usual = resolve(base).flat()
    resolve(
        {key: value for key, value in config.items() if value is not None}
    )  # all of it must still be known
    return base | {key: value for key, value in config.items() if value != usual.get(key)}


def format_argument(value: Any) -> str:
    return "none" if value is None else value if isinstance(value, str) else repr(value)


# Machine


def environment_table() -> TextTable:
    """Versions and machine, for whoever wants the same numbers again."""
    versions = {
        "fedwmsam": __version__,
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        **{name: package_version(name) for name in PACKAGES},
        "system": platform.platform(),
        "processor": f"{cpu_name()}, {os.cpu_count()} cores",
    }
    return TextTable("The machine that made this page", ("what", "value"), tuple(versions.items()))


def package_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def cpu_name() -> str:
    """Its name where the system tells it (Linux), else its kind."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
