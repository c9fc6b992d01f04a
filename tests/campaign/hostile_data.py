"""Hostile data files: damaged, forged, and bombs that would unpack to gigabytes."""

import gzip
import io
import os
import pickle
import random
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from helpers.data_files import encode_idx
from PIL import Image

from campaign.hostile_values import damage_bytes
from campaign.sandbox import FORGED, Attack, Stage, command
from fedwmsam.data.cifar import RELEASES
from fedwmsam.data.mnist import IDX_FILES, MNIST_VARIANTS

TINY_RUN = ("--clients", "2", "--rounds", "1", "--local-epochs", "1", "--partition", "iid", "-q")
CELLS = ["", "nan", "inf", "1e400", "1e-320", "\x1b[31m", '"', "\0", f"a\n{FORGED}", "9" * 5000]
SIZES = [b"\xff" * 4, b"\x7f" + b"\xff" * 7, bytes(8), b"\x80" + bytes(7), b"\0\1\0\0"]
"""Integers at the limits of their type, for the places where a header may state a size."""


def train_on(dataset: object, model: str = "linear", *options: object) -> Callable[[], None]:
    """Return the command that trains a round on a data set, or with --dry-run a few steps."""
    return command("run", "--dataset", dataset, "--model", model, *options, *TINY_RUN)


def pack_npy(array: np.ndarray) -> bytes:
    """Return an array as an .npy file."""
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def forge_npy(rng: random.Random) -> bytes:
    """Return an .npy file whose header lies."""
    codes = ["<f4", "|u1", "|O", "<U3", ">i8", "<c8", "<f16", "<M8", "|V5", "<U999999", "<f8"]
    shapes = [
        "(40, 6)",
        "()",
        "(0,)",
        "(-1, 6)",
        "(99999999999999999999,)",
        "(40, 1000000000)",
        "(" * 99,
        "(40,) * 9",
        "(40, 6, " + "1, " * 70 + ")",
    ]
    text = (
        f"{{'descr': '{rng.choice(codes)}', 'fortran_order': {rng.choice(['True', 'False', '1'])},"
        f" 'shape': {rng.choice(shapes)}, }}\n"
    ).encode()
    content = rng.randbytes(rng.choice([0, 960, 5000]))
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + content


def pack_zip(members: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Return members as an archive."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content, compression)
    return stream.getvalue()


def good_arrays() -> dict[str, bytes]:
    """Return the members of a small archive that is as it should be."""
    x = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
    return {"x.npy": pack_npy(x), "y.npy": pack_npy(np.arange(40) % 3)}


def choose_array_attack(rng: random.Random, stage: Stage) -> Attack:
    """Forge an .npz or .npy file."""
    members = good_arrays()
    choice = stage.turn % 10
    what = "damaged"
    content = pack_zip(members, rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))
    if choice < 3:
        content = damage_bytes(content, rng)
    elif choice == 3:
        what = "a member with a header that lies"
        members[rng.choice(list(members))] = forge_npy(rng)
        content = pack_zip(members)
    elif choice == 4:
        what = "a bomb"
        members["x.npy"] = pack_npy(np.zeros((40, 2_000_000), np.float32))
        content = pack_zip(members)
    elif choice == 5:
        what = "few samples, a model of 131 GB"
        members["x.npy"] = pack_npy(np.zeros((40, 500_000), np.uint8))
        labels = np.arange(40)
        labels[-1] = rng.choice([65_535, 65_535, 1 << 40])
        members["y.npy"] = pack_npy(labels)
        content = pack_zip(members)
    elif choice == 6:
        what = "hostile names"
        names = ["../x", f"a\n{FORGED}", "\x1b[31m", "x" * 60_000, "/etc/x", "groups", "x"]
        members[rng.choice(names) + ".npy"] = pack_npy(np.zeros(3))
        content = pack_zip(members)
    elif choice == 7:
        what = "another type or shape"
        arrays = [
            np.zeros((40, 6), rng.choice(["f2", "f8", "i8", "c8", "M8[s]", "?", "U3", "V4"])),
            np.full((40, 6), rng.choice([np.nan, np.inf, 1e308, -3e38])),
            np.zeros((40, 0)),
            np.zeros((40, 1, 1, 1, 1, 1, 1)),
            np.zeros((1, 6)),
            np.array(3.0),
        ]
        members[rng.choice(list(members))] = pack_npy(rng.choice(arrays))
        content = pack_zip(members)
    elif choice == 8:
        what = "many members"
        content = pack_zip({f"{n}.npy": b"" for n in range(50_000)}, zipfile.ZIP_STORED)
    suffix = ".npz" if choice < 9 else ".npy"
    path = stage.input / f"a{suffix}"
    if choice == 9:
        what = "forged headers, or labels missing"
        (stage.input / "labels.npy").write_bytes(pack_npy(np.arange(40) % 3))
        (stage.input / "a_labels.npy").write_bytes(pack_npy(np.arange(40) % 3))
        content = forge_npy(rng)
    path.write_bytes(content)
    return Attack(f"{suffix}: {what}", train_on(path))


