"""Files from outside run no code and get no memory for sizes that they merely claim.

Readers are not listed by hand where a table of them exists: every data set, every file format and
every file of a run's folder takes part, and a search of the source finds modules that unpickle.
"""

import ast
import gzip
import hashlib
import io
import pickle
import resource
import shutil
import struct
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord
from helpers.data_files import is_accepted
from PIL import Image

import fedwmsam
from fedwmsam import InputError, toml
from fedwmsam.analysis import dynamics, embedding, flatness, theory
from fedwmsam.data import load_dataset
from fedwmsam.data.cifar import RELEASES, FileLayout, read_pickled
from fedwmsam.data.datasets import DATASETS, FILE_LOADERS
from fedwmsam.data.download import DownloadError, extract_members
from fedwmsam.data.hub import decode_hub_image
from fedwmsam.data.idx import read_idx
from fedwmsam.data.image_folder import DOMAIN_DATASETS
from fedwmsam.data.mnist import IDX_FILES, MNIST_VARIANTS
from fedwmsam.data.npy import memmap_npy
from fedwmsam.data.text import SHAKESPEARE
from fedwmsam.engine import checkpoint
from fedwmsam.experiment.verify import verify_file
from fedwmsam.flower import wire

SOURCE = Path(fedwmsam.__file__).parent


class Evil:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


def save_to_bytes(save, *values) -> bytes:
    stream = io.BytesIO()
    save(stream, *values)
    return stream.getvalue()


FORMS = {
    "pickle, protocol 0": lambda evil: pickle.dumps({"data": evil, "labels": evil}, 0),
    "pickle, protocol 2": lambda evil: pickle.dumps({b"data": evil, b"labels": [evil]}, 2),
    "pickle, protocol 5": lambda evil: pickle.dumps(evil, 5),
    "numpy array of objects": lambda evil: save_to_bytes(np.save, np.array([evil], dtype=object)),
    "numpy archive of objects": lambda evil: save_to_bytes(
        lambda s, e: np.savez(s, x=[e], y=[e], groups=[e]), evil
    ),
    "torch.save": lambda evil: save_to_bytes(lambda s, e: torch.save({"w": e}, s), evil),
    "packed pickle": lambda evil: gzip.compress(pickle.dumps(evil)),
    "sealed as a checkpoint": lambda evil: checkpoint.MAGIC + sealed(pickle.dumps(evil)),
}


def sealed(payload: bytes) -> bytes:
    return hashlib.blake2b(payload, digest_size=checkpoint.DIGEST_BYTES).digest() + payload


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "executed"


@pytest.fixture(params=FORMS)
def evil(request, marker) -> bytes:
    return FORMS[request.param](Evil(marker))


@pytest.fixture(autouse=True)
def secluded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("no network here")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDWMSAM_DATA", raising=False)
    monkeypatch.setattr(urllib.request, "urlopen", refuse)


def test_the_pickle_would_do_its_work(marker: Path) -> None:
    pickle.loads(FORMS["pickle, protocol 5"](Evil(marker)))
    assert marker.exists()


# Data


def published_files(name: str) -> list[list[str]]:
    """Return the files in which a data set is published, in each of its forms."""
    if name in RELEASES:
        release = RELEASES[name]
        return [layout_files(release.binary), layout_files(release.pickled), [release.archive]]
    if name in MNIST_VARIANTS:
        return [[f"{MNIST_VARIANTS[name].folder}/{file}" for file in IDX_FILES]]
    if name in DOMAIN_DATASETS:
        folders, domains = DOMAIN_DATASETS[name]
        stems = [f"{folders[0]}/{domain}/class/a" for domain in domains]
        return [[f"{stem}.png" for stem in stems], [f"{stem}.jpg" for stem in stems]]
    return {"digits": [], "shakespeare": [[f"shakespeare/{SHAKESPEARE}"]]}[name]


def layout_files(layout: FileLayout) -> list[str]:
    return [f"{layout.folder}/{file}" for file in layout.train + layout.test]


@pytest.mark.parametrize("name", DATASETS)
def test_data_sets_by_name(tmp_path: Path, name: str, evil: bytes, marker: Path) -> None:
    for number, files in enumerate(published_files(name)):
        for file in files:
            path = tmp_path / str(number) / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(evil)
        assert not is_accepted(lambda folder=tmp_path / str(number): load_dataset(name, folder))
    assert not marker.exists()


