"""A real Flower deployment in processes on 127.0.0.1, and the app that the tests run on it."""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from fedwmsam.flower.keys import make_keys
from fedwmsam.flower.new import new_app

HOST = "127.0.0.1"
PROGRAMS = Path(sys.executable).parent
LOOPBACK = """
import fcntl, os, socket, struct, sys
UP_AND_RUNNING = struct.pack("16sh14x", b"lo", 0x41)
fcntl.ioctl(socket.socket(), 0x8914, UP_AND_RUNNING)  # SIOCSIFFLAGS
os.execvp(sys.argv[1], sys.argv[1:])
"""
TIMEOUT = 900
"""Seconds that anything may take; on a quiet machine it takes a fraction of them."""


class Deployment:
    """A SuperLink and SuperNodes as processes on this machine.

    Use it as `with Deployment(tmp_path, nodes=3, secure=True) as deployment:`; afterwards none of
    its processes is left.
    """

    def __init__(
        self,
        folder: Path,
        nodes: int,
        *,
        secure: bool = False,
        spare_keys: int = 0,
        programs: Path = PROGRAMS,
    ) -> None:
        self.folder = folder
        self.count = nodes
        self.spare_keys = spare_keys
        """Keys that are registered, but whose nodes are not started."""
        self.secure = secure
        self.programs = programs
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        self.environment = dict(os.environ) | {
            "FLWR_HOME": str(self.home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",
            "OMP_NUM_THREADS": "1",
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "NO_PROXY": "*",
        }
        self.hosts = [HOST]
        """Names and addresses that the SuperLink's certificate is for; programs use the first."""
        self.port = free_port()
        self.link: subprocess.Popen[bytes] | None = None
        self.nodes: dict[int, subprocess.Popen[bytes]] = {}
        self.options: list[str] = []
        """Options of `flwr run`."""
        self.peaks: dict[str, int] = {}
        """Programs → the peak memory of one of its processes, in megabytes."""

    def __enter__(self) -> "Deployment":
        try:
            self.write_app()
            self.write_connection()
            self.start_link()
            self.register_keys()
            for node in range(self.count):
                self.start_node(node)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        assert not self.processes(), self.processes()

    def write_app(self) -> None:
        new_app(self.folder / "app")
        for name in ("task", "client"):
            text = (Path(__file__).parent / f"flower_{name}.py").read_text()
            (self.folder / "app" / "app" / f"{name}.py").write_text(text)

    def write_connection(self) -> None:
        security = "insecure = true"
        if self.secure:
            make_keys(self.folder / "keys", self.hosts, self.count + self.spare_keys)
            security = f'root-certificates = "{self.folder / "keys" / "ca.crt"}"'
        (self.home / "config.toml").write_text(
            f'[superlink.test]\naddress = "{self.hosts[0]}:{self.port}"\n{security}\n'
        )

    def start_link(self) -> None:
        keys = self.folder / "keys"
        security = ["--insecure"]
        if self.secure:
            security = ["--ssl-ca-certfile", keys / "ca.crt", "--ssl-certfile", keys / "server.crt"]
            security += ["--ssl-keyfile", keys / "server.key", "--enable-supernode-auth"]
        self.link = self.start("link", "flower-superlink", *self.link_options(), *security)
        wait_until(self.is_listening, "the SuperLink listens", self.assert_running)

    def is_listening(self) -> bool:
        """Return whether the SuperLink accepts connections."""
        try:
            socket.create_connection((HOST, self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def register_keys(self) -> None:
        for node in range(self.count + self.spare_keys) if self.secure else ():
            public_key = self.folder / "keys" / f"node-{node}.pub"
            self.flwr("supernode", "register", public_key, "test")

    def start_link_anew(self) -> None:
        """Kill all nodes and the SuperLink, and start it without anything it knew but the keys."""
        for node in list(self.nodes):
            self.kill_node(node)
        self.kill_link()
        for path in self.folder.glob("link.db*"):
            path.unlink()
        self.start_link()
        self.register_keys()

    def link_options(self) -> list[object]:
        return ["--host", HOST, "--port", self.port, "--database", self.folder / "link.db"]

    def start_node(self, node: int, claim: int | None = None) -> None:
        """Start a SuperNode with the key of this number, which claims to be this client."""
        partition = node if claim is None else claim
        security = ["--insecure"]
        if self.secure:
            keys = self.folder / "keys"
            security = [
                "--root-certificates",
                keys / "ca.crt",
                "--auth-supernode-private-key",
                keys / f"node-{node}.key",
            ]
        faults = self.fault_file(node)
        config = f"partition-id={partition} num-partitions={self.count} misbehaviour='{faults}'"
        address = ["--superlink", f"{self.link_host(node)}:{self.port}"]
        address += ["--host", HOST, "--port", free_port()]
        self.nodes[node] = self.start(
            f"node-{node}", "flower-supernode", *address, *security, "--node-config", config
        )

    def link_host(self, node: int) -> str:
        """Return where this node looks for the SuperLink."""
        return self.hosts[0]

    def misbehave(self, node: int, faults: dict[int, str]) -> None:
        """Let this node's client do something wrong in these rounds of every run from now on.

        flower_client says what it can do wrong.
        """
        self.fault_file(node).write_text(json.dumps(faults))

    def behave(self, node: int) -> None:
        """Let this node's client do nothing wrong from now on; one that is held continues."""
        self.fault_file(node).unlink()

    def wait_for_hold(self, node: int) -> None:
        reached = self.fault_file(node).with_suffix(".reached")
        wait_until(reached.exists, f"client {node} is held", self.assert_running)

    def forget_hold(self, node: int) -> None:
        """Let `wait_for_hold` wait for the next time that this client is held."""
        self.fault_file(node).with_suffix(".reached").unlink()

    def fault_file(self, node: int) -> Path:
        return self.folder / f"misbehaviour-{node}.json"

    def prefix(self, name: str) -> list[str]:
        """Return the command that the program of this name is started through."""
        return []

    def start(self, name: str, program: str, *arguments: object) -> "subprocess.Popen[bytes]":
        with (self.folder / f"{name}.log").open("ab") as file:
            return subprocess.Popen(
                [*self.prefix(name), self.programs / program, *map(str, arguments)],
                stdout=file,
                stderr=file,
                cwd=self.folder,
                env=self.environment,
                start_new_session=True,
            )

    def assert_running(self) -> None:
        assert self.link is None or self.link.poll() is None, self.log("link")

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def kill_node(self, node: int) -> None:
        """Kill the SuperNode and its client process, as if their machine lost its power."""
        option = str(self.fault_file(node))
        self.kill([pid for pid, command in self.processes().items() if option in command])
        self.kill(descendants(self.nodes[node].pid))
        self.nodes.pop(node).wait()

    def restart_node(self, node: int) -> None:
        """Start the node again and again, as a supervisor does, until the SuperLink accepts it.

        That takes until the lease of its predecessor has ended.
        """
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline:
            self.start_node(node)
            try:
                self.nodes[node].wait(timeout=25)
            except subprocess.TimeoutExpired:
                return
        raise AssertionError(self.log(f"node-{node}"))

    def kill_link(self) -> None:
        assert self.link
        self.kill(descendants(self.link.pid))
        self.link.wait()

    @staticmethod
    def kill(processes: list[int]) -> None:
        for process in processes:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def flwr(self, *arguments: object) -> str:
        completed = subprocess.run(
            [*self.prefix("flwr"), self.programs / "flwr", *map(str, arguments)],
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=self.environment,
            timeout=TIMEOUT,
            check=False,
        )
        assert completed.returncode == 0, completed.stdout + completed.stderr
        return completed.stdout

    def run(self, name: str, **config: object) -> str:
        """Start the app with a run folder of this name, and return the id of Flower's run."""
        values: dict[str, object] = {
            "clients": self.count,
            "run-folder": str(self.folder / name),
            "wait": TIMEOUT,
        }
        values |= {key.replace("_", "-"): value for key, value in config.items()}
        text = " ".join(f"{key}={json.dumps(value)}" for key, value in values.items())
        arguments = [self.folder / "app", "test", "--format", "json", "--run-config", text]
        return str(json.loads(self.flwr("run", *arguments, *self.options))["run-id"])

    def status(self, run: str) -> str:
        listing = json.loads(self.flwr("ls", "test", "--run-id", run, "--format", "json"))
        return str(listing["runs"][0]["status"])

    def finish(self, name: str, run: str) -> None:
        """Wait until a run is complete; the command for its status takes seconds, so it is rare."""
        started = time.monotonic()

        def check() -> None:
            self.assert_running()
            self.measure_memory()
            if int(time.monotonic() - started) % 30 == 29:
                has_failed = self.status(run).startswith("finished:failed")
                assert not has_failed, self.flwr("log", run, "test", "--show")

        wait_until((self.folder / name / "summary.json").exists, f"{name} is over", check)
        wait_until(
            lambda: self.status(run) == "finished:completed",
            f"Flower calls {name} completed",
            self.assert_running,
        )

    def measure_memory(self) -> None:
        for process, command in self.processes().items():
            program = next((Path(word).name for word in command.split() if "/bin/fl" in word), "")
            with contextlib.suppress(OSError, StopIteration):  # it has ended meanwhile
                self.peaks[program] = max(self.peaks.get(program, 0), peak_memory(process))

    def metrics(self, name: str) -> list[dict[str, object]]:
        path = self.folder / name / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def processes(self) -> dict[int, str]:
        """Return the commands of all processes of this deployment, by id.

        Descendants are among them: they inherit an environment variable with its folder.
        """
        variable = f"FLWR_HOME={self.home}\0".encode()
        return {
            pid: command
            for pid, (environment, command, _) in all_processes().items()
            if variable in environment
        }

    def stop(self) -> None:
        """End all processes, nodes first: without its SuperLink a node waits for it."""
        for process in [*self.nodes.values(), self.link]:
            if process is not None and process.poll() is None:
                process.terminate()
                try:
                    process.wait(timeout=20)
                except subprocess.TimeoutExpired:
                    process.kill()
        deadline = time.monotonic() + 20
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.5)
        self.kill(list(self.processes()))
        time.sleep(0.5)


class UnitDeployment(Deployment):
    """A deployment by the commands in the systemd units of the app, with the paths of a test.

    Where nginx is installed, nodes come through it, as the app's configuration of it says.
    """

    nginx = shutil.which("nginx")

    def __init__(self, folder: Path, nodes: int) -> None:
        super().__init__(folder, nodes, secure=True)
        self.environment["HOME"] = str(folder)
        self.gate: subprocess.Popen[bytes] | None = None
        self.gate_port = free_port() if self.nginx else self.port

    def write_connection(self) -> None:
        super().write_connection()
        connection = self.home / "config.toml"
        text = connection.read_text()
        outside = text.replace("superlink.test", "superlink.outside")
        connection.write_text(
            text
            + text.replace("superlink.test", "superlink.tls")
            + outside.replace(str(self.port), str(self.gate_port))
        )

    def command(self, unit: str, client: int = 0) -> list[str]:
        """Return the words of a unit's command, for an instance with this number."""
        text = (self.folder / "app" / "systemd" / f"app-{unit}.service").read_text()
        line = next(line for line in text.splitlines() if line.startswith("ExecStart="))
        places = {
            "ExecStart=": "",
            "/etc/app/": f"{self.folder}/keys/",
            "/var/lib/app/": f"{self.folder}/",
            "8000": str(self.port),
            "9094": str(free_port()),
            "${SUPERLINK}": f"{HOST}:{self.gate_port}",
            "%i": str(client),
            "num-partitions=3": f"num-partitions=3 misbehaviour='{self.fault_file(client)}'",
        }
        for place, value in places.items():
            line = line.replace(place, value)
        return shlex.split(line)

    def start_link(self) -> None:
        self.link = self.start("link", *self.command("superlink"))
        wait_until(self.is_listening, "the SuperLink listens", self.assert_running)
        if self.nginx:
            self.start_gate(Path(self.nginx))

    def start_gate(self, nginx: Path) -> None:
        """Start nginx with the app's configuration, inside the least that nginx needs around it."""
        server = (self.folder / "app" / "systemd" / "app-nginx.conf").read_text()
        for place, value in {
            "listen 8443": f"listen {HOST}:{self.gate_port}",
            "127.0.0.1:8000": f"{HOST}:{self.port}",
            "/etc/app/": f"{self.folder}/keys/",
        }.items():
            assert place in server
            server = server.replace(place, value)
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        places = "".join(f"{kind}_temp_path {self.folder}/{kind};\n" for kind in kinds)
        log = f"error_log {self.folder}/nginx.log;\n"
        around = f"daemon off;\npid {self.folder}/nginx.pid;\n{log}events {{}}\n"
        path = self.folder / "nginx.conf"
        path.write_text(f"{around}http {{\n{places}{server}}}\n")
        self.gate = self.start("gate", str(nginx), "-p", self.folder, "-c", path)

    def stop(self) -> None:
        super().stop()
        if self.gate:
            self.gate.terminate()
            self.gate.wait(timeout=20)

    def start_node(self, node: int, claim: int | None = None) -> None:
        self.nodes[node] = self.start(f"node-{node}", *self.command("supernode@", node))

    def run_unit(self) -> str:
        """Do what the unit of the run does, and return the id of Flower's run."""
        output = subprocess.check_output(
            self.command("run"),
            text=True,
            stderr=subprocess.STDOUT,
            cwd=self.folder / "app",
            env=self.environment,
            timeout=TIMEOUT,
        )
        return next(word for word in re.split(r"\W+", output) if re.fullmatch(r"\d{10,}", word))


class Simulation(Deployment):
    """The app of the template, simulated by Flower on Ray.

    It has a network of its own that consists of 127.0.0.1: Ray would listen on all addresses.
    """

    own_network: ClassVar[list[str]] = [
        "unshare",
        "--net",
        "--map-root-user",
        sys.executable,
        "-c",
        LOOPBACK,
    ]

    def __enter__(self) -> "Simulation":
        new_app(self.folder / "app")
        self.write_connection()
        options = ["--insecure", "--simulation", *self.link_options()]
        self.link = self.start("link", "flower-superlink", *options)
        self.options = [
            "--federation-config",
            f"num-supernodes={self.count} client-resources-num-cpus=1",
        ]
        wait_until(
            lambda: "Uvicorn running" in self.log("link"),
            "the SuperLink listens",
            self.assert_running,
        )
        return self

    def prefix(self, name: str) -> list[str]:
        if self.link is None:
            return self.own_network
        enter = ["nsenter", "--preserve-credentials", "--user", "--net"]
        return [*enter, "--target", str(self.link.pid)]

    @classmethod
    def is_possible(cls) -> bool:
        """Return whether this system allows a network of its own."""
        try:
            return subprocess.run([*cls.own_network, "true"], capture_output=True).returncode == 0
        except OSError:
            return False


def descendants(process: int) -> list[int]:
    """Return a process and all that it started."""
    parents = {pid: parent for pid, (_, _, parent) in all_processes().items()}
    family = [process]
    for pid in family:
        family += [child for child, parent in parents.items() if parent == pid]
    return family


def all_processes() -> dict[int, tuple[bytes, str, int]]:
    """Return environment, command and parent of each process that may be looked at, by its id."""
    processes = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            words = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
            environment = (folder / "environ").read_bytes()
        except OSError:
            continue
        processes[int(folder.name)] = (environment, words.decode(errors="replace"), parent)
    return processes


def peak_memory(process: int) -> int:
    """Return the megabytes of RAM that a process has held at most."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) // 1024


def free_port() -> int:
    with socket.socket() as unused:
        unused.bind((HOST, 0))
        return int(unused.getsockname()[1])


def wait_until(
    condition: Callable[[], bool], what: str, check: Callable[[], None] = lambda: None
) -> None:
    """Wait until the condition holds; fail after a long time, or when `check` fails."""
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        check()
        assert time.monotonic() < deadline, f"it never happened: {what}"
        time.sleep(1)
