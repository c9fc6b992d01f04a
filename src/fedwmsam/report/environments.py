"""What made the runs of a report: versions and machines, and whether those of a table differ.

A run's environment is what its results and seconds may depend on besides its settings. A run that
was resumed elsewhere has several; one without provenance.json has none that is known.
"""

from collections.abc import Iterator, Sequence
from itertools import chain

from fedwmsam.engine.records import Record
from fedwmsam.report.runs import LoadedRun
from fedwmsam.report.stored_values import VERSIONS

Environment = tuple[tuple[str, str], ...]
"""Names and values, in the order in which they are shown."""
UNKNOWN = "provenance unknown"
PROPERTIES = (*VERSIONS, "processor", "device", "threads", "host")
"""What an environment says, where it is known: versions and the machine."""
MAX_NAMED = 3
"""Values that a note names before it only counts them."""


def environments(run: LoadedRun) -> list[Environment]:
    """Return the environments in which the run was trained, each once; none if not known."""
    trained = [session for session in run.sessions if has_trained(session)]
    return list(dict.fromkeys(environment_of(session) for session in trained or run.sessions))


def has_trained(session: Record) -> bool:
    """Return whether a session did any round, or was killed and may have done some."""
    return "last_round" not in session or session["last_round"] >= session["first_round"]


def environment_of(session: Record) -> Environment:
    """Return the environment of a session."""
    values = session | session["versions"]
    return tuple((name, str(values[name])) for name in PROPERTIES if name in values)


def environment_notes(runs: Sequence[LoadedRun]) -> Iterator[str]:
    """Yield notes if runs of one table were made in different environments or in unknown ones.

    Where nothing is known of any run, as of those of older versions, there is no note.
    """
    known = [environments(run) for run in runs if run.sessions]
    values: dict[str, list[str]] = {name: [] for name in PROPERTIES}
    for name, value in chain.from_iterable(chain.from_iterable(known)):
        if value not in values[name]:
            values[name].append(value)
    differing = [f"{name} {join_values(found)}" for name, found in values.items() if found[1:]]
    if differing:
        yield (
            f"The runs were not all made by the same: {'; '.join(differing)}. Last digits may "
            "differ for that, and seconds do not compare methods."
        )
    if known and len(known) < len(runs):
        yield f"{len(runs) - len(known)} of {len(runs)} runs do not say what made them ({UNKNOWN})."


def join_values(values: Sequence[str]) -> str:
    """Return "a or b", and of many values how many more there are."""
    named = " or ".join(values[:MAX_NAMED])
    more = len(values) - MAX_NAMED
    return f"{named} or {more} more" if more > 0 else named
