"""What to say when a name is not one of the known ones."""

import difflib
from collections.abc import Iterable


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """One sentence: the name, the nearest known one if there is any, and all known ones."""
    names = sorted(known)
    nearest = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.4)
    hint = f" (did you mean {nearest[0]!r}?)" if nearest else ""
    return f"unknown {kind} {name!r}{hint}: known are {', '.join(names)}"
