"""Finished runs, packed as small files.

    python results/store.py FOLDER [FOLDER…]

packs the finished runs in these folders, or takes over what is packed in them. `runs.jsonl` says
what each run is, `runs/NAME.csv` has its columns with one line per round, and `analysis/NAME/`
holds what `fedwmsam analyse` found. `unpack_runs()` makes run folders of all this again, as far as
a report reads them. Other folders can hold runs packed like this (`run_queue.py` makes one): older
and newer versions of the code exchange runs in this format, so whatever was packed once can be read
for ever.
"""

import csv
import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from fedwmsam import toml
from fedwmsam.analysis import dynamics, flatness
from fedwmsam.files import atomic_replace
from fedwmsam.report.runs import LoadedRun, RunStatus, find_runs

HERE = Path(__file__).resolve().parent
INDEX = "runs.jsonl"
COLUMNS = "runs"
ANALYSES = "analysis"
DATA_KEYS = ("dataset", "data_hash", "partition_hash", "classes")
"""Entries of a run's data.json that are packed."""
TIMINGS = ("train_seconds", "cpu_seconds")
"""Columns of a run's timings that are packed; the oldest packed runs have the first one only."""
LEFT_OUT = ("lr", "evaluate_seconds", "record_seconds")
"""Columns that are not packed: the first follows from the settings, the others from the machine."""
ANALYSIS_FILES = (flatness.FLATNESS_FILE, flatness.AVERAGED_FLATNESS_FILE, dynamics.DYNAMICS_FILE)
EXACT = ("accuracy", "validation_accuracy", "averaged_accuracy", "averaged_validation_accuracy")
"""Columns packed with so many digits that the tables stay the same; all others have five."""
Index = dict[str, dict[str, Any]]
"""Names of packed runs → status, settings, data and constant columns."""


def read_index(packed: Path = HERE) -> Index:
    """Return the index of the packed runs in a folder, which is empty if there are none."""
    path = packed / INDEX
    lines = path.read_text().splitlines() if path.exists() else []
    return {entry["run"]: entry for entry in map(json.loads, lines)}


def write_index(index: Index, packed: Path) -> None:
    """Write the index of a folder; processes of the queue may read it at the same time."""
    with atomic_replace(packed / INDEX) as temporary:
        temporary.write_text("".join(f"{json.dumps(index[name])}\n" for name in sorted(index)))


def pack_runs(runs: Iterable[LoadedRun], packed: Path = HERE) -> list[str]:
    """Pack the runs that have ended and return their names; packed runs stay as they are."""
    index = read_index(packed)
    added = []
    (packed / COLUMNS).mkdir(parents=True, exist_ok=True)
    for run in runs:
        name = run.path.name
        has_ended = run.is_usable or run.status is RunStatus.DIVERGED
        if name not in index and has_ended:
            index[name] = make_entry(run, write_columns(columns_path(name, packed), run))
            added.append(name)
    write_index(index, packed)
    return added


def make_entry(run: LoadedRun, constant: dict[str, Any]) -> dict[str, Any]:
    """Return the entry of the index for a run with these constant columns."""
    config = {
        key: value for key, value in run.config.items() if value is not None and key != "data_dir"
    }
    entry: dict[str, Any] = {
        "run": run.path.name,
        "status": "completed" if run.status is RunStatus.COMPLETED else run.status_message,
        "config": config,
        "data": {key: run.data[key] for key in DATA_KEYS if key in run.data},
        "constant": constant,
    }
    weights = run.path / "model.safetensors"
    if weights.exists():
        entry["norm"] = weights_norm(weights)
    return entry


def columns_path(name: str, packed: Path = HERE) -> Path:
    """Return the path of the columns of a packed run."""
    return packed / COLUMNS / f"{name}.csv"


def weights_norm(path: Path) -> float:
    """Return the norm of the weights of a model."""
    flat = torch.cat([value.flatten() for value in load_file(path).values()])
    return float(f"{flat.norm():.6g}")


def pack_analyses(runs: Iterable[LoadedRun], packed: Path = HERE) -> list[str]:
    """Pack the analyses of packed runs and return their names; a changed one replaces the old."""
    index = read_index(packed)
    added = []
    for run in runs:
        if run.path.name not in index:
            continue
        for name in ANALYSIS_FILES:
            source = run.path / "analysis" / name
            target = packed / ANALYSES / run.path.name / name
            if not source.exists():
                continue
            text = json.dumps(round_floats(json.loads(source.read_text()))) + "\n"
            if not target.exists() or target.read_text() != text:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text)
                added.append(f"{run.path.name}: {name}")
    return added


