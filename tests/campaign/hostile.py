"""python -m campaign.hostile: seeded hostile inputs, a table of what became of them, and exit code
1 if any went wrong.

Everything is imported once, here; each input is read by a fork of this process, which must
therefore have no threads and never train anything itself.
"""

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot  # noqa: F401  (imported here once, for all the children)

from campaign import hostile_data, hostile_messages, hostile_runs, hostile_settings, sandbox
from campaign.processes import ForkedProcess
from campaign.results import CampaignResult, markdown_table, shuffle_kinds, write_results
from campaign.sandbox import BAD, REFUSED, TAKEN, Attack, SandboxedProcess, Stage, command
from fedwmsam.analysis import dynamics, flatness, landscape, theory  # noqa: F401
from fedwmsam.engine.provenance import PROVENANCE
from fedwmsam.page import page  # noqa: F401
from fedwmsam.report import plots  # noqa: F401

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TERM": "dumb"}
"""Threads would not survive the fork, and colours would be control characters in the output."""
JOBS = 2
"""Inputs that are read at the same time."""


@dataclass(frozen=True)
class InputKind:
    """A kind of hostile input: a function that puts one on its stage, and its weight."""

    make: Callable[[random.Random, Stage], Attack]
    weight: int
    """Number of inputs of this kind, relative to the others."""


KINDS = {
    "run: value in a text file": InputKind(hostile_runs.choose_value_attack, 110),
    "run: key in a text file": InputKind(hostile_runs.choose_key_attack, 20),
    "run: metrics and status": InputKind(hostile_runs.choose_column_attack, 45),
    "run: bytes of a file": InputKind(hostile_runs.choose_damage_attack, 25),
    "run: link, FIFO, 100 GB …": InputKind(hostile_runs.choose_special_attack, 45),
    "run: folder as a link": InputKind(hostile_runs.choose_folder_attack, 12),
    "run: planted where it writes": InputKind(hostile_runs.choose_planted_attack, 40),
    "run: forged checkpoint": InputKind(hostile_runs.choose_checkpoint_attack, 45),
    "run: other weights": InputKind(hostile_runs.choose_weights_attack, 12),
    "run: names code to import": InputKind(hostile_runs.choose_import_attack, 15),
    "run: claims": InputKind(hostile_runs.choose_claim_attack, 40),
    "run in a comparison": InputKind(hostile_runs.choose_comparison_folder_attack, 10),
    "data: .npz, .npy": InputKind(hostile_data.choose_array_attack, 20),
    "data: .csv": InputKind(hostile_data.choose_table_attack, 12),
    "data: .jsonl": InputKind(hostile_data.choose_text_attack, 12),
    "data: IDX, .gz": InputKind(hostile_data.choose_idx_attack, 18),
    "data: CIFAR's pickles": InputKind(hostile_data.choose_pickle_attack, 20),
    "data: pictures": InputKind(hostile_data.choose_picture_attack, 14),
    "configuration file": InputKind(hostile_settings.choose_configuration_attack, 40),
    "comparison file": InputKind(hostile_settings.choose_comparison_attack, 36),
    "reference vectors": InputKind(hostile_settings.choose_vectors_attack, 18),
    "message: introduction": InputKind(hostile_messages.choose_introduction_attack, 25),
    "message: answer": InputKind(hostile_messages.choose_reply_attack, 30),
    "message: evaluation": InputKind(hostile_messages.choose_evaluation_attack, 25),
}
LATER_KINDS = {"run: provenance": InputKind(hostile_runs.choose_provenance_attack, 40)}
"""Kinds that came later: their inputs have numbers behind those that are published."""
ALL_KINDS = KINDS | LATER_KINDS


