"""Mutation testing: mutmut changes one thing at a time in the code below, and the tests beside it must notice.

    python benchmarks/mutation.py [GROUP …] [--children 1]

A group has a folder of its own in build/mutation, in which a run that was stopped goes on and only functions that
changed are tried again. `mutmut results` and `mutmut show NAME`, called there, tell what survived.
"""

import argparse
import json
import os
import subprocess
import sys
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
METHODS, FIT = "tests/methods", "tests/test_fit.py"
COSTS = f"{METHODS}/test_conformance.py::test_declared_costs_are_the_counted_ones"
UNUSED = ("cacheprovider", "unraisableexception", "threadexception")
"""Parts of pytest that do not matter here; the second collects garbage five times, which takes longer than a test."""
LOOPS = ("fedavg", "feddyn", "fedwmsam-trajectory-personalized")


@dataclass(frozen=True)
class Group:
    """Files, and the tests that should guard them: few and quick, because every mutant runs those that reach it."""

    files: list[str]
    tests: list[str]


GROUPS = {
    "methods": Group(
        ["src/fedwmsam/methods/*.py"],
        [
            f"{METHODS}/test_reference_vectors.py::test_agrees_to_1e_9",
            f"{METHODS}/test_against_numpy.py",
            f"{METHODS}/test_invariants.py::test_reductions_of_other_form",
            f"{METHODS}/test_invariants.py::test_a_fixed_alpha_does_not_move",
            f"{METHODS}/test_invariants.py::test_mean_gradient_is_the_mean_of_the_local_gradients",
            f"{METHODS}/test_invariants.py::test_the_target_minus_the_position_is_the_gradients_in_excess_of_the_momentum",
            f"{METHODS}/test_conformance.py::test_a_method_that_lacks_its_main_functions_says_which",
            COSTS,
            f"{METHODS}/test_conformance.py::test_shapes_and_dtypes_are_stable",
            f"{METHODS}/test_conformance.py::test_options_out_of_range_are_refused",
            "tests/engine/test_aggregation.py::test_options_decide_too",
            f"{FIT}::test_a_methods_bad_option_is_explained",
        ],
    ),
    "local": Group(
        ["src/fedwmsam/training/local.py"],
        [
            "tests/training/test_local.py",
            *(
                f"{METHODS}/test_reference_vectors.py::test_agrees_to_1e_9[{name}-1]"
                for name in LOOPS
            ),
            "tests/engine/test_rounds.py::test_every_function_hears_of_its_own_client_and_the_server_of_those_that_counted",
            f"{FIT}::test_a_second_gradient_sees_the_same_dropout_and_moves_no_statistics",
            f"{FIT}::test_one_step_clips_and_decays_as_its_mode_says",
        ],
    ),
    "rounds": Group(
        ["src/fedwmsam/engine/rounds.py"],
        [
            "tests/engine/test_rounds.py",
            "tests/engine/test_faults.py::test_a_round_in_which_nobody_answers_changes_nothing_and_counts",
            "tests/engine/test_faults.py::test_only_hostile_nonsense_is_no_divergence",
            "tests/engine/test_faults.py::test_a_stale_client_trains_from_the_first_model",
            "tests/engine/test_faults.py::test_flipped_labels_are_the_hostile_clients_own",
            "tests/engine/test_privacy.py::test_a_round_of_nobody_adds_noise_all_the_same",
            "tests/engine/test_privacy.py::test_a_private_line_tells_nothing_of_what_clients_computed",
            f"{METHODS}/test_reference_vectors.py::test_agrees_to_1e_9[scaffold-1]",
            f"{METHODS}/test_invariants.py::test_c_is_the_sample_weighted_mean_when_averaging_by_size",
            f"{COSTS}[MimeLite(global_lr=1.0, beta=0.9)]",
        ],
    ),
    "checkpoint": Group(
        ["src/fedwmsam/engine/checkpoint.py"],
        [
            "tests/engine/test_checkpoint.py",
            "tests/engine/test_resume.py::test_a_truncated_checkpoint_is_noticed",
            "tests/engine/test_resume.py::test_a_failed_write_leaves_the_old_file",
            "tests/engine/test_resume.py::test_loading_a_checkpoint_runs_nothing",
        ],
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "groups", nargs="*", metavar="GROUP", help=f"of {', '.join(GROUPS)}; by default all"
    )
    parser.add_argument("--children", type=int, default=1, help="processes at a time")
    arguments = parser.parse_args()
    groups = arguments.groups or list(GROUPS)
    if wrong := set(groups) - GROUPS.keys():
        parser.error(f"there is no group {', '.join(wrong)}")
    for name in groups:
        folder = prepare(name)
        command = [
            Path(sys.executable).with_name("mutmut"),
            "run",
            "--max-children",
            str(arguments.children),
        ]
        subprocess.run(
            command,
            cwd=folder,
            check=True,
            env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        )
    for line in table(groups):
        print(line)


def prepare(name: str) -> Path:
    """A project for mutmut, which knows one set of tests per project: this repository's files, its own settings."""
    folder = ROOT / "build" / "mutation" / name
    folder.mkdir(parents=True, exist_ok=True)
    for part in ("src", "tests", "examples"):
        if not (folder / part).exists():
            (folder / part).symlink_to(ROOT / part)
    group = GROUPS[name]
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"][
        "ini_options"
    ] | {"pythonpath": ["tests"]}
    mutmut = {
        "source_paths": ["src"],
        "only_mutate": group.files,
        "also_copy": ["examples"],
        "pytest_add_cli_args_test_selection": group.tests,
        "process_isolation": "forkserver",  # PyTorch's threads and a fork do not go together
        "use_git_change_detection": False,
        "pytest_add_cli_args": ["--tb=no", *(f"-pno:{plugin}" for plugin in UNUSED)],
    }
    text = section("tool.pytest.ini_options", settings) + section("tool.mutmut", mutmut)
    (folder / "pyproject.toml").write_text(text)
    return folder


def section(name: str, values: dict[str, object]) -> str:
    """As TOML; strings, lists of strings and booleans are written there as in JSON."""
    return f"[{name}]\n" + "".join(
        f"{key} = {json.dumps(value)}\n" for key, value in values.items()
    )


OUTCOMES = {0: "survived", 1: "killed", 3: "killed", 5: "no test", 33: "no test"} | dict.fromkeys(
    (-24, 24, 36, 152, 255), "timeout"
)
"""What mutmut keeps: pytest's exit codes, its own, and those of SIGXCPU, which ends what takes too long."""


def table(groups: list[str]) -> list[str]:
    """Counts by file, as Markdown."""
    columns = ("killed", "timeout", "survived", "no test", "not tried", "crashed")
    lines = ["| file | mutants | " + " | ".join(columns) + " |", "|---" * (len(columns) + 2) + "|"]
    total: Counter[str] = Counter()
    for path in sorted(
        p
        for name in groups
        for p in (ROOT / "build" / "mutation" / name).glob("mutants/src/**/*.meta")
    ):
        codes = json.loads(path.read_text())["exit_code_by_key"].values()
        counts = Counter(
            "not tried" if code is None else OUTCOMES.get(code, "crashed") for code in codes
        )
        total += counts
        if counts:
            lines.append(
                row(
                    str(path).split("mutants/src/fedwmsam/")[1].removesuffix(".meta"),
                    counts,
                    columns,
                )
            )
    return [*lines, row("all", total, columns)]


def row(name: str, counts: Counter[str], columns: tuple[str, ...]) -> str:
    return f"| {name} | {counts.total()} | " + " | ".join(str(counts[c]) for c in columns) + " |"


if __name__ == "__main__":
    main()
