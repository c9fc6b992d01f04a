"""Run folders written by hand, so that what a report must say about them is known."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedwmsam import toml
from fedwmsam.settings.config import resolve


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
    """A run of these test accuracies: a round each, 100 bytes down, 50 up, 7 backprops and 2 s.

    `columns` are further ones; in either, `...` is a round without that column. No status: no summary.json. `data` is
    what data.json holds beside the hashes, `client_accuracy` what clients.json holds.
    """
    path.mkdir(parents=True)
    settings = {"method": "fedavg", "rounds": len(accuracy)} | settings
    (path / "config.toml").write_text(toml.dump(resolve(settings).flat()))
    (path / "data.json").write_text(
        json.dumps({"data_hash": "d", "partition_hash": partition_hash} | (data or {}))
    )
    rows = []
    for number in range(len(accuracy)):
        row = {"round": number + 1, "bytes_down": 100, "bytes_up": 50, "backprops": 7}
        measured = {"accuracy": accuracy, "loss": [1.0] * len(accuracy)} | (columns or {})
        rows.append(
            row
            | {
                name: values[number]
                for name, values in measured.items()
                if values[number] is not ...
            }
        )
    times = [{"round": row["round"], "train_seconds": 2.0, "evaluate_seconds": 0.5} for row in rows]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (path / "timings.jsonl").write_text("".join(json.dumps(row) + "\n" for row in times))
    if status is not None:
        summary = {"status": status, "rounds": len(rows), "best_round": best_round}
        (path / "summary.json").write_text(json.dumps(summary))
    if client_accuracy is not None:
        (path / "clients.json").write_text(
            json.dumps({"round": len(rows), "accuracy": list(client_accuracy)})
        )
    return path