@pytest.mark.parametrize("ending", FILE_LOADERS)
def test_data_sets_by_path(tmp_path: Path, ending: str, evil: bytes, marker: Path) -> None:
    (tmp_path / f"a{ending}").write_bytes(evil)
    assert not is_accepted(lambda: load_dataset(str(tmp_path / f"a{ending}")))
    (tmp_path / "pictures" / "class").mkdir(parents=True)
    (tmp_path / "pictures" / "class" / "a.png").write_bytes(evil)
    assert not is_accepted(lambda: load_dataset(str(tmp_path / "pictures")))
    assert not marker.exists()


def test_archives_and_hub_objects(tmp_path: Path, evil: bytes, marker: Path) -> None:
    (tmp_path / "a.tar.gz").write_bytes(evil)
    with pytest.raises(DownloadError):
        extract_members(tmp_path / "a.tar.gz", ["a"], tmp_path / "target", max_bytes=100)
    assert not is_accepted(lambda: decode_hub_image({"bytes": evil, "path": None}, "row 1", 8))
    assert not marker.exists()


def test_the_cache(tmp_path: Path, evil: bytes, marker: Path) -> None:
    """Every file of every entry is damaged in turn, and is decoded again."""
    for n in range(20):
        path = tmp_path / "images" / f"class{n % 2}" / f"{n}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (10 * n, 0, 0)).save(path)
    folder = tmp_path / "images"
    good = load_dataset(str(folder), image_size=4).hash
    files = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert files
    for path in files:
        path.write_bytes(evil)
        assert load_dataset(str(folder), image_size=4).hash == good
    assert not marker.exists()


# Runs

COMMANDS = (
    ["resume", "RUN", "-q"],
    ["evaluate", "RUN"],
    ["report", "RUN", "--html", "PAGE"],
    ["analyse", "dynamics", "RUN", "--states", "1", "--sample", "20", "-q"],
)
ANALYSES = [
    f"analysis/{name}"
    for name in (
        dynamics.DYNAMICS_FILE,
        theory.THEORY_FILE,
        embedding.EMBEDDING_FILE,
        flatness.FLATNESS_FILE,
    )
]


