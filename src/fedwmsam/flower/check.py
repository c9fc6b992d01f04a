"""Checks that find, before a run on Flower, what would stop it.

They cover versions, settings, data, the address of the SuperLink, certificates and keys.
"""

import importlib
import importlib.metadata
import inspect
import os
import re
import shutil
import socket
import ssl
import stat
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from fedwmsam import toml
from fedwmsam.engine.checkpoint import rounds_in
from fedwmsam.engine.run_folder import is_run
from fedwmsam.errors import InputError, install_command
from fedwmsam.settings.config import Settings

FIRST_TESTED = (1, 41)
"""The first version of Flower that is known to work."""
FIRST_UNTESTED = (1, 43)
"""The first later version of Flower that is not known to work."""
ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": ("0", "Flower tells its makers about runs"),
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": (
        "1",
        "the SuperLink tries to install packages from the network",
    ),
}
"""Environment variables of Flower → the recommended value, and the consequence of another."""
PROGRAMS = ("flwr", "flower-superlink", "flower-supernode", "flwr-serverapp", "flwr-clientapp")
"""Flower's programs, which it starts by name."""
SECONDS_PER_DAY = 86400
CONNECT_TIMEOUT = 5.0
"""Seconds within which a SuperLink accepts a connection."""
EXPIRY_WARNING_DAYS = 30
"""Days before its expiry from which on a certificate is warned about."""


@dataclass(frozen=True)
class Finding:
    """The outcome of one check."""

    grade: str
    """One of ok, warning and ERROR."""
    text: str


def ok(text: str) -> Finding:
    """Return the finding that something is as it should be."""
    return Finding("ok", text)


def warning(text: str) -> Finding:
    """Return the finding that something is doubtful but does not stop a run."""
    return Finding("warning", text)


def error(text: str) -> Finding:
    """Return the finding that something would stop a run."""
    return Finding("ERROR", text)


def run_checks(
    folder: Path, superlink: str | None, node_config: str | None, key: Path | None, simulation: bool
) -> Iterator[Finding]:
    """Yield the findings of all checks; without a working Flower, those of its version only.

    The connection is checked if the name of a SuperLink is given, a private key if its path is
    given.
    """
    versions = list(check_versions(simulation))
    yield from versions
    if any(finding.grade == "ERROR" for finding in versions):
        return
    yield from check_environment()
    yield from check_app(folder, node_config, key)
    if superlink is not None:
        yield from check_connection(superlink)
    if key is not None:
        yield from check_key(key)


def check_versions(simulation: bool) -> Iterator[Finding]:
    """Check the versions of Flower and, for a simulation, Ray, and that its programs are found."""
    version = installed_version("flwr")
    if version is None:
        yield error(f"Flower is not installed; install it with: {install_command('flower')}")
        return
    numbers = tuple(int(part) for part in version.split(".")[:2])
    if FIRST_TESTED <= numbers < FIRST_UNTESTED:
        yield ok(
            f"Flower {version}, fedwmsam {installed_version('fedwmsam')}, "
            f"torch {installed_version('torch')}."
        )
    else:
        yield error(
            f"Flower {version} is untested; install one of 1.41 and 1.42: "
            "pip install 'flwr>=1.41,<1.43'"
        )
    if simulation and installed_version("ray") is None:
        yield error(
            f"Ray is not installed; install it with: {install_command('flower-simulation')}"
        )
    absent = [program for program in PROGRAMS if shutil.which(program) is None]
    if absent:
        folder = Path(sys.executable).parent
        yield error(
            f"{', '.join(absent)} are not on PATH, and Flower starts them by name: "
            f"export PATH={folder}:$PATH"
        )


