"""Several copies of one contender at once, as one contender: every line goes to all of them.

    python together.py 2 bare.py --share 2

Each learns its number from the environment (BENCH_RANK). Steps are summed; the wall time is that of the slowest.
"""

import os
import sys
from pathlib import Path

from protocol import Contender, serve


def main() -> None:
    count, script, *rest = sys.argv[1:]
    command = [sys.executable, Path(__file__).with_name(script), *rest]
    copies = [Contender(command, os.environ | {"BENCH_RANK": str(rank)}, None) for rank in range(int(count))]
    for copy in copies:
        copy.receive()

    def run(rounds: int) -> int:
        for copy in copies:
            copy.send(f"go {rounds}")
        return sum(int(copy.receive()["steps"]) for copy in copies)

    serve(run, lambda: copies[0].ask("accuracy")["accuracy"])
    for copy in copies:
        copy.close()


if __name__ == "__main__":
    main()
