"""What `fedwmsam compare` says before it starts, and what it asks."""

import io
import logging
import math
import sys

import click
import pytest

from fedwmsam.commands.compare import announce
from fedwmsam.comparison.estimate import Probes, estimate_comparison, planned_runs
from fedwmsam.comparison.grid import make_grid
from fedwmsam.experiment.experiment import Experiment
from fedwmsam.report.runs import find_runs
from fedwmsam.report.terminal import comparison_estimate_lines

SMALL = ("--model", "linear", "--clients", "4", "--rounds", "2", "--local-epochs", "1")


def plan(out, **values):
    grid = make_grid({}, {"model": "linear", "rounds": 5, "clients": 4} | values)
    return grid, planned_runs(grid, out, None)


@pytest.fixture
def probed(monkeypatch):
    """Return the list of the configurations that were probed."""
    configs = []
    estimate = Experiment.estimate

    def record(self, seconds):
        configs.append(self.config)
        return estimate(self, min(seconds, 0.01))

    monkeypatch.setattr(Experiment, "estimate", record)
    return configs


def test_one_run_of_each_method_is_probed_whatever_the_seeds(tmp_path, probed):
    _, runs = plan(tmp_path, methods=["fedavg", "fedsam"], seeds=6, grid={"rho": [0.1, 0.2]})
    estimate = estimate_comparison(runs, jobs=2)
    assert [config.method for config in probed] == ["fedavg", "fedsam"]
    counts = {method.method: (method.runs, method.rounds) for method in estimate.methods}
    assert counts == {"fedavg": (6, 30), "fedsam": (12, 60)}
    assert (estimate.runs, estimate.rounds, estimate.done) == (18, 90, 0)
    total = sum(method.seconds for method in estimate.methods)
    assert estimate.seconds == pytest.approx(total / 2) and estimate.disk_bytes > 0
    assert logging.getLogger("fedwmsam").isEnabledFor(logging.WARNING)


def test_settings_that_cost_more_are_probed_on_their_own(tmp_path, probed):
    estimate_comparison(plan(tmp_path, seeds=2, grid={"local_epochs": [1, 9]})[1], jobs=1)
    assert [config.local_epochs for config in probed] == [1, 9]


def test_without_time_other_methods_follow_from_their_backprops(tmp_path, probed):
    _, runs = plan(tmp_path, methods=["fedavg", "fedsam"])
    probes = Probes(seconds=-1)
    for run in runs:
        probes.add(run.spec.config)
    assert [config.method for config in probed] == ["fedavg"]
    fedavg, fedsam = (probes.cost_of(run.spec.config) for run in (runs[0], runs[-1]))
    assert fedsam.round_seconds == pytest.approx(fedavg.round_seconds + fedavg.train_seconds)


def test_without_time_the_disk_space_of_methods_is_counted_all_the_same(tmp_path, probed):
    _, runs = plan(tmp_path, methods=["fedavg", "scaffold", "fedwmsam"])
    configs = [run.spec.config for run in runs]
    space = []
    for seconds in (-1, math.inf):
        probes = Probes(seconds=seconds)
        for config in configs:
            probes.add(config)
        space.append([probes.cost_of(config).disk_bytes for config in configs])
    assert space[0] == space[1]
    assert space[0][1] > 2 * space[0][0]


def test_runs_that_are_done_count_no_more(cli, tmp_path, probed):
    flags = ("--methods", "fedavg", *SMALL, "--jobs", "1", "--out", tmp_path / "c")
    assert cli("compare", *flags, "--seed", "0", "--quiet").code == 0
    assert not probed, "a quiet comparison needs no estimate"
    outcome = cli("compare", *flags, "--seeds", "3", "--dry-run")
    assert "2 runs ahead (3 seeds, 1 more are done), 4 rounds: less than a minute" in outcome.out
    assert "All 1 runs are done" in cli("compare", *flags, "--seed", "0", "--dry-run").out


