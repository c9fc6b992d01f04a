"""`make bench` counts what it should, and its fastest contender computes what the others do."""

import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from bare import autograd_gradient, by_hand_gradient, flatten
from contenders.protocol import ContenderProcess, Failed, cpu_seconds, family, process_seconds
from measuring import Ratio, Sample, flat_results, interleave, markdown_table, ratio
from torch.nn import functional

from fedwmsam.models import model_factory


def make_samples(*walls: float) -> list[Sample]:
    return [Sample(wall, wall) for wall in walls]


def test_a_ratio_is_of_medians_and_its_range_is_of_single_turns():
    result = ratio(make_samples(2, 30, 4), make_samples(1, 10, 2), "wall")
    assert result == Ratio(2.0, 2.0, 3.0)
    assert str(Ratio(2.0, 1.5, 3.0)) == "2.00 (1.50 to 3.00)"


def test_both_clocks_are_reported_under_flat_keys():
    results = flat_results("x", [Sample(2.0, 6.0)], [Sample(1.0, 2.0)])
    assert results["x.wall"] == 2.0
    assert results["x.wall_ratio"] == 2.0
    assert results["x.cpu"] == 6.0
    assert results["x.cpu_ratio"] == 3.0


def test_turns_are_taken_in_rotation_and_the_first_pass_is_not_counted():
    order: list[str] = []

    def turn(name: str) -> Sample:
        order.append(name)
        return Sample(len(order), 0.0)

    turns = {name: partial(turn, name) for name in "abc"}
    samples, failures = interleave("test", turns, repeats=2)
    assert "".join(order) == "abcbcacab"
    assert [sample.wall for sample in samples["a"]] == [6, 8]
    assert not failures


def test_who_fails_is_left_out_and_the_others_continue():
    turns_left = iter([Sample(1.0, 1.0)])

    def fail_later() -> Sample:
        try:
            return next(turns_left)
        except StopIteration:
            raise Failed("fell over") from None

    turns = {"good": lambda: Sample(1.0, 1.0), "bad": fail_later}
    samples, failures = interleave("test", turns, repeats=3)
    assert failures == {"bad": "fell over"}
    assert list(samples) == ["good"]
    assert len(samples["good"]) == 3


def test_a_table_is_markdown():
    text = markdown_table(["a", "b"], [["1", "2"]])
    assert text == "| a | b |\n| --- | --- |\n| 1 | 2 |"


def start(code: str) -> ContenderProcess:
    return ContenderProcess([sys.executable, "-c", code], dict(os.environ), None)


NOISY = """
import sys
for line in sys.stdin:
    print("noise")
    print('{"steps": 7}', flush=True)
    sys.exit(3)
"""


def test_a_contender_may_print_other_lines_but_not_end():
    contender = start(NOISY)
    assert contender.ask("go 1") == {"steps": 7}
    with pytest.raises(Failed, match="exit code 3"):
        contender.receive()
    contender.close()


BUSY = """
import time
while time.process_time() < 0.5: pass
print("{}", flush=True)
input()
"""


def test_cpu_time_counts_children_of_children():
    """The child only waits for a child of its own, which works for half a second."""
    child = start(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY!r}])")
    child.receive()
    assert process_seconds(family(child.process.pid)[-1]) >= 0.5
    this_process = time.process_time()
    assert cpu_seconds() - this_process >= 0.5
    child.send("")
    child.close()


def test_a_contender_that_does_not_end_is_ended_with_its_children():
    sleeping = "import time; print('{}', flush=True); time.sleep(1000)"
    child = start(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {sleeping!r}])")
    child.receive()
    grandchild = family(child.process.pid)[-1]
    child.close(timeout=0)
    assert child.process.returncode == -signal.SIGKILL
    for _ in range(100):  # the signal has been sent; dying takes a moment
        if not is_running(grandchild):
            return
        time.sleep(0.1)
    os.kill(grandchild, signal.SIGKILL)
    pytest.fail("its child is still running")


def is_running(process: int) -> bool:
    """Return whether a process is running; a zombie that nobody has waited for is not."""
    status = Path(f"/proc/{process}/status")
    return status.exists() and "State:\tZ" not in status.read_text()


def test_the_gradient_by_hand_is_autograds():
    torch.manual_seed(0)
    model = model_factory("mlp", (1, 28, 28), 10)()
    x = torch.randn(50, 784)
    y = torch.randint(10, (50,))
    loss = functional.cross_entropy(model(x), y)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    expected = torch.cat([tensor.reshape(-1) for tensor in gradients])
    _, gradient = flatten(model)
    for make_gradient in (autograd_gradient, by_hand_gradient):
        gradient.zero_()
        compute_gradient = make_gradient(model, gradient)
        compute_gradient(x, y)
        torch.testing.assert_close(gradient, expected)
