"""What would stop a run on Flower, found before it: versions, settings, data, address, certificates, keys."""

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedwmsam import toml
from fedwmsam.engine.checkpoint import rounds_in
from fedwmsam.engine.run_folder import is_run
from fedwmsam.errors import InputError

FLOWER = ((1, 41), (1, 43))
"""The first version that is known to work, and the first that is not."""
ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": ("0", "Flower tells its makers about runs"),
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": (
        "1",
        "the SuperLink tries to install packages from the network",
    ),
}
PROGRAMS = ("flwr", "flower-superlink", "flower-supernode", "flwr-serverapp", "flwr-clientapp")
DAY = 86400
PATIENCE = 5.0


@dataclass(frozen=True)
class Finding:
    grade: str
    """ok, warning or ERROR."""
    text: str


def ok(text: str) -> Finding:
    return Finding("ok", text)


def warning(text: str) -> Finding:
    return Finding("warning", text)


def error(text: str) -> Finding:
    return Finding("ERROR", text)


def run_checks(
    folder: Path, superlink: str | None, node_config: str | None, key: Path | None, simulation: bool
) -> Iterator[Finding]:
    """All findings, one after the other; later ones may depend on earlier ones and are left out then."""
    flower = list(check_versions(simulation))
    yield from flower
    if any(finding.grade == "ERROR" for finding in flower):
        return
    yield from check_switches()
    yield from check_app(folder, node_config)
    if superlink is not None:
        yield from check_connection(superlink)
    if key is not None:
        yield from check_key(key)


def check_versions(simulation: bool) -> Iterator[Finding]:
    version = installed_version("flwr")
    if version is None:
        yield error("Flower is not installed; install it with: pip install 'fedwmsam[flower]'")
        return
    numbers = tuple(int(part) for part in version.split(".")[:2])
    if FLOWER[0] <= numbers < FLOWER[1]:
        yield ok(
            f"Flower {version}, fedwmsam {installed_version('fedwmsam')}, torch {installed_version('torch')}."
        )
    else:
        yield error(
            f"Flower {version} is untested; install one of 1.41 and 1.42: pip install 'flwr>=1.41,<1.43'"
        )
    if simulation and installed_version("ray") is None:
        yield error(
            "Ray is not installed; install it with: pip install 'fedwmsam[flower-simulation]'"
        )
    absent = [program for program in PROGRAMS if shutil.which(program) is None]
    if absent:
        place = Path(sys.executable).parent
        yield error(
            f"{', '.join(absent)} are not on PATH, and Flower starts them by name: export PATH={place}:$PATH"
        )


def installed_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_switches() -> Iterator[Finding]:
    for name, (value, consequence) in ENVIRONMENT.items():
        if os.environ.get(name) != value:
            yield warning(
                f"{name} is not {value}: {consequence}. Set it where SuperLink, SuperNodes and flwr start."
            )


def check_app(folder: Path, node_config: str | None) -> Iterator[Finding]:
    try:
        project = toml.load(folder / "pyproject.toml")
        app = project["tool"]["flwr"]["app"]
        config, components = flatten_settings(app.get("config", {})), app["components"]
        server, client = components["serverapp"], components["clientapp"]
    except InputError as reason:
        yield error(f"{reason} An app is made with: fedwmsam flower new FOLDER")
        return
    except KeyError as key:
        yield error(
            f"{folder / 'pyproject.toml'} lacks {key} of a Flower app; compare with: fedwmsam flower new FOLDER"
        )
        return
    yield from check_settings(config)
    sys.path.insert(0, str(folder.resolve()))
    try:
        yield from check_component("serverapp", server)
        yield from check_client(client, config, node_config)
    finally:
        sys.path.remove(str(folder.resolve()))