def round_floats(value: Any) -> Any:
    """Return a JSON value with every number rounded to six digits."""
    if isinstance(value, dict):
        return {key: round_floats(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [round_floats(entry) for entry in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def write_columns(path: Path, run: LoadedRun) -> dict[str, Any]:
    """Write the columns that change from round to round, and return those that do not."""
    rows = [row | timing for row, timing in zip(run.round_records, run.timings, strict=True)]
    names: dict[str, None] = {}
    for row in rows:
        names |= dict.fromkeys(row)
    constant = {}
    columns = ["round"]
    for name in names:
        if name in ("round", *LEFT_OUT):
            continue
        if is_constant(name, rows):
            constant[name] = rows[0][name]
        else:
            columns.append(name)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            writer.writerow([format_cell(name, row.get(name)) for name in columns])
    return constant


def is_constant(name: str, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a column has the same value in every row."""
    return all(row.get(name) == rows[0].get(name) for row in rows)


def format_cell(column: str, value: object) -> str:
    """Return a value as it is written to a column; a missing one is empty."""
    if value is None:
        return ""
    digits = 12 if column in EXACT else 5
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)


def merge(source: Path, packed: Path = HERE) -> list[str]:
    """Take over what is packed in another folder, and return the names of what was new.

    A run that is packed already stays as it is; its missing analyses are added.
    """
    index = read_index(packed)
    added = []
    (packed / COLUMNS).mkdir(parents=True, exist_ok=True)
    for name, entry in read_index(source).items():
        if name not in index:
            shutil.copy(columns_path(name, source), columns_path(name, packed))
            index[name] = entry
            added.append(name)
        for file in sorted((source / ANALYSES / name).glob("*.json")):
            target = packed / ANALYSES / name / file.name
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, target)
                added.append(f"{name}: {file.name}")
    write_index(index, packed)
    return added


def unpack_runs(target: Path, packed: Path = HERE) -> Path:
    """Write a run folder into `target` for every packed run, and return `target`."""
    for name, entry in read_index(packed).items():
        folder = target / name
        folder.mkdir()
        rows = read_rounds(entry, packed)
        timings = [take_timings(row) for row in rows]
        summary = {"status": entry["status"], "rounds": len(rows), "best_round": None}
        (folder / "config.toml").write_text(toml.dump(entry["config"]))
        (folder / "data.json").write_text(json.dumps(entry["data"]))
        (folder / "summary.json").write_text(json.dumps(summary))
        write_json_lines(folder / "metrics.jsonl", rows)
        write_json_lines(folder / "timings.jsonl", timings)
        if (packed / ANALYSES / name).exists():
            shutil.copytree(packed / ANALYSES / name, folder / "analysis")
    return target


def take_timings(row: dict[str, Any]) -> dict[str, Any]:
    """Remove the timings from a round's row and return them as a row of their own."""
    timing = {"round": row["round"]}
    for name in TIMINGS:
        if name in row:
            timing[name] = row.pop(name)
    return timing


def write_json_lines(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))


def read_rounds(entry: dict[str, Any], packed: Path = HERE) -> list[dict[str, Any]]:
    """Return the rows of a packed run, one per round, with its constant columns."""
    return [row | entry["constant"] for row in read_columns(columns_path(entry["run"], packed))]


def read_columns(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file of columns, without empty cells."""
    with path.open(newline="") as file:
        return [parse_row(row) for row in csv.DictReader(file)]


def parse_row(row: Mapping[str, str]) -> dict[str, float | int]:
    return {key: parse_number(text) for key, text in row.items() if text}


def parse_number(text: str) -> float | int:
    return int(text) if text.isdigit() else float(text)


def pack_folders(folders: Sequence[Path]) -> list[str]:
    """Pack the runs in these folders, or take over what is packed in them; return what was new."""
    packed_folders = [folder for folder in folders if (folder / INDEX).exists()]
    run_folders = [folder for folder in folders if folder not in packed_folders]
    runs = find_runs(run_folders)[0] if run_folders else []
    added = [*pack_runs(runs), *pack_analyses(runs)]
    for folder in packed_folders:
        added += merge(folder)
    return added


if __name__ == "__main__":
    print(*pack_folders([Path(folder) for folder in sys.argv[1:]]), sep="\n")
