"""A real Flower deployment in processes on 127.0.0.1, and the app that the tests run on it."""

import contextlib
import json
import os
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
fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sh14x", b"lo", 0x41))  # SIOCSIFFLAGS: up and running
os.execvp(sys.argv[1], sys.argv[1:])
"""
PATIENCE = 900
"""Seconds; on a quiet machine everything takes a fraction of it."""


class Deployment:
    """`with Deployment(tmp_path, nodes=3, secure=True) as deployment:`; afterwards none of its processes is left."""

    def __init__(
        self, folder: Path, nodes: int, *, secure: bool = False, programs: Path = PROGRAMS
    ) -> None:
        self.folder, self.count, self.secure, self.programs = folder, nodes, secure, programs
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
        self.port = free_port()
        self.link: subprocess.Popen[bytes] | None = None
        self.nodes: dict[int, subprocess.Popen[bytes]] = {}
        self.prefix: list[str] = []
        """What every program is started through."""
        self.options: list[str] = []
        """Of `flwr run`."""
        self.peaks: dict[str, int] = {}
        """Megabytes that one process of each program has held at most."""

    def __enter__(self) -> "Deployment":
        try:
            self.write_app()
            self.write_connection()
            self.start_link()
            for node in range(self.count):
                if self.secure:
                    self.flwr(
                        "supernode", "register", self.folder / "keys" / f"node-{node}.pub", "test"
                    )
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
        how = "insecure = true"
        if self.secure:
            make_keys(self.folder / "keys", [HOST], self.count)
            how = f'root-certificates = "{self.folder / "keys" / "ca.crt"}"'
        (self.home / "config.toml").write_text(
            f'[superlink.test]\naddress = "{HOST}:{self.port}"\n{how}\n'
        )

    def start_link(self) -> None:
        keys = self.folder / "keys"
        safety = ["--insecure"]
        if self.secure:
            safety = ["--ssl-ca-certfile", keys / "ca.crt", "--ssl-certfile", keys / "server.crt"]
            safety += ["--ssl-keyfile", keys / "server.key", "--enable-supernode-auth"]
        place = ["--host", HOST, "--port", self.port, "--database", self.folder / "link.db"]
        self.link = self.start("link", "flower-superlink", *place, *safety)
        wait_until(lambda: answers(self.port), "the SuperLink listens", self.alive)

    def start_node(self, node: int) -> None:
        safety = ["--insecure"]
        if self.secure:
            keys = self.folder / "keys"
            safety = [
                "--root-certificates",
                keys / "ca.crt",
                "--auth-supernode-private-key",
                keys / f"node-{node}.key",
            ]
        config = f"partition-id={node} num-partitions={self.count} misbehaviour='{self.plan(node)}'"
        place = ["--superlink", f"{HOST}:{self.port}", "--host", HOST, "--port", free_port()]
        self.nodes[node] = self.start(
            f"node-{node}", "flower-supernode", *place, *safety, "--node-config", config
        )

    def misbehave(self, node: int, plan: dict[int, str]) -> None:
        """What this node's client does wrong in which round of the runs to come: see flower_client."""
        self.plan(node).write_text(json.dumps(plan))

    def behave(self, node: int) -> None:
        """From now on; a client that is held goes on."""
        self.plan(node).unlink()

    def wait_for_hold(self, node: int) -> None:
        wait_until(
            self.plan(node).with_suffix(".reached").exists, f"client {node} is held", self.alive
        )

    def plan(self, node: int) -> Path:
        return self.folder / f"misbehaviour-{node}.json"

    def start(self, name: str, program: str, *arguments: object) -> "subprocess.Popen[bytes]":
        with (self.folder / f"{name}.log").open("ab") as file:
            return subprocess.Popen(
                [*self.prefix, self.programs / program, *map(str, arguments)],
                stdout=file,
                stderr=file,
                cwd=self.folder,
                env=self.environment,
                start_new_session=True,
            )

    def alive(self) -> None:
        assert self.link is None or self.link.poll() is None, self.log("link")

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")[-4000:]

    def kill_node(self, node: int) -> None:
        """As if the machine lost its power: the SuperNode and the client process it had started."""
        self.kill(
            [pid for pid, command in self.processes().items() if f"partition-id={node} " in command]
        )
        self.kill(descendants(self.nodes[node].pid))
        self.nodes.pop(node).wait()

    def restart_node(self, node: int) -> None:
        """As a supervisor does: until it is accepted, which takes the lease of its predecessor."""
        deadline = time.monotonic() + PATIENCE
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
        done = subprocess.run(
            [*self.prefix, self.programs / "flwr", *map(str, arguments)],
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=self.environment,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def run(self, name: str, **config: object) -> str:
        """Start the app, its run folder called `name`; the number of Flower's run."""
        config = {
            "clients": self.count,
            "run-folder": str(self.folder / name),
            "wait": PATIENCE,
        } | {key.replace("_", "-"): value for key, value in config.items()}
        text = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
        arguments = [self.folder / "app", "test", "--format", "json", "--run-config", text]
        return str(json.loads(self.flwr("run", *arguments, *self.options))["run-id"])

    def status(self, run: str) -> str:
        told = json.loads(self.flwr("ls", "test", "--run-id", run, "--format", "json"))
        return str(told["runs"][0]["status"])

    def finish(self, name: str, run: str) -> None:
        """Wait until a run is complete; asks Flower seldom, for each question takes seconds."""
        begun = time.monotonic()

        def check() -> None:
            self.alive()
            self.weigh()
            if int(time.monotonic() - begun) % 30 == 29:
                assert not self.status(run).startswith("finished:failed"), self.flwr(
                    "log", run, "test", "--show"
                )

        wait_until((self.folder / name / "summary.json").exists, f"{name} is over", check)
        wait_until(
            lambda: self.status(run) == "finished:completed",
            f"Flower calls {name} completed",
            self.alive,
        )

    def weigh(self) -> None:
        for process, command in self.processes().items():
            program = next((Path(word).name for word in command.split() if "/bin/fl" in word), "")
            with contextlib.suppress(OSError, StopIteration):  # it has ended meanwhile
                self.peaks[program] = max(self.peaks.get(program, 0), peak_memory(process))

    def metrics(self, name: str) -> list[dict[str, object]]:
        path = self.folder / name / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def processes(self) -> dict[int, str]:
        """Every process that was started for this deployment, however far down: they share its folder's name."""
        mark = f"FLWR_HOME={self.home}\0".encode()
        return {
            pid: command
            for pid, (environment, command, _) in all_processes().items()
            if mark in environment
        }

    def stop(self) -> None:
        """Nodes first: without its SuperLink a node waits for it."""
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


class Simulation(Deployment):
    """The template's own app on Ray, in a network that consists of 127.0.0.1: Ray would listen on all addresses."""

    alone: ClassVar[list[str]] = [
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
        self.prefix = self.alone
        place = ["--host", HOST, "--port", self.port, "--database", self.folder / "link.db"]
        self.link = self.start("link", "flower-superlink", "--insecure", "--simulation", *place)
        self.prefix = [
            "nsenter",
            "--preserve-credentials",
            "--user",
            "--net",
            "--target",
            str(self.link.pid),
        ]
        self.options = [
            "--federation-config",
            f"num-supernodes={self.count} client-resources-num-cpus=1",
        ]
        wait_until(
            lambda: "Uvicorn running" in self.log("link"), "the SuperLink listens", self.alive
        )
        return self

    @classmethod
    def possible(cls) -> bool:
        """Whether this system lets us make a network of our own."""
        try:
            return subprocess.run([*cls.alone, "true"], capture_output=True).returncode == 0
        except OSError:
            return False


def descendants(process: int) -> list[int]:
    """A process and all that it started."""
    parents = {pid: parent for pid, (_, _, parent) in all_processes().items()}
    found = [process]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def all_processes() -> dict[int, tuple[bytes, str, int]]:
    """Environment, command and parent of each process that may be looked at."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            command = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            found[int(place.name)] = ((place / "environ").read_bytes(), command, parent)
        except OSError:
            continue
    return found


def peak_memory(process: int) -> int:
    """Megabytes of RAM a process has held at most."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) // 1024


def free_port() -> int:
    with socket.socket() as place:
        place.bind((HOST, 0))
        return int(place.getsockname()[1])


def answers(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True


def wait_until(
    condition: Callable[[], bool], what: str, check: Callable[[], None] = lambda: None
) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        check()
        assert time.monotonic() < deadline, f"it never happened: {what}"
        time.sleep(1)
