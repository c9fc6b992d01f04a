"""Runs as small files: `runs.jsonl` says what each is, `runs/NAME.csv` has its columns, a line for each round.

    python results/store.py RUNS [RUNS…]     # add the finished runs of these folders

What `fedwmsam analyse` found beside a kept run is kept, too: `analysis/NAME/`. `unpacked()` makes run folders of it all
again, as far as a report reads them.
"""

import csv
import json
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from fedwmsam import toml
from fedwmsam.analysis import dynamics, run_flatness
from fedwmsam.report.runs import Run, State, find_runs

HERE = Path(__file__).resolve().parent
INDEX, COLUMNS, ANALYSES = HERE / "runs.jsonl", HERE / "runs", HERE / "analysis"
KEPT = ("dataset", "data_hash", "partition_hash", "classes")
"""What is kept of a run's data."""
SECONDS = "train_seconds"
LEFT_OUT = ("lr", "evaluate_seconds", "cpu_seconds")
"""The first follows from the configuration, the others from the machine."""
ANALYSED = (run_flatness.FILE, dynamics.FILE)
DIGITS = {"accuracy": 12}
"""Enough that the tables come out the same; of all other columns five."""


def entries() -> dict[str, dict[str, Any]]:
    lines = INDEX.read_text().splitlines() if INDEX.exists() else []
    return {entry["run"]: entry for entry in map(json.loads, lines)}


def add(runs: Iterable[Run]) -> list[str]:
    """Keep those that are over; what is kept already is not touched."""
    known, added = entries(), []
    COLUMNS.mkdir(exist_ok=True)
    for run in runs:
        name = run.path.name
        if name in known or not (run.counts or run.state is State.DIVERGED):
            continue
        config = {key: value for key, value in run.config.items() if value is not None and key != "data_dir"}
        status = "completed" if run.state is State.COMPLETED else run.remark
        data = {key: run.data[key] for key in KEPT if key in run.data}
        weights = run.path / "model.safetensors"
        constant = write_columns(COLUMNS / f"{name}.csv", run)
        known[name] = {"run": name, "status": status, "config": config, "data": data, "constant": constant}
        if weights.exists():
            known[name]["norm"] = length(weights)
        added.append(name)
    INDEX.write_text("".join(f"{json.dumps(known[name])}\n" for name in sorted(known)))
    return added


def length(weights: Path) -> float:
    """Of a run's last model."""
    flat = torch.cat([value.flatten() for value in load_file(weights).values()])
    return float(f"{flat.norm():.6g}")


def add_analyses(runs: Iterable[Run]) -> list[str]:
    """Of kept runs; one made since takes an older one's place."""
    known, added = entries(), []
    for run in runs:
        made = [file for file in (run.path / "analysis" / name for name in ANALYSED) if file.exists()]
        for file in made if run.path.name in known else []:
            kept = ANALYSES / run.path.name / file.name
            text = json.dumps(rounded(json.loads(file.read_text()))) + "\n"
            if not kept.exists() or kept.read_text() != text:
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_text(text)
                added.append(f"{run.path.name}: {file.name}")
    return added


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: rounded(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [rounded(entry) for entry in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def write_columns(path: Path, run: Run) -> dict[str, Any]:
    """What changes from round to round; returns what does not."""
    rows = [row | timing for row, timing in zip(run.rows, run.timings, strict=True)]
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if name not in LEFT_OUT]
    same = [name for name in names if all(row.get(name) == rows[0].get(name) for row in rows)]
    moving = ["round", *(name for name in names if name not in ("round", *same))]
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(moving)
        writer.writerows([[short(row.get(name), DIGITS.get(name, 5)) for name in moving] for row in rows])
    return {name: rows[0][name] for name in same if name != "round"}


def short(value: object, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}g}" if isinstance(value, float) else str(value)


def unpacked(place: Path) -> Path:
    for name, entry in entries().items():
        folder = place / name
        folder.mkdir()
        rows = [row | entry["constant"] for row in read_columns(COLUMNS / f"{name}.csv")]
        timings = [{"round": row["round"], SECONDS: row.pop(SECONDS)} for row in rows]
        summary = {"status": entry["status"], "rounds": len(rows), "best_round": None}
        (folder / "config.toml").write_text(toml.dump(entry["config"]))
        (folder / "data.json").write_text(json.dumps(entry["data"]))
        (folder / "summary.json").write_text(json.dumps(summary))
        for file, records in (("metrics.jsonl", rows), ("timings.jsonl", timings)):
            (folder / file).write_text("".join(f"{json.dumps(record)}\n" for record in records))
        if (ANALYSES / name).exists():
            shutil.copytree(ANALYSES / name, folder / "analysis")
    return place


def read_columns(path: Path) -> list[dict[str, Any]]:
    with path.open(newline="") as file:
        return [{key: number(text) for key, text in row.items() if text} for row in csv.DictReader(file)]


def number(text: str) -> float | int:
    return int(text) if text.isdigit() else float(text)


if __name__ == "__main__":
    given = find_runs([Path(place) for place in sys.argv[1:]])[0]
    print(*add(given), *add_analyses(given), sep="\n")
