"""The command that makes a run again."""

import shlex
from typing import Any

from fedwmsam.engine.records import Record
from fedwmsam.errors import InputError
from fedwmsam.report.runs import Run
from fedwmsam.settings.config import resolve

FLAGS = (
    "preset", "method", "dataset", "model", "partition", "augmentation", "clients", "participation",
    "clients_per_round", "rounds", "local_epochs", "batch_size", "lr", "weight_decay_mode", "twin", "workers",
    "validation", "target_accuracy", "checkpoint_every", "record", "record_every", "data_dir", "track", "seed",
)  # fmt: skip
"""What `fedwmsam run` has an option of its own for, in the order in which they read well; the rest goes to --set."""


def command(run: Run) -> str:
    """What to type; an InputError says why there is no such command."""
    if "dataset" not in run.config:
        raise InputError("made by fit() in Python, which does not record its data")
    given = what_differs(run.config)
    words = ["fedwmsam", "run"]
    for key in (key for key in FLAGS if key in given):
        words += [f"--{key.replace('_', '-')}", written(given[key])]
    for key in (key for key in given if key not in FLAGS):
        words += ["--set", f"{key}={written(given[key])}"]
    return shlex.join(words)


def what_differs(config: Record) -> Record:
    """The settings that must be given because the method's defaults, or its preset's values, are others."""
    base = {key: config[key] for key in ("method", "preset") if config.get(key) is not None}
    usual = resolve(base).flat()
    resolve({key: value for key, value in config.items() if value is not None})  # all of it must still be known
    return base | {key: value for key, value in config.items() if value != usual.get(key)}


def written(value: Any) -> str:
    return "none" if value is None else value if isinstance(value, str) else repr(value)
