"""`fedwmsam flower` writes an app that works and keys that Flower accepts.

It finds mistakes before a run.
"""

import logging
import os
import re
import shutil
import socket
import ssl
import stat
import subprocess
import sys
import threading
from importlib import import_module
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from flwr.app import Context, RecordDict
from helpers.flower_deployment import HOST, free_port
from helpers.flower_in_process import FakeGrid

from fedwmsam.flower import check, keys
from fedwmsam.flower.keys import make_keys

RECOMMENDED = {name: value for name, (value, _) in check.ENVIRONMENT.items()}


@pytest.fixture
def app(tmp_path, cli, monkeypatch):
    """Return the folder of a new app with an unused package name: Python imports a name once."""
    folder = tmp_path / f"app{os.urandom(4).hex()}"
    assert cli("flower", "new", folder).code == 0
    replace(folder / "pyproject.toml", "~/flower-runs", str(tmp_path))
    homes = {"FLWR_HOME": str(tmp_path), "HOME": str(tmp_path)}
    for name, value in (RECOMMENDED | homes).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    return folder


def replace(path, old, new):
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def test_a_new_app_has_nothing_wrong(app, cli):
    result = cli("flower", "check", app)
    assert result.code == 0, result.out
    assert "ERROR" not in result.out and "warning" not in result.out
    assert "Client 0 has 500 samples" in result.out and "FedWMSAM" in result.out


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze (systemd)")
def test_the_units_of_a_new_app_are_right_for_systemd(app):
    """What systemd does not understand it only warns of, and its exit code is 0."""
    units = sorted((app / "systemd").glob("*.service"))
    assert [unit.name.removeprefix(app.name) for unit in units] == [
        "-run.service",
        "-superlink.service",
        "-supernode@.service",
    ]
    client = units[2].with_name(units[2].name.replace("@", "@3"))
    client.symlink_to(units[2])
    command = ["systemd-analyze", "verify", "--man=no", units[0], units[1], client]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (outcome.returncode, outcome.stdout + outcome.stderr) == (0, "")
    replace(units[0], "RestartSec=10", "RestartSec=many")
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    assert f"{units[0]}:" in outcome.stderr and "many" in outcome.stderr


def test_a_new_app_shows_its_loss_and_metrics(app, tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO, logger="flwr.fedwmsam")
    monkeypatch.syspath_prepend(app)
    client = import_module(f"{app.name}.client")
    server = import_module(f"{app.name}.server")
    grid = FakeGrid(client.app, clients=2)
    for node in grid.nodes.values():
        node["num-partitions"] = 2
    config = {"clients": 2, "rounds": 2, "local-epochs": 1, "run-folder": str(tmp_path / "run")}
    server.app(grid, Context(1, 1, {}, RecordDict(), config))
    for begin in ("Round 1 of 2", "Round 2 of 2", "The run is over: completed"):
        line = next(line for line in caplog.messages if line.startswith(begin))
        for name in ("train_loss", "loss", "accuracy", "second_guess"):
            assert re.search(rf"[ ,]{name} [0-9.]+", line), line


def test_who_may_be_whom_and_whose_numbers_count_is_said(app, cli):
    result = cli("flower", "check", app)
    assert "any node can say that it is any client" in result.out
    replace(app / "pyproject.toml", "seed = 0", 'averaging = "size"\nsizes = "reported"')
    replace(app / "pyproject.toml", "authenticated = false", "authenticated = true")
    result = cli("flower", "check", app)
    assert "Clients belong to the keys of their nodes; known beforehand: none yet." in result.out
    assert "warning sizes = 'reported': a node" in result.out and result.code == 0


def test_nothing_is_overwritten(app, cli):
    result = cli("flower", "new", app)
    assert result.code == 2 and "not empty" in result.err
    assert cli("flower", "new", app.parent / "1st").code == 2