def choose_table_attack(rng: random.Random, stage: Stage) -> Attack:
    """Forge a CSV file."""
    rows = [["a", "b", "label"], *([str(n), str(n * 2), str(n % 3)] for n in range(40))]
    choice = stage.turn % 7
    what = "damaged"
    if choice == 0:
        what = "hostile cells"
        for _ in range(rng.randint(1, 4)):
            rows[rng.randrange(len(rows))][rng.randrange(3)] = rng.choice(CELLS)
    elif choice == 1:
        what = "a class for each row"
        rows = [rows[0], *([str(n), "1", f"class{n}"] for n in range(20_000))]
    elif choice == 2:
        what = "one line of 40 MB"
        rows[1] = ["1," * 20_000_000]
    elif choice == 3:
        what = "a quote that never ends"
        rows[1][0] = '"' + "x\n" * 5_000_000
    elif choice == 4:
        what = "a million columns"
        rows = [[f"c{n}" for n in range(1_000_000)], ["1"] * 1_000_000]
    content = "\n".join(map(",".join, rows)).encode(errors="surrogatepass")
    if choice > 4:
        content = damage_bytes(content, rng)
    path = stage.input / "a.csv"
    path.write_bytes(content)
    return Attack(f".csv: {what}", train_on(path))


def choose_text_attack(rng: random.Random, stage: Stage) -> Attack:
    """Forge a JSON-lines file of texts."""
    line = '{"speaker": "s%d", "text": "hello there, it is a fine day to be here, is it not?"}'
    lines = [line % (n % 3) for n in range(12)]
    choice = stage.turn % 7
    what = "damaged"
    if choice == 0:
        what = "hostile text"
        texts = [r"\u001b[31m", rf"a\n{FORGED}", r"\ud800", r"\u0000", "x" * 200_000, ""]
        key = rng.choice(["speaker", "text"])
        lines[0] = f'{{"speaker": "a", "text": "b", "{key}": "{rng.choice(texts)}"}}'
    elif choice == 1:
        what = "other values"
        values = ["[" * 50_000, "null", "1" * 5000, "1e999", "{}", "[]", '{"speaker": []}', "NaN"]
        lines[rng.randrange(len(lines))] = rng.choice(values)
    elif choice == 2:
        what = "every character there is"
        lines = [f'{{"speaker": "a", "text": "{"".join(map(chr, range(0x4E00, 0x9FFF)))}"}}'] * 3
    elif choice == 3:
        what = "a speaker for each line"
        lines = [line % n for n in range(30_000)]
    elif choice == 4:
        what = "one line of 9 MB"
        lines = [f'{{"speaker": "a", "text": "{"a b" * 3_000_000}"}}']
    content = "\n".join(lines).encode(errors="surrogatepass")
    if choice > 4:
        content = damage_bytes(content, rng)
    path = stage.input / "a.jsonl"
    path.write_bytes(content)
    options = rng.choice(["", "", ",context=1", ",context=99999", ",stride=0", ",context=-1"])
    # Such a text may well be trained on, for longer than this campaign lasts.
    dry = ["--dry-run"] if choice in (2, 3, 4) else []
    return Attack(f".jsonl: {what}{options}", train_on(f"{path}{options}", "char", *dry))


