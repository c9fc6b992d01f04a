"""Charts and plots of partitions: what they show, where they refuse."""

import io
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from fedwmsam.data.partitions import Partition, make_partition
from fedwmsam.errors import InputError
from fedwmsam.report.partition_plot import make_partition_chart, save_partition_plot

TEN = np.repeat(np.arange(10), 60)


def printed(
    partition: Partition, width: int = 100, names: tuple[str, ...] = (), encoding: str = "utf-8"
) -> str:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    Console(file=stream, width=width, color_system=None).print(
        make_partition_chart(partition, names)
    )
    stream.seek(0)
    return stream.read()


def test_the_chart_shows_shares_sizes_and_figures() -> None:
    counts = np.array([[8, 0, 0], [1, 1, 2]])
    partition = Partition("iid", (np.arange(8), np.arange(8, 12)), counts, 0, notes=("a remark",))
    lines = printed(partition, names=("cat", "dog", "fox")).splitlines()
    assert lines[0] == "iid: 2 clients, 12 samples, 3 classes"
    assert lines[1].split() == ["0", "1", "2"]
    assert lines[2].split() == ["0", "██", "·", "·", "8", "━" * 12]
    assert lines[3].split() == ["1", "▂▂", "▂▂", "▄▄", "4", "━" * 6]
    text = "\n".join(lines)
    for part in (
        "full = 100%",
        "0.375 mean",
        "0.500 largest",
        "of 3",
        partition.hash,
        "a remark",
        "0 cat, 1 dog, 2 fox",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("clients", "shown", "more"), [(40, 40, ""), (41, 30, "and 11 more clients")]
)
def test_many_clients_are_cut_and_counted(clients: int, shown: int, more: str) -> None:
    text = printed(make_partition("dirichlet:0.1", TEN, clients, seed=0))
    rows = [line for line in text.splitlines() if line.rstrip().endswith("━")]
    assert len(rows) == shown
    assert more in text


@pytest.mark.parametrize("classes", [1, 10, 26, 100, 1000])
@pytest.mark.parametrize("width", [20, 40, 80, 120])
def test_no_row_is_wider_than_the_terminal(classes: int, width: int) -> None:
    partition = make_partition("iid", np.tile(np.arange(classes), 12), 12, seed=0)
    lines = printed(partition, width).splitlines()
    assert max(len(line.rstrip()) for line in lines) <= width
    for client in range(12):
        assert any(line.lstrip().startswith(f"{client} ") for line in lines)


def test_a_plain_terminal_gets_plain_characters() -> None:
    assert printed(make_partition("dirichlet:0.1", TEN, 5, seed=0), encoding="ascii").isascii()


@pytest.mark.parametrize(
    ("suffix", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".PDF", b"%PDF")]
)
def test_plots_are_written_by_suffix_and_the_same_twice(
    tmp_path: Path, suffix: str, start: bytes
) -> None:
    pytest.importorskip("matplotlib")
    partition = make_partition("dirichlet:0.1", TEN, 6, seed=0)
    first = tmp_path / f"new/first{suffix}"
    second = tmp_path / f"second{suffix}"
    save_partition_plot(partition, first)
    save_partition_plot(partition, str(second))
    assert first.read_bytes().startswith(start)
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize(("clients", "classes"), [(1, 1), (4, 10), (200, 10), (150, 100)])
def test_any_shape_can_be_drawn(tmp_path: Path, clients: int, classes: int) -> None:
    pytest.importorskip("matplotlib")
    partition = make_partition("iid", np.tile(np.arange(classes), 200), clients, seed=0)
    save_partition_plot(
        partition, tmp_path / "plot.png", [f"kind {number}" for number in range(classes)]
    )


def test_the_plot_names_rule_hash_and_classes(tmp_path: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    partition = make_partition("dirichlet:0.1", TEN, 6, seed=0)
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        save_partition_plot(partition, tmp_path / "plot.svg", list("abcdefghij"))
    text = (tmp_path / "plot.svg").read_text()
    for part in ("dirichlet:0.1", "6 clients, 600 samples", partition.hash, ">j<", "TV distance"):
        assert part in text


@pytest.mark.parametrize("name", ["plot.jpgg", "plot"])
def test_unknown_formats_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"\.png") as refusal:
        save_partition_plot(make_partition("iid", TEN, 2, seed=0), tmp_path / name)
    assert name in str(refusal.value)


def test_a_missing_matplotlib_is_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"pip install 'fedwmsam\[plot\]'"):
        save_partition_plot(make_partition("iid", TEN, 2, seed=0), tmp_path / "plot.png")


def test_a_path_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="Cannot write"):
        save_partition_plot(make_partition("iid", TEN, 2, seed=0), tmp_path / "file" / "plot.png")
