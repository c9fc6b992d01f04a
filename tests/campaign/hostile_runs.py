"""Hostile run folders: an undisturbed run in which a stranger changed one thing."""

import hashlib
import json
import os
import random
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from campaign.hostile_values import (
    VALUES,
    choose_value,
    damage_bytes,
    edit_text,
    to_toml,
)
from campaign.sandbox import Attack, Stage, command
from fedwmsam.engine.provenance import PROVENANCE

TEXT_FILES = (
    "config.toml",
    "data.json",
    "summary.json",
    "clients.json",
    "metrics.jsonl",
    "timings.jsonl",
    "recordings.jsonl",
    "analysis/flatness.json",
    "analysis/dynamics.json",
)
WEIGHTS = ("model.safetensors", "best.safetensors", "averaged.safetensors")
CHECKPOINTS = (
    "checkpoints/round-0000003.checkpoint",
    "checkpoints/round-0000002.checkpoint",
    "checkpoints/memory.rows",
    "states/round-0000002.checkpoint",
)
DIGEST_BYTES = 32
Tensors = dict[str, torch.Tensor]
Notes = dict[str, Any]

MEASURED = (
    "--samples 50 --clients 1 --eigenvalues 1 --probes 1 --steps 1 --directions 1 "
    "--rho 0.05 --adaptive-rho 0.5 -q"
)
"""Options by which `analyse flatness` measures little."""
COMMANDS = {
    "report": "report RUN --html page.html --csv t.csv --latex t.tex --markdown t.md",
    "report --twins": "report RUN --twins --targets 0.1,0.2 --csv t.csv",
    "evaluate": "evaluate RUN",
    "evaluate --best": "evaluate RUN --best",
    "evaluate --averaged": "evaluate RUN --averaged --fine-tune 1",
    "resume": "resume RUN --rounds 4 -q",
    "flatness": f"analyse flatness RUN {MEASURED} --seed 1",
    "flatness again": f"analyse flatness RUN {MEASURED}",
    "flatness --rounds": f"analyse flatness RUN --rounds 2 {MEASURED}",
    "dynamics": "analyse dynamics RUN --states 1 --sample 30 -q",
    "dynamics again": "analyse dynamics RUN --states 1 --sample 20 -q",
    "landscape": "analyse landscape RUN --points 3 --samples 50 --clients 0 -q",
    "theory": "analyse theory RUN -q",
}
"""Names of commands that read a run → their arguments; "again": as the results that are there."""
SMALL = "--model linear --clients 4 --rounds 3 --local-epochs 1 --validation 0.1"
COMPARISON = f"compare --methods fedavg,fedcm {SMALL} --jobs 1"
REFERENCE_COMMANDS = {
    "fedwmsam": (
        f"run --method fedwmsam {SMALL} --twin 2 --participation 0.5 --checkpoint-every 1 "
        "--set keep_states=1 --set memory_budget=0 --record echo,drift --record-every 1 "
        "--out . --name fedwmsam -q",
        f"analyse flatness fedwmsam {MEASURED}",
        "analyse dynamics fedwmsam --states 1 --sample 20 -q",
    ),
    "comparison": (f"{COMPARISON} --out comparison -q",),
}
"""Names of the undisturbed runs → the commands that make them."""


def attack_run(stage: Stage, name: str, what: str, run: Path) -> Attack:
    """Return the attack of a command on a run."""
    arguments = [run if word == "RUN" else word for word in COMMANDS[name].split()]
    return Attack(f"{what}; {name}", command(*arguments))


def readers_of(name: str) -> list[str]:
    """Return the commands that may read a file of a run."""
    if name in WEIGHTS:
        return ["evaluate", "evaluate --best", "evaluate --averaged", "flatness", "landscape"]
    if name.startswith("checkpoints"):
        return ["resume", "resume", "flatness", "report"]
    if name.startswith("states"):
        return ["dynamics", "flatness --rounds", "theory", "resume"]
    if name.startswith("analysis"):
        return ["report", "report", "flatness", "flatness again", "dynamics", "dynamics again"]
    if name in ("config.toml", "data.json"):
        return ["report", "report", "evaluate", "resume", "resume", "flatness", "dynamics"]
    if name in ("summary.json", "clients.json", "timings.jsonl", "recordings.jsonl"):
        return ["report", "report", "report --twins", "evaluate", "resume", "dynamics"]
    return [name for name in COMMANDS if "--best" not in name and "--averaged" not in name]


