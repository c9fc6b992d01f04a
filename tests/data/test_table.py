"""CSV tables: columns, classes, standardising, and messages that name the line."""

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.data_files import catch_refusal

from fedwmsam.data import load_dataset

GOOD = "a,b,label\n" + "".join(f"{i},{i * i},{'yes' if i % 2 else 'no'}\n" for i in range(10))


def write(folder: Path, text: str) -> str:
    (folder / "table.csv").write_text(text, encoding="utf-8")
    return str(folder / "table.csv")


def test_a_table_is_standardised_by_its_training_rows(tmp_path: Path) -> None:
    data = load_dataset(write(tmp_path, GOOD))
    assert (len(data.train), len(data.test), data.num_classes, data.class_names) == (
        8,
        2,
        2,
        ("no", "yes"),
    )
    assert data.train.inputs.dtype == torch.float32 and data.input_shape == (2,)
    assert data.train.inputs.mean(dim=0).abs().max() < 1e-6
    assert (data.train.inputs.std(dim=0, correction=0) - 1).abs().max() < 1e-6
    both = torch.cat([data.train.inputs[:, 0], data.test.inputs[:, 0]])
    labels = torch.cat([data.train.labels, data.test.labels])
    assert labels[both.argsort()].tolist() == [0, 1] * 5, "each row keeps its label"


def test_the_split_is_the_same_every_time(tmp_path: Path) -> None:
    first = load_dataset(write(tmp_path, GOOD))
    second = load_dataset(write(tmp_path, GOOD))
    assert torch.equal(first.test.inputs, second.test.inputs)


def test_clients_are_groups(tmp_path: Path) -> None:
    rows = "".join(f"{i},c{i % 3},{i % 2}\n" for i in range(30))
    data = load_dataset(write(tmp_path, "a,client,target\n" + rows))
    assert (
        data.group_names == ("c0", "c1", "c2")
        and data.input_shape == (1,)
        and data.class_names == ("0", "1")
    )
    assert data.train.groups is not None and len(data.train.groups) == 24


def test_which_column_is_the_label(tmp_path: Path) -> None:
    rows = "".join(f"{i % 2},{i},{i % 3}\n" for i in range(12))
    assert load_dataset(write(tmp_path, "label,a,b\n" + rows)).num_classes == 2
    assert load_dataset(write(tmp_path, "x,a,b\n" + rows)).num_classes == 3, (
        "the last one if none is called label"
    )
    assert load_dataset(str(tmp_path / "table.csv"), label="x").num_classes == 2
    assert "Unknown column 'y'" in catch_refusal(
        lambda: load_dataset(str(tmp_path / "table.csv"), label="y")
    )


def test_whole_number_labels_are_in_the_order_of_numbers(tmp_path: Path) -> None:
    rows = "".join(f"{i},{(10, 9, -1)[i % 3]}\n" for i in range(9))
    assert load_dataset(write(tmp_path, "a,label\n" + rows)).class_names == ("-1", "9", "10")


def test_quotes_blank_lines_a_byte_order_mark_and_windows_line_ends(tmp_path: Path) -> None:
    text = '\ufeff"a, b",label\r\n1,"x, y"\r\n\r\n2,"x, y"\r\n3,"z\r\nz"\r\n'
    (tmp_path / "table.csv").write_bytes(text.encode())
    data = load_dataset(str(tmp_path / "table.csv"))
    assert data.class_names == ("x, y", "z\r\nz") and len(data.train) == 2


def test_a_constant_column_becomes_zeros(tmp_path: Path) -> None:
    data = load_dataset(write(tmp_path, "a,b,label\n" + "".join(f"5,{i},0\n" for i in range(9))))
    assert (data.train.inputs[:, 0] == 0).all() and (data.test.inputs[:, 0] == 0).all()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "header"),
        ("\n\n", "header"),
        ("1,2,3\n4,5,6\n", "header"),
        ("a,a,label\n1,2,3\n", "header"),
        ("a,,label\n1,2,3\n", "header"),
        ("label\n1\n2\n", "no feature column"),
        ("client,label\n1,2\n2,2\n", "no feature column"),
        ("a,label\n", "0 rows"),
        ("a,label\n1,2\n", "1 rows"),
        ("a,label\n1,2\nx,2\n", "line 3: the column 'a' holds 'x'"),
        ("a,label\n1,2\n,2\n", "line 3: the column 'a' holds ''"),
        ("a,label\n1,2\nnan,2\n", "line 3"),
        ("a,label\n1,2\n1e39,2\n", "line 3"),
        ("a,label\n1,2\n\n1,2,3\n", "line 4: 3 cells, expected 2"),
        ("a,label\n1\n", "line 2: 1 cells"),
        ("a,label\n1, \n", "line 2: the column 'label' is empty"),
        ('a,label\n1,"2\n', "CSV"),
        ("a,label\n1,2\n" + "9" * 200_000 + ",1\n", "CSV"),
    ],
)
def test_bad_tables_are_refused_by_line(tmp_path: Path, text: str, words: str) -> None:
    message = catch_refusal(lambda: load_dataset(write(tmp_path, text)))
    assert words in message and "table.csv" in message


def test_a_label_of_its_own_in_every_row_is_doubted(tmp_path: Path) -> None:
    rows = "".join(f"{i % 2},{i / 7}\n" for i in range(60))
    assert "option label" in catch_refusal(
        lambda: load_dataset(write(tmp_path, "a,price\n" + rows))
    )


def test_numbers_too_far_apart_are_refused(tmp_path: Path) -> None:
    """The training rows are 1e-30 apart and the test rows 1e38: no float32 holds the ratio."""
    clean = load_dataset(write(tmp_path, "a,label\n" + "".join(f"{i},0\n" for i in range(10))))
    assert len(clean.test) == 2
    together = np.concatenate([clean.train.inputs[:, 0], clean.test.inputs[:, 0]])
    test_rows = together.argsort().argsort()[8:]
    rows = "".join(f"{'3e38' if i in test_rows else f'{i}e-30'},0\n" for i in range(10))
    assert "too far apart" in catch_refusal(
        lambda: load_dataset(write(tmp_path, "a,label\n" + rows))
    )


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_bytes("a,label\n1,é\n".encode("latin-1"))
    assert "UTF-8" in catch_refusal(lambda: load_dataset(str(tmp_path / "table.csv")))
