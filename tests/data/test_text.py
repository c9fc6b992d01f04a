"""Text by speaker: windows, vocabulary, who is left out, damaged lines, the real Shakespeare."""

import json
from pathlib import Path

import pytest
import torch
from helpers.data_files import REAL_DATA, catch_refusal, needs_dataset

from fedwmsam.data import Dataset, load_dataset, text


def write(folder: Path, *lines: tuple[str | None, str]) -> str:
    content = "".join(
        json.dumps({"speaker": speaker, "text": words}) + "\n" for speaker, words in lines
    )
    (folder / "talk.jsonl").write_text(content)
    return str(folder / "talk.jsonl")


def spell(data: Dataset, numbers: torch.Tensor) -> str:
    return "".join(data.class_names[number] for number in numbers)


ALPHABET = "abcdefghijklmnopqrstuvwxyz"


def test_windows_and_the_characters_after_them(tmp_path: Path) -> None:
    data = load_dataset(write(tmp_path, ("A", ALPHABET[:20])), context=3, stride=2)
    assert data.class_names == ("<unknown>", *ALPHABET[:16]) and data.num_classes == 17
    assert data.train.inputs.dtype == torch.uint8
    windows = [spell(data, window) for window in data.train.inputs]
    assert windows == ["abc", "cde", "efg", "ghi", "ijk", "klm", "mno"]
    assert [data.class_names[i] for i in data.train.labels] == list("dfhjlnp")
    assert data.test.inputs.tolist() == [[0, 0, 0]] and data.test.labels.tolist() == [0], (
        "new in the test text"
    )
    assert data.transform(data.train.inputs).dtype == torch.int64 and data.input_shape == (3,)


def test_speakers_are_groups_and_their_lines_are_joined(tmp_path: Path) -> None:
    lines = [
        ("B", "xyxyxyxyx"),
        ("A", "pqpqpqpqpqpqpqpqpqpq"),
        (None, "HEADING"),
        ("B", "yxyxyxyxyx"),
    ]
    data = load_dataset(write(tmp_path, *lines), context=2, stride=1)
    assert data.group_names == ("A", "B") and data.class_names == (
        "<unknown>",
        "\n",
        "p",
        "q",
        "x",
        "y",
    )
    assert data.train.groups is not None and data.train.groups.tolist() == [0] * 14 + [1] * 14
    assert data.test.groups is not None and data.test.groups.tolist() == [0] * 2 + [1] * 2
    characters = {data.class_names[i] for i in data.train.labels[data.train.groups == 0]}
    assert characters == {"p", "q"}


def test_speakers_with_too_little_text_are_left_out_and_counted(tmp_path: Path) -> None:
    data = load_dataset(write(tmp_path, ("A", "ab" * 10), ("B", "ab" * 3), ("C", "")), context=3)
    assert data.group_names == ("A",) and "2 speakers with too little text left out" in data.source
    assert "shorten the context" in catch_refusal(
        lambda: load_dataset(str(tmp_path / "talk.jsonl"))
    )


def test_no_test_window_shares_a_character_with_training(tmp_path: Path) -> None:
    data = load_dataset(
        write(tmp_path, ("A", "".join(chr(0x4E00 + i) for i in range(1000)))), context=5, stride=1
    )
    assert data.train.inputs.dtype == torch.int16 and data.num_classes == 801
    assert int(data.test.inputs.max()) == 0 and int(data.train.inputs.min()) == 1


def test_characters_beyond_the_basic_plane_are_one_character(tmp_path: Path) -> None:
    data = load_dataset(write(tmp_path, ("A", "🙂🙃" * 10)), context=1, stride=1)
    assert data.class_names == ("<unknown>", "🙂", "🙃") and len(data.train) == 15


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        "[]",
        "3",
        "null",
        '{"speaker": "A"}',
        '{"text": "A"}',
        '{"speaker": 3, "text": "a"}',
        '{"speaker": "A", "text": ["a"]}',
        '{"speaker": "A", "text": null}',
        '{"speaker": "A", "text": "\\ud800"}',
        "[" * 100_000,
        '{"speaker": "A", "text": "a"} x',
        "9" * 10_000,
    ],
)
def test_bad_lines_are_refused_by_number(tmp_path: Path, line: str) -> None:
    path = Path(write(tmp_path, ("A", "a" * 500)))
    path.write_text(path.read_text() + "\n" + line)
    message = catch_refusal(lambda: load_dataset(str(path)))
    assert "line 3" in message and "speaker" in message


def test_bytes_that_are_not_text(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"speaker": "A", "text": "\xff\xfe"}\n')
    assert "line 1" in catch_refusal(lambda: load_dataset(str(tmp_path / "a.jsonl")))


@pytest.mark.parametrize(
    "options", [{"context": 0}, {"context": 2.0}, {"stride": 0}, {"stride": "5"}]
)
def test_impossible_options(tmp_path: Path, options: dict[str, int]) -> None:
    assert next(iter(options)) in catch_refusal(
        lambda: load_dataset(write(tmp_path, ("A", "ab")), **options)
    )


def test_windows_that_no_memory_could_hold_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "MAX_CHARACTERS", 1000)
    path = write(tmp_path, ("A", "ab" * 200))
    assert "raise the stride" in catch_refusal(lambda: load_dataset(path, context=20, stride=1))
    assert len(load_dataset(path, context=20, stride=10).train) == 30


def test_shakespeare_is_looked_for_below_the_data_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = catch_refusal(lambda: load_dataset("shakespeare", tmp_path))
    assert "tinyshakespeare_by_speaker.jsonl" in message and str(tmp_path) in message
    Path(write(tmp_path, ("A", "ab" * 200))).rename(tmp_path / "tinyshakespeare_by_speaker.jsonl")
    monkeypatch.setenv("FEDWMSAM_DATA", str(tmp_path))
    assert load_dataset("shakespeare").name == "shakespeare"


@needs_dataset("tinyshakespeare_by_speaker.jsonl")
def test_the_real_shakespeare() -> None:
    data = load_dataset("shakespeare", REAL_DATA)
    assert (len(data.train), len(data.test), data.num_classes, len(data.group_names)) == (
        161_812,
        39_186,
        65,
        227,
    )
    assert data.train.inputs.shape == (161_812, 40) and "72 speakers" in data.source
    assert data.train.groups is not None and (data.train.groups.bincount() > 0).all()
