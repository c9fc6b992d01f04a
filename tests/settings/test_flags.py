"""The flags of commands are made from the declarations of settings: nothing is typed twice."""

import inspect
from collections.abc import Callable
from dataclasses import fields, make_dataclass
from pathlib import Path
from typing import Any

import pytest

from fedwmsam import toml
from fedwmsam.commands import options
from fedwmsam.commands.compare import compare
from fedwmsam.commands.partition import partition
from fedwmsam.commands.run import run
from fedwmsam.settings.config import PANELS, RunConfig, setting_names
from fedwmsam.settings.options import option

Cli = Callable[..., Any]
DECLARED = {f.name: f for f in fields(RunConfig) if f.metadata}


def flags(command: Callable[..., None]) -> dict[str, Any]:
    """Return Typer's description of each flag of the command that is a setting."""
    parameters = inspect.signature(command).parameters
    return {
        name: parameter.annotation.__metadata__[0]
        for name, parameter in parameters.items()
        if name in DECLARED
    }


def test_run_takes_every_setting_and_compare_all_but_the_method() -> None:
    assert set(flags(run)) == set(setting_names())
    assert set(flags(compare)) == set(setting_names()) - {"method"}
    assert set(flags(partition)) == {"dataset", "partition", "clients", "seed", "data_dir"}


@pytest.mark.parametrize("name", setting_names())
def test_help_says_what_the_declaration_says(name: str) -> None:
    flag = flags(run)[name]
    declared = DECLARED[name]
    assert declared.metadata["help"][1:] in flag.help
    assert flag.show_default == (False if declared.default is None else str(declared.default))
    assert flag.rich_help_panel == declared.metadata["panel"] and flag.rich_help_panel in PANELS


def test_a_new_setting_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    new = option(0.5, "how bold to be", low=0, high=1, panel=PANELS[0], see="docs/bold.md")
    larger = make_dataclass("Larger", [("boldness", float, new)], bases=(RunConfig,), frozen=True)
    monkeypatch.setattr(options, "RunConfig", larger)
    (declared,) = (f for f in fields(larger) if f.name == "boldness")
    flag = options.make_flag(declared).annotation
    assert flag.__metadata__[0].help == "How bold to be, between 0 and 1; docs/bold.md."
    assert flag.__metadata__[0].show_default == "0.5" and flag.__origin__ == float | None


def test_numbers_may_be_words_where_a_word_is_meant(cli: Cli, tmp_path: Path) -> None:
    small = ("--rounds", "1", "--clients", "4", "--model", "linear", "--out", tmp_path, "-q")
    assert cli("run", *small, "--clip-norm", "none", "--workers", "1", "--name", "free").code == 0
    assert toml.load(tmp_path / "free" / "config.toml")["clip_norm"] == "none"
    assert cli("run", *small, "--clip-norm", "0.5", "--name", "bound").code == 0
    assert toml.load(tmp_path / "bound" / "config.toml")["clip_norm"] == 0.5
    wrong = cli("run", *small, "--clip-norm", "much")
    assert wrong.code == 2 and "clip_norm must be a number, not 'much'" in wrong.err


def test_a_flag_is_stronger_than_the_file(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "file.toml"
    file.write_text('lr_decay = 0.9\nrounds = 1\nclients = 4\nmodel = "linear"\n')
    flags = ("--lr-decay", "0.5", "--evaluate-every", "3", "--out", tmp_path, "--name", "run", "-q")
    assert cli("run", file, *flags).code == 0
    config = toml.load(tmp_path / "run" / "config.toml")
    assert (config["lr_decay"], config["evaluate_every"], config["clients"]) == (0.5, 3, 4)
