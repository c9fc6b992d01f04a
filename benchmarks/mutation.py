"""Mutation testing: mutmut changes one thing at a time in some files, and their tests must notice.

    python benchmarks/mutation.py [GROUP …] [--children 1]

Each group has a folder of its own in build/mutation. A run that was stopped is continued there, and
only functions that have changed are tried again. `mutmut results` and `mutmut show NAME`, called
there, show what survived.
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
METHODS = "tests/methods"
FIT = "tests/fit"
COSTS = f"{METHODS}/test_conformance.py::test_declared_costs_are_the_counted_ones"
UNUSED = ("cacheprovider", "unraisableexception", "threadexception")
"""Plugins of pytest that are not needed here.

The second one collects garbage five times, which takes longer than a test.
"""
REFERENCE_METHODS = ("fedavg", "feddyn", "fedwmsam-trajectory-personalized")


@dataclass(frozen=True)
class Group:
    """Some files, and the tests that should notice changes of them.

    The tests are few and fast, because every mutant runs those that reach it.
    """

    files: list[str]
    tests: list[str]


GROUPS = {
    "methods": Group(
        ["src/fedwmsam/methods/*.py"],
        [
            f"{METHODS}/test_reference_vectors.py::test_agrees_to_1e_9",
            f"{METHODS}/test_against_numpy.py",
            f"{METHODS}/test_invariants.py::test_a_reduction_holds",
            f"{METHODS}/test_invariants.py::test_a_fixed_alpha_does_not_move",
            f"{METHODS}/test_invariants.py::test_mean_gradient_is_the_mean_of_the_local_gradients",
            f"{METHODS}/test_invariants.py::test_the_target_minus_the_position"
            "_is_the_gradients_in_excess_of_the_momentum",
            f"{METHODS}/test_conformance.py"
            "::test_a_method_that_lacks_its_main_functions_says_which",
            COSTS,
            f"{METHODS}/test_conformance.py::test_shapes_and_dtypes_are_stable",
            f"{METHODS}/test_conformance.py::test_options_out_of_range_are_refused",
            "tests/engine/test_aggregation.py::test_options_decide_too",
            f"{FIT}/test_mistakes.py::test_a_methods_bad_option_is_explained",
        ],
    ),
    "local": Group(
        ["src/fedwmsam/training/local.py"],
        [
            "tests/training/test_local.py",
            *(
                f"{METHODS}/test_reference_vectors.py::test_agrees_to_1e_9[{name}-1]"
                for name in REFERENCE_METHODS
            ),
            "tests/engine/test_rounds.py"
            "::test_every_function_hears_of_its_own_client_and_the_server_of_those_that_counted",
            f"{FIT}/test_parameters_and_buffers.py"
            "::test_a_second_gradient_sees_the_same_dropout_and_moves_no_statistics",
            f"{FIT}/test_local_step.py::test_one_step_clips_and_decays_as_its_mode_says",
        ],
    ),
    "rounds": Group(
        ["src/fedwmsam/engine/rounds.py"],
        [
            "tests/engine/test_rounds.py",
            "tests/engine/test_faults.py"
            "::test_a_round_in_which_nobody_answers_changes_nothing_and_counts",
            "tests/engine/test_faults.py::test_only_hostile_nonsense_is_no_divergence",
            "tests/engine/test_faults.py::test_a_stale_client_trains_from_the_first_model",
            "tests/engine/test_faults.py::test_flipped_labels_are_the_hostile_clients_own",
            "tests/engine/test_privacy.py::test_a_round_of_nobody_adds_noise_all_the_same",
            "tests/engine/test_privacy.py"
            "::test_a_private_line_tells_nothing_of_what_clients_computed",
            f"{METHODS}/test_reference_vectors.py::test_agrees_to_1e_9[scaffold-1]",
            f"{METHODS}/test_invariants.py"
            "::test_c_is_the_sample_weighted_mean_when_averaging_by_size",
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
    if unknown := set(groups) - GROUPS.keys():
        parser.error(f"there is no group {', '.join(unknown)}")
    mutmut = Path(sys.executable).with_name("mutmut")
    command = [mutmut, "run", "--max-children", str(arguments.children)]
    variables = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    for name in groups:
        subprocess.run(command, cwd=prepare_project(name), check=True, env=variables)
    for line in table_lines(groups):
        print(line)


def prepare_project(name: str) -> Path:
    """Write a project for mutmut with the files of a group, and return its folder.

    mutmut has one set of tests per project. The project has this repository's files, and settings
    of its own.
    """
    folder = ROOT / "build" / "mutation" / name
    folder.mkdir(parents=True, exist_ok=True)
    for part in ("src", "tests", "examples"):
        if not (folder / part).exists():
            (folder / part).symlink_to(ROOT / part)
    group = GROUPS[name]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    pytest_settings = project["tool"]["pytest"]["ini_options"] | {"pythonpath": ["tests"]}
    mutmut_settings = {
        "source_paths": ["src"],
        "only_mutate": group.files,
        "also_copy": ["examples"],
        "pytest_add_cli_args_test_selection": group.tests,
        "process_isolation": "forkserver",  # PyTorch's threads and a fork do not go together
        "use_git_change_detection": False,
        "pytest_add_cli_args": ["--tb=no", *(f"-pno:{plugin}" for plugin in UNUSED)],
    }
    sections = [
        toml_section("tool.pytest.ini_options", pytest_settings),
        toml_section("tool.mutmut", mutmut_settings),
    ]
    (folder / "pyproject.toml").write_text("".join(sections))
    return folder


def toml_section(name: str, values: dict[str, object]) -> str:
    """Return a section of a TOML file.

    Strings, lists of strings and booleans are written there as in JSON.
    """
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in values.items()]
    return f"[{name}]\n" + "".join(lines)


OUTCOMES = {
    0: "survived",
    1: "killed",
    3: "killed",
    5: "no test",
    33: "no test",
    -24: "timeout",
    24: "timeout",
    36: "timeout",
    152: "timeout",
    255: "timeout",
}
"""Exit codes of a mutant's tests → the outcome.

They are pytest's, mutmut's own, and those of SIGXCPU, which ends what takes too long.
"""
COLUMNS = ("killed", "timeout", "survived", "no test", "not tried", "crashed")


def table_lines(groups: list[str]) -> list[str]:
    """Return the lines of a Markdown table that counts the outcomes by file."""
    lines = [f"| file | mutants | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 2) + "|"]
    total: Counter[str] = Counter()
    paths: list[Path] = []
    for name in groups:
        paths += (ROOT / "build" / "mutation" / name).glob("mutants/src/**/*.meta")
    for path in sorted(paths):
        codes = json.loads(path.read_text())["exit_code_by_key"].values()
        counts = Counter(map(outcome_of, codes))
        total += counts
        if counts:
            file = str(path).split("mutants/src/fedwmsam/")[1].removesuffix(".meta")
            lines.append(table_line(file, counts))
    return [*lines, table_line("all", total)]


def outcome_of(code: int | None) -> str:
    """Return the outcome of a mutant by the exit code of its tests."""
    return "not tried" if code is None else OUTCOMES.get(code, "crashed")


def table_line(name: str, counts: Counter[str]) -> str:
    cells = [name, str(counts.total()), *(str(counts[column]) for column in COLUMNS)]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