def choose_value_attack(rng: random.Random, stage: Stage) -> Attack:
    """Replace a value in one of the text files."""
    return edited_run(rng, stage, rename=False)


def choose_key_attack(rng: random.Random, stage: Stage) -> Attack:
    """Remove or rename a key in one of the text files."""
    return edited_run(rng, stage, rename=True)


def edited_run(rng: random.Random, stage: Stage, rename: bool) -> Attack:
    """Edit a text file of a run, now and then two of them."""
    run = stage.copy_reference("fedwmsam")
    name = rng.choice(TEXT_FILES)
    what = edit_text(run / name, rng, rename)
    if rng.random() < 0.1:
        what += "; " + edit_text(run / rng.choice(TEXT_FILES), rng, rename)
    return attack_run(stage, rng.choice(readers_of(name)), what, run)


COLUMNS = ("epsilon", "accuracy", "loss", "round", "rejected", "averaged_loss", "bytes_up", "\n=x")
STATUS_TEXTS = ("line breaks", "LaTeX", "HTML", "ESC", "a formula", "a long text", "a C1 control")


def choose_column_attack(rng: random.Random, stage: Stage) -> Attack:
    """Put a hostile value into a column of every round, or another status into the summary."""
    run = stage.copy_reference("fedwmsam")
    if rng.random() < 0.5:
        column = rng.choice(COLUMNS)
        name, value = choose_value(rng)
        lines = (run / "metrics.jsonl").read_text().splitlines()
        edited = [line[:-1] + f", {json.dumps(column)}: {value}}}\n" for line in lines]
        (run / "metrics.jsonl").write_text("".join(edited))
        what = f"metrics.jsonl: {column!r} = {name}"
    else:
        name = rng.choice(STATUS_TEXTS)
        beginning = rng.choice(["", "diverged ", "stopped: "])
        text = VALUES[name].replace('"', f'"{beginning}', 1)
        summary = f'{{"status": {text}, "rounds": 3, "best_round": null, "metrics": {{}}}}'
        (run / "summary.json").write_text(summary)
        what = f"summary.json: status {beginning}{name}"
    return attack_run(stage, rng.choice(["report", "report", "report --twins"]), what, run)


def choose_damage_attack(rng: random.Random, stage: Stage) -> Attack:
    """Damage the bytes of any file."""
    run = stage.copy_reference("fedwmsam")
    name = rng.choice(TEXT_FILES + WEIGHTS + CHECKPOINTS)
    (run / name).write_bytes(damage_bytes((run / name).read_bytes(), rng))
    return attack_run(stage, rng.choice(readers_of(name)), f"{name}: damaged", run)


# What is not a regular file


def link_to_run(path: Path, stage: Stage, name: str) -> None:
    """Link to the file of the same name in a foreign run, which would fit."""
    path.symlink_to(stage.foreign / "run" / name)


def link_to_letter(path: Path, stage: Stage, name: str) -> None:
    path.symlink_to(stage.foreign / "letter.txt")


def dangling_link(path: Path, stage: Stage, name: str) -> None:
    path.symlink_to(stage.foreign / "new")


def endless_link(path: Path, stage: Stage, name: str) -> None:
    path.symlink_to("/dev/zero")


def circular_link(path: Path, stage: Stage, name: str) -> None:
    path.symlink_to(path)


def fifo(path: Path, stage: Stage, name: str) -> None:
    os.mkfifo(path)


def folder(path: Path, stage: Stage, name: str) -> None:
    path.mkdir()


def unix_socket(path: Path, stage: Stage, name: str) -> None:
    """Bind a socket; the name of the path may be longer than a socket's address can be."""
    here = Path.cwd()
    os.chdir(path.parent)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(path.name)
    os.chdir(here)


def sparse_file(path: Path, stage: Stage, name: str) -> None:
    with path.open("wb") as file:
        file.truncate(100 << 30)


