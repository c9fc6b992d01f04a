"""What the tests of the data readers share."""

import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedwmsam.errors import InputError

REAL_DATA = Path(
    os.environ.get("FEDWMSAM_DATA") or "/nowhere"
)  # read before the tests hide the variable


def needs_real(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        not (REAL_DATA / name).exists(), reason=f"needs {name} in the folder $FEDWMSAM_DATA"
    )


def refusal(call: Callable[[], object]) -> str:
    """The one line in which a person's mistake is reported."""
    with pytest.raises(InputError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message and len(message) < 1000
    return message


def survives(call: Callable[[], object]) -> bool:
    """Whether the input was good; anything but success or a refusal fails the test."""
    try:
        call()
    except InputError:
        return False
    return True


def idx_bytes(array: np.ndarray, code: int = 0x08) -> bytes:
    return struct.pack(f">2xBB{array.ndim}I", code, array.ndim, *array.shape) + array.tobytes()