def main() -> int:
    if any(os.environ.get(key) != value for key, value in ENVIRONMENT.items()):
        arguments = [sys.executable, "-m", "campaign.hostile", *sys.argv[1:]]
        os.execve(sys.executable, arguments, os.environ | ENVIRONMENT)
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a process with threads cannot fork"
    options = parse_options()
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hostile-", ignore_cleanup_errors=True) as name:
        make_references(Path(name) / "references")
        results = sorted(run_inputs(options, Path(name)), key=lambda result: result["input"])
    seconds = round(time.monotonic() - start)
    print(markdown_table(sort_by_kind(results), ("kind", "inputs"), (TAKEN, REFUSED, BAD)))
    for result in results:
        if result["outcome"] == BAD:
            print(f"- {describe(result)}")
    head = {"seed": options.seed, "inputs": len(results), "seconds": seconds}
    write_results(options.json, head, results)
    return int(any(result["outcome"] == BAD for result in results))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="campaign.hostile", description=__doc__)
    parser.add_argument("--inputs", type=int, default=sum(k.weight for k in ALL_KINDS.values()))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, metavar="NUMBER", help="repeat one input")
    parser.add_argument("--kinds", default="", help="only kinds that begin so: run, data, message")
    parser.add_argument(
        "--json", type=Path, default=Path("build/hostile.json"), help="where the results go"
    )
    parser.add_argument("--keep", type=Path, help="keep the folders of bad outcomes here")
    parser.add_argument("--seconds", type=float, default=sandbox.SECONDS, help="time for one input")
    return parser.parse_args()


def make_references(folder: Path) -> None:
    """Make the undisturbed runs, in forked processes."""
    folder.mkdir()
    for name, commands in hostile_runs.REFERENCE_COMMANDS.items():
        for arguments in commands:
            code = ForkedProcess(lambda words=arguments: run_in(folder, words)).wait()
            assert code == 0, f"{name} does not run at all"
    # A stranger who edits config.toml does not leave the digest that tells of it; one kind does.
    (folder / "fedwmsam" / PROVENANCE).rename(folder / PROVENANCE)
    for path in folder.glob(f"*/*/{PROVENANCE}"):
        path.unlink()


def run_in(folder: Path, arguments: str) -> None:
    """Run a command in a folder."""
    os.chdir(folder)
    command(*arguments.split())()


def run_inputs(options: argparse.Namespace, root: Path) -> Iterator[CampaignResult]:
    """Yield the result of each input, with several at the same time."""
    names = shuffle_kinds(KINDS, options.seed) + shuffle_kinds(LATER_KINDS, options.seed)
    kinds = {number: names[number % len(names)] for number in range(options.inputs)}
    numbers = [number for number, kind in kinds.items() if kind.startswith(options.kinds)]
    if options.only is not None:
        numbers = [options.only]
    running: list[tuple[CampaignResult, SandboxedProcess]] = []
    done = 0
    while numbers or running:
        while numbers and len(running) < JOBS:
            number = numbers.pop(0)
            turn = list(kinds.values())[:number].count(kinds[number])
            stage = Stage(root / str(number), root / "references", turn)
            running.append(start_input(number, kinds[number], options, stage))
        ended = [pair for pair in running if pair[1].poll() is not None]
        for result, process in ended:
            running.remove((result, process))
            yield finish_input(result, process, options)
            done += 1
            if result["outcome"] == BAD:
                print(describe(result), file=sys.stderr, flush=True)
            if done % 20 == 0:
                print(f"{done} inputs", file=sys.stderr, flush=True)
        time.sleep(0.005)


def start_input(
    number: int, kind: str, options: argparse.Namespace, stage: Stage
) -> tuple[CampaignResult, SandboxedProcess]:
    """Make an input, which depends on its number and the seed only, and have it read."""
    rng = random.Random(f"{options.seed} {number}")
    stage.set_up()
    attack = ALL_KINDS[kind].make(rng, stage)
    result = {"input": number, "kind": kind, "what": attack.description}
    return result, SandboxedProcess(attack, stage, options.seconds)


def finish_input(
    result: CampaignResult, process: SandboxedProcess, options: argparse.Namespace
) -> CampaignResult:
    """Return the result with its outcome; the folder stays only if it is to be kept."""
    seen = process.observe()
    outcome, reason = sandbox.judge(seen)
    result |= {
        "outcome": outcome,
        "seconds": round(seen.seconds, 1),
        "memory_mb": seen.memory >> 20,
    }
    if outcome == BAD:
        result["reason"] = reason
        if options.keep:
            options.keep.mkdir(parents=True, exist_ok=True)
            shutil.move(process.stage.folder, options.keep / str(result["input"]))
    shutil.rmtree(process.stage.folder, ignore_errors=True)
    return result


def describe(result: CampaignResult) -> str:
    """Return on one line what was bad."""
    return f"{result['input']}: {result['kind']}: {result['what']}: {result['reason']}"


def sort_by_kind(results: list[CampaignResult]) -> list[CampaignResult]:
    """Return the results in the order of the kinds."""
    order = list(ALL_KINDS)
    return sorted(results, key=lambda result: order.index(result["kind"]))


if __name__ == "__main__":
    sys.exit(main())