def sparse_end(path: Path, stage: Stage, name: str) -> None:
    """Write the file as it was, and 100 GB of nothing behind it."""
    path.write_bytes((stage.references / "fedwmsam" / name).read_bytes())
    os.truncate(path, 100 << 30)


def unreadable(path: Path, stage: Stage, name: str) -> None:
    path.write_bytes(b"")
    path.chmod(0)


SPECIAL_FILES: dict[str, Callable[[Path, Stage, str], None]] = {
    "a link to a run": link_to_run,
    "a link to a letter": link_to_letter,
    "a dangling link": dangling_link,
    "a link to /dev/zero": endless_link,
    "a link to itself": circular_link,
    "a FIFO": fifo,
    "a folder": folder,
    "a socket": unix_socket,
    "100 GB, sparse": sparse_file,
    "100 GB behind it": sparse_end,
    "unreadable": unreadable,
}


def choose_special_attack(rng: random.Random, stage: Stage) -> Attack:
    """Replace a file by something that is no regular file, or has 100 GB."""
    run = stage.copy_reference("fedwmsam")
    name = rng.choice(TEXT_FILES + WEIGHTS + CHECKPOINTS)
    form = rng.choice(list(SPECIAL_FILES))
    (run / name).unlink()
    SPECIAL_FILES[form](run / name, stage, name)
    return attack_run(stage, rng.choice(readers_of(name)), f"{name}: {form}", run)


FOLDERS = {
    "checkpoints": ["resume", "resume", "report"],
    "analysis": ["flatness", "dynamics", "theory", "landscape", "report"],
    "states": ["dynamics", "flatness --rounds", "resume"],
}
"""Folders in a run → the commands that use them."""


def choose_folder_attack(rng: random.Random, stage: Stage) -> Attack:
    """Replace a folder of a run by a link to a foreign one, or by something that is no folder."""
    run = stage.copy_reference("fedwmsam")
    name = rng.choice(list(FOLDERS))
    (run / name).rename(stage.input / "aside")
    forms = ["a link to a run", "a link to a run", "a dangling link", "a FIFO", "a link to itself"]
    form = rng.choice(forms)
    SPECIAL_FILES[form](run / name, stage, name)
    if rng.random() < 0.3:  # the folder that is foreign is empty
        for path in (stage.foreign / "run" / name).glob("*"):
            path.unlink()
        form += ", empty"
    return attack_run(stage, rng.choice(FOLDERS[name]), f"{name}/: {form}", run)


PLANTED = {
    "lock": ["resume"],
    ".lock": ["resume"],
    ".config.toml.new": ["resume"],
    ".summary.json.new": ["resume"],
    ".clients.json.new": ["resume"],
    ".model.safetensors.new": ["resume"],
    ".best.safetensors.new": ["resume"],
    "checkpoints/.round-0000004.checkpoint.new": ["resume"],
    "checkpoints/round-0000004.checkpoint": ["resume"],
    "checkpoints/round-0000009.checkpoint": ["resume"],
    "checkpoints/round-x.checkpoint": ["resume", "flatness"],
    "states/.round-0000003.checkpoint.new": ["resume"],
    "states/round-0000003.checkpoint": ["resume", "dynamics"],
    "states/round-.checkpoint": ["dynamics", "flatness --rounds"],
    "analysis/.flatness.json.new": ["flatness"],
    "analysis/.dynamics.json.new": ["dynamics"],
    "analysis/.theory.json.new": ["theory"],
    "analysis/theory.json": ["theory"],
    "analysis/landscape-round-3.csv": ["landscape"],
    "analysis/landscape-round-3.png": ["landscape"],
    "analysis/flatness-round-3.png": ["flatness"],
    "recordings.jsonl": ["resume"],
    "timings.jsonl": ["resume"],
}
"""Names at which something is planted → the commands that may write there."""


