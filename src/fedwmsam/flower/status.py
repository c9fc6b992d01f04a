"""What a run on Flower shows of itself while it goes on: status.json in its run folder.

`fedwmsam flower status` reads it, beside the metrics. It is written as things happen and holds what
no other file does: who is connected, who has been asked, and why an answer was not used.
"""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from fedwmsam.engine.records import Record
from fedwmsam.engine.run_folder import RunFolder
from fedwmsam.errors import printable

FILE = "status.json"
"""Name of the file in a run folder."""
INTERVAL_SECONDS = 1.0
"""Seconds at least between two writings of the file."""
PAUSE_FACTOR = 20
"""How many times as long as the last writing took the next one waits, if that is longer."""


@dataclass
class ClientStatus:
    """What has happened with a client since the server app was started."""

    node: str = ""
    """The number of its node; empty if it is not connected."""
    samples: int = 0
    is_training: bool = False
    """Whether it has been asked and has not replied yet."""
    answered_at: float | None = None
    """When its last usable answer came, in seconds since 1970."""
    answered_round: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    trouble: str = ""
    """Why its last message that could not be used was not, or why none came."""
    trouble_round: int = 0


class StatusFile:
    """The status of a run, which is kept in its folder once that is open."""

    def __init__(self) -> None:
        self.folder: RunFolder | None = None
        self.activity = "starting"
        self.round = 0
        """The round that is being trained, from 1; 0 before the first."""
        self.refused: dict[str, str] = {}
        """Numbers of the connected nodes that cannot take part → the reason."""
        self.clients: dict[int, ClientStatus] = {}
        """The clients that were connected or asked at some time."""
        self._written: Record = {}
        self._next_writing = 0.0

    def __getitem__(self, client: int) -> ClientStatus:
        return self.clients.setdefault(client, ClientStatus())

    def note_nodes(
        self, samples: Mapping[int, tuple[int, int]], refused: Mapping[int, str]
    ) -> None:
        """Note the clients that are connected, as node and samples, and the nodes refused."""
        for status in self.clients.values():
            status.node = ""
        for client, (node, count) in samples.items():
            self[client].node = str(node)
            self[client].samples = count
        self.refused = {str(node): printable(reason) for node, reason in refused.items()}

    def note_question(self, client: int, size: int) -> None:
        """Note that a client was sent a train message of so many bytes."""
        self[client].is_training = True
        self[client].bytes_down += size

    def note_reply(self, client: int, size: int) -> None:
        """Note that a client has sent so many bytes."""
        self[client].is_training = False
        self[client].bytes_up += size

    def note_answer(self, client: int, round: int) -> None:
        """Note that a client's answer can be used."""
        self[client].answered_at = round_time()
        self[client].answered_round = round

    def note_trouble(self, client: int, round: int, reason: str) -> None:
        """Note why a client has no answer that can be used."""
        self[client].is_training = False
        self[client].trouble = printable(reason)
        self[client].trouble_round = round

    def save(self, at_once: bool = False) -> None:
        """Write the file if something has changed, and not too soon after the last time.

        With `at_once` it is not put off. Each writing holds all clients: where these are very many,
        it is rarer.
        """
        started = time.monotonic()
        if self.folder is None or (started < self._next_writing and not at_once):
            return
        record = self.to_record()
        if record == self._written:
            return
        self.folder.write_json(FILE, record | {"written_at": round_time()})
        self._written = record
        seconds = time.monotonic() - started
        self._next_writing = started + max(INTERVAL_SECONDS, PAUSE_FACTOR * seconds)

    def to_record(self) -> Record:
        """Return the content of the file."""
        return {
            "activity": self.activity,
            "round": self.round,
            "clients": {
                str(client): asdict(self.clients[client]) for client in sorted(self.clients)
            },
            "refused": dict(self.refused),
        }


def round_time() -> float:
    """Return the seconds since 1970, to a tenth."""
    return round(time.time(), 1)
