"""Run folders written by hand, so that what a report must say about them is known."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedwmsam import toml
from fedwmsam.settings.config import resolve_config


def write_run(
    path: Path,
    accuracy: Sequence[float | None],
    *,
    status: str | None = "completed",
    best_round: int | None = None,
    columns: dict[str, Sequence[Any]] | None = None,
    partition_hash: str = "p",
    data: dict[str, Any] | None = None,
    client_accuracy: Sequence[float | None] | None = None,
    **settings: Any,
) -> Path:
    """Write the folder of a run with these test accuracies, one per round, and return its path.

    Every round takes 2 s of training, 100 bytes down, 50 bytes up and 7 backprops. `columns` are
    further columns of metrics.jsonl; a value `...`, there or in `accuracy`, leaves the column out
    of that round. Without a status there is no summary.json. `data` is written to data.json with
    the hashes, `client_accuracy` to clients.json.
    """
    path.mkdir(parents=True)
    settings = {"method": "fedavg", "rounds": len(accuracy)} | settings
    (path / "config.toml").write_text(toml.dump(resolve_config(settings).to_flat_dict()))
    described = {"data_hash": "d", "partition_hash": partition_hash} | (data or {})
    (path / "data.json").write_text(json.dumps(described))
    measured = {"accuracy": accuracy, "loss": [1.0] * len(accuracy)} | (columns or {})
    rows = []
    timings = []
    for index in range(len(accuracy)):
        row = {"round": index + 1, "bytes_down": 100, "bytes_up": 50, "backprops": 7}
        for name, values in measured.items():
            if values[index] is not ...:
                row[name] = values[index]
        rows.append(row)
        timings.append({"round": index + 1, "train_seconds": 2.0, "evaluate_seconds": 0.5})
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (path / "timings.jsonl").write_text("".join(json.dumps(row) + "\n" for row in timings))
    if status is not None:
        summary = {"status": status, "rounds": len(rows), "best_round": best_round}
        (path / "summary.json").write_text(json.dumps(summary))
    if client_accuracy is not None:
        clients = {"round": len(rows), "accuracy": list(client_accuracy)}
        (path / "clients.json").write_text(json.dumps(clients))
    return path