def choose_planted_attack(rng: random.Random, stage: Stage) -> Attack:
    """Plant a link or a FIFO where a command is going to write."""
    run = stage.copy_reference("fedwmsam")
    name = rng.choice(list(PLANTED))
    path = run / name
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    form = rng.choice(["a link to a letter"] * 2 + ["a dangling link"] * 2 + ["a FIFO", "a folder"])
    SPECIAL_FILES[form](path, stage, name)
    if name.startswith("analysis") and rng.random() < 0.5:  # else the result is there already
        (run / "analysis/flatness.json").unlink(missing_ok=True)
        (run / "analysis/dynamics.json").unlink(missing_ok=True)
    return attack_run(stage, rng.choice(PLANTED[name]), f"{name}: {form}", run)


# Checkpoints and weights


def read_sealed(path: Path) -> tuple[bytes, Tensors, Notes]:
    """Return the magic line, the tensors and the notes of a checkpoint."""
    content = path.read_bytes()
    head = content.index(b"\n") + 1
    payload = content[head + DIGEST_BYTES :]
    length = int.from_bytes(payload[:8], "little")
    metadata = json.loads(payload[8 : 8 + length])["__metadata__"]
    return content[:head], safetensors.torch.load(payload), json.loads(metadata["notes"])


def write_sealed(path: Path, magic: bytes, tensors: Tensors, notes: str) -> None:
    """Write a checkpoint whose digest is right, whatever is in it."""
    separate = {name: value.contiguous().clone() for name, value in tensors.items()}
    payload = safetensors.torch.save(separate, metadata={"notes": notes})
    digest = hashlib.blake2b(payload, digest_size=DIGEST_BYTES).digest()
    path.write_bytes(magic + digest + payload)


def change_tensor(tensors: Tensors, name: str, rng: random.Random) -> str:
    """Give a tensor another type, shape, name or content, or remove it; return which."""
    value = tensors.pop(name)
    changes = {
        "removed": {},
        "renamed": {name + "x": value},
        "float64": {name: value.double()},
        "float16": {name: value.half()},
        "int32": {name: value.int()},
        "bool": {name: value.bool()},
        "complex": {name: value.to(torch.complex64)},
        "flat": {name: value.reshape(-1)},
        "one dimension more": {name: value[None]},
        "empty": {name: value.reshape(-1)[:0]},
        "a number alone": {name: torch.tensor(1.0).to(value.dtype)},
        "twice as long": {name: torch.cat([value.reshape(-1)] * 2)},
        "negative": {name: torch.full_like(value, -1) if value.dtype != torch.uint8 else value},
        "huge": {name: value + 2**40 if value.dtype == torch.int64 else value},
        "not finite": {name: value * torch.nan if value.is_floating_point() else value},
    }
    how = rng.choice(list(changes))
    tensors |= changes[how]
    return f"{name} {how}"


def change_notes(notes: Notes, rng: random.Random) -> tuple[str, str]:
    """Return the notes as JSON with one of them removed, renamed or hostile, and which."""
    key = rng.choice([*notes, "memory", "bundles", "round", "best_round"])
    choice = rng.randrange(4)
    if choice == 0:
        notes.pop(key, None)
        return json.dumps(notes), f"note {key} removed"
    if choice == 1:
        notes[key + "x"] = notes.pop(key, None)
        return json.dumps(notes), f"note {key} renamed"
    if choice == 2 and isinstance(notes.get("memory"), dict | list):
        text = json.dumps(notes["memory"])
        for old, new in (
            rng.choice([("float32", "float64"), ("float32", "int8"), ("650", "1000000000000")]),
            rng.choice([("float32", "x"), ("[", "[-1, "), ("", ""), ('"c', '"renamed')]),
        ):
            text = text.replace(old, new)
        notes["memory"] = json.loads(text)
        return json.dumps(notes), "note memory: another layout"
    name, value = choose_value(rng)
    notes[key] = "the hostile value"
    return json.dumps(notes).replace('"the hostile value"', value), f"note {key} = {name}"


