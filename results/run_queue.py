"""Work through the runs that results/plans describes and nobody has made yet.

    python results/run_queue.py FOLDER [--data-dir DIR] [--kept RESULTS] [--jobs 2]
    python results/run_queue.py FOLDER --list         # how far it is

Several processes take one run each, at low priority; right after a run ends its flatness is measured and all that is
kept of it goes to FOLDER/packed, from where `python results/store.py FOLDER/packed` takes it. Stopped or killed, the
same command goes on from the last checkpoints; what RESULTS keeps already is not made again. CIFAR's files are looked
for in DIR.

The runs take days and must all be made by the same code, while the code goes on: use a worktree, and a FOLDER outside.

    git worktree add --detach ~/queue/tree COMMIT
    OMP_NUM_THREADS=1 python ~/queue/tree/results/run_queue.py ~/queue --data-dir ~/data --kept results &
"""

import argparse
import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import store

from fedwmsam.analysis.flatness import FlatnessConfig, SampleConfig, run_flatness
from fedwmsam.analysis.saved_run import SavedRun
from fedwmsam.comparison.grid import RunSpec, config_fingerprint, make_grid
from fedwmsam.comparison.run_worker import open_run_folder
from fedwmsam.errors import InputError
from fedwmsam.experiment.experiment import prepare, with_absolute_paths
from fedwmsam.report.runs import read_run
from fedwmsam.termination import install_sigterm_handler

PLANS = Path(__file__).resolve().parent / "plans"
NICE = 15
TAIL = 10
"""Evaluations whose mean chooses a step size."""
PAUSE = 30
"""Seconds until a process that has nothing to do looks again: a choice may wait for another's run."""
LITTLE = FlatnessConfig(eigenvalues=1, probes=10, rho=(0.05,), adaptive_rho=(0.5,))
LEAST = FlatnessConfig(eigenvalues=1, probes=3, rho=(), adaptive_rho=())
"""A convolution's Hessian takes a minute for λ₁ alone."""


@dataclass(frozen=True)
class Part:
    """A comparison file, and how the flatness of its runs is measured."""

    plan: str
    wanted: FlatnessConfig = LITTLE
    clients: int = 0
    """How many are measured one by one."""
    chosen_by: str | None = None
    """Another plan: each method has the step size that was best there, on validation data."""

    def members(self, packed: Path) -> list[RunSpec]:
        """Its runs; those of a method whose step size is not chosen yet are missing."""
        return members_of(self.plan, best_steps(self.chosen_by, packed) if self.chosen_by else None)


PARTS = (
    Part("tuning-step-size.toml"),
    Part("tuning-decay.toml", chosen_by="tuning-step-size.toml"),
    Part("tuning-radius.toml", chosen_by="tuning-step-size.toml"),
    Part("eight-seeds.toml", clients=5),
    Part("eight-seeds-tuned.toml", clients=5, chosen_by="tuning-step-size.toml"),
    Part("cifar-10-step-size.toml", LEAST),
    Part("cifar-10-seeds.toml", LEAST),
    Part("cifar-10-seeds-tuned.toml", LEAST, chosen_by="cifar-10-step-size.toml"),
    Part("cifar-100.toml", LEAST),
)


def members_of(plan: str, steps: dict[str, float] | None = None) -> list[RunSpec]:
    """A plan's runs; with steps, those of the methods that are there, each with its step size."""
    content = tomllib.loads((PLANS / plan).read_text())
    if steps is not None:
        methods = [method for method in content.pop("methods") if method in steps]
        if not methods:
            return []
        content["variants"] = [{"method": method, "lr": steps[method]} for method in methods]
    return make_grid(content, {}).members()


def best_steps(plan: str, packed: Path) -> dict[str, float]:
    """The step size of each method all of whose runs are over: best by the mean, over the seeds, of the last validation
    accuracies. A run that diverged counts for nothing; of equals the smaller step wins."""
    known = {name.rpartition("-")[2]: entry for name, entry in store.entries(packed).items()}
    scores: dict[str, dict[float, list[float]]] = {}
    waiting = set()
    for member in members_of(plan):
        entry = known.get(config_fingerprint(member.config))
        if entry is None:
            waiting.add(member.config.method)
        else:
            by_step = scores.setdefault(member.config.method, {})
            by_step.setdefault(member.config.lr, []).append(validation_score(entry, packed))
    return {
        method: min(by_step, key=lambda step: (-mean(by_step[step]), step))
        for method, by_step in scores.items()
        if method not in waiting
    }


def validation_score(entry: dict[str, Any], packed: Path) -> float:
    if entry["status"] != "completed":
        return 0.0
    rows = store.rows_of(entry, packed)
    return mean(
        [row["validation_accuracy"] for row in rows if "validation_accuracy" in row][-TAIL:]
    )


