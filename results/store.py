"""Runs as small files: `runs.jsonl` says what each is, `runs/NAME.csv` has its columns, a line for each round.

    python results/store.py PLACE [PLACE…]     # keep the finished runs of these folders, or what is packed in them

What `fedwmsam analyse` found beside a kept run is kept, too: `analysis/NAME/`. `unpacked()` makes run folders of it all
again, as far as a report reads them. A folder elsewhere can hold runs packed like this (`run_queue.py` makes one): the
format is what older and newer versions of the code exchange, so what it once held is read for ever.
"""

import csv
import json
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from fedwmsam import toml
from fedwmsam.analysis import dynamics, flatness
from fedwmsam.files import atomic_replace
from fedwmsam.report.runs import LoadedRun, RunStatus, find_runs

HERE = Path(__file__).resolve().parent
INDEX, COLUMNS, ANALYSES = "runs.jsonl", "runs", "analysis"
KEPT = ("dataset", "data_hash", "partition_hash", "classes")
"""What is kept of a run's data."""
SECONDS = ("train_seconds", "cpu_seconds")
"""What is kept of a run's timings; runs kept before there was a twin have the first only."""
LEFT_OUT = ("lr", "evaluate_seconds", "record_seconds")
"""The first follows from the configuration, the others from the machine."""
ANALYSED = (flatness.FLATNESS_FILE, flatness.AVERAGED_FLATNESS_FILE, dynamics.DYNAMICS_FILE)
EXACT = ("accuracy", "validation_accuracy", "averaged_accuracy", "averaged_validation_accuracy")
"""Columns with so many digits that the tables come out the same; of all others five."""


def entries(place: Path = HERE) -> dict[str, dict[str, Any]]:
    index = place / INDEX
    lines = index.read_text().splitlines() if index.exists() else []
    return {entry["run"]: entry for entry in map(json.loads, lines)}


def write_index(known: dict[str, dict[str, Any]], place: Path) -> None:
    with atomic_replace(
        place / INDEX
    ) as beside:  # the queue's processes read it while one of them writes
        beside.write_text("".join(f"{json.dumps(known[name])}\n" for name in sorted(known)))


def add(runs: Iterable[LoadedRun], place: Path = HERE) -> list[str]:
    """Keep those that are over; what is kept already is not touched."""
    known, added = entries(place), []
    (place / COLUMNS).mkdir(parents=True, exist_ok=True)
    for run in runs:
        name = run.path.name
        if name in known or not (run.counts or run.state is RunStatus.DIVERGED):
            continue
        config = {
            key: value
            for key, value in run.config.items()
            if value is not None and key != "data_dir"
        }
        status = "completed" if run.state is RunStatus.COMPLETED else run.remark
        data = {key: run.data[key] for key in KEPT if key in run.data}
        weights = run.path / "model.safetensors"
        constant = write_columns(columns_of(name, place), run)
        known[name] = {
            "run": name,
            "status": status,
            "config": config,
            "data": data,
            "constant": constant,
        }
        if weights.exists():
            known[name]["norm"] = length(weights)
        added.append(name)
    write_index(known, place)
    return added


def columns_of(name: str, place: Path = HERE) -> Path:
    return place / COLUMNS / f"{name}.csv"


def length(weights: Path) -> float:
    """Of a run's last model."""
    flat = torch.cat([value.flatten() for value in load_file(weights).values()])
    return float(f"{flat.norm():.6g}")


def add_analyses(runs: Iterable[LoadedRun], place: Path = HERE) -> list[str]:
    """Of kept runs; one made since takes an older one's place."""
    known, added = entries(place), []
    for run in runs:
        made = [
            file for file in (run.path / "analysis" / name for name in ANALYSED) if file.exists()
        ]
        for file in made if run.path.name in known else []:
            kept = place / ANALYSES / run.path.name / file.name
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


def write_columns(path: Path, run: LoadedRun) -> dict[str, Any]:
    """What changes from round to round; returns what does not."""
    rows = [row | timing for row, timing in zip(run.rows, run.timings, strict=True)]
    names = [
        name for name in dict.fromkeys(name for row in rows for name in row) if name not in LEFT_OUT
    ]
    same = [name for name in names if all(row.get(name) == rows[0].get(name) for row in rows)]
    moving = ["round", *(name for name in names if name not in ("round", *same))]
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(moving)
        writer.writerows(
            [[short(row.get(name), 12 if name in EXACT else 5) for name in moving] for row in rows]
        )
    return {name: rows[0][name] for name in same if name != "round"}


def short(value: object, digits: int) -> str:
    return (
        "" if value is None else f"{value:.{digits}g}" if isinstance(value, float) else str(value)
    )


def merge(packed: Path, place: Path = HERE) -> list[str]:
    """Keep what is packed in another folder; a run that is kept already stays, its missing analyses are added."""
    known, found, added = entries(place), entries(packed), []
    (place / COLUMNS).mkdir(parents=True, exist_ok=True)
    for name, entry in found.items():
        if name not in known:
            shutil.copy(columns_of(name, packed), columns_of(name, place))
            known[name] = entry
            added.append(name)
        for file in sorted((packed / ANALYSES / name).glob("*.json")):
            kept = place / ANALYSES / name / file.name
            if not kept.exists():
                kept.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, kept)
                added.append(f"{name}: {file.name}")
    write_index(known, place)
    return added


def unpacked(into: Path, place: Path = HERE) -> Path:
    """Run folders of everything that is packed."""
    for name, entry in entries(place).items():
        folder = into / name
        folder.mkdir()
        rows = rows_of(entry, place)
        timings = [
            {"round": row["round"]} | {kind: row.pop(kind) for kind in SECONDS if kind in row}
            for row in rows
        ]
        summary = {"status": entry["status"], "rounds": len(rows), "best_round": None}
        (folder / "config.toml").write_text(toml.dump(entry["config"]))
        (folder / "data.json").write_text(json.dumps(entry["data"]))
        (folder / "summary.json").write_text(json.dumps(summary))
        for file, records in (("metrics.jsonl", rows), ("timings.jsonl", timings)):
            (folder / file).write_text("".join(f"{json.dumps(record)}\n" for record in records))
        if (place / ANALYSES / name).exists():
            shutil.copytree(place / ANALYSES / name, folder / "analysis")
    return into


def rows_of(entry: dict[str, Any], place: Path = HERE) -> list[dict[str, Any]]:
    """A kept run, round by round."""
    return [row | entry["constant"] for row in read_columns(columns_of(entry["run"], place))]


def read_columns(path: Path) -> list[dict[str, Any]]:
    with path.open(newline="") as file:
        return [
            {key: number(text) for key, text in row.items() if text} for row in csv.DictReader(file)
        ]


def number(text: str) -> float | int:
    return int(text) if text.isdigit() else float(text)


def keep(places: Sequence[Path]) -> list[str]:
    packed = [place for place in places if (place / INDEX).exists()]
    others = [place for place in places if place not in packed]
    found = find_runs(others)[0] if others else []
    return [*add(found), *add_analyses(found), *(name for place in packed for name in merge(place))]


if __name__ == "__main__":
    print(*keep([Path(place) for place in sys.argv[1:]]), sep="\n")