@pytest.mark.parametrize(
    ("file", "old", "new", "reason"),
    [
        ("pyproject.toml", 'method = "fedwmsam"', 'method = "fedwmsan"', "Did you mean 'fedwmsam'"),
        ("pyproject.toml", "local-epochs = 2", "local-epoch = 2", "Did you mean 'local_epochs'"),
        ("pyproject.toml", "quorum = 0.5", "quorum = 5", "quorum must be"),
        ("pyproject.toml", "clients = 3", "clients = 0", "clients must be"),
        ("pyproject.toml", 'run-folder = "', 'run-folder = "here', "must be an absolute path"),
        (
            "pyproject.toml",
            "[tool.flwr.app.components]",
            "[tool.flwr.app.component]",
            "lacks 'components'",
        ),
        ("pyproject.toml", "[project]", "[project", "not valid TOML"),
        ("pyproject.toml", "lr = 0.1", "lr = -1.0", "lr must be"),
        ("pyproject.toml", "seed = 0", 'averaging = "size"', "averaging='size' on Flower needs"),
        ("pyproject.toml", 'identities = "none"', 'identities = "0=mine"', "identities must be"),
        ("pyproject.toml", "authenticated = false", "authenticated = 1", "authenticated must be"),
        ("server.py", "app = ServerApp()", "application = ServerApp()", "serverapp"),
        ("client.py", "from .task", "from .tusk", "cannot be trained on: ModuleNotFoundError"),
        (
            "client.py",
            "app = make_client_app(make_model, load_data, loss=LOSS, metrics=METRICS)",
            "app = 3",
            "was not made by make_client_app",
        ),
        (
            "task.py",
            "nn.Linear(64, 100)",
            "nn.Linear(63, 100)",
            "the model cannot take inputs of shape",
        ),
        ("task.py", "nn.Linear(100, 10)", "nn.Linear(100, 9)", "label 9 is out of range"),
    ],
)
def test_mistakes_in_the_app_are_found(app, cli, file, old, new, reason):
    folder = app if file.endswith("toml") else app / app.name
    replace(folder / file, old, new)
    result = cli("flower", "check", app)
    errors = [line for line in result.out.splitlines() if line.startswith("ERROR")]
    assert result.code == 1 and reason in errors[0]


def test_a_node_s_own_data_are_tried(app, cli):
    result = cli("flower", "check", app, "--node-config", "partition-id=2 num-partitions=10")
    assert "Client 2 has 150 samples" in result.out
    result = cli("flower", "check", app, "--node-config", "partition-id=two")
    assert result.code == 1 and "not key=value" in result.out
    result = cli("flower", "check", app, "--node-config", "num-partitions=3")
    assert result.code == 1 and "partition-id is None" in result.out


@pytest.mark.parametrize("partition", [3, -1])
def test_a_client_that_the_run_does_not_have_is_found(app, cli, partition):
    node = f"partition-id={partition} num-partitions=3"
    result = cli("flower", "check", app, "--node-config", node)
    assert result.code == 1
    assert f"ERROR   partition-id={partition}, but the run has clients 0 to 2 only" in result.out


def test_another_number_of_clients_is_found(app, cli):
    node = "partition-id=2 num-partitions=4"
    result = cli("flower", "check", app, "--node-config", node)
    assert result.code == 0 and "warning num-partitions=4, but clients = 3" in result.out
    result = cli("flower", "check", app, "--node-config", "partition-id=2 num-partitions=3")
    assert result.code == 0 and "warning" not in result.out


def test_a_key_that_is_not_its_client_s_is_found(app, cli, tmp_path):
    folder = tmp_path / "keys"
    make_keys(folder, [HOST], 3)
    authenticated, identities = (folder / "identities.toml").read_text().splitlines()
    make_keys(folder, [HOST], 4)

    def check_key(key, partition=None):
        place = ["--node-config", f"partition-id={partition} num-partitions=3"]
        arguments = place if partition is not None else []
        result = cli("flower", "check", app, "--key", folder / f"node-{key}.key", *arguments)
        return result.code, result.out

    code, out = check_key(0)
    assert code == 0 and "warning authenticated is false: any node can say" in out
    replace(app / "pyproject.toml", "authenticated = false", authenticated)
    code, out = check_key(3, 2)
    assert code == 0 and "known beforehand: none yet" in out and "warning" not in out
    replace(app / "pyproject.toml", 'identities = "none"', identities)
    for key, partition in ((1, 1), (1, None)):
        code, out = check_key(key, partition)
        assert code == 0 and "is client 1's." in out and "warning" not in out
    for key, partition, reason in (
        (1, 0, "is client 1's in identities, not client 0's"),
        (3, 0, "is not client 0's in identities"),
        (3, None, "is no client's in identities"),
    ):
        code, out = check_key(key, partition)
        assert code == 1 and reason in out
    replace(app / "pyproject.toml", identities, identities.rpartition(",")[0] + '"')
    code, out = check_key(3, 2)
    assert code == 0 and "warning identities does not name the key" in out
    assert check_key(3, 1)[0] == 1


def test_what_flower_would_do_unasked_is_said(app, cli, monkeypatch):
    monkeypatch.delenv("FLWR_TELEMETRY_ENABLED")
    result = cli("flower", "check", app)
    assert result.code == 0 and "warning FLWR_TELEMETRY_ENABLED is not 0" in result.out
    monkeypatch.setenv("PATH", "/nowhere")
    result = cli("flower", "check", app)
    assert result.code == 1
    assert "flower-superlink" in result.out and "are not on PATH" in result.out


def test_missing_and_untested_versions_are_said(monkeypatch):
    monkeypatch.setattr(check, "installed_version", {"flwr": "1.43.0"}.get)
    assert [f.grade for f in check.check_versions(simulation=True)][:2] == ["ERROR", "ERROR"]
    monkeypatch.setattr(check, "installed_version", {}.get)
    assert "pip install 'fedwmsam[flower]'" in next(check.check_versions(simulation=False)).text


