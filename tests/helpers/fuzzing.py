"""What tests share that feed readers with any bytes."""

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import strategies as st

MOST_MEMORY = 8 << 20  # bytes; every file here is smaller than a hundredth of it


@contextmanager
def little_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY
    finally:
        tracemalloc.stop()


def damaged(good: bytes) -> st.SearchStrategy[bytes]:
    """Cuts, changed bytes, repeated pieces and additions of a good file, and bytes that never were one."""
    place = st.integers(0, len(good))

    def changed(edits: list[tuple[int, bytes]]) -> bytes:
        content = bytearray(good)
        for start, new in edits:
            content[start : start + len(new)] = new
        return bytes(content)

    return st.one_of(
        st.binary(max_size=300),
        place.map(lambda end: good[:end]),
        st.lists(st.tuples(place, st.binary(min_size=1, max_size=8)), min_size=1, max_size=4).map(
            changed
        ),
        # claims are numbers: extreme ones, where a header may have its sizes
        st.tuples(
            place,
            st.sampled_from([b"\xff" * 4, b"\x7f" + b"\xff" * 7, bytes(8), b"\x80" + bytes(7)]),
        ).map(lambda edit: changed([edit])),
        st.tuples(place, place).map(lambda cut: good[: cut[0]] + good[cut[1] :]),
        st.binary(max_size=20).map(lambda rest: good + rest),
    )
