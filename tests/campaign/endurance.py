"""python -m campaign.endurance: ten thousand rounds of a tiny problem; memory, open files and time
must not run away.

Each round's numbers stay in memory, for callbacks and for the result: that much a run may grow, and
no more.
"""

import argparse
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

import fedwmsam
from fedwmsam.engine.run import Progress

BYTES_PER_ROUND = 2048
"""Bytes that a round may leave behind; its metrics take about 1,300 as Python objects."""
SLACK = 4 << 20
"""Bytes by which memory may differ without meaning anything: the allocator's own."""


@dataclass(frozen=True)
class Sample:
    """The resources that the process uses after some round."""

    round: int
    memory: int
    """Bytes in RAM."""
    open_files: int
    cpu_seconds: float
    folder: int
    """Bytes in the folder of the checkpoints."""


def train_and_sample(rounds: int, every: int, folder: Path) -> list[Sample]:
    """Train many rounds and return a sample of every few of them."""
    samples: list[Sample] = []

    def sample(progress: Progress) -> None:
        if progress.record["round"] % every == 0:
            samples.append(take_sample(progress.record["round"], folder))

    generator = torch.Generator().manual_seed(0)
    clients = [
        (torch.randn(8, 4, generator=generator) + k, torch.randint(3, (8,), generator=generator))
        for k in range(3)
    ]
    fedwmsam.fit(
        nn.Linear(4, 3),
        clients,
        test=clients[0],
        rounds=rounds,
        participation=1.0,
        local_epochs=1,
        batch_size=8,
        memory_budget=0,
        run_folder=folder,
        callbacks=[sample],
    )
    return samples


def take_sample(round: int, folder: Path) -> Sample:
    """Return the resources that this process uses now."""
    memory = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    saved = sum(path.stat().st_size for path in (folder / "checkpoints").iterdir())
    open_files = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    return Sample(round, memory, open_files, time.process_time(), saved)


def find_growth(samples: list[Sample]) -> str:
    """Return what has grown too much, or an empty text.

    The first sample is taken when everything has been allocated once.
    """
    first = samples[0]
    last = samples[-1]
    growth = last.memory - first.memory
    rounds = last.round - first.round
    if last.open_files > first.open_files:
        return f"open files grew from {first.open_files} to {last.open_files}"
    if growth > SLACK + BYTES_PER_ROUND * rounds:
        return f"memory grew by {growth / rounds:.0f} bytes a round"
    if last.folder > 2 * first.folder:
        return f"the checkpoints grew from {first.folder} to {last.folder} bytes"
    return ""


def markdown_table(samples: list[Sample]) -> str:
    """Return the samples as a table."""
    lines = [
        "| round | memory, MB | open files | checkpoints, kB | CPU s since the row before |",
        "|---|---|---|---|---|",
    ]
    for before, now in zip([samples[0], *samples], samples, strict=False):
        seconds = f"{now.cpu_seconds - before.cpu_seconds:.1f}" if now is not before else "–"
        size = f"{now.memory / 1e6:.1f} | {now.open_files} | {now.folder / 1e3:.1f}"
        lines.append(f"| {now.round:,} | {size} | {seconds} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="campaign.endurance", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--every", type=int, default=1000, help="rounds from one look to the next")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="endurance-") as folder:
        samples = train_and_sample(options.rounds, options.every, Path(folder) / "run")
    print(markdown_table(samples))
    growth = find_growth(samples)
    if growth:
        print(f"Error: {growth}.", file=sys.stderr)
    return int(bool(growth))


if __name__ == "__main__":
    sys.exit(main())
