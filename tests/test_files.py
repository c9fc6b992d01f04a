"""The door to the files of a run folder: regular files only, no links, limited sizes."""

import os
import socket
import stat
from pathlib import Path

import pytest

from fedwmsam import InputError, files, toml
from fedwmsam.engine.records import JSON_LIMIT, read_json, read_lines, read_metrics


@pytest.fixture
def foreign(tmp_path):
    """Return a file outside of the run folder that must stay as it is."""
    path = tmp_path / "foreign"
    path.write_text("mine")
    return path


def make_special(kind, path, foreign):
    """Put something at `path` that is no regular file."""
    if kind == "link":
        path.symlink_to(foreign)
    elif kind == "dangling link":
        path.symlink_to(path.with_name("absent"))
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as served:
            served.bind(str(path))
    else:
        path.mkdir()


KINDS = ("link", "dangling link", "device", "pipe", "socket", "folder")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "use",
    [
        lambda path: files.read_bytes(path, 100),
        files.open_to_append,
        files.open_to_update,
        lambda path: files.lock_for(path).acquire(),
        toml.load,
        read_json,
        read_lines,
    ],
)
def test_what_is_no_regular_file_is_refused_at_once(tmp_path, foreign, kind, use, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    make_special(kind, Path("file"), foreign)
    with pytest.raises(InputError, match="regular file"):
        use(Path("file"))
    assert foreign.read_text() == "mine" and not (tmp_path / "absent").exists()


def test_a_device_itself_is_refused():
    with pytest.raises(InputError, match="a device, not a regular file"):
        files.read_bytes(Path("/dev/zero"), 100)


def test_a_file_larger_than_it_may_be_is_not_read(tmp_path):
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(10**12)  # it takes no room on the disk
    with pytest.raises(InputError, match="1,000,000,000,000 bytes"):
        files.read_bytes(path, 10**6)
    for read in (read_json, read_lines, toml.load):
        with pytest.raises(InputError, match="more than the"):
            read(path)


def test_values_that_need_much_more_memory_than_their_text_are_not_parsed(tmp_path):
    lists = b"[" + b"[]," * (JSON_LIMIT // 3 - 10) + b"0]"
    (tmp_path / "lists").write_bytes(b'{"a": ' + lists + b"}")
    with pytest.raises(InputError, match="more values than a run writes"):
        read_json(tmp_path / "lists")
    line = b'{"a": ' + b"[]," * 0 + b"[" + b"{}," * 10**6 + b"0]}\n"
    (tmp_path / "lines").write_bytes(line * 5)
    with pytest.raises(InputError, match="line 4: it holds more values"):
        read_lines(tmp_path / "lines")


def test_a_replaced_file_is_found_at_its_own_place_whatever_was_planted(tmp_path, foreign):
    path = tmp_path / "summary.json"
    path.symlink_to(foreign)
    for planted in (".summary.json.new", ".summary.json.0.new"):
        (tmp_path / planted).symlink_to(foreign)
    files.write_text(path, "new")
    assert path.read_text() == "new" and not path.is_symlink()
    assert foreign.read_text() == "mine"


def test_two_temporary_names_differ_and_neither_stays(tmp_path):
    path = tmp_path / "file"
    with files.atomic_replace(path) as first, files.atomic_replace(path) as second:
        assert first != second and {first.parent, second.parent} == {tmp_path}
        assert stat.S_ISREG(first.lstat().st_mode)
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_written_whole_stays_as_it_was(tmp_path):
    path = tmp_path / "file"
    files.write_text(path, "old")
    with pytest.raises(ZeroDivisionError), files.atomic_replace(path) as temporary:
        temporary.write_text("half")
        raise ZeroDivisionError
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_new_files_have_the_usual_permissions(tmp_path):
    files.write_text(tmp_path / "ours", "x")
    (tmp_path / "usual").write_text("x")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "usual").stat().st_mode


@pytest.mark.parametrize("target", ["folder", "file", "absent"])
def test_a_folder_of_a_run_that_is_a_link_is_refused(tmp_path, target):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "checkpoints").symlink_to(tmp_path / target)
    with pytest.raises(InputError, match="is a link, not a folder"):
        files.own_folder(tmp_path / "checkpoints")
    assert files.own_folder(tmp_path / "folder") == tmp_path / "folder"
    assert files.own_folder(tmp_path / "not yet") == tmp_path / "not yet"


def test_leftovers_are_removed_and_what_they_point_to_stays(tmp_path, foreign):
    (tmp_path / ".a.new").symlink_to(foreign)
    (tmp_path / ".b.new").write_text("half")
    (tmp_path / ".c.new").mkdir()
    files.remove_temporary_files(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".c.new", "foreign"]
    assert foreign.read_text() == "mine"


def test_a_file_that_the_user_names_may_be_a_link_or_a_pipe_of_the_shell(tmp_path):
    (tmp_path / "settings.toml").write_text("rounds = 3")
    (tmp_path / "link.toml").symlink_to(tmp_path / "settings.toml")
    assert toml.load_named(tmp_path / "link.toml") == {"rounds": 3}
    reader, writer = os.pipe()
    os.write(writer, b"rounds = 4")
    os.close(writer)
    assert toml.load_named(Path(f"/dev/fd/{reader}")) == {"rounds": 4}
    os.close(reader)
    os.mkfifo(tmp_path / "pipe.toml")
    with pytest.raises(InputError, match="a pipe, not a regular file"):
        toml.load_named(tmp_path / "pipe.toml")
    with pytest.raises(InputError, match="more than the"):
        toml.load_named(Path("/dev/zero"))


def test_a_key_of_very_many_parts_is_refused_before_it_takes_long(tmp_path):
    (tmp_path / "config.toml").write_text("a." * 30_000 + "a = 1")
    with pytest.raises(InputError, match="a key of more than 100 parts"):
        toml.load(tmp_path / "config.toml")


@pytest.mark.parametrize(
    "line", ['{"round": 2}', '{"round": 1, "loss": "x"}', '{"round": 1, "loss": 1%s}' % ("0" * 400)]
)
def test_metrics_are_numbers_and_in_order(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_text(f"{line}\n")
    with pytest.raises(InputError, match=r"metrics\.jsonl is damaged"):
        read_metrics(path)
    path.write_text('{"round": 1, "loss": null, "missing": [3], "accuracy": 0.5}\n')
    assert read_metrics(path)[0]["missing"] == [3]