def choose_checkpoint_attack(rng: random.Random, stage: Stage) -> Attack:
    """Forge the content of all checkpoints in the same way, each with the digest that it needs."""
    run = stage.copy_reference("fedwmsam")
    where = rng.choice(["checkpoints", "checkpoints", "checkpoints", "states"])
    seed = rng.random()
    what = ""
    for path in sorted((run / where).glob("*.checkpoint")):
        same = random.Random(seed)
        magic, tensors, notes = read_sealed(path)
        if same.random() < 0.5:
            names = [name for name in sorted(tensors) if not name.startswith("trail")]
            what = change_tensor(tensors, same.choice(names), same)
            text = json.dumps(notes)
        else:
            text, what = change_notes(notes, same)
        write_sealed(path, magic, tensors, text)
    commands = ["resume"] if where == "checkpoints" else ["dynamics", "flatness --rounds", "theory"]
    return attack_run(stage, rng.choice(commands), f"{where}/: {what[:80]}", run)


def choose_weights_attack(rng: random.Random, stage: Stage) -> Attack:
    """Change the tensors of the models."""
    run = stage.copy_reference("fedwmsam")
    name = rng.choice(WEIGHTS)
    tensors = safetensors.torch.load((run / name).read_bytes())
    if rng.random() < 0.2:  # a header that claims more than there is
        header = json.dumps({"w": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 8]}})
        (run / name).write_bytes(len(header).to_bytes(8, "little") + header.encode() + bytes(8))
        what = "huge shape"
    else:
        what = change_tensor(tensors, rng.choice(sorted(tensors)), rng)
        (run / name).write_bytes(safetensors.torch.save(tensors))
    reader = {"best": "evaluate --best", "averaged": "evaluate --averaged"}
    commands = [reader.get(name.split(".")[0], "evaluate"), "flatness", "landscape", "resume"]
    return attack_run(stage, rng.choice(commands), f"{name}: {what}", run)


# What a folder claims and names

MODULE = """from pathlib import Path
Path({marker!r}).write_text("imported")
from torch import nn
def make(*arguments):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
"""


def set_in_config(run: Path, key: str, value: str) -> None:
    """Set a line of config.toml."""
    lines = (run / "config.toml").read_text().splitlines()
    kept = [line for line in lines if not line.startswith(f"{key} = ")]
    (run / "config.toml").write_text("\n".join([*kept, f"{key} = {value}"]) + "\n")


def choose_import_attack(rng: random.Random, stage: Stage) -> Attack:
    """Name a module to import, which lies in the folder where the command is called."""
    run = stage.copy_reference("fedwmsam")
    marker = str(stage.foreign / "imported")
    (stage.work / "stranger.py").write_text(MODULE.format(marker=marker))
    (run / "stranger.py").write_text(MODULE.format(marker=marker))
    model = rng.choice([*["stranger:make"] * 5, "os:system", "stranger:nothing", ":", "x:"])
    key = rng.choice([*["model"] * 6, "method", "dataset", "loss", "augmentation"])
    set_in_config(run, key, json.dumps(model))
    names = ["report", "evaluate", "resume", "flatness", "dynamics", "landscape", "theory"]
    return attack_run(stage, rng.choice(names), f"{key} = {model}", run)


