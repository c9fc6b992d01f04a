"""The one exception for mistakes a person can correct, and words that many messages share."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Bad input from a person: one sentence naming the value, what was expected and what to do.

    The command line prints it without a traceback and exits with code 2.
    """


def unknown_name_message(what: str, given: str, known: Iterable[str]) -> str:
    """One sentence for a name that does not exist: the nearest one if any is near, and all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(given.lower(), names, n=1, cutoff=0.4)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"Unknown {what} {given!r}.{hint} Known: {', '.join(names)}."


def format_duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"


def format_privacy_guarantee(epsilon: float, delta: float) -> str:
    """Of differential privacy."""
    return f"ε = {epsilon:.4g} at δ = {delta:g}"
