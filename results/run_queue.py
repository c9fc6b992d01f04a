"""Work through the runs that results/plans describes and nobody has made yet.

    python results/run_queue.py FOLDER [--data-dir DIR] [--kept RESULTS] [--jobs 2]
    python results/run_queue.py FOLDER --only sharpness-alpha.toml    # the runs of some plans
    python results/run_queue.py FOLDER --list         # prints how many runs are finished

Several processes execute one run each, at low priority. When a run has ended, its flatness is
measured and what is kept of it is packed in FOLDER/packed, from where `python results/store.py
FOLDER/packed` takes it over. When it was stopped or killed, the same command continues from the
last checkpoints; runs that are packed in RESULTS are not made again. CIFAR's files are expected in
DIR.

The runs take days and must all be made by the same code, while the code is developed further. So
use a worktree, and a FOLDER outside of it:

    git worktree add --detach ~/queue/tree COMMIT
    export OMP_NUM_THREADS=1
    python ~/queue/tree/results/run_queue.py ~/queue --data-dir ~/data --kept results &
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
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean
from typing import Any

import store

from fedwmsam.analysis.flatness import FlatnessConfig, SampleConfig, run_flatness
from fedwmsam.analysis.saved_run import SavedRun
from fedwmsam.comparison.grid import RunSpec, config_fingerprint, make_grid
from fedwmsam.comparison.worker import open_run_folder
from fedwmsam.errors import InputError
from fedwmsam.experiment.experiment import prepare, with_absolute_paths
from fedwmsam.experiment.trust import Trust
from fedwmsam.report.runs import read_run
from fedwmsam.termination import install_handlers

PLANS = Path(__file__).resolve().parent / "plans"
NICENESS = 15
"""Niceness of the queue's processes; the higher it is, the lower is their priority."""
TAIL = 10
"""Number of last evaluations whose mean decides on a step size."""
PAUSE = 30
"""Seconds until a process that has nothing to do looks again for runs to execute.

The choice of a step size may wait for a run of another process.
"""
SHORT_ANALYSIS = FlatnessConfig(eigenvalues=1, probes=10, rho=(0.05,), adaptive_rho=(0.5,))
SHORTEST_ANALYSIS = FlatnessConfig(eigenvalues=1, probes=3, rho=(), adaptive_rho=())
"""For convolutional networks: their Hessian takes a minute for λ₁ alone."""


@dataclass(frozen=True)
class QueuedPlan:
    """A plan of runs, and how the flatness of these runs is measured."""

    plan: str
    """Name of a comparison file in results/plans."""
    analysis: FlatnessConfig = SHORT_ANALYSIS
    clients: int = 0
    """Number of clients whose flatness is measured one by one."""
    chosen_by: str | None = None
    """Another plan, which tunes: each method has the step size that was best on validation data."""

    def run_specs(self, packed: Path) -> list[RunSpec]:
        """Return the runs of the plan, without methods whose step size is not chosen yet."""
        steps = best_steps(self.chosen_by, packed) if self.chosen_by else None
        return load_run_specs(self.plan, steps)


QUEUED_PLANS = (
    QueuedPlan("tuning-step-size.toml"),
    QueuedPlan("tuning-decay.toml", chosen_by="tuning-step-size.toml"),
    QueuedPlan("tuning-radius.toml", chosen_by="tuning-step-size.toml"),
    QueuedPlan("eight-seeds.toml", clients=5),
    QueuedPlan("eight-seeds-tuned.toml", clients=5, chosen_by="tuning-step-size.toml"),
    QueuedPlan("cifar-10-step-size.toml", SHORTEST_ANALYSIS),
    QueuedPlan("cifar-10-seeds.toml", SHORTEST_ANALYSIS),
    QueuedPlan("cifar-10-seeds-tuned.toml", SHORTEST_ANALYSIS, chosen_by="cifar-10-step-size.toml"),
    QueuedPlan("cifar-100.toml", SHORTEST_ANALYSIS),
    QueuedPlan("all-methods.toml"),
    QueuedPlan("sharpness-alpha.toml"),
    QueuedPlan("sharpness-radius.toml"),
    QueuedPlan("candidates-screening.toml"),
    QueuedPlan("candidates-second.toml"),
    QueuedPlan("candidates-fresh.toml", clients=5),
    QueuedPlan("cifar-10-resnet18.toml", SHORTEST_ANALYSIS),
    QueuedPlan("ablation.toml"),
    QueuedPlan("skew.toml", chosen_by="tuning-step-size.toml"),
    QueuedPlan("epochs.toml"),
    QueuedPlan("shakespeare.toml"),
)
"""The plans in the order in which their runs are executed."""


