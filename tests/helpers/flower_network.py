"""A real Flower deployment on hosts with addresses of their own, which are network namespaces."""

import contextlib
import re
import sqlite3
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from helpers.flower_deployment import Deployment, wait_until
from helpers.network_namespaces import Network

NAME = "server.test"
"""The name of the SuperLink's host; .test is reserved for tests."""
SLOW_NODE = 2
"""The node that reaches the SuperLink through the gateway."""
HOSTS = ["server", "new-server", "gateway", "node-0", "node-1", "node-2"]
PROXY = Path(__file__).parent / "delaying_proxy.py"


class NetworkDeployment(Deployment):
    """A SuperLink and three SuperNodes on a host each, with TLS and keys.

    Nodes find the SuperLink by its name. The last one finds a gateway there, which forwards
    connections with a delay. `flwr` runs on the SuperLink's host.
    """

    def __init__(self, folder: Path, network: Network, bare_nodes: Collection[int] = ()) -> None:
        """Deploy on the hosts of a network; the bare nodes are given an address, no name."""
        super().__init__(folder, nodes=3, secure=True)
        self.network = network
        self.server = "server"
        """The host with the SuperLink."""
        self.port = 8000
        self.hosts = [NAME, network.addresses["server"]]
        self.database = True
        """Whether the SuperLink keeps what it knows in a file."""
        self.bare_addresses = dict.fromkeys(bare_nodes, network.addresses["server"])
        """Nodes that are given an address in place of the name → that address."""

    def __enter__(self) -> "NetworkDeployment":
        self.name_server()
        self.set_delay(0, 0)
        self.start_gateway()
        super().__enter__()
        return self

    def stop(self) -> None:
        """End all processes at once, whatever they are waiting for."""
        for host in self.network.addresses:
            self.network.end_processes(host)
        super().stop()

    def start_gateway(self) -> None:
        proxy = [self.network.addresses["gateway"], self.port, NAME, self.delay_file]
        self.gateway = self.start("gateway", "python", PROXY, *proxy)
        wait_until(lambda: self.network.is_listening("gateway", self.port), "the gateway is there")

    def stop_gateway(self) -> None:
        """End the gateway, with all that it holds of its connections."""
        self.gateway.kill()
        self.gateway.wait()

    def name_server(self) -> None:
        """Let all hosts find the SuperLink where it is now, the slow node through the gateway."""
        for host in self.network.addresses:
            by_gateway = host == f"node-{SLOW_NODE}"
            address = self.network.addresses["gateway" if by_gateway else self.server]
            self.network.name_hosts(host, {NAME: address})

    @property
    def delay_file(self) -> Path:
        return self.folder / "delay"

    def set_delay(self, up: float, down: float) -> None:
        """Let the gateway hold for so long what goes to the SuperLink, and what comes from it."""
        self.write_delay(f"{up} {down}")

    def close_handshakes(self) -> None:
        """Let the gateway close every new connection in its TLS handshake, and cut the others."""
        self.stop_gateway()
        self.write_delay("")
        self.start_gateway()

    def write_delay(self, text: str) -> None:
        """Write the file of the gateway, which reads it at any moment, in one step."""
        new = self.delay_file.with_suffix(".new")
        new.write_text(text)
        new.replace(self.delay_file)

    def prefix(self, name: str) -> list[str]:
        return self.network.prefix(name if name in self.network.addresses else self.server)

    def is_listening(self) -> bool:
        return self.network.is_listening(self.server, self.port)

    def link_options(self) -> list[object]:
        options: list[object] = ["--host", "0.0.0.0", "--port", self.port]
        return [*options, *(["--database", self.folder / "link.db"] if self.database else [])]

    def link_host(self, node: int) -> str:
        return self.bare_addresses.get(node, NAME)

    def is_online(self, node: int) -> bool:
        """Return whether the SuperLink has lately heard of a node."""
        query = "SELECT online_until FROM node WHERE node_id = ?"
        return bool(self.ask_database(query, self.id_of(node))[0][0] > time.time())

    def has_fetched(self, node: int, round: int) -> bool:
        """Return whether a node has asked for its message of a round, and it was sent to it."""
        query = "SELECT delivered_at FROM message_ins WHERE dst_node_id = ? AND group_id = ?"
        return any(moment for (moment,) in self.ask_database(query, self.id_of(node), str(round)))

    def id_of(self, node: int) -> int:
        """Return the id that the SuperLink gave a node, as its database has it (signed)."""
        number = int(re.findall(r"SuperNode ID: (\d+)", self.log(f"node-{node}"))[-1])
        return number - 2**64 if number >= 2**63 else number

    def ask_database(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        connection = sqlite3.connect(f"file:{self.folder / 'link.db'}?mode=ro", uri=True)
        with contextlib.closing(connection):
            return connection.execute(query, values).fetchall()
