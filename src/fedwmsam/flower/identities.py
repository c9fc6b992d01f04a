"""Which node may be which client.

A node says itself which client's data it holds. With SuperNode authentication only the holder of
a private key can speak as the node of that key, and Flower tells the server each node's public key.
So a client can be bound to a key: given beforehand, or to the key of the first node that takes its
place, for the rest of the run. The file identities.json in the run folder keeps that.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
)

from fedwmsam.engine.records import read_json
from fedwmsam.engine.run_folder import RunFolder
from fedwmsam.errors import InputError
from fedwmsam.flower.keys import fingerprint_of
from fedwmsam.settings.options import truncated_repr

FILE = "identities.json"
"""Name of the file in a run folder that binds clients to keys."""
FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")
"""The form of a key's fingerprint."""


class Identities:
    """The keys to which the clients of a run are bound, as fingerprints."""

    def __init__(self, given: Mapping[int, str]) -> None:
        """Begin with the keys given beforehand; the others are bound by `bind`."""
        self.keys = dict(given)
        self.folder: RunFolder | None = None

    def __str__(self) -> str:
        pairs = [f"client {client} to {key}" for client, key in sorted(self.keys.items())]
        return ", ".join(pairs) or "none yet"

    def open(self, folder: RunFolder) -> None:
        """Add what an earlier process of the run has bound, and keep the folder's file up to date.

        Raise InputError if that contradicts the keys given beforehand.
        """
        bound = read_identities(folder.path)
        for client, key in bound.items():
            if self.keys.get(client, key) != key:
                raise InputError(
                    f"identities gives client {client} the key {self.keys[client]}, but in this "
                    f"run it belongs to {key}; "
                    f"release it first: fedwmsam flower release {folder.path} {client}"
                )
        self.keys |= bound
        self.folder = folder
        self.save()

    def bind(self, client: int, key: str) -> None:
        """Bind a client to a key; raise InputError if either belongs to another already."""
        owner = self.keys.get(client, key)
        if owner != key:
            raise InputError(f"client {client} belongs to the key {owner}, its own is {key}.")
        for other, other_key in self.keys.items():
            if other_key == key and other != client:
                raise InputError(
                    f"its key {key} is client {other}'s, so it is not client {client}."
                )
        if client not in self.keys:
            self.keys[client] = key
            self.save()

    def save(self) -> None:
        """Write the file, if the run has a folder."""
        if self.folder:
            write_identities(self.folder, self.keys)


def make_identities(clients: int, authenticated: object, identities: object) -> Identities | None:
    """Return the identities that these arguments of FlowerStrategy ask for; None for none.

    Raise InputError if they are wrong, or name a client that there is not.
    """
    if not isinstance(authenticated, bool):
        raise InputError(f"authenticated must be true or false, not {authenticated!r}.")
    if identities is None:
        return Identities({}) if authenticated else None
    keys = parse_identities(identities)
    if keys and max(keys) >= clients:
        raise InputError(
            f"identities names client {max(keys)}, but there are clients 0 to {clients - 1} only."
        )
    return Identities(keys)


def read_identities(run: Path) -> dict[int, str]:
    """Return the keys that the file in a run folder binds clients to; none if there is no file.

    Raise InputError if the file is damaged.
    """
    if not (run / FILE).exists():
        return {}
    return parse_identities(read_json(run / FILE))


def write_identities(folder: RunFolder, keys: Mapping[int, str]) -> None:
    """Write the file in a run folder that binds clients to keys."""
    folder.write_json(FILE, {str(client): keys[client] for client in sorted(keys)})


def release(run: Path, client: int) -> str:
    """Let another node take a client's place from the next start on; return the old key.

    Raise InputError if the run is going on, or the client is not bound.
    """
    folder = RunFolder.open(run)
    try:
        keys = read_identities(run)
        if client not in keys:
            bound = ", ".join(map(str, sorted(keys))) or "none"
            raise InputError(f"Client {client} is not bound to a key in {run}; bound: {bound}.")
        key = keys.pop(client)
        write_identities(folder, keys)
    finally:
        folder.close()
    return key


def parse_identities(value: object) -> dict[int, str]:
    """Return the fingerprints by client that a mapping, or a text "0=SHA256:…, 1=SHA256:…", names.

    Raise InputError if it is no such value, or names a client or a key twice.
    """
    if isinstance(value, str):
        pairs = [part.partition("=")[::2] for part in re.split(r"[,\s]+", value.strip()) if part]
    elif isinstance(value, Mapping):
        pairs = [(str(client), str(key)) for client, key in value.items()]
    else:
        pairs = [("", "")]
    keys: dict[int, str] = {}
    for client, key in pairs:
        if not re.fullmatch(r"[0-9]{1,9}", client) or not FINGERPRINT.fullmatch(key):
            raise InputError(
                f"identities must be a client's number and its key's fingerprint, such as "
                f"0=SHA256:… (43 characters), not {truncated_repr(f'{client}={key}')}; "
                "fedwmsam flower keys writes them."
            )
        if int(client) in keys or key in keys.values():
            raise InputError(f"identities names client {client} or the key {key} twice.")
        keys[int(client)] = key
    return keys


@lru_cache(maxsize=10_000)
def fingerprint(public_key: bytes) -> str:
    """Return the fingerprint of a public key in PEM format; raise InputError if it is none."""
    try:
        line = load_pem_public_key(public_key).public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InputError(
            "Flower names no key of it; authenticated=true needs a SuperLink with "
            "--enable-supernode-auth."
        ) from None
    return fingerprint_of(line)