def zero_members(total: int) -> bytes:
    """Return a gzip file that unpacks to so many zeros, made of members of 64 MB."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    piece = bytes(1 << 20)
    member = b"".join(packer.compress(piece) for _ in range(64)) + packer.flush()
    return member * (total >> 26)


def choose_idx_attack(rng: random.Random, stage: Stage) -> Attack:
    """Forge one of the four files of MNIST."""
    generator = np.random.default_rng(0)
    contents = {}
    for name in IDX_FILES:
        shape = (30, 28, 28) if "images" in name else (30,)
        contents[name] = encode_idx(generator.integers(0, 9, shape).astype(np.uint8))
    name = rng.choice(list(contents))
    choice = stage.turn % 6
    what = "damaged"
    header = struct.pack(">2xBB3I", 8, 3, *rng.choice([(10_000_000, 28, 28), (1 << 31, 28, 28)]))
    packed = {name: gzip.compress(content, 1) for name, content in contents.items()}
    if choice == 0:
        packed[name] = gzip.compress(damage_bytes(contents[name], rng), 1)
    elif choice == 1:
        packed[name] = damage_bytes(packed[name], rng)
    elif choice == 2:
        what = "8 GB of zeros behind a header"
        packed[name] = gzip.compress(header) + zero_members(8 << 30)
    elif choice == 3:
        what = "a size at the limit"
        start = rng.randrange(4, 16)
        content = contents[name][:start] + rng.choice(SIZES) + contents[name][start:]
        packed[name] = gzip.compress(content, 1)
    elif choice == 4:
        what = "another type"
        code = rng.choice([0x09, 0x0B, 0x0C, 0x0D, 0x0E, 0x07])
        packed[name] = gzip.compress(encode_idx(np.zeros((30, 28, 28), ">f8"), code))
    variant = rng.choice(["mnist", "fashion-mnist", "kmnist"])
    folder = stage.input / MNIST_VARIANTS[variant].folder
    folder.mkdir()
    for file, content in packed.items():
        (folder / file).write_bytes(content)
    if choice == 5:
        what = "a FIFO or a folder"
        (folder / name).unlink()
        rng.choice([os.mkfifo, Path.mkdir])(folder / name)
    target = train_on(variant, "linear", "--data-dir", stage.input)
    return Attack(f"{variant}, {name}: {what}", target)


def memo_bomb(size: int) -> bytes:
    """Return a pickle that encodes one memoised text 2,000 times, each time a new copy."""
    stored = pickle_text("a") + pickle_text("x" * size) + b"q\x00s"
    copy = b"c_codecs\nencode\nh\x00" + pickle_text("latin1") + b"\x86R"
    copies = b"".join(pickle_text(f"k{number}") + copy for number in range(2000))
    return b"\x80\x02}" + stored + b"(" + copies + b"u."


def pickle_text(text: str) -> bytes:
    """Return the instruction that puts a text on the stack."""
    return b"X" + struct.pack("<I", len(text)) + text.encode()


def choose_pickle_attack(rng: random.Random, stage: Stage) -> Attack:
    """Forge a pickled file of CIFAR."""
    name = rng.choice(list(RELEASES))
    release = RELEASES[name]
    rows = np.random.default_rng(0).integers(0, 255, (20, 3072)).astype(np.uint8)
    good = {"data": rows, release.label_key: [n % 10 for n in range(20)], "filenames": ["a"] * 20}
    content = pickle.dumps(good, 2)
    choice = stage.turn % 8
    what = "damaged"
    if choice == 0:
        what = "a bomb of copies"
        content = memo_bomb(rng.choice([1_000_000, 10_000_000]))
    elif choice == 1:
        what = "calls a function"
        content = b"cos\nsystem\n(S'touch ../foreign/executed'\ntR."
    elif choice == 2:
        what = "lists in lists"
        content = b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b"."
    elif choice == 3:
        what = "doubled again and again"
        content = b"\x80\x02]q\x00" + b"(h\x00h\x00lq\x00" * 60 + b"."
    elif choice == 4:
        what = "an integer of a million bytes"
        content = b"\x80\x02\x8b" + struct.pack("<I", 1_000_000) + b"\x7f" * 1_000_000 + b"."
    elif choice == 5:
        what = "a length that lies"
        content = b"\x80\x04\x8e" + struct.pack("<Q", 1 << 62) + b"abc."
    else:
        content = damage_bytes(content, rng)
    layout = release.pickled
    folder = stage.input / layout.folder
    folder.mkdir()
    for file in layout.train + layout.test:
        (folder / file).write_bytes(content)
    return Attack(f"{name}: {what}", train_on(name, "linear", "--data-dir", stage.input))


def pack_picture(form: str, side: int = 8) -> bytes:
    """Return a small picture."""
    stream = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 255, (side, side, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(stream, form)
    return stream.getvalue()


def png_chunk(name: bytes, content: bytes) -> bytes:
    """Return a chunk of a PNG file with its checksum."""
    checksum = struct.pack(">I", zlib.crc32(name + content))
    return struct.pack(">I", len(content)) + name + content + checksum


def png_claiming(width: int, height: int, text: bytes = b"") -> bytes:
    """Return a PNG file of a few bytes that claims to be of this size."""
    head = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    body = png_chunk(b"IDAT", zlib.compress(bytes(10_000_000), 9))
    extra = png_chunk(b"zTXt", b"a\0\0" + text) if text else b""
    return b"\x89PNG\r\n\x1a\n" + head + extra + body + png_chunk(b"IEND", b"")


def choose_picture_attack(rng: random.Random, stage: Stage) -> Attack:
    """Forge a folder of pictures."""
    root = stage.input / "pictures"
    for number in range(12):
        path = root / f"class{number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pack_picture("PNG"))
    victim = root / "class0" / "0.png"
    choice = stage.turn % 8
    what = "damaged"
    if choice < 2:
        form = rng.choice(["PNG", "JPEG", "BMP", "WEBP"])
        victim.write_bytes(damage_bytes(pack_picture(form), rng))
    elif choice == 2:
        what = "claims of size"
        sides = [(1 << 31) - 1, 60_000, 7000, 0]
        victim.write_bytes(png_claiming(rng.choice(sides), rng.choice(sides)))
    elif choice == 3:
        what = "a bomb in its text"
        victim.write_bytes(png_claiming(8, 8, zlib.compress(bytes(500_000_000), 9)))
    elif choice == 4:
        what = "links"
        victim.unlink()
        link = rng.choice([stage.foreign / "letter.txt", Path("/dev/zero"), victim])
        victim.symlink_to(link)
    elif choice == 5:
        what = "a FIFO"
        victim.unlink()
        os.mkfifo(victim)
    elif choice == 6:
        what = "hostile names"
        name = rng.choice([f"a\n{FORGED}", "\x1b[31m", "x" * 200, "=STRANGER()", "<script>"])
        (root / "class1").rename(root / name)
        if rng.random() < 0.5:
            victim.write_bytes(b"no picture")
    else:
        what = "a link to a folder"
        (root / "class9").symlink_to(rng.choice([stage.foreign, root]))
    return Attack(f"pictures: {what}", train_on(f"{root},image_size=8"))
