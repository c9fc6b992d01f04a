"""Dynamics of several runs: which stand together, and what is said about them."""

from pathlib import Path
from typing import Any

import pytest
from helpers.run_folders import write_run

from fedwmsam.analysis.dynamics import (
    DYNAMICS_FILE,
    SeedGroup,
    dynamics_plots,
    dynamics_tables,
    load_groups,
)
from fedwmsam.analysis.saved_run import save_analysis
from fedwmsam.report.runs import find_runs


def write_dynamics(folder: Path, norm: float, **settings: Any) -> None:
    """Write a run and the record of its dynamics, which knows only the norm of the updates."""
    run = write_run(folder, [0.1, 0.2], **settings)
    summary = {"late": {"update_norm": norm}, "early": {}}
    lines = [{"round": round, "drift": {"norm": {"mean": norm}}} for round in (1, 2)]
    record = {"rounds": 2, "summary": summary, "lines": lines, "last_rounds": None, "restless": {}}
    save_analysis(run, DYNAMICS_FILE, record)


def groups_in(folder: Path) -> list[SeedGroup]:
    return load_groups(find_runs([folder])[0])


@pytest.fixture
def two_partitions(tmp_path: Path) -> Path:
    for seed in (0, 1):
        write_dynamics(tmp_path / f"iid{seed}", 1.0 + seed, partition="iid", seed=seed)
        write_dynamics(tmp_path / f"skewed{seed}", 5.0, partition="dirichlet:0.1", seed=seed)
    write_dynamics(tmp_path / "again", 1.0, partition="iid", seed=0)
    return tmp_path


def test_runs_that_a_report_would_not_compare_are_not_pooled(two_partitions: Path) -> None:
    first, second = dynamics_tables(groups_in(two_partitions))
    assert first.title == "Client drift (late): digits, iid, mlp, 20 clients, 2 rounds"
    assert second.title == "Client drift (late): digits, dirichlet:0.1, mlp, 20 clients, 2 rounds"
    assert first.rows[0][:3] == ("fedavg", "2", "1.5000 ± 0.7071"), "a seed run twice counts once"
    assert second.rows[0][:3] == ("fedavg", "2", "5.0000 ± 0.0000")


def test_tables_without_a_value_are_left_out(tmp_path: Path) -> None:
    write_dynamics(tmp_path / "a", 1.0)
    (table,) = dynamics_tables(groups_in(tmp_path))
    assert table.title == "Client drift (late)", "one table needs no further name"
    assert dynamics_tables([SeedGroup("fedavg", ({"summary": {"late": {}}, "lines": []},))]) == []
    assert dynamics_tables([]) == []


def test_each_table_has_its_own_pictures(two_partitions: Path) -> None:
    names = [name for name, _, _ in dynamics_plots(groups_in(two_partitions))]
    assert names == [
        "drift-over-rounds-digits-iid-mlp-20-clients-2-rounds",
        "drift-over-rounds-digits-dirichlet-0.1-mlp-20-clients-2-rounds",
    ]
    one = [group for group in groups_in(two_partitions) if "iid" in group.table]
    assert [name for name, _, _ in dynamics_plots(one)] == ["drift-over-rounds"]


def test_equal_remarks_are_one(cli: Any, tmp_path: Path) -> None:
    for number in range(4):
        options = ["--rounds", "1", "--local-epochs", "1", "--name", str(number), "-q"]
        assert cli("run", *options, "--out", tmp_path, "--seed", str(number)).code == 0
    outcome = cli("analyse", "dynamics", tmp_path, "--sample", "50")
    assert outcome.code == 0, outcome.err
    assert outcome.out.count("No state was kept") == 1
    assert "- 4 runs (0, …): No state was kept and nothing recorded" in outcome.out
    assert "Alignment of perturbations" not in outcome.out and "Client drift" not in outcome.out


def test_states_of_early_rounds_only_are_remarked_on(cli: Any, tmp_path: Path) -> None:
    small = ["--local-epochs", "1", "-q", "--out", tmp_path, "--rounds", "8"]
    for name, every in (("rare", 5), ("often", 1)):
        assert cli("run", *small, "--name", name, "--set", f"keep_states={every}").code == 0
    outcome = cli("analyse", "dynamics", tmp_path, "--sample", "50")
    assert "- rare: Nothing was kept or recorded in the last quarter" in outcome.out
    assert "- often: Nothing" not in outcome.out
