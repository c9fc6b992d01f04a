"""Helpers for tests of the data readers: files of data sets, and the sentences of refusals."""

import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedwmsam.errors import InputError

# Read here, at import, because the tests hide the variable from what they call.
REAL_DATA = Path(os.environ.get("FEDWMSAM_DATA") or "/nowhere")
"""The folder with downloaded data sets, if there is one."""


def needs_dataset(name: str) -> pytest.MarkDecorator:
    """Return a mark that skips a test where the data set has not been downloaded."""
    return pytest.mark.skipif(
        not (REAL_DATA / name).exists(), reason=f"needs {name} in the folder $FEDWMSAM_DATA"
    )


def catch_refusal(call: Callable[[], object]) -> str:
    """Return the message of the InputError that the call must raise; it has to be one line."""
    with pytest.raises(InputError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message and len(message) < 1000
    return message


def is_accepted(call: Callable[[], object]) -> bool:
    """Return True if the call succeeds and False if it raises InputError.

    Any other exception is a bug, and passes through to fail the test.
    """
    try:
        call()
    except InputError:
        return False
    return True


def encode_idx(array: np.ndarray, code: int = 0x08) -> bytes:
    """Return the array as an IDX file, the format of MNIST; `code` says the type of its values."""
    return struct.pack(f">2xBB{array.ndim}I", code, array.ndim, *array.shape) + array.tobytes()
