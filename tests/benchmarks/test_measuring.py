"""The figures of `make bench`: what is counted, how ratios are formed, and that the limit computes what others do."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
from bare import autograd_gradient, by_hand_gradient, flatten
from contenders.protocol import Contender, Failed, cpu_seconds, family, process_seconds
from measuring import Ratio, Sample, interleave, numbers, ratio, table
from torch.nn import functional

from fedwmsam.models import model_factory


def samples(*walls: float) -> list[Sample]:
    return [Sample(wall, wall) for wall in walls]


def test_a_ratio_is_of_medians_and_its_range_is_of_single_turns():
    assert ratio(samples(2, 30, 4), samples(1, 10, 2), "wall") == Ratio(2.0, 2.0, 3.0)
    assert str(Ratio(2.0, 1.5, 3.0)) == "2.00 (1.50 to 3.00)"


def test_both_clocks_are_reported_under_flat_keys():
    found = numbers("x", [Sample(2.0, 6.0)], [Sample(1.0, 2.0)])
    assert (found["x.wall"], found["x.wall_ratio"], found["x.cpu"], found["x.cpu_ratio"]) == (
        2.0,
        2.0,
        6.0,
        3.0,
    )


def test_turns_are_taken_in_rotation_and_the_first_pass_is_not_counted():
    order: list[str] = []

    def turn(name: str) -> Sample:
        order.append(name)
        return Sample(len(order), 0.0)

    found, failures = interleave(
        "test", {name: lambda name=name: turn(name) for name in "abc"}, repeats=2
    )
    assert "".join(order) == "abcbcacab"
    assert [sample.wall for sample in found["a"]] == [6, 8] and not failures


def test_who_fails_is_left_out_and_the_rest_goes_on():
    turns = iter([Sample(1.0, 1.0)])

    def breaks() -> Sample:
        try:
            return next(turns)
        except StopIteration:
            raise Failed("fell over") from None

    found, failures = interleave(
        "test", {"good": lambda: Sample(1.0, 1.0), "bad": breaks}, repeats=3
    )
    assert failures == {"bad": "fell over"} and list(found) == ["good"] and len(found["good"]) == 3


def test_a_table_is_markdown():
    assert table(["a", "b"], [["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"


def contender(code: str) -> Contender:
    return Contender([sys.executable, "-c", code], dict(os.environ), None)


def test_a_contender_may_chatter_but_not_end():
    echo = contender(
        "import sys\nfor line in sys.stdin: print('noise'); print('{\"steps\": 7}', flush=True); sys.exit(3)"
    )
    assert echo.ask("go 1") == {"steps": 7}
    with pytest.raises(Failed, match="exit code 3"):
        echo.receive()
    echo.close()


BUSY = """
import time
while time.process_time() < 0.5: pass
print("{}", flush=True)
input()
"""


def test_cpu_time_counts_children_of_children():
    """A child that only waits for a child of its own, which works for half a second."""
    child = contender(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY!r}])")
    child.receive()
    assert process_seconds(family(child.process.pid)[-1]) >= 0.5
    own = time.process_time()
    assert cpu_seconds() - own >= 0.5
    child.send("")
    child.close()


def test_a_contender_that_does_not_end_is_ended_with_its_children():
    stays = "import time; print('{}', flush=True); time.sleep(1000)"
    child = contender(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {stays!r}])")
    child.receive()
    grandchild = family(child.process.pid)[-1]
    child.close(patience=0)
    assert child.process.returncode == -signal.SIGKILL
    for _ in range(100):  # the signal has been sent; dying takes a moment
        if not alive(grandchild):
            return
        time.sleep(0.1)
    os.kill(grandchild, signal.SIGKILL)
    pytest.fail("its child goes on")


def alive(process: int) -> bool:
    """A zombie that nobody has waited for does not count."""
    status = Path(f"/proc/{process}/status")
    return status.exists() and "State:\tZ" not in status.read_text()


def test_the_gradient_by_hand_is_autograds():
    torch.manual_seed(0)
    model = model_factory("mlp", (1, 28, 28), 10)()
    x, y = torch.randn(50, 784), torch.randint(10, (50,))
    expected = torch.autograd.grad(functional.cross_entropy(model(x), y), list(model.parameters()))
    _, gradient = flatten(model)
    for maker in (autograd_gradient, by_hand_gradient):
        gradient.zero_()
        maker(model, gradient)(x, y)
        torch.testing.assert_close(gradient, torch.cat([piece.reshape(-1) for piece in expected]))