CLAIMS = {
    "classes": ["50000000", "0", "-1", '"10"', "1e9", "11", "9", "[10]", "true"],
    "input_shape": [
        "[100000, 1000000]",
        "[1, 100000, 100000]",
        "[]",
        "[-1, 8, 8]",
        "[1, 8, 9]",
        '["8", 8]',
        "64",
        "null",
        "[0]",
        "[1" + ", 1" * 500 + "]",
    ],
    "class_counts": ["[[1]]", "[]", '"x"', "[[1e308, 1e308]]", "[[-5, 3], [2]]", "{}"],
    "class_names": ['["a\\nFORGED"]', '"x"', "[1, 2]", "[]", '["=STRANGER", "\\u001b[0m"]'],
    "test_samples": ["1e308", '"x"', "-1"],
    "group_names": ["[1]", '"\\u001b"', '["a", "b"]'],
    "data_hash": ['"x"', "5", "null"],
    "partition_hash": ['"x"', "[]", '"\\u001b[2J"'],
    "dataset": ['"\\n\\\\input{x}"', '"cifar-10"', "7"],
}
"""Keys of data.json → what they may claim."""
CONFIG_CLAIMS = {
    "clients": ["1000000000", "100000000000000000000", "0", "2000", "-4"],
    "partition": ['"dirichlet:1e-300"', '"dirichlet:nan"', '"classes:99999999"', '"iid:x"', '""'],
    "participation": ["1e-300", "0.0", "nan", "2.0", '"x"'],
    "local_epochs": ["100000000", "0", "1.5"],
    "batch_size": ["9223372036854775808", "100000000000", "0"],
    "keep_states": ["100000000", "-1"],
    "workers": ["100000", "-1", '"auto"'],
    "model": ['"resnet18"', '"mlp:99999999"', '"../x"', '"cnn"'],
    "dataset": ['"/dev/zero"', '"../foreign/letter.txt"', '"digits,x=1"', '"\\u001b.csv"'],
    "device": ['"cuda:99"', '"\\u001b"', '"meta"'],
    "track": ['"wandb"', '"tensorboard"', '"\\n"'],
    "seed": ["-1", "18446744073709551616", "340282366920938463463374607431768211456"],
    "record": ['"echo,drift,x"', '"landscape"'],
    "twin": ["1e308", "0.0", "-1.0"],
    "memory_budget": ["1e300", "-1.0", "nan"],
    "validation": ["0.999999", "1e-9", "-0.5"],
    "dp_epsilon": ["1e-300", "1e300", "nan"],
    "aggregation": ['"trimmed:0.49999"', '"median"', '"krum:999"'],
}
"""Keys of config.toml → what they may claim."""


def choose_claim_attack(rng: random.Random, stage: Stage) -> Attack:
    """Claim sizes, names and settings that a run could have, but this one has not."""
    run = stage.copy_reference("fedwmsam")
    if rng.random() < 0.5:
        key = rng.choice(list(CLAIMS))
        value = rng.choice(CLAIMS[key])
        data = json.loads((run / "data.json").read_text())
        data[key] = "the hostile value"
        text = json.dumps(data).replace('"the hostile value"', value)
        (run / "data.json").write_text(text)
    else:
        key = rng.choice(list(CONFIG_CLAIMS))
        value = rng.choice(CONFIG_CLAIMS[key])
        set_in_config(run, key, to_toml(value))
    names = ["report", "evaluate", "evaluate", "resume", "resume", "flatness"]
    return attack_run(stage, rng.choice(names), f"{key} = {value[:40]!r}", run)


def choose_comparison_folder_attack(rng: random.Random, stage: Stage) -> Attack:
    """Disturb a run in the folder of a comparison, and call the same comparison again."""
    out = stage.copy_reference("comparison")
    run = rng.choice(sorted(path.parent for path in out.rglob("config.toml")))
    name = rng.choice(["config.toml", "data.json", "summary.json", "metrics.jsonl", "clients.json"])
    path = run / name
    if rng.random() < 0.5:
        what = edit_text(path, rng, rng.random() < 0.3)
    else:
        form = rng.choice(["a link to a run", "a link to /dev/zero", "a FIFO", "100 GB, sparse"])
        path.unlink()
        SPECIAL_FILES[form](path, stage, name)
        what = f"{name}: {form}"
    target = command(*COMPARISON.split(), "--out", out, "--html", "page.html")
    return Attack(f"{what}; compare", target)


def choose_provenance_attack(rng: random.Random, stage: Stage) -> Attack:
    """Edit or replace provenance.json, or edit config.toml beside one that is whole."""
    run = stage.copy_reference("fedwmsam")
    path = Path(shutil.copy(stage.references / PROVENANCE, run))
    how = rng.choice(["edit", "edit", "edit", "damage", "replace", "settings"])
    if how == "edit":
        what = edit_text(path, rng, rng.random() < 0.3)
    elif how == "damage":
        path.write_bytes(damage_bytes(path.read_bytes(), rng))
        what = f"{PROVENANCE}: damaged"
    elif how == "replace":
        form = rng.choice(["a link to a letter", "a link to /dev/zero", "a FIFO", "100 GB, sparse"])
        path.unlink()
        SPECIAL_FILES[form](path, stage, PROVENANCE)
        what = f"{PROVENANCE}: {form}"
    else:
        what = edit_text(run / "config.toml", rng, False)
    return attack_run(stage, rng.choice(["report", "report", "resume"]), what, run)