def flatten_settings(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Tables as dotted keys, as Flower hands them to an app."""
    result: dict[str, Any] = {}
    for key, value in values.items():
        result |= (
            flatten_settings(value, f"{prefix}{key}.")
            if isinstance(value, dict)
            else {f"{prefix}{key}": value}
        )
    return result


def check_settings(config: dict[str, Any]) -> Iterator[Finding]:
    from fedwmsam.flower.strategy import (
        FlowerStrategy,
        absolute,
        check_arguments,
        from_run_config,
        settings_from_values,
    )

    own = inspect.signature(FlowerStrategy).parameters
    try:
        method, values = from_run_config(config)
        settings = settings_from_values(
            {key: value for key, value in values.items() if key not in own}
        )
        clients = values.get("clients", 0)
        check_arguments(
            method, clients, values.get("quorum", 0.5), values.get("transport", "float32")
        )
        settings.per_round(clients)
        folder = absolute(values.get("run_folder"))
    except InputError as reason:
        yield error(f"[tool.flwr.app.config]: {reason}")
        return
    yield ok(f"{method} over {clients} clients, {settings.rounds} rounds.")
    yield from check_run_folder(folder)


def check_run_folder(folder: Path | None) -> Iterator[Finding]:
    if folder is None:
        yield warning(
            "No run-folder is set: a run that is cut off begins again from its first round."
        )
        return
    parent = next(place for place in (folder, *folder.parents) if place.exists())
    if not os.access(parent, os.W_OK):
        yield error(
            f"run-folder: {parent} is not writable for {os.environ.get('USER', 'this user')}."
        )
    elif is_run(folder):
        done = max(rounds_in(folder / "checkpoints"), default=0)
        yield ok(f"{folder} holds a run that goes on after round {done}.")
    else:
        yield ok(f"A new run will be kept in {folder} (on the machine of the SuperLink).")


def check_component(what: str, place: str) -> Iterator[Finding]:
    try:
        loaded(place)
    except Exception as reason:
        yield error(f"{what} {place} cannot be imported: {type(reason).__name__}: {reason}")
    else:
        yield ok(f"{what} {place} can be imported.")


def loaded(place: str) -> Any:
    module, _, attribute = place.partition(":")
    return getattr(importlib.import_module(module), attribute)


def check_client(place: str, config: dict[str, Any], text: str | None) -> Iterator[Finding]:
    from fedwmsam.flower.client import TrainingApp

    try:
        app = loaded(place)
        node = (
            read_node_config(text)
            if text
            else {"partition-id": 0, "num-partitions": config.get("clients", 1)}
        )
        if not isinstance(app, TrainingApp):
            yield error(
                f"clientapp {place} was not made by make_client_app; clients could not answer the server."
            )
            return
        count = app.client.try_out(node)
    except Exception as reason:
        yield error(
            f"The data of {text or 'partition-id=0'} cannot be trained on: {type(reason).__name__}: {reason}"
        )
    else:
        yield ok(
            f"Client {node['partition-id']} has {count} samples, and the model trains on them."
        )


def read_node_config(text: str) -> dict[str, Any]:
    """As flower-supernode reads it: key=value, separated by spaces, values as in TOML."""
    pairs = re.findall(r"(\S+?)=('[^']*'|\"[^\"]*\"|\S+)", text)
    try:
        return tomllib.loads("\n".join(f"{key} = {value}" for key, value in pairs))
    except tomllib.TOMLDecodeError as reason:
        raise InputError(
            f"--node-config {text!r} is not key=value with values as in TOML: {reason}."
        ) from reason


def check_connection(name: str) -> Iterator[Finding]:
    path = Path(os.environ.get("FLWR_HOME") or "~/.flwr").expanduser() / "config.toml"
    try:
        links = toml.load(path).get("superlink", {})
        link = links[name]
        host, port = split_address(link.get("address", ""))
    except InputError as reason:
        yield error(f'{reason} It holds [superlink.{name}] with address = "host:port".')
        return
    except KeyError:
        yield error(f"{path} has no [superlink.{name}]; it has: {', '.join(links) or 'none'}.")
        return
    try:
        socket.create_connection((host, port), timeout=PATIENCE).close()
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
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise InputError(f"The address {address!r} must be host:port.")
    return host.strip("[]"), int(port)


def check_plain(host: str, port: int) -> Iterator[Finding]:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host, port), timeout=PATIENCE) as raw,
            context.wrap_socket(raw, server_hostname=host),
        ):
            yield error(
                f'{host}:{port} speaks TLS; replace insecure = true by root-certificates = "…/ca.crt".'
            )
    except OSError:
        yield warning(
            f"{host}:{port} is not encrypted: updates can be read and changed on the way. For trying only."
        )


def check_tls(host: str, port: int, authority: str | None, base: Path) -> Iterator[Finding]:
    path = None if authority is None else base / Path(authority).expanduser()
    try:
        context = ssl.create_default_context(cafile=path)
    except (OSError, ssl.SSLError) as reason:
        yield error(f"root-certificates {path} cannot be read: {reason}")
        return
    try:
        with (
            socket.create_connection((host, port), timeout=PATIENCE) as raw,
            context.wrap_socket(raw, server_hostname=host) as secure,
        ):
            certificate = secure.getpeercert() or {}
    except ssl.SSLCertVerificationError as reason:
        yield error(f"The certificate of {host}:{port} is refused: {reason.verify_message}.")
        return
    except OSError as reason:
        yield error(
            f"{host}:{port} does not speak TLS ({reason}); start the SuperLink with certificates."
        )
        return
    left = (ssl.cert_time_to_seconds(str(certificate["notAfter"])) - time.time()) / DAY
    grade = warning if left < 30 else ok
    yield grade(f"The certificate of {host}:{port} is trusted and valid for {left:.0f} more days.")


def check_key(path: Path) -> Iterator[Finding]:
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    try:
        key = load_ssh_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as reason:
        yield error(f"{path} is no unencrypted OpenSSH private key: {reason}")
        return
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP384R1):
        yield error(
            f"{path} is not of the kind Flower takes (ECDSA, nistp384); make one: fedwmsam flower keys."
        )
    elif stat.S_IMODE(path.stat().st_mode) & 0o077:
        yield warning(f"{path} can be read by others: chmod 600 {path}")
    else:
        yield ok(
            f"{path} is a private key as Flower takes it; its .pub must be registered at the SuperLink."
        )