def load_run_specs(plan: str, steps: dict[str, float] | None = None) -> list[RunSpec]:
    """Return the runs of a plan.

    With `steps`, these are the runs of the methods in it, each with its step size.
    """
    content = tomllib.loads((PLANS / plan).read_text())
    if steps is not None:
        methods = [method for method in content.pop("methods") if method in steps]
        if not methods:
            return []
        content["variants"] = [{"method": method, "lr": steps[method]} for method in methods]
    return make_grid(content, {}).run_specs()


def best_steps(plan: str, packed: Path) -> dict[str, float]:
    """Return the best step size of each method all of whose runs are packed.

    The best one has the largest mean, over the seeds, of the last validation accuracies. A run that
    diverged counts as zero; of equal ones the smaller step size is chosen.
    """
    entries = {name.rpartition("-")[2]: entry for name, entry in store.read_index(packed).items()}
    scores: dict[str, dict[float, list[float]]] = {}
    waiting = set()
    for spec in load_run_specs(plan):
        entry = entries.get(config_fingerprint(spec.config))
        if entry is None:
            waiting.add(spec.config.method)
        else:
            by_step = scores.setdefault(spec.config.method, {})
            by_step.setdefault(spec.config.lr, []).append(validation_score(entry, packed))
    return {
        method: best_step(by_step) for method, by_step in scores.items() if method not in waiting
    }


def best_step(scores: Mapping[float, Sequence[float]]) -> float:
    """Return the step size with the largest mean score, and of equal ones the smallest."""
    return min(scores, key=lambda step: (-mean(scores[step]), step))


def validation_score(entry: dict[str, Any], packed: Path) -> float:
    """Return the mean of a packed run's last validation accuracies, and 0 if it diverged."""
    if entry["status"] != "completed":
        return 0.0
    rows = store.read_rounds(entry, packed)
    accuracies = [row["validation_accuracy"] for row in rows if "validation_accuracy" in row]
    return mean(accuracies[-TAIL:])