def installed_version(package: str) -> str | None:
    """Return the version of an installed package, and None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_environment() -> Iterator[Finding]:
    """Check the environment variables that keep Flower from using the network unasked."""
    for name, (value, consequence) in ENVIRONMENT.items():
        if os.environ.get(name) != value:
            yield warning(
                f"{name} is not {value}: {consequence}. "
                "Set it where SuperLink, SuperNodes and flwr start."
            )


def check_app(folder: Path, node_config: str | None, key: Path | None) -> Iterator[Finding]:
    """Check the settings of the app in a folder, its two components and a client's data.

    If they are given, also that a node with this configuration and private key can be a client.
    """
    try:
        project = toml.load(folder / "pyproject.toml")
        app = project["tool"]["flwr"]["app"]
        config = flatten_settings(app.get("config", {}))
        components = app["components"]
        server = components["serverapp"]
        client = components["clientapp"]
    except InputError as reason:
        yield error(f"{reason} An app is made with: fedwmsam flower new FOLDER")
        return
    except KeyError as absent:
        yield error(
            f"{folder / 'pyproject.toml'} lacks {absent} of a Flower app; "
            "compare with: fedwmsam flower new FOLDER"
        )
        return
    yield from check_settings(config, has_key=key is not None)
    yield from check_place(config, node_config, key)
    sys.path.insert(0, str(folder.resolve()))
    try:
        yield from check_component("serverapp", server)
        yield from check_client(client, config, node_config)
    finally:
        sys.path.remove(str(folder.resolve()))


def flatten_settings(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the settings with dotted keys instead of tables, as Flower passes them to an app."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= flatten_settings(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def check_settings(config: dict[str, Any], has_key: bool) -> Iterator[Finding]:
    """Check the run config of an app as FlowerStrategy would, and the run folder in it.

    Nodes that may say that they are any client are warned about where there are keys.
    """
    from fedwmsam.flower.identities import make_identities
    from fedwmsam.flower.sizes import make_size_rule
    from fedwmsam.flower.strategy import (
        FlowerStrategy,
        absolute_run_folder,
        check_arguments,
        from_run_config,
        settings_from_values,
    )

    names = {f.name for f in fields(Settings)}
    parameters = set(inspect.signature(FlowerStrategy).parameters) - names
    try:
        method, values = from_run_config(config)
        settings = settings_from_values(
            {key: value for key, value in values.items() if key not in parameters}
        )
        clients = values.get("clients", 0)
        quorum = values.get("quorum", 0.5)
        check_arguments(method, clients, quorum, values.get("transport", "float32"))
        settings.cohort_size(clients)
        folder = absolute_run_folder(values.get("run_folder"))
        identities = make_identities(
            clients, values.get("authenticated", False), values.get("identities")
        )
        sizes = [values.get(name) for name in ("client_sizes", "largest_share", "sizes")]
        rule = make_size_rule(clients, settings.averaging, *sizes)
    except InputError as reason:
        yield error(f"[tool.flwr.app.config]: {reason}")
        return
    yield ok(f"{method} over {clients} clients, {settings.rounds} rounds.")
    if identities is None:
        anyone = "authenticated is false: any node can say that it is any client."
        if has_key:
            yield warning(
                f"{anyone} Bind clients to keys: copy the two lines of identities.toml into "
                "[tool.flwr.app.config], or give the file to flwr run --run-config."
            )
        else:
            yield ok(anyone)
    else:
        yield ok(f"Clients belong to the keys of their nodes; known beforehand: {identities}.")
    if rule.believes_nodes:
        yield warning("sizes = 'reported': a node that reports many samples can take over.")
    yield from check_run_folder(folder)


def check_place(
    config: dict[str, Any], node_config: str | None, key: Path | None
) -> Iterator[Finding]:
    """Check that the run has the place that a node asks for, and gives it to the node's key.

    What is wrong with the settings, the node's configuration or the key alone others say.
    """
    from fedwmsam.flower.identities import make_identities
    from fedwmsam.flower.strategy import from_run_config

    try:
        values = from_run_config(config)[1]
        clients = values.get("clients", 0)
        identities = make_identities(
            clients, values.get("authenticated", False), values.get("identities")
        )
        node = read_node_config(node_config) if node_config else {}
    except InputError:
        return
    partition = node.get("partition-id")
    if isinstance(partition, int) and not 0 <= partition < clients:
        yield error(
            f"partition-id={partition}, but the run has clients 0 to {clients - 1} only "
            f"(clients = {clients}); the server would refuse the node."
        )
        return
    partitions = node.get("num-partitions", clients)
    if partitions != clients:
        yield warning(
            f"num-partitions={partitions}, but clients = {clients}: a load_data that divides data "
            "by it takes another share than the other nodes leave."
        )
    fingerprint = private_key_fingerprint(key) if key else None
    if identities and identities.keys and fingerprint:
        yield check_owner(identities.keys, clients, partition, fingerprint)


def check_owner(
    keys: dict[int, str], clients: int, partition: int | None, fingerprint: str
) -> Finding:
    """Check that a key is the one that identities gives this client, by default any client."""
    owner = next((client for client, other in keys.items() if other == fingerprint), None)
    if owner is not None and partition in {owner, None}:
        return ok(f"The key {fingerprint} is client {owner}'s.")
    if owner is not None:
        return error(
            f"The key {fingerprint} is client {owner}'s in identities, not client {partition}'s; "
            "the server would refuse the node."
        )
    if partition in keys or len(keys) == clients:
        place = "no client's" if partition is None else f"not client {partition}'s"
        return error(
            f"The key {fingerprint} is {place} in identities; the server would refuse the node. "
            "Call fedwmsam flower keys where all keys are, and copy identities.toml again."
        )
    return warning(
        f"identities does not name the key {fingerprint}: its place goes to the first node "
        "that takes it."
    )


def private_key_fingerprint(path: Path) -> str | None:
    """Return the fingerprint of the public half of a private key; None if it cannot be read."""
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        PublicFormat,
        load_ssh_private_key,
    )

    from fedwmsam.flower.keys import fingerprint_of

    try:
        public_key = load_ssh_private_key(path.read_bytes(), password=None).public_key()
    except (OSError, ValueError, TypeError):
        return None
    return fingerprint_of(public_key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))


def check_run_folder(folder: Path | None) -> Iterator[Finding]:
    """Check that the run folder can be written to, and say whether it holds a run."""
    if folder is None:
        yield warning(
            "No run-folder is set: a run that is cut off begins again from its first round."
        )
        return
    parent = next(path for path in (folder, *folder.parents) if path.exists())
    if not os.access(parent, os.W_OK):
        yield error(
            f"run-folder: {parent} is not writable for {os.environ.get('USER', 'this user')}."
        )
    elif is_run(folder):
        last_round = max(rounds_in(folder / "checkpoints"), default=0)
        yield ok(f"{folder} holds a run that goes on after round {last_round}.")
    else:
        yield ok(f"A new run will be kept in {folder} (on the machine of the SuperLink).")


def check_component(name: str, reference: str) -> Iterator[Finding]:
    """Check that a component of the app, given as "module:attribute", can be imported."""
    try:
        import_object(reference)
    except Exception as reason:
        yield error(f"{name} {reference} cannot be imported: {type(reason).__name__}: {reason}")
    else:
        yield ok(f"{name} {reference} can be imported.")


def import_object(reference: str) -> Any:
    """Return the object that "module:attribute" names."""
    module, _, attribute = reference.partition(":")
    return getattr(importlib.import_module(module), attribute)


def check_client(
    reference: str, config: dict[str, Any], node_config: str | None
) -> Iterator[Finding]:
    """Check that the ClientApp can train on the data of one node, by default of client 0."""
    from fedwmsam.flower.client import TrainingApp

    try:
        app = import_object(reference)
        if node_config:
            node = read_node_config(node_config)
        else:
            node = {"partition-id": 0, "num-partitions": config.get("clients", 1)}
        if not isinstance(app, TrainingApp):
            yield error(
                f"clientapp {reference} was not made by make_client_app; "
                "clients could not answer the server."
            )
            return
        count = app.client.try_training(node)
    except Exception as reason:
        yield error(
            f"The data of {node_config or 'partition-id=0'} cannot be trained on: "
            f"{type(reason).__name__}: {reason}"
        )
    else:
        yield ok(
            f"Client {node['partition-id']} has {count} samples, and the model trains on them."
        )


def read_node_config(text: str) -> dict[str, Any]:
    """Return the values of `--node-config` as flower-supernode reads them.

    Its format is key=value, separated by spaces, with values as in TOML. Raise InputError if the
    text has another one.
    """
    pairs = re.findall(r"(\S+?)=('[^']*'|\"[^\"]*\"|\S+)", text)
    try:
        return tomllib.loads("\n".join(f"{key} = {value}" for key, value in pairs))
    except tomllib.TOMLDecodeError as reason:
        raise InputError(
            f"--node-config {text!r} is not key=value with values as in TOML: {reason}."
        ) from reason


def check_connection(name: str) -> Iterator[Finding]:
    """Check the connection to the SuperLink that has this name in Flower's config.toml."""
    path = Path(os.environ.get("FLWR_HOME") or "~/.flwr").expanduser() / "config.toml"
    try:
        links = toml.load_named(path).get("superlink", {})
        link = links[name]
        host, port = split_address(link.get("address", ""))
    except InputError as reason:
        yield error(f'{reason} It holds [superlink.{name}] with address = "host:port".')
        return
    except KeyError:
        yield error(f"{path} has no [superlink.{name}]; it has: {', '.join(links) or 'none'}.")
        return
    try:
        socket.create_connection((host, port), timeout=CONNECT_TIMEOUT).close()
    except OSError as reason:
        yield error(
            f"Nothing answers at {host}:{port} ({reason}); is the SuperLink running, the port open?"
        )
        return
    yield ok(f"Something answers at {host}:{port}.")
    if link.get("insecure"):
        yield from check_plain(host, port)
    else:
        yield from check_tls(host, port, link.get("root-certificates"), path.parent)


