"""Helpers for tests that feed readers with damaged files."""

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import strategies as st

MEMORY_LIMIT = 8 << 20
"""Bytes that a reader may allocate; every file in these tests is a hundred times smaller."""
EXTREME_SIZES = [b"\xff" * 4, b"\x7f" + b"\xff" * 7, bytes(8), b"\x80" + bytes(7)]
"""Integers at the limits of their type, for the places where a header may state a size."""


@contextmanager
def limit_memory() -> Iterator[None]:
    """Fail the test if the code inside allocates more than MEMORY_LIMIT at any time."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < MEMORY_LIMIT
    finally:
        tracemalloc.stop()


def damaged_copies(good: bytes) -> st.SearchStrategy[bytes]:
    """Return a strategy that draws damaged copies of a good file.

    They are cut off, have bytes changed, pieces repeated or left out, or bytes appended. Some are
    arbitrary bytes that never were such a file.
    """
    position = st.integers(0, len(good))

    def overwrite(edits: list[tuple[int, bytes]]) -> bytes:
        content = bytearray(good)
        for start, new in edits:
            content[start : start + len(new)] = new
        return bytes(content)

    few_edits = st.lists(
        st.tuples(position, st.binary(min_size=1, max_size=8)), min_size=1, max_size=4
    )
    extreme_size = st.tuples(position, st.sampled_from(EXTREME_SIZES))
    return st.one_of(
        st.binary(max_size=300),
        position.map(lambda end: good[:end]),
        few_edits.map(overwrite),
        extreme_size.map(lambda edit: overwrite([edit])),
        st.tuples(position, position).map(lambda cut: good[: cut[0]] + good[cut[1] :]),
        st.binary(max_size=20).map(lambda rest: good + rest),
    )
