"""A run folder's logs as their own packages read them, as JSON: python tracker_logs.py FOLDER."""

import json
import struct
import sys
from pathlib import Path


def tensorboard(folder):
    """Scalars by name, as (step, value); texts by name, the newest."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    texts = {
        tag.removesuffix("/text_summary"): found.Tensors(tag)[-1] for tag in found.Tags()["tensors"]
    }
    return {
        "scalars": {
            tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]
        },
        "texts": {tag: event.tensor_proto.string_val[0].decode() for tag, event in texts.items()},
    }


def wandb(file):
    """The run's id, name, project and configuration; its rows; its summary and exit code."""
    found = {"id": file.stem, "rows": [], "summary": {}, "exit_code": None}
    for record in wandb_records(file.read_bytes()):
        if record.HasField("run"):
            run = record.run
            found |= {"name": run.display_name, "project": run.project}
            found["config"] = {item.key: json.loads(item.value_json) for item in run.config.update}
        elif record.HasField("history"):
            found["rows"].append(
                {item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
            )
        elif record.HasField("summary"):
            found["summary"] |= {
                item.key: json.loads(item.value_json) for item in record.summary.update if item.key
            }
        elif record.HasField("exit"):
            found["exit_code"] = record.exit.exit_code
    return found


def wandb_records(data, header=7, block=32768):
    """The package has no reader: blocks of chunks as in LevelDB's log, each with checksum, length and kind."""
    from wandb.proto.wandb_internal_pb2 import Record

    position, whole = header, b""
    while position + header <= len(data):
        room = block - position % block
        _, length, kind = struct.unpack_from("<IHB", data, position)
        if room < header or not kind:
            position += room
            continue
        position += header
        whole, position = whole + data[position : position + length], position + length
        if kind in (1, 4):  # alone, or the last of several
            yield Record.FromString(whole)
            whole = b""


def main(folder):
    logs = sorted(folder.glob("wandb/offline-run-*/*.wandb"))
    print(json.dumps({"tensorboard": tensorboard(folder), "wandb": [wandb(file) for file in logs]}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