@pytest.fixture(scope="module")
def finished(cli, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("finished")
    settings = [
        "--model",
        "linear",
        "--clients",
        "4",
        "--rounds",
        "2",
        "--local-epochs",
        "1",
        "--validation",
        "0.1",
    ]
    kept = [
        "--set",
        "keep_states=1",
        "--set",
        "memory_budget=0",
        "--record",
        "echo,drift",
        "--record-every",
        "1",
    ]
    done = cli(
        "run", *settings, *kept, "--checkpoint-every", "1", "--out", out, "--name", "run", "-q"
    )
    assert done.code == 0, done.err
    return out / "run"


def test_every_file_of_a_run(cli, finished: Path, tmp_path: Path, marker: Path) -> None:
    """Every file is replaced in turn, in one form after the other, and read by every command."""
    names = [
        str(path.relative_to(finished)) for path in sorted(finished.rglob("*")) if path.is_file()
    ]
    assert len(names) >= 14 and "checkpoints/memory.rows" in names
    for number, name in enumerate([*names, *ANALYSES]):
        run = tmp_path / str(number)
        shutil.copytree(finished, run)
        (run / name).parent.mkdir(exist_ok=True)
        form = list(FORMS)[number % len(FORMS)]
        for command in COMMANDS:
            (run / name).write_bytes(FORMS[form](Evil(marker)))
            outcome = cli(
                *({"RUN": run, "PAGE": tmp_path / "page.html"}.get(word, word) for word in command)
            )
            assert outcome.code in (0, 2), (name, form, command, outcome.err)
            assert outcome.code == 0 or outcome.err.count("Error: ") == 1, (
                name,
                form,
                command,
                outcome.err,
            )
    assert not marker.exists()


def test_files_read_alone(tmp_path: Path, evil: bytes, marker: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(evil)
    for read in (checkpoint.read_tensors, verify_file, toml.load):
        assert not is_accepted(lambda read=read: read(path))
    with pytest.raises(checkpoint.DamagedFileError):
        checkpoint.read_checkpoint(path)
    assert not marker.exists()


def test_messages(evil: bytes, marker: Path) -> None:
    """Arrays as Flower packs them are numpy files, which may hold pickles; they are not read."""
    for stype in ("numpy.ndarray", wire.RAW, wire.HALF, "pickle"):
        with pytest.raises(wire.WireError):
            wire.unpack(ArrayRecord({"w": Array("object", (1,), stype, evil)}))
    assert not marker.exists()


# Claims

CLAIM = 10**15


def npy(shape: str) -> bytes:
    text = f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({shape}), }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + bytes(64)


def safetensors_of(size: int) -> bytes:
    header = f'{{"w":{{"dtype":"F32","shape":[{size}],"data_offsets":[0,{4 * size}]}}}}'.encode()
    return struct.pack("<Q", len(header)) + header + bytes(64)


ABSURD = {
    "a.npy": npy(f"{CLAIM},"),
    "b.npy": npy(f"{10**8}, {10**8}"),
    "train-images-idx3-ubyte": struct.pack(">2xBB3I", 8, 3, 2**32 - 1, 2**32 - 1, 2**32 - 1)
    + bytes(64),
    "long-pickle": b"\x80\x04\x8e" + struct.pack("<Q", CLAIM) + bytes(64) + b".",
    "model.safetensors": safetensors_of(CLAIM),
    "header.safetensors": struct.pack("<Q", CLAIM) + bytes(64),
    "round-0000001.checkpoint": checkpoint.MAGIC + sealed(safetensors_of(CLAIM)),
}


def read_by_name(path: Path) -> object:
    readers = {
        ".npy": memmap_npy,
        ".safetensors": checkpoint.read_tensors,
        ".checkpoint": checkpoint.read_checkpoint,
    }
    if path.suffix in readers:
        return readers[path.suffix](path)
    return read_idx(path) if "idx" in path.name else read_pickled(path, RELEASES["cifar-10"])


@pytest.mark.parametrize("name", ABSURD)
def test_a_claimed_size_takes_no_memory(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(ABSURD[name])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises((InputError, checkpoint.DamagedFileError)):
        read_by_name(tmp_path / name)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # kilobytes


# The source

UNPICKLERS = {
    "pickle",
    "_pickle",
    "cPickle",
    "cloudpickle",
    "dill",
    "joblib",
    "shelve",
    "marshal",
    "pandas",
    "yaml",
}
DANGEROUS_CALLS = {"torch.load", "np.load", "numpy.load", "eval", "exec", "builtins.eval"}
ALLOWED = {
    # Between a process and the workers that it has started, through a private socket.
    ("engine/shared_memory.py", "pickle"),
    ("engine/shared_memory.py", "cloudpickle"),
    ("engine/work.py", "pickle"),
    ("engine/workers.py", "multiprocessing.connection"),
    # A table is made for the user, none is read.
    ("experiment/result.py", "pandas"),
}


def dangerous_uses(path: Path) -> set[str]:
    """Return what a module imports or calls of all that could run code from a file."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names if is_unpickler(alias.name)}
        elif isinstance(node, ast.ImportFrom):
            names |= {name for name in [node.module or ""] if is_unpickler(name)}
        elif isinstance(node, ast.Call):
            names |= {ast.unparse(node.func)} & DANGEROUS_CALLS
            names |= {
                "allow_pickle"
                for key in node.keywords
                if key.arg == "allow_pickle" and not is_false(key.value)
            }
    return names


def is_unpickler(module: str) -> bool:
    return module.split(".")[0] in UNPICKLERS or module.startswith("multiprocessing")


def is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def test_nobody_else_unpickles_or_evaluates() -> None:
    found = set()
    for path in SOURCE.rglob("*.py"):
        found |= {(str(path.relative_to(SOURCE)), use) for use in dangerous_uses(path)}
    assert found == ALLOWED


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from joblib import load",
        "import torch\ntorch.load('a')",
        "np.load('a', allow_pickle=True)",
        "eval('1')",
        "import pandas as pd",
    ],
)
def test_the_search_of_the_source_finds(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.py").write_text(line)
    assert dangerous_uses(tmp_path / "a.py")
