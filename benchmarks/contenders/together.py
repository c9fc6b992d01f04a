"""Several copies of one contender at once, as one contender: every line goes to all of them.

    python together.py 2 bare.py --share 2

Each learns its number (BENCH_RANK) and a port that is free (BENCH_PORT) from the environment. Steps are summed; the
wall time is that of the slowest.
"""

import os
import socket
import sys
from pathlib import Path

from protocol import Contender, serve


def main() -> None:
    count, script, *rest = sys.argv[1:]
    command = [sys.executable, Path(__file__).with_name(script), *rest]
    known = os.environ | {"BENCH_PORT": str(free_port())}
    copies = [
        Contender(command, known | {"BENCH_RANK": str(rank)}, None) for rank in range(int(count))
    ]

    def run(rounds: int) -> int:
        for copy in copies:
            copy.send(f"go {rounds}")
        return sum(int(copy.receive()["steps"]) for copy in copies)

    try:
        for copy in copies:
            copy.receive()
        serve(run, lambda: copies[0].ask("accuracy")["accuracy"])
    finally:
        for copy in copies:  # one that waits for another that has failed would wait for long
            copy.close(patience=3)


def free_port() -> int:
    with socket.create_server(("localhost", 0)) as server:
        return server.getsockname()[1]


if __name__ == "__main__":
    main()