def test_a_dry_run_writes_nothing_and_says_how_a_long_one_gets_smaller(cli, tmp_path, probed):
    flags = ("--methods", "fedavg,fedcm,fedsam", "--grid", "global_lr=1,2", "--seeds", "100")
    long = ("--rounds", "1000000", "--model", "linear", "--out", tmp_path / "c", "--dry-run")
    outcome = cli("compare", *flags, *long)
    assert outcome.code == 0, outcome.err
    assert "600 runs ahead (100 seeds), 600,000,000 rounds: about" in outcome.out
    [advice] = [line for line in outcome.out.splitlines() if "To make it smaller" in line]
    for flag in ("--seeds 3 (", "--rounds 250000 (", "--methods fedavg,fedcm (", "global_lr"):
        assert flag in advice
    assert "Nothing was trained or written" in outcome.out
    assert not (tmp_path / "c").exists()


def test_the_estimate_counts_the_tuning_runs(cli, tmp_path, probed):
    flags = ("--methods", "fedsam", *SMALL, "--tune", "rho=0.1,0.2", "--out", tmp_path / "c")
    outcome = cli("compare", *flags, "--seeds", "2", "--dry-run")
    assert "4 runs ahead" in outcome.out, outcome.err


def test_a_comparison_says_first_what_it_takes(cli, tmp_path, probed):
    flags = ("--methods", "fedavg", *SMALL, "--jobs", "1", "--out", tmp_path / "c")
    outcome = cli("compare", *flags, "--seed", "7")
    assert outcome.code == 0, outcome.err
    first, second, *_ = outcome.out.splitlines()
    assert first.startswith("1 runs ahead (seed 7), 2 rounds") and "done before" in second
    assert [run.seed for run in find_runs([tmp_path / "c"])[0]] == [7]


@pytest.mark.parametrize("dry_run", [[], ["--dry-run"]])
def test_a_mistake_that_all_runs_share_is_said_once_and_leaves_nothing(cli, tmp_path, dry_run):
    flags = ("--methods", "fedavg", *SMALL, "--dataset", "no-such-data", "--out", tmp_path / "c")
    outcome = cli("compare", *flags, "--seeds", "3", *dry_run)
    assert outcome.code == 2 and outcome.err.count("no-such-data") == 1
    assert not (tmp_path / "c").exists()


def test_a_count_of_seeds_and_one_seed_are_not_both(cli, tmp_path):
    outcome = cli("compare", "--methods", "fedavg", "--seeds", "3", "--seed", "100")
    assert outcome.code == 2 and outcome.err.count("\n") == 1
    assert "--seeds 3" in outcome.err and "--seed 100" in outcome.err


def test_one_seed_overrides_those_of_a_file(cli, tmp_path, probed):
    (tmp_path / "table.toml").write_text("seeds = 5\nrounds = 2\nmodel = 'linear'\n")
    out = ("--out", tmp_path / "c", "--dry-run")
    assert (
        "1 runs ahead (seed 100)"
        in cli("compare", tmp_path / "table.toml", "--seed", "100", *out).out
    )


# The question


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def answer(monkeypatch, tmp_path, probed):
    """Return a function that announces a comparison on a terminal where a person answers."""

    def announce_to(text, yes=False, terminal=Terminal, **values):
        grid, runs = plan(tmp_path, **values)
        monkeypatch.setattr(sys, "stdin", terminal(text))
        monkeypatch.setattr(sys, "stdout", terminal())
        announce(grid, runs, 1, yes)
        return sys.stdin.read()

    return announce_to


def test_very_many_runs_are_asked_about_on_a_terminal(answer):
    with pytest.raises(click.Abort):
        answer("n\n", seeds=101)
    assert "--seed 101" in sys.stdout.getvalue()
    assert answer("y\nrest", seeds=101) == "rest"
    values = [0.01 * step for step in range(1, 40)]
    assert answer("y\nrest", seeds=3, method="fedsam", grid={"rho": values}) == "rest"
    assert "117 runs; start?" in sys.stdout.getvalue(), "three seeds are no mistake"


def test_nobody_is_asked_about_few_runs_or_where_nobody_answers(answer):
    assert answer("unread", seeds=3) == "unread"
    assert answer("unread", seeds=101, yes=True) == "unread"
    assert answer("unread", seeds=101, terminal=io.StringIO) == "unread"


def test_a_comparison_of_an_hour_is_told_nothing_more(tmp_path, probed):
    grid, runs = plan(tmp_path, seeds=2)
    assert len(list(comparison_estimate_lines(estimate_comparison(runs, 1), grid))) == 1
    assert math.isfinite(estimate_comparison(runs, 1).seconds)
