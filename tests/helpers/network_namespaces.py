"""Hosts with addresses of their own on this machine: network namespaces that a bridge joins.

It needs root and the program `ip` (Debian: iproute2). Everything lies inside the namespaces: no
interface or address appears outside of them, and nothing sent in them leaves them.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from functools import cache
from pathlib import Path

SUBNET = "10.77.0"
HOSTS_FILES = Path("/etc/netns")
"""Where `ip netns exec` finds the files that a namespace has in place of those in /etc."""
SWITCH = "switch"
"""The namespace with the bridge, to which each host has a cable."""


@cache
def why_not() -> str:
    """Return why there can be no namespaces here; empty if there can."""
    if shutil.which("ip") is None:
        return "ip is not installed (Debian: iproute2)"
    if os.geteuid() != 0:
        return "network namespaces need root"
    completed = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True)
    return completed.stderr.strip()


class Network:
    """Hosts on one bridge; use it as `with Network(["server", "client"]) as network:`.

    Afterwards neither the namespaces nor any process in them is left.
    """

    def __init__(self, hosts: list[str]) -> None:
        self.addresses = {host: f"{SUBNET}.{number}" for number, host in enumerate(hosts, 1)}

    def __enter__(self) -> "Network":
        try:
            self.make_switch()
            for host, address in self.addresses.items():
                self.make_host(host, address)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for host in [*self.addresses, SWITCH]:
            self.end_processes(host)
            with contextlib.suppress(subprocess.CalledProcessError):  # it was never made
                ip("netns", "del", self.namespace(host))
            shutil.rmtree(HOSTS_FILES / self.namespace(host), ignore_errors=True)
        with contextlib.suppress(OSError):  # it has files of others
            HOSTS_FILES.rmdir()

    def make_switch(self) -> None:
        ip("netns", "add", self.namespace(SWITCH))
        self.configure(SWITCH, "link", "add", "bridge", "type", "bridge")
        self.configure(SWITCH, "link", "set", "bridge", "up")

    def make_host(self, host: str, address: str) -> None:
        ip("netns", "add", self.namespace(host))
        cable = ["link", "add", "eth0", "type", "veth", "peer", "name", host]
        self.configure(host, *cable, "netns", self.namespace(SWITCH))
        self.configure(SWITCH, "link", "set", "dev", host, "master", "bridge", "up")
        self.configure(host, "address", "add", f"{address}/24", "dev", "eth0")
        self.configure(host, "link", "set", "lo", "up")
        self.configure(host, "link", "set", "eth0", "up")
        self.name_hosts(host, {})

    def namespace(self, host: str) -> str:
        return f"fedwmsam-{os.getpid()}-{host}"

    def configure(self, host: str, *words: str) -> None:
        """Run a command of `ip` on a host."""
        ip("-netns", self.namespace(host), *words)

    def name_hosts(self, host: str, names: dict[str, str]) -> None:
        """Let programs on a host find these names at these addresses, those that run included.

        The file is written in place: a program has it in its own mount namespace.
        """
        path = HOSTS_FILES / self.namespace(host) / "hosts"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = ["127.0.0.1 localhost", *(f"{names[name]} {name}" for name in names)]
        path.write_text("\n".join(lines) + "\n")

    def unplug(self, host: str) -> None:
        """Take down the switch's end of a host's cable."""
        self.configure(SWITCH, "link", "set", "dev", host, "down")

    def plug_in(self, host: str) -> None:
        """Take up the switch's end of a host's cable."""
        self.configure(SWITCH, "link", "set", "dev", host, "up")

    def prefix(self, host: str) -> list[str]:
        """Return the command that lets another command run on a host."""
        return ["ip", "netns", "exec", self.namespace(host)]

    def is_listening(self, host: str, port: int) -> bool:
        """Return whether a program on a host accepts connections at a port."""
        query = ["ss", "--no-header", "--listening", "--tcp", "--numeric", f"sport = :{port}"]
        completed = subprocess.run([*self.prefix(host), *query], capture_output=True, timeout=20)
        completed.check_returncode()
        return bool(completed.stdout.strip())

    def end_processes(self, host: str) -> None:
        """End whatever still runs on a host, and wait for its end."""
        deadline = time.monotonic() + 20
        while processes := self.processes(host):
            assert time.monotonic() < deadline, f"{processes} do not end"
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(0.2)

    def processes(self, host: str) -> list[int]:
        """Return the ids of the processes on a host."""
        try:
            return [int(word) for word in ip("netns", "pids", self.namespace(host)).split()]
        except subprocess.CalledProcessError:  # there is no such namespace
            return []


def ip(*words: str) -> str:
    """Run `ip` and return its output."""
    completed = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=20)
    try:
        completed.check_returncode()
    except subprocess.CalledProcessError as error:
        error.add_note(completed.stderr)
        raise
    return completed.stdout
