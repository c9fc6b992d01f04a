"""The status of a run on Flower as a table, read from its folder while it goes on or afterwards.

The folder may be a stranger's: what is read of it is bounded, and every value is checked.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from fedwmsam import toml
from fedwmsam.engine.records import Record, read_json, read_metrics
from fedwmsam.engine.run_folder import is_busy, require_run_folder
from fedwmsam.errors import InputError, format_duration, printable
from fedwmsam.flower.status import FILE, ClientStatus
from fedwmsam.report import stored_values
from fedwmsam.report.stored_values import Place
from fedwmsam.report.terminal import format_bytes, format_metric
from fedwmsam.report.text_tables import MISSING, TextTable

MAX_ROWS = 100
"""Clients in the table; of more, those that had trouble come first."""
MAX_REFUSED = 10
"""Refused nodes that are named below the table."""
MAX_DIGITS = 12
"""Digits of a client's number."""
MAX_REASON = 200
"""Letters of a reason before it is cut off."""
LATEST_TIME = 1e11
"""The largest time in seconds since 1970 that is believed, the year 5138."""


@dataclass(frozen=True)
class FlowerStatus:
    """What the folder of a run on Flower tells of it."""

    folder: Path
    is_going_on: bool
    """Whether a process works on the run."""
    outcome: str
    """How the run ended; empty if it has not."""
    activity: str
    round: int
    """The round that is or was being trained, from 1; 0 before the first."""
    rounds: int
    written_at: float
    metrics: list[Record]
    """The lines of all completed rounds."""
    clients: dict[int, ClientStatus]
    refused: dict[str, str]

    def count(self, event: str) -> Counter[int]:
        """Return in how many rounds each client was rejected, or missing."""
        counts: Counter[int] = Counter()
        for record in self.metrics:
            clients = record.get(event)
            counts.update(clients if isinstance(clients, list) else ())
        return counts

    def column(self, name: str) -> dict[int, float]:
        """Return the numbers in a column of the metrics, by round."""
        values = {record["round"]: record.get(name) for record in self.metrics}
        return {round: value for round, value in values.items() if isinstance(value, int | float)}


# Reading


def read_status(folder: Path) -> FlowerStatus:
    """Return the status of a run; raise InputError if it is no run on Flower, or damaged."""
    require_run_folder(folder)
    if not (folder / FILE).exists():
        raise InputError(
            f"{folder} has no {FILE}: no run on Flower has begun there; "
            "fedwmsam report shows other runs."
        )
    is_going_on = is_busy(folder)  # looked up first: what is read then is not older
    path = folder / FILE
    record = read_json(path)
    config = stored_values.check_config(folder / "config.toml", toml.load(folder / "config.toml"))
    metrics = folder / "metrics.jsonl"
    return FlowerStatus(
        folder=folder,
        is_going_on=is_going_on,
        outcome=read_outcome(folder / "summary.json"),
        activity=stored_values.text((path, "activity"), record.get("activity")),
        round=stored_values.whole_number((path, "round"), record.get("round"), low=0),
        rounds=stored_values.whole_number((path, "rounds"), config.get("rounds"), low=0),
        written_at=time_of((path, "written_at"), record.get("written_at")) or 0.0,
        metrics=stored_values.check_lines(metrics, read_metrics(metrics)),
        clients={
            client_number((path, "clients"), name): client_status((path, f"clients.{name}"), value)
            for name, value in table((path, "clients"), record.get("clients")).items()
        },
        refused={
            printable(node, MAX_REASON): stored_values.text((path, "refused"), reason)
            for node, reason in table((path, "refused"), record.get("refused")).items()
        },
    )


def read_outcome(path: Path) -> str:
    """Return how a run ended by its summary.json; an empty text if it has not ended."""
    if not path.exists():
        return ""
    return stored_values.text((path, "status"), read_json(path).get("status"))


def table(place: Place, value: object) -> Mapping[str, Any]:
    """Return a JSON object; raise InputError for anything else."""
    if isinstance(value, dict):
        return value
    raise stored_values.damaged(place, "a table", value)


def client_number(place: Place, name: str) -> int:
    """Return the number of a client; raise InputError for anything else."""
    if name.isascii() and name.isdigit() and len(name) <= MAX_DIGITS:
        return int(name)
    raise stored_values.damaged(place, "numbers of clients", name)


def client_status(place: Place, value: object) -> ClientStatus:
    """Return the status of a client; raise InputError if a value is missing or of another type."""
    entries = table(place, value)
    values = {}
    for field in fields(ClientStatus):
        path, key = place
        check = CHECKS[field.name]
        values[field.name] = check((path, f"{key}.{field.name}"), entries.get(field.name))
    return ClientStatus(**values)


def count_of(place: Place, value: object) -> int:
    """Return a whole number of at least 0; raise InputError for anything else."""
    return stored_values.whole_number(place, value, low=0)


def truth_value(place: Place, value: object) -> bool:
    """Return True or False; raise InputError for anything else."""
    if isinstance(value, bool):
        return value
    raise stored_values.damaged(place, "true or false", value)


