"""The exception for mistakes that a person can correct, and phrases that many messages share."""

import difflib
import shlex
import sys
from collections.abc import Iterable

OTHER_NAMES = {
    "accuracy": ("acc", "test_accuracy", "test_acc"),
    "adapt_rate": ("lambda", "lambda_"),
    "aggregation": ("aggregator", "robust"),
    "batch_size": ("batch", "bs", "minibatch"),
    "callbacks": ("callback", "logger", "loggers", "tracker", "trackers"),
    "clients": ("n_clients", "num_clients", "number_of_clients", "users", "nodes"),
    "clients_per_round": ("cohort", "cohort_size", "min_fit_clients", "sampled_clients"),
    "collate": ("collate_fn", "data_collator", "tokenizer"),
    "cuda": ("gpu", "nvidia"),
    "dataset": ("data",),
    "device": ("gpu", "cuda"),
    "global_lr": ("server_lr", "server_learning_rate"),
    "lam": ("lambda", "lambda_", "mu", "proximal_mu", "prox"),
    "local_epochs": ("epochs", "epoch", "num_epochs"),
    "local_steps": ("steps", "iterations"),
    "lr": ("learning_rate", "step_size", "eta"),
    "lr_schedule": ("scheduler", "schedule"),
    "method": ("algorithm", "strategy", "optimiser"),
    "model": ("architecture", "net", "network"),
    "mps": ("apple", "metal"),
    "patience": ("early_stopping", "early_stop", "stop_after"),
    "participation": ("fraction", "fraction_fit", "frac", "sample_rate"),
    "partition": ("split", "heterogeneity", "dirichlet", "skew"),
    "progress": ("verbose", "progress_bar", "quiet"),
    "rounds": ("num_rounds", "n_rounds", "comm_rounds", "communication_rounds"),
    "run_folder": (
        "checkpoint_dir",
        "checkpoints",
        "folder",
        "log_dir",
        "out",
        "output_dir",
        "save_path",
    ),
    "seed": ("random_state", "random_seed"),
    "validation": ("val", "val_split", "validation_split", "holdout"),
    "weight_decay": ("wd", "l2", "decay"),
}
"""Names of settings, columns and devices, with what others call the same thing."""


class InputError(ValueError):
    """Bad input from a person: one sentence naming the value, what was expected and what to do.

    The command line prints it without a traceback and exits with code 2.
    """


def unknown_name_message(what: str, name: str, known_names: Iterable[str], first: str = "") -> str:
    """Return the message for a name that does not exist.

    It suggests the known name that is most similar, if one is similar at all, and lists all of
    them; of a stranger's file, which may hold any number of any length, the first. `what` says what
    the name should have been the name of. A sentence `first` comes before the suggestion.
    """
    names = [printable(known, 100) for known in sorted(known_names)[:200]]
    similar = same_meaning(name, names)
    similar = similar or difflib.get_close_matches(name.lower()[:100], names, n=1, cutoff=0.4)
    hint = f" Did you mean {similar[0]!r}?" if similar else ""
    advice = f" {first}" if first else ""
    known = printable(", ".join(names), 4000) or "none"
    return f"Unknown {what} {name[:100]!r}.{advice}{hint} Known: {known}."


def install_command(extra: str) -> str:
    """Return the command that installs an extra where this Python looks for packages."""
    return f"{shlex.quote(sys.executable)} -m pip install 'fedwmsam[{extra}]'"


def same_meaning(name: str, known_names: Iterable[str]) -> list[str]:
    """Return the known names that mean what others call `name`."""
    word = name.lower().strip("-").replace("-", "_")
    return [known for known in known_names if word in OTHER_NAMES.get(known, ())]


def printable(text: object, limit: int = 1000) -> str:
    """Return a stranger's text for a message: one line of at most `limit` characters.

    Control characters, line breaks and marks that change the direction of writing are written
    out, such as \\x1b: they can neither forge another line nor steer the terminal.
    """
    characters = str(text)
    if len(characters) > limit:
        characters = f"{characters[: limit - 1]}…"
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in characters)


def describe_error(error: BaseException) -> str:
    """Return the type and the message of an error in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def format_duration(seconds: float) -> str:
    """Return a duration in seconds, minutes or hours, whichever suits its length."""
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"


def format_privacy_guarantee(epsilon: float, delta: float) -> str:
    """Return the ε and δ of differential privacy as text."""
    return f"ε = {epsilon:.4g} at δ = {delta:g}"
