"""Hostile configuration files, comparison files and reference vectors."""

import json
import random
from pathlib import Path

from campaign.hostile_values import (
    damage_bytes,
    rename_in_json,
    rename_in_toml,
    replace_in_json,
    replace_in_toml,
)
from campaign.sandbox import Attack, Stage, command

VECTORS = Path(__file__).parents[1] / "data" / "reference_vectors"
RUN_FILE = """method = "fedwmsam"
dataset = "digits"
model = "linear"
partition = "dirichlet:0.1"
clients = 4
participation = 0.5
local_epochs = 1
batch_size = 100
lr = 0.1
seed = 0
evaluate_every = 1
checkpoint_every = 1
validation = 0.1
twin = 2.0
record = "drift"
stragglers = "0.3:4"
dropout = 0.1
memory_budget = 10.0
rho = 0.05
"""
RUN_LINES = (
    "local_epochs = 100000000",
    "batch_size = 9223372036854775808",
    'dataset = "../../foreign/letter.txt"',
    'model = "os:system"',
    'partition = "dirichlet:1e-320"',
    "clients = 100000000",
    "keep_states = 100000000000",
    'stragglers = "1:1e308"',
    "dp_epsilon = 1e-300\ndp_clip = 1\nsampling = 'bernoulli'",
    "patience = 1e308",
    "[rounds]\nx = 1",
    "a" * 500_000 + " = 1",
    "a." * 20_000 + "b = 1",
    'workers = "\\u001b[31m"',
    "seed = 340282366920938463463374607431768211456",
    'track = "../x"',
    "lr = 1e308",
    "clip_norm = 1e-320",
)
"""Lines that are put into a configuration file, in place of the line with the same key."""
COMPARISON_FILE = """methods = ["fedavg", "fedcm"]
seeds = 1
model = "linear"
clients = 4
participation = 0.5
local_epochs = 1
batch_size = 100
validation = 0.1
grid.lr = [0.1]
"""
COMPARISON_LINES = (
    "seeds = 1000000000",
    "seeds = [1, 1, 1]",
    "seeds = -1",
    'seeds = "0,1e9"',
    "seeds = [9223372036854775808]",
    "methods = 7",
    'methods = ["../../x"]',
    'methods = ["fedavg", "\\u001b[31m"]',
    "methods = []",
    "grid.lr = []",
    f"grid.lr = {list(range(3000))}\ngrid.weight_decay = {list(range(3000))}",
    'grid.method = ["fedavg", "os:system"]',
    "grid = 5",
    'grid.partition = ["../../x", "a\\nFORGED"]',
    'grid.model = ["stranger:make"]',
    'grid."\\u001b[31m" = [1]',
    "variants = 3",
    'variants = [{method = "../x"}]',
    "variants = [[1]]",
    "local_epochs = 100000000",
    "rounds = 1\nrounds = 2",
)


def put_line(text: str, line: str) -> str:
    """Return the text with a line in place of the one that sets the same key."""
    key = line.split(" = ")[0]
    kept = [old for old in text.splitlines() if old.split(" = ")[0] != key]
    first = [line] if not line.startswith("[") else []
    return "\n".join([*first, *kept, *([] if first else [line])]) + "\n"


def edited_file(
    rng: random.Random, turn: int, text: str, lines: tuple[str, ...]
) -> tuple[bytes, str]:
    """Return a TOML file with one hostile thing in it, and what that is."""
    choice = rng.randrange(4)
    if turn < len(lines):
        line = lines[turn]
        return put_line(text, line).encode(), repr(line[:60])
    if choice == 0:
        return damage_bytes(text.encode(), rng), "damaged"
    if choice == 1:
        text, what = rename_in_toml(text, rng)
    else:
        text, what = replace_in_toml(text, rng)
    return text.encode(), what


def choose_configuration_attack(rng: random.Random, stage: Stage) -> Attack:
    """Run a configuration file, or a name or value of the command line that came from a file."""
    content, what = edited_file(rng, stage.turn, RUN_FILE, RUN_LINES)
    path = stage.input / "settings.toml"
    path.write_bytes(content)
    options: list[object] = ["--rounds", "1", "-q"]
    if stage.turn >= len(RUN_LINES) and rng.random() < 0.3:
        path.write_text(RUN_FILE)
        names = ["../../x", "/tmp/../../x", "a\x1b[31m", "a\nFORGED", "x" * 300, ".", "..", "a/b"]
        name = rng.choice(names)
        what = f"--name {name[:20]!r}"
        options += ["--name", name]
    return Attack(f"run: {what}", command("run", path, *options))


def choose_comparison_attack(rng: random.Random, stage: Stage) -> Attack:
    """Run a comparison file; a round takes a second, so what is accepted ends soon."""
    content, what = edited_file(rng, stage.turn, COMPARISON_FILE, COMPARISON_LINES)
    path = stage.input / "comparison.toml"
    path.write_bytes(content)
    options = ["--rounds", "1", "--jobs", "1", "--html", "page.html", "-q"]
    return Attack(f"compare: {what}", command("compare", path, *options))


CONFIG_VALUES = {
    "batch_size": ["0", "-1", "1.5", '"x"', "1e308", str(1 << 63)],
    "local_epochs": ["0", "-1", '"x"', "1.5"],
    "dim": ["0", "-1", "1000000", str(1 << 62)],
    "hidden": ["0", "-1", "1000000000000", '"x"'],
    "classes": ["0", "-1", "100000000000", "null"],
    "activation": ['"x"', "7", r'"\u001b[31m"'],
    "method": ['"os:system"', r'"\u001b[31m"', '"a\\nFORGED"', "7", "[]"],
    "rho": ["1e400", '"x"', "-1"],
    "local_lr": ["1e308", "NaN", '"x"'],
    "clip_norm": ["0", "-1", "NaN", '"x"'],
}


def choose_vectors_attack(rng: random.Random, stage: Stage) -> Attack:
    """Verify a file of reference vectors."""
    source = rng.choice(sorted(VECTORS.glob("*.json")))
    text = source.read_text()
    choice = rng.randrange(6)
    if choice < 2:
        text, what = replace_in_json(text, rng)
    elif choice == 2:
        text, what = rename_in_json(text, rng)
    elif choice == 3:
        text = rng.choice(["[" * 100_000, "null", "7", '"x"', "[]", "{}", '{"config": ' * 5000])
        what = f"{text[:20]!r}"
    else:
        key = rng.choice(list(CONFIG_VALUES))
        value = rng.choice(CONFIG_VALUES[key])
        file = json.loads(text)
        file["config"][key] = "the hostile value"
        text = json.dumps(file).replace('"the hostile value"', value)
        what = f"{key} = {value[:30]}"
    content = text.encode()
    if choice == 5 and rng.random() < 0.5:
        content = damage_bytes(source.read_bytes(), rng)
        what = "damaged"
    path = stage.input / "vectors.json"
    path.write_bytes(content)
    return Attack(f"{source.name}: {what}", command("verify", path))