def time_of(place: Place, value: object) -> float | None:
    """Return a time in seconds since 1970, None for none; raise InputError for anything else."""
    seconds = stored_values.number(place, value)
    if seconds is None or 0 <= seconds <= LATEST_TIME:
        return seconds
    raise stored_values.damaged(place, "a time in seconds since 1970", value)


CHECKS: dict[str, Callable[[Place, object], Any]] = {
    "node": stored_values.text,
    "samples": count_of,
    "is_training": truth_value,
    "answered_at": time_of,
    "answered_round": count_of,
    "bytes_down": count_of,
    "bytes_up": count_of,
    "trouble": stored_values.text,
    "trouble_round": count_of,
}
"""What checks each value of a client's status."""


# The table


def status_table(status: FlowerStatus) -> TextTable:
    """Return the status as a table with a row for each client that was seen, and notes below."""
    rejected = status.count("rejected")
    missing = status.count("missing")
    now = time.time()
    rows = []
    for client in clients_to_show(status.clients):
        known = status.clients[client]
        rows.append(
            (
                str(client),
                describe_state(status, known),
                f"{known.samples:,}" if known.samples else MISSING,
                describe_answer(known, now),
                format_bytes(known.bytes_down),
                format_bytes(known.bytes_up),
                str(rejected[client]),
                str(missing[client]),
                describe_trouble(known),
            )
        )
    return TextTable(
        title=f"{status.folder}: {describe_run(status, now)}",
        header=(
            "client",
            "now",
            "samples",
            "last answer",
            "down",
            "up",
            "rejected",
            "missing",
            "last trouble",
        ),
        rows=tuple(rows),
        notes=tuple(notes_of(status)),
    )


def clients_to_show(clients: Mapping[int, ClientStatus]) -> list[int]:
    """Return the clients of the table: all, or if they are too many those with trouble first."""
    numbers = sorted(clients)
    if len(numbers) > MAX_ROWS:
        numbers.sort(key=lambda client: not clients[client].trouble)
    return numbers[:MAX_ROWS]


def describe_run(status: FlowerStatus, now: float) -> str:
    """Return in one line how far the run is, and whether somebody works on it."""
    done = f"{len(status.metrics)} of {status.rounds} rounds done"
    if status.outcome and not status.is_going_on:
        return f"{done}, {status.outcome}"
    if not status.is_going_on:
        ago = format_age(now - status.written_at)
        return f"{done}, nobody works on it; {ago} ago: round {status.round}, {status.activity}"
    return f"{done}; {f'round {status.round}, ' if status.round else ''}{status.activity}"


def describe_state(status: FlowerStatus, client: ClientStatus) -> str:
    """Return what a client does now, if the run goes on."""
    if not status.is_going_on:
        return MISSING
    if not client.node:
        return "not connected"
    return "training" if client.is_training else "connected"


def describe_answer(client: ClientStatus, now: float) -> str:
    """Return how long ago a client's last usable answer came, and in which round."""
    if client.answered_at is None:
        return MISSING
    return f"{format_age(now - client.answered_at)} ago, round {client.answered_round}"


def describe_trouble(client: ClientStatus) -> str:
    """Return why a client's last message that could not be used was not, and in which round."""
    if not client.trouble:
        return MISSING
    return f"round {client.trouble_round}: {printable(client.trouble, MAX_REASON)}"


def format_age(seconds: float) -> str:
    """Return how long ago something was; clocks that differ make it no less than nothing."""
    return format_duration(max(0.0, round(seconds)))


def notes_of(status: FlowerStatus) -> Iterator[str]:
    """Yield what is said below the table: connections, metrics, traffic, refused nodes."""
    if status.is_going_on:
        connected = sum(bool(client.node) for client in status.clients.values())
        training = sum(client.is_training for client in status.clients.values())
        yield f"{connected} connected, {training} of those asked have not answered yet"
    for name in ("accuracy", "loss", "train_loss"):
        if values := status.column(name):
            round = max(values)
            yield f"{name} {format_metric(values[round])} after round {round}"
    down = format_bytes(sum(status.column("bytes_down").values()))
    up = format_bytes(sum(status.column("bytes_up").values()))
    yield f"{down} down and {up} up in the rounds that are done"
    yield "rejected, missing: rounds of the whole run; the rest: since the server app was started"
    for node, reason in list(status.refused.items())[:MAX_REFUSED]:
        yield f"node {node} cannot take part: {printable(reason, MAX_REASON)}"
    hidden = {
        "clients": len(status.clients) - MAX_ROWS,
        "refused nodes": len(status.refused) - MAX_REFUSED,
    }
    for what, count in hidden.items():
        if count > 0:
            yield f"{count:,} more {what} are not shown"


def follow_status(folder: Path, seconds: float) -> Iterator[FlowerStatus]:
    """Yield the status of a run every so many seconds, the last one when nobody works on it."""
    while True:
        status = read_status(folder)
        yield status
        if not status.is_going_on:
            return
        time.sleep(seconds)
