"""A fixture for every test of `fedwmsam.fit`."""

import pytest


@pytest.fixture(autouse=True)
def hide_every_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train on the CPU, where results are the same on every machine."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