class Listener:
    """A server that completes TLS handshakes, or without certificates only accepts connections."""

    def __init__(self, keys=None):
        self.port = free_port()
        self.socket = socket.create_server((HOST, self.port))
        self.context = None
        if keys:
            self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.context.load_cert_chain(keys / "server.crt", keys / "server.key")
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                connection, _ = self.socket.accept()
                if self.context:
                    self.context.wrap_socket(connection, server_side=True).close()
                else:
                    connection.close()
            except ssl.SSLError:
                continue
            except OSError:
                if self.socket.fileno() < 0:
                    return

    def close(self):
        self.socket.close()


@pytest.fixture
def listener():
    servers = []

    def start(keys=None):
        servers.append(Listener(keys))
        return servers[-1].port

    yield start
    for server in servers:
        server.close()


def last_finding(home, port, security, host=HOST):
    """Return the last finding about a SuperLink at this port."""
    config = f'[superlink.lab]\naddress = "{host}:{port}"\n{security}\n'
    (home / "config.toml").write_text(config)
    os.environ["FLWR_HOME"] = str(home)
    return list(check.check_connection("lab"))[-1]


def test_a_secure_connection_is_checked_to_the_certificate(tmp_path, listener, monkeypatch):
    monkeypatch.setenv("FLWR_HOME", "")
    make_keys(tmp_path / "keys", [HOST], 0)
    make_keys(tmp_path / "others", [HOST], 0)
    make_keys(tmp_path / "elsewhere", ["fl.example.org"], 0)
    secure = listener(tmp_path / "keys")
    plain = listener()
    insecure = "insecure = true"

    def trusting(folder):
        return f'root-certificates = "{tmp_path / folder / "ca.crt"}"'

    assert last_finding(tmp_path, secure, trusting("keys")).grade == "ok"
    finding = last_finding(tmp_path, secure, trusting("others"))
    assert finding.grade == "ERROR" and "refused" in finding.text
    elsewhere = listener(tmp_path / "elsewhere")
    assert last_finding(tmp_path, elsewhere, trusting("elsewhere")).grade == "ok"
    finding = last_finding(tmp_path, elsewhere, trusting("elsewhere"), "localhost")
    assert finding.grade == "ERROR" and "refused" in finding.text and "localhost" in finding.text
    assert "cannot be read" in last_finding(tmp_path, secure, trusting("nowhere")).text
    assert "does not speak TLS" in last_finding(tmp_path, plain, trusting("keys")).text
    assert "speaks TLS" in last_finding(tmp_path, secure, insecure).text
    assert last_finding(tmp_path, plain, insecure).grade == "warning"
    assert "Nothing answers" in last_finding(tmp_path, free_port(), insecure).text
    assert "must be host:port" in last_finding(tmp_path, "", insecure).text
    assert "has no [superlink.other]" in next(iter(check.check_connection("other"))).text


def test_a_certificate_that_the_superlinks_own_programs_refuse_is_found(
    tmp_path, listener, monkeypatch
):
    monkeypatch.setenv("FLWR_HOME", "")
    monkeypatch.setattr(keys, "LOOPBACKS", ())  # as other programs make certificates
    keys.make_keys(tmp_path / "keys", ["localhost"], 0)
    trusting = f'root-certificates = "{tmp_path / "keys" / "ca.crt"}"'
    finding = last_finding(tmp_path, listener(tmp_path / "keys"), trusting, "localhost")
    assert finding.grade == "warning" and "is not for 127.0.0.1" in finding.text


def test_keys_are_what_flower_takes_and_nobody_else_reads(tmp_path, cli):
    folder = tmp_path / "keys"
    hosts = ["--host", "fl.example.org", "--host", HOST]
    assert cli("flower", "keys", folder, *hosts, "--nodes", 2).code == 0
    key = load_ssh_private_key((folder / "node-1.key").read_bytes(), None)
    public_key = load_ssh_public_key((folder / "node-1.pub").read_bytes())
    assert isinstance(key.curve, ec.SECP384R1) and key.public_key() == public_key
    for path in folder.glob("*.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".toml"}
    assert "node-2.key" in cli("flower", "keys", folder, "--host", HOST, "--nodes", 3).out
    assert {name: (folder / name).read_bytes() for name in before} == before


def test_a_key_flower_would_refuse_is_found(tmp_path):
    make_keys(tmp_path, [HOST], 1)
    assert [f.grade for f in check.check_key(tmp_path / "node-0.key")] == ["ok"]
    (tmp_path / "node-0.key").chmod(0o644)
    assert [f.grade for f in check.check_key(tmp_path / "node-0.key")] == ["warning"]
    assert "no unencrypted OpenSSH" in next(check.check_key(tmp_path / "server.key")).text
    assert "no unencrypted OpenSSH" in next(check.check_key(tmp_path / "nowhere.key")).text
