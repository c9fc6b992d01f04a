"""Devices by their names, and everything on a pretend one."""

import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from helpers.fit_problems import CLIENTS, QUICK, linear_model

from fedwmsam import InputError, fit
from fedwmsam.settings.config import RunConfig, identifying_settings
from fedwmsam.training.devices import usable_device

HERE = Path(__file__).parent


def run_on_pretend_device(marker: str) -> None:
    """Run the tests with this marker in a process that has a pretend device.

    It must be registered before a process computes its first gradient.
    """
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--tb=short", "-m", marker]
    outcome = subprocess.run(
        [*command, HERE / "on_pretend_device.py"],
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


@pytest.mark.slow
def test_everything_trains_on_a_pretend_device_as_on_the_cpu():
    run_on_pretend_device("not slow")


@pytest.mark.slow
def test_everything_is_analysed_on_a_pretend_device_as_on_the_cpu():
    run_on_pretend_device("slow")


@pytest.fixture
def two_gpus(monkeypatch):
    """Let PyTorch say that there are two CUDA devices, of which the second is the current one."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)


def test_auto_is_cuda_before_mps_before_the_cpu(monkeypatch, request):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert usable_device("auto") == torch.device("cpu")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert usable_device("auto") == torch.device("mps")
    request.getfixturevalue("two_gpus")
    assert usable_device("auto") == torch.device("cuda:1")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gpu", "Unknown device 'gpu'. Did you mean 'cuda'? Known: auto, cpu, cuda, mps."),
        ("cude", "Unknown device 'cude'. Did you mean 'cuda'? Known: auto, cpu, cuda, mps."),
        ("cuda:x", "Unknown device 'cuda:x'. Did you mean 'cuda'? Known: auto, cpu, cuda, mps."),
        ("metal", "Unknown device 'metal'. Did you mean 'mps'? Known: auto, cpu, cuda, mps."),
        ("meta", "The device 'meta' cannot be used here; usable are auto, cpu."),
        ("privateuseone", "The device 'privateuseone' cannot be used here; usable are auto, cpu."),
    ],
)
def test_a_device_that_cannot_be_used_is_one_sentence(name: str, message: str):
    with pytest.raises(InputError) as refusal:
        fit(linear_model, CLIENTS, device=name, **QUICK)
    assert str(refusal.value) == message


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_refused_with_those_that_are(two_gpus, cli):
    outcome = cli("run", "--device", "cuda:9")
    assert outcome.code == 2
    message = "The device 'cuda:9' cannot be used here; usable are auto, cpu, cuda:0, cuda:1."
    assert message in " ".join(outcome.err.split())


@pytest.mark.parametrize("device", ["auto", "cuda:1"])
def test_a_device_changes_neither_fingerprint_nor_name(device: str):
    config = asdict(RunConfig())
    assert identifying_settings(config | {"device": device}) == identifying_settings(config)
