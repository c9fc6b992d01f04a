"""Several copies of one contender at once, as one contender: every command goes to all of them.

    python together.py 2 bare.py --share 2

Each copy finds its number (BENCH_RANK) and a free port (BENCH_PORT) in the environment. Steps are
summed; the wall time is that of the slowest.
"""

import os
import socket
import sys
from pathlib import Path

from protocol import ContenderProcess, serve


def main() -> None:
    count, script, *arguments = sys.argv[1:]
    command = [sys.executable, Path(__file__).with_name(script), *arguments]
    variables = os.environ | {"BENCH_PORT": str(free_port())}
    copies = [
        ContenderProcess(command, variables | {"BENCH_RANK": str(rank)}, None)
        for rank in range(int(count))
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
        for copy in copies:  # a copy that waits for one that has failed would wait for long
            copy.close(timeout=3)


def free_port() -> int:
    with socket.create_server(("localhost", 0)) as server:
        return server.getsockname()[1]


if __name__ == "__main__":
    main()
