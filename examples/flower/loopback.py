"""A whole Flower deployment on this machine: one server, three clients, each a process of its own.

    python examples/flower/loopback.py                  # the app that `fedwmsam flower new` writes
    python examples/flower/loopback.py --app hospitals  # yours

Needs `pip install 'fedwmsam[flower]'`. Nothing listens beyond 127.0.0.1 and nothing is written outside a temporary
folder; what the programs started themselves ends a few seconds after them. Without TLS: for a try on one machine only;
README.md says where the rest is told.
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

CLIENTS, ROUNDS, PATIENCE = 3, 3, 600
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
            PATH=f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}",  # Flower's programs start each other by name
        )
        link = f"127.0.0.1:{free_port()}"
        (folder / "config.toml").write_text(
            f'[superlink.here]\naddress = "{link}"\ninsecure = true\n'
        )
        with contextlib.ExitStack() as running:
            server = running.enter_context(
                process(folder, "flower-superlink", "--insecure", *at(link))
            )
            wait_until(lambda: answers(link), "the server listens", server, folder)
            for client in range(CLIENTS):
                whose = f"partition-id={client} num-partitions={CLIENTS}"
                place = [
                    "--superlink",
                    link,
                    *at(f"127.0.0.1:{free_port()}"),
                    "--node-config",
                    whose,
                ]
                running.enter_context(process(folder, "flower-supernode", "--insecure", *place))
            settings = f"clients={CLIENTS} rounds={ROUNDS} run-folder='{folder / 'run'}'"
            call("flwr", "run", str(app), "here", "--run-config", settings)
            wait_until(
                (folder / "run" / "summary.json").exists, "the training ends", server, folder
            )
        show(
            [
                json.loads(line)
                for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()
            ]
        )


def new_app(folder: Path) -> Path:
    call("fedwmsam", "flower", "new", str(folder / "app"))
    return folder / "app"


def call(program: str, *arguments: str) -> None:
    subprocess.run([PROGRAMS / program, *arguments], check=True)


@contextlib.contextmanager
def process(folder: Path, program: str, *arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Runs beside until the block ends, and then ends what it started itself; what it says goes to a file."""
    with (folder / f"{program}.log").open("ab") as log:
        started = subprocess.Popen([PROGRAMS / program, *arguments], stdout=log, stderr=log)
    try:
        yield started
    finally:
        started.terminate()
        started.wait()


def at(address: str) -> list[str]:
    host, _, port = address.partition(":")
    return ["--host", host, "--port", port]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def answers(address: str) -> bool:
    host, _, port = address.partition(":")
    with socket.socket() as attempt:
        return attempt.connect_ex((host, int(port))) == 0


def wait_until(
    happened: Callable[[], bool], what: str, server: "subprocess.Popen[bytes]", folder: Path
) -> None:
    deadline = time.monotonic() + PATIENCE
    while not happened():
        if time.monotonic() > deadline or server.poll() is not None:
            logs = "\n".join(
                path.read_text(errors="replace")[-2000:] for path in sorted(folder.glob("*.log"))
            )
            raise SystemExit(f"Waited until {what}, in vain.\n{logs}")
        time.sleep(0.5)


def show(rows: list[dict[str, float]]) -> None:
    table = Table("round", "clients that answered", "MB down", "MB up", "accuracy")
    for row in rows:
        sizes = (f"{row[name] / 1e6:.2f}" for name in ("bytes_down", "bytes_up"))
        table.add_row(str(row["round"]), str(row["cohort"]), *sizes, f"{row['accuracy']:.3f}")
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