@dataclass(frozen=True)
class Queue:
    """The runs of all plans, and which of them are finished; several processes can work on it."""

    folder: Path
    data_dir: Path | None
    plans: Sequence[QueuedPlan] = field(default_factory=lambda: QUEUED_PLANS)

    @property
    def packed(self) -> Path:
        """Return the folder of the packed runs."""
        return self.folder / "packed"

    def packed_fingerprints(self) -> set[str]:
        """Return the fingerprints of the runs that are packed."""
        return {name.rpartition("-")[2] for name in store.read_index(self.packed)}

    def open_runs(self, excluded: Collection[str] = ()) -> list[tuple[QueuedPlan, RunSpec]]:
        """Return the runs that are not packed, each one once, in the order of the plans.

        Those with a fingerprint in `excluded` are left out.
        """
        packed = self.packed_fingerprints()
        runs: dict[str, tuple[QueuedPlan, RunSpec]] = {}
        for plan in self.plans:
            for spec in plan.run_specs(self.packed):
                fingerprint = config_fingerprint(spec.config)
                if fingerprint not in packed and fingerprint not in excluded:
                    runs.setdefault(fingerprint, (plan, spec))
        return list(runs.values())

    def work(self) -> None:
        """Execute runs until none is left that this process could execute."""
        failed: set[str] = set()
        while runs := self.open_runs(failed):
            for plan, spec in runs:
                fingerprint = config_fingerprint(spec.config)
                with self.claim(fingerprint) as is_claimed:
                    if is_claimed and fingerprint not in self.packed_fingerprints():
                        try:
                            self.run_and_pack(plan, spec)
                        except InputError as error:
                            failed.add(fingerprint)
                            log(f"{spec.folder_name}: {error}")
                        break  # a step size may have been chosen meanwhile: its runs come first
            else:
                time.sleep(PAUSE)

    def run_and_pack(self, plan: QueuedPlan, spec: RunSpec) -> None:
        """Execute a run, or continue it, then measure its flatness and pack it."""
        started = time.monotonic()
        path = spec.find_folder(self.folder / "runs")
        data_dir = None
        if self.data_dir and spec.config.dataset.startswith("cifar"):
            data_dir = str(self.data_dir)
        experiment = prepare(with_absolute_paths(replace(spec.config, data_dir=data_dir)))
        log(f"{path.name}: begins")
        status = experiment.run(open_run_folder(experiment, path)).status
        if status == "completed":
            measure_flatness(plan, path)
        with exclusive_lock(self.folder / "packed.lock"):
            store.pack_runs([read_run(path)], self.packed)
            store.pack_analyses([read_run(path)], self.packed)
        # Checkpoints are the largest files of a run, and nothing needs them any more.
        shutil.rmtree(path / "checkpoints", ignore_errors=True)
        log(f"{path.name}: {status}, {(time.monotonic() - started) / 60:.1f} min")

    @contextlib.contextmanager
    def claim(self, fingerprint: str) -> Iterator[bool]:
        """Yield whether this process may execute that run, which it may if no other does."""
        path = self.folder / "claims" / fingerprint
        path.parent.mkdir(exist_ok=True)
        with path.open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True

    def print_progress(self) -> None:
        """Print for each plan how many of its runs are packed."""
        packed = self.packed_fingerprints()
        for plan in self.plans:
            specs = plan.run_specs(self.packed)
            finished = sum(config_fingerprint(spec.config) in packed for spec in specs)
            waiting = f", where {plan.chosen_by} has chosen" if plan.chosen_by else ""
            print(f"{plan.plan}: {finished} of {len(specs)} runs{waiting}")


def measure_flatness(plan: QueuedPlan, path: Path) -> None:
    """Measure the flatness of a run's last model, and of its averaged model if it has one."""
    saved = SavedRun(path, Trust(everything=True))  # the plans name methods of candidates.py
    has_average = saved.experiment.config.twin is not None
    for averaged in (False, True) if has_average else (False,):
        run_flatness(
            saved,
            saved.select_rounds("last"),
            plan.analysis,
            SampleConfig(clients=plan.clients),
            path / "analysis",
            averaged=averaged,
        )


@contextlib.contextmanager
def exclusive_lock(path: Path) -> Iterator[None]:
    """Hold a lock while the block is executed; wait for it if another process holds it."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def log(text: str) -> None:
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
    parser.add_argument(
        "--only",
        action="append",
        metavar="PLAN",
        choices=[plan.plan for plan in QUEUED_PLANS],
        help="a plan whose runs are executed; repeatable (default: all)",
    )
    parser.add_argument("--list", action="store_true", help="say how far it is, and stop")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    plans = [plan for plan in QUEUED_PLANS if not options.only or plan.plan in options.only]
    queue = Queue(options.folder.resolve(), options.data_dir and options.data_dir.resolve(), plans)
    queue.folder.mkdir(parents=True, exist_ok=True)
    install_handlers(can_be_interrupted=True)
    if options.one:
        with contextlib.suppress(KeyboardInterrupt):  # the run has saved its last round
            queue.work()
        return
    with exclusive_lock(queue.folder / "packed.lock"):
        store.merge(options.kept, queue.packed)
    if options.list:
        queue.print_progress()
        return
    os.nice(NICENESS)
    lock = (queue.folder / "queue.lock").open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(f"Another queue is at work in {queue.folder}.")
    command = [sys.executable, __file__, *arguments, "--one"]
    # The workers hold the lock, too: if only this process is killed they continue, and no second
    # queue can start.
    workers = [subprocess.Popen(command, pass_fds=[lock.fileno()]) for _ in range(options.jobs)]
    try:
        codes = [worker.wait() for worker in workers]
    except KeyboardInterrupt:
        for worker in workers:
            worker.terminate()  # each saves its last round
        codes = [worker.wait() for worker in workers]
    queue.print_progress()
    sys.exit(max(codes))


if __name__ == "__main__":
    main(sys.argv[1:])
