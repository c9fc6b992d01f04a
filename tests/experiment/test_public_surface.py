"""What a program may import, and that signatures say what the declarations of settings say."""

import inspect
import subprocess
import sys
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest
from helpers.markdown_pages import ROOT

import fedwmsam
from fedwmsam.flower import FlowerStrategy
from fedwmsam.methods import METHODS
from fedwmsam.settings.config import Settings

API = (ROOT / "docs" / "site" / "api.rst").read_text()


@pytest.mark.parametrize(
    "module", ["fedwmsam", "fedwmsam.methods", "fedwmsam.flower", "fedwmsam.data"]
)
def test_the_api_page_names_all_that_may_be_imported(module: str) -> None:
    """Every method has an entry that the page makes by itself."""
    by_itself = {cls.__name__ for cls in METHODS.values()}
    names = [name for name in import_module(module).__all__ if name not in by_itself]
    assert [name for name in names if f".{name}" not in API] == []


def test_every_public_name_is_there_and_no_other() -> None:
    for name in fedwmsam.__all__:
        assert getattr(fedwmsam, name) is not None
    for name in ("Typo", "fedwmsam_plus", "Vectors"):
        with pytest.raises(AttributeError, match=name):
            getattr(fedwmsam, name)
    assert {cls.__name__ for cls in METHODS.values()} <= set(fedwmsam.__all__)


def test_fit_takes_every_setting_with_its_default() -> None:
    parameters = inspect.signature(fedwmsam.fit).parameters
    assert {f.name: parameters[f.name].default for f in fields(Settings)} == {
        f.name: f.default for f in fields(Settings)
    }


def test_a_strategy_takes_every_setting_that_applies_on_flower_with_its_default() -> None:
    parameters = inspect.signature(FlowerStrategy).parameters
    applying = [
        f for f in fields(Settings) if not f.metadata["flower_refusal"] and f.name in parameters
    ]
    expected = {f.name: f.default for f in applying} | {"checkpoint_every": 1}
    assert {f.name: parameters[f.name].default for f in applying} == expected
    missing = {f.name for f in fields(Settings)} - {f.name for f in applying}
    refused = {f.name for f in fields(Settings) if f.metadata["flower_refusal"]}
    assert missing - refused == {"dp_clip", "dp_delta", "record_every"}, "of what is refused itself"


@pytest.mark.slow
def test_a_type_checker_refuses_names_and_settings_that_do_not_exist(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import fedwmsam\nfrom torch import nn\nfrom fedwmsam.flower import FlowerStrategy\n"
        "fedwmsam.SCAFFOLD(global_lr=0.5)\n"
        "fedwmsam.Typo()\n"
        "FlowerStrategy(fedwmsam.FedAvg(), nn.Linear(2, 2), clients=3, dropout=0.1)\n"
        "FlowerStrategy(fedwmsam.FedAvg(), nn.Linear(2, 2), clients=3, lr=0.1)\n"
    )
    command = [sys.executable, "-m", "mypy", "--strict", program]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    *errors, _ = outcome.stdout.splitlines()
    assert [line.split(":")[1] for line in errors] == ["5", "6"], outcome.stdout
