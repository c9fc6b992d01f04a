"""Random command lines: each is carried out, or refused in one sentence with exit code 2."""

import itertools
from pathlib import Path

import pytest
import typer
from helpers.run_folders import write_run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedwmsam.commands.app import app

VALUES = st.sampled_from(
    [
        "",
        "0",
        "1",
        "-1",
        "2.5",
        "nan",
        "1e999",
        "9" * 5000,
        "none",
        "auto",
        "fedavg",
        "fedwmsam",
        "fedawg",
        "digits",
        "linear",
        "iid",
        "dirichlet:0.1",
        "dirichlet:",
        "shards:9999",
        "natural",
        "median",
        "0.3:4",
        "nan:0.5",
        "0,7,8",
        "a=b",
        "rho=1,2",
        "rho=",
        "=",
        "lr=x",
        "--",
        "-q",
        "/dev/null",
        "/proc/1",
        "RUN",
        "RUN/metrics.jsonl",
        "EMPTY",
        "é\n",
        "[bold]",
        "a/b:c",
        "os:system",
        "tensorboard",
        "paper",
        "accuracy",
        "png",
        "last",
    ]
) | st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=5)
FLAGS = {
    "run": (
        "--method",
        "--dataset",
        "--partition",
        "--clients",
        "--rounds",
        "--lr",
        "--seed",
        "--set",
        "--preset",
        "--stragglers",
        "--corrupt",
        "--aggregation",
        "--model",
        "--validation",
        "--workers",
        "--record",
        "--track",
    ),
    "resume": ("--rounds", "--workers", "--memory-budget"),
    "compare": (
        "--methods",
        "--seeds",
        "--grid",
        "--tune",
        "--tune-seeds",
        "--set",
        "--jobs",
        "--on",
        "--slurm",
        "--baseline",
        "--preset",
    ),
    "work": ("--model", "--method", "--trust"),
    "reproduce": ("--scale", "--seeds", "--rounds", "--column", "--set", "--jobs"),
    "partition": ("--dataset", "--partition", "--clients", "--seed", "--data-dir"),
    "evaluate": ("--best", "--fine-tune", "--lr"),
    "report": ("--metric", "--better", "--targets", "--baseline", "--paper-columns", "--format"),
    "methods": (),
    "verify": ("--tolerance",),
    "analyse flatness": ("--rounds", "--samples", "--clients", "--rho", "--probes"),
    "analyse landscape": ("--to", "--points", "--round", "--plane"),
    "analyse dynamics": ("--states", "--sample"),
    "analyse theory": ("--rounds", "--cohort", "--rho", "--smoothness"),
    "flower release": (),
    "flower status": ("--watch",),
}
LEFT_OUT = {"analyse embedding", "flower new", "flower keys", "flower check"}
"""Commands that take too long, write keys or need Flower."""
HARMLESS = {"run": ("--dry-run",), "reproduce": ("--dry-run",)}
"""Flags without which a valid command would train for long."""


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """Draw a command, options with and without values, and words that may not belong there."""
    command = draw(st.sampled_from(sorted(FLAGS)))
    options = st.sampled_from([*FLAGS[command], "--help", "--unknown", "-x", "-q"])
    pieces = draw(
        st.lists(st.tuples(options, VALUES) | st.tuples(VALUES) | st.tuples(options), max_size=4)
    )
    words = list(itertools.chain.from_iterable(pieces))
    if command == "compare":  # an unknown method, so that no runs start
        words += ["--methods", "no-such-method"]
    return [*command.split(), *words, *HARMLESS.get(command, ())]


def test_every_command_is_tried_or_left_out_by_name() -> None:
    commands = typer.main.get_command(app).commands
    groups = {
        name: group.commands for name, group in commands.items() if hasattr(group, "commands")
    }
    names = set(commands) - set(groups)
    for group, members in groups.items():
        names |= {f"{group} {name}" for name in members}
    assert names == set(FLAGS) | LEFT_OUT


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    base = tmp_path_factory.mktemp("typed")
    (base / "empty").mkdir()
    return {"RUN": str(write_run(base / "run", [0.5, 0.6])), "EMPTY": str(base / "empty")}


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(line=command_lines())
def test_any_line_is_carried_out_or_refused(
    cli, folders, tmp_path, monkeypatch, line: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for placeholder, folder in folders.items():
        line = [word.replace(placeholder, folder) for word in line]
    outcome = cli(*line)  # anything but an exit would be raised here
    assert outcome.code in (0, 2), outcome
    assert "Traceback" not in outcome.err
    assert outcome.code == 0 or outcome.err.strip(), "a refusal that says nothing"
    assert not Path("runs").exists()
