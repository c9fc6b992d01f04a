"""A whole Flower deployment on this machine: one server, three clients, each a process of its own.

    python examples/flower/loopback.py                  # the app that `fedwmsam flower new` writes
    python examples/flower/loopback.py --app hospitals  # yours

Needs `pip install 'fedwmsam[flower]'`. Nothing listens beyond 127.0.0.1 and nothing is written
outside a temporary folder; processes that the programs started themselves end a few seconds after
them. It does not use TLS, so it is for a trial on one machine only; README.md says where the rest
is explained.
"""

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

CLIENTS = 3
ROUNDS = 3
TIMEOUT = 600
"""Seconds after which the example gives up."""
PROGRAMS = Path(sys.executable).parent


def main() -> None:
    parser = argparse.ArgumentParser(description="Server and three clients on 127.0.0.1.")
    parser.add_argument(
        "--app", type=Path, help="folder of an app; without it a new one is written"
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        app = parser.parse_args().app or new_app(folder)
        os.environ.update(
            FLWR_HOME=name,
            FLWR_TELEMETRY_ENABLED="0",
            FLWR_DISABLE_UPDATE_CHECK="1",
            NO_PROXY="*",
            FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION="1",
            OMP_NUM_THREADS="1",
            # Flower's programs start each other by name.
            PATH=f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}",
        )
        train(app, folder)
        lines = (folder / "run" / "metrics.jsonl").read_text("utf-8").splitlines()
        print_table([json.loads(line) for line in lines])


def train(app: Path, folder: Path) -> None:
    """Start the server and the clients, and run the app until the training ends."""
    superlink = f"127.0.0.1:{free_port()}"
    (folder / "config.toml").write_text(
        f'[superlink.here]\naddress = "{superlink}"\ninsecure = true\n', "utf-8"
    )
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(
            start(folder, "flower-superlink", "--insecure", *address_options(superlink))
        )
        wait_until(lambda: is_listening(superlink), "the server listens", server, folder)
        for client in range(CLIENTS):
            options = ["--insecure", "--superlink", superlink]
            options += address_options(f"127.0.0.1:{free_port()}")
            options += ["--node-config", f"partition-id={client} num-partitions={CLIENTS}"]
            stack.enter_context(start(folder, "flower-supernode", *options))
        settings = f"clients={CLIENTS} rounds={ROUNDS} run-folder='{folder / 'run'}'"
        call("flwr", "run", str(app), "here", "--run-config", settings)
        wait_until((folder / "run" / "summary.json").exists, "the training ends", server, folder)


def new_app(folder: Path) -> Path:
    """Write a new app and return its folder."""
    call("fedwmsam", "flower", "new", str(folder / "app"))
    return folder / "app"


def call(program: str, *arguments: str) -> None:
    """Run one of the programs of this environment and wait for it."""
    subprocess.run([PROGRAMS / program, *arguments], check=True)


@contextlib.contextmanager
def start(folder: Path, program: str, *arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a program in the background while the block is executed; its output goes to a file."""
    with (folder / f"{program}.log").open("ab") as log:
        process = subprocess.Popen([PROGRAMS / program, *arguments], stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def address_options(address: str) -> list[str]:
    host, _, port = address.partition(":")
    return ["--host", host, "--port", port]


def free_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return int(unused.getsockname()[1])


def is_listening(address: str) -> bool:
    """Return whether a program accepts connections at this address."""
    host, _, port = address.partition(":")
    with socket.socket() as connection:
        return connection.connect_ex((host, int(port))) == 0


def wait_until(
    condition: Callable[[], bool], what: str, server: "subprocess.Popen[bytes]", folder: Path
) -> None:
    """Wait until the condition holds; exit with the logs if the server ends or time is over."""
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        if time.monotonic() > deadline or server.poll() is not None:
            logs = "\n".join(
                path.read_text("utf-8", "replace")[-2000:] for path in sorted(folder.glob("*.log"))
            )
            raise SystemExit(f"Waited until {what}, in vain.\n{logs}")
        time.sleep(0.5)


def print_table(rows: list[dict[str, float]]) -> None:
    """Print the metrics of all rounds."""
    table = Table("round", "clients that answered", "MB down", "MB up", "accuracy")
    for row in rows:
        sizes = (f"{row[name] / 1e6:.2f}" for name in ("bytes_down", "bytes_up"))
        table.add_row(str(row["round"]), str(row["cohort"]), *sizes, f"{row['accuracy']:.3f}")
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
