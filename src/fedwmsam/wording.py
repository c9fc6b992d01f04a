"""Sentences that many error messages share."""

import difflib
from collections.abc import Iterable


def unknown(what: str, given: str, known: Iterable[str]) -> str:
    """One sentence for a name that does not exist: the nearest one if any is near, and all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(given.lower(), names, n=1, cutoff=0.4)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"Unknown {what} {given!r}.{hint} Known: {', '.join(names)}."