@dataclass(frozen=True)
class Queue:
    folder: Path
    data_dir: Path | None

    @property
    def packed(self) -> Path:
        return self.folder / "packed"

    def done(self) -> set[str]:
        """The fingerprints of the runs that are packed."""
        return {name.rpartition("-")[2] for name in store.entries(self.packed)}

    def open_members(self) -> list[tuple[Part, RunSpec]]:
        """What is to be done, each run once, in the order of the parts."""
        done = self.done()
        found: dict[str, tuple[Part, RunSpec]] = {}
        for part in PARTS:
            for member in part.members(self.packed):
                found.setdefault(config_fingerprint(member.config), (part, member))
        return [task for key, task in found.items() if key not in done]

    def work(self) -> None:
        """Until nothing is left that this process could do."""
        failed: set[str] = set()
        while left := [
            task for task in self.open_members() if config_fingerprint(task[1].config) not in failed
        ]:
            for part, member in left:
                key = config_fingerprint(member.config)
                with self.claimed(key) as mine:
                    if mine and key not in self.done():
                        try:
                            self.carry_out(part, member)
                        except InputError as error:
                            failed.add(key)
                            tell(f"{member.folder}: {error}")
                        break  # a choice may have been made meanwhile, and its runs come first
            else:
                time.sleep(PAUSE)

    def carry_out(self, part: Part, member: RunSpec) -> None:
        begun = time.monotonic()
        path = member.place(self.folder / "runs")
        data_dir = (
            str(self.data_dir)
            if self.data_dir and member.config.dataset.startswith("cifar")
            else None
        )
        experiment = prepare(with_absolute_paths(replace(member.config, data_dir=data_dir)))
        tell(f"{path.name}: begins")
        status = experiment.run(open_run_folder(experiment, path)).status
        if status == "completed":
            self.measure(part, path)
        with locked(self.folder / "packed.lock"):
            store.add([read_run(path)], self.packed)
            store.add_analyses([read_run(path)], self.packed)
        shutil.rmtree(
            path / "checkpoints", ignore_errors=True
        )  # the largest part, and needed no more
        tell(f"{path.name}: {status}, {(time.monotonic() - begun) / 60:.1f} min")

    def measure(self, part: Part, path: Path) -> None:
        saved = SavedRun(path)
        for averaged in (False, True) if saved.experiment.config.twin is not None else (False,):
            scope = SampleConfig(clients=part.clients)
            run_flatness(
                saved,
                saved.rounds("last"),
                part.wanted,
                scope,
                path / "analysis",
                averaged=averaged,
            )

    @contextlib.contextmanager
    def claimed(self, key: str) -> Iterator[bool]:
        """Whether this process may do that run: no other is at it."""
        place = self.folder / "claims" / key
        place.parent.mkdir(exist_ok=True)
        with place.open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True

    def show(self) -> None:
        done = self.done()
        for part in PARTS:
            members = part.members(self.packed)
            finished = sum(config_fingerprint(member.config) in done for member in members)
            waiting = f", where {part.chosen_by} has chosen" if part.chosen_by else ""
            print(f"{part.plan}: {finished} of {len(members)} runs{waiting}")


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def tell(text: str) -> None:
    print(time.strftime("%d %H:%M"), text, flush=True)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "folder", type=Path, help="where runs and packed runs go; it outlives the checkout"
    )
    parser.add_argument("--data-dir", type=Path, help="where CIFAR's files are")
    parser.add_argument(
        "--kept", type=Path, default=store.HERE, help="results that need not be made again"
    )
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time (default: 2)")
    parser.add_argument("--list", action="store_true", help="say how far it is, and stop")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    queue = Queue(given.folder.resolve(), given.data_dir and given.data_dir.resolve())
    queue.folder.mkdir(parents=True, exist_ok=True)
    install_sigterm_handler()
    if given.one:
        with contextlib.suppress(KeyboardInterrupt):  # the run has saved its last round
            queue.work()
        return
    with locked(queue.folder / "packed.lock"):
        store.merge(given.kept, queue.packed)
    if given.list:
        queue.show()
        return
    os.nice(NICE)
    alone = (queue.folder / "queue.lock").open("a")
    try:
        fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(f"Another queue is at work in {queue.folder}.")
    command = [sys.executable, __file__, *arguments, "--one"]
    # They hold the lock, too: where only this process was killed, they work on, and no second queue comes between.
    helpers = [subprocess.Popen(command, pass_fds=[alone.fileno()]) for _ in range(given.jobs)]
    try:
        codes = [helper.wait() for helper in helpers]
    except KeyboardInterrupt:
        for helper in helpers:
            helper.terminate()  # each saves its last round
        codes = [helper.wait() for helper in helpers]
    queue.show()
    sys.exit(max(codes))


if __name__ == "__main__":
    main(sys.argv[1:])