def split_address(address: str) -> tuple[str, int]:
    """Return the host and the port of "host:port"; raise InputError for another format."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise InputError(f"The address {address!r} must be host:port.")
    return host.strip("[]"), int(port)


def check_plain(host: str, port: int) -> Iterator[Finding]:
    """Warn that a connection is not encrypted, or report that the server expects encryption."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host, port), timeout=CONNECT_TIMEOUT) as connection,
            context.wrap_socket(connection, server_hostname=host),
        ):
            yield error(
                f"{host}:{port} speaks TLS; "
                'replace insecure = true by root-certificates = "…/ca.crt".'
            )
    except OSError:
        yield warning(
            f"{host}:{port} is not encrypted: updates can be read and changed on the way. "
            "For trying only."
        )


def check_tls(host: str, port: int, authority: str | None, base: Path) -> Iterator[Finding]:
    """Check that the server's certificate is trusted, and for how long it is valid.

    `authority` is the file of trusted certificates, relative to the folder `base`; without it those
    of the system are used.
    """
    path = None if authority is None else base / Path(authority).expanduser()
    try:
        context = ssl.create_default_context(cafile=path)
    except (OSError, ssl.SSLError) as reason:
        yield error(f"root-certificates {path} cannot be read: {reason}")
        return
    try:
        with (
            socket.create_connection((host, port), timeout=CONNECT_TIMEOUT) as connection,
            context.wrap_socket(connection, server_hostname=host) as secure_connection,
        ):
            certificate = secure_connection.getpeercert() or {}
    except ssl.SSLCertVerificationError as reason:
        yield error(f"The certificate of {host}:{port} is refused: {reason.verify_message}.")
        return
    except OSError as reason:
        yield error(
            f"{host}:{port} does not speak TLS ({reason}); start the SuperLink with certificates."
        )
        return
    expiry = ssl.cert_time_to_seconds(str(certificate["notAfter"]))
    days = (expiry - time.time()) / SECONDS_PER_DAY
    finding = warning if days < EXPIRY_WARNING_DAYS else ok
    yield finding(
        f"The certificate of {host}:{port} is trusted and valid for {days:.0f} more days."
    )
    if ("IP Address", "127.0.0.1") not in certificate.get("subjectAltName", ()):
        yield warning(
            f"The certificate of {host}:{port} is not for 127.0.0.1, where the "
            "SuperLink's own programs call it, and no run would begin. Make "
            "another: remove server.crt and server.key, and call fedwmsam flower keys again."
        )


def check_key(path: Path) -> Iterator[Finding]:
    """Check that a file is a private key that Flower accepts and that others cannot read."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    try:
        key = load_ssh_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as reason:
        yield error(f"{path} is no unencrypted OpenSSH private key: {reason}")
        return
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP384R1):
        yield error(
            f"{path} is not of the kind Flower takes (ECDSA, nistp384); "
            "make one: fedwmsam flower keys."
        )
    elif hasattr(os, "getuid") and stat.S_IMODE(path.stat().st_mode) & 0o077:  # not on Windows
        yield warning(f"{path} can be read by others: chmod 600 {path}")
    else:
        yield ok(
            f"{path} is a private key as Flower takes it; "
            "its .pub must be registered at the SuperLink."
        )
