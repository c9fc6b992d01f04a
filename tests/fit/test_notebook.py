"""`fit` in a real Jupyter kernel: classes of cells in workers, a bar, an interrupt, a resume."""

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.markdown_pages import ROOT

pytestmark = pytest.mark.slow
SETUP = """
import os
import time
from pathlib import Path

import torch
from torch import nn

import fedwmsam

generator = torch.Generator().manual_seed(0)
x = torch.randn(200, 4, generator=generator)
y = (x[:, 0] > 0).long()


class Slow(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        time.sleep(0.02)
        return self.layer(x)


clients = {f"ward {k}": (x[40 * k : 40 * k + 40], y[40 * k : 40 * k + 40]) for k in range(4)}
settings = dict(test=(x[160:], y[160:]), rounds=8, participation=1.0, local_epochs=2, batch_size=20)


def worker_processes():
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    commands = [Path(f"/proc/{child}/cmdline").read_bytes() for child in children]
    return [command for command in commands if b"fedwmsam" in command or not command]
"""
FIRST = "result = fedwmsam.fit(Slow, clients, workers=2, run_folder='run', **settings)"
PARTIAL = "fedwmsam.Result.load('run', Slow, partial=True)"
RESUMED = """
result = fedwmsam.fit(Slow, clients, workers=2, run_folder='run', resume=True, **settings)
result
"""
COMPARED = """
again = fedwmsam.fit(Slow, clients, progress=False, **settings)
same = all(torch.equal(result.model[name], again.model[name]) for name in again.model)
print(result.rows == again.rows, same, worker_processes())
"""
Message = dict[str, Any]


class Kernel:
    """A running kernel, in which cells are executed."""

    def __init__(self, folder: Path) -> None:
        from jupyter_client.manager import KernelManager

        self.manager = KernelManager()
        # The kernel of this very Python, whatever kernels the machine has.
        assert self.manager.kernel_spec is not None
        self.manager.kernel_spec.argv[0] = sys.executable
        self.manager.start_kernel(cwd=str(folder))
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def run(self, code: str, watch: Callable[[Message], object] = id) -> list[Message]:
        """Execute a cell and return what it puts out; `watch` sees each message as it comes."""
        request = self.client.execute(code)
        messages = []
        while True:
            message = self.client.get_iopub_msg(timeout=120)
            if message["parent_header"].get("msg_id") != request:
                continue
            if message["msg_type"] == "status":
                if message["content"]["execution_state"] == "idle":
                    return messages
                continue
            messages.append(message)
            watch(message)

    def stop(self) -> None:
        """End the kernel."""
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    pytest.importorskip("jupyter_client", reason="needs fedwmsam[notebooks]")
    pytest.importorskip("ipykernel", reason="needs fedwmsam[notebooks]")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    running = Kernel(tmp_path)
    yield running
    running.stop()


def texts_of(messages: list[Message], kinds: tuple[str, ...], form: str) -> list[str]:
    """Return what messages of these kinds show, in one of its forms."""
    return [m["content"]["data"].get(form, "") for m in messages if m["msg_type"] in kinds]


def bar_texts(messages: list[Message]) -> list[str]:
    """Return the successive texts of the progress bar."""
    return texts_of(messages, ("display_data", "update_display_data"), "text/plain")


def is_round_three(message: Message) -> bool:
    """Return whether the bar is at round 3; the last picture of it says how the run ended."""
    return any(re.match("round 3/8.* left", text) for text in bar_texts([message]))


def test_a_notebook_trains_is_interrupted_and_goes_on(kernel: Kernel) -> None:
    assert kernel.run(SETUP)[1:] == []  # only the cell itself comes back

    def interrupt_after_three(message: Message) -> None:
        if is_round_three(message):
            kernel.manager.interrupt_kernel()

    messages = kernel.run(FIRST, interrupt_after_three)
    assert [m["content"]["ename"] for m in messages if m["msg_type"] == "error"] == [
        "KeyboardInterrupt"
    ]
    rounds = [
        int(found[1]) for text in bar_texts(messages) if (found := re.match(r"round (\d)", text))
    ]
    assert rounds == sorted(rounds) and rounds[0] == 0 and 3 <= rounds[-1] < 8
    assert bar_texts(messages)[-1].endswith("interrupted")
    assert re.search(r"accuracy \d\.\d{4}  loss \d\.\d{4}", bar_texts(messages)[-1])
    bars = texts_of(messages, ("display_data",), "text/html")
    assert len(bars) == 1 and "<progress " in bars[0]  # one output, replaced in place

    partial = texts_of(kernel.run(PARTIAL), ("execute_result",), "text/html")
    assert "interrupted" in partial[0] and f"{rounds[-1]} of 8" in partial[0]

    messages = kernel.run(RESUMED)
    assert bar_texts(messages)[0].startswith(f"round {rounds[-1]}/8")
    assert bar_texts(messages)[-1].endswith("completed")
    shown = texts_of(messages, ("execute_result",), "text/html")
    assert "8 of 8" in shown[0] and "<svg " in shown[0]
    printed = [m["content"]["text"] for m in kernel.run(COMPARED) if m["msg_type"] == "stream"]
    assert printed == ["True True []\n"]
