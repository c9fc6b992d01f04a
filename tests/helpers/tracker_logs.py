"""A run folder's logs as TensorBoard and Weights & Biases read them, printed as JSON.

python tracker_logs.py FOLDER
"""

import json
import struct
import sys
from pathlib import Path

HEADER_BYTES = 7
"""Size of the header of a wandb file, and of each chunk in it."""
BLOCK_BYTES = 32768
"""Size of the blocks that a wandb file consists of."""
WHOLE_CHUNK = 1
LAST_CHUNK = 4


def read_tensorboard(folder):
    """Return the scalars by name, as (step, value) pairs, and the newest text of each name."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    scalars = {}
    for tag in events.Tags()["scalars"]:
        scalars[tag] = [(event.step, event.value) for event in events.Scalars(tag)]
    texts = {}
    for tag in events.Tags()["tensors"]:
        newest = events.Tensors(tag)[-1]
        texts[tag.removesuffix("/text_summary")] = newest.tensor_proto.string_val[0].decode()
    return {"scalars": scalars, "texts": texts}


def read_wandb(file):
    """Return the run's id, name, project and configuration, its rows, summary and exit code."""
    log = {"id": file.stem, "rows": [], "summary": {}, "exit_code": None}
    for record in read_wandb_records(file.read_bytes()):
        if record.HasField("run"):
            log["name"] = record.run.display_name
            log["project"] = record.run.project
            config = record.run.config.update
            log["config"] = {item.key: json.loads(item.value_json) for item in config}
        elif record.HasField("history"):
            items = record.history.item
            log["rows"].append({item.nested_key[0]: json.loads(item.value_json) for item in items})
        elif record.HasField("summary"):
            items = [item for item in record.summary.update if item.key]
            log["summary"] |= {item.key: json.loads(item.value_json) for item in items}
        elif record.HasField("exit"):
            log["exit_code"] = record.exit.exit_code
    return log


def read_wandb_records(data):
    """Yield the records of a wandb file, for which the package has no reader.

    It consists of blocks of chunks as in LevelDB's log, each chunk with checksum, length and kind.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    position = HEADER_BYTES
    content = b""
    while position + HEADER_BYTES <= len(data):
        rest_of_block = BLOCK_BYTES - position % BLOCK_BYTES
        _, length, kind = struct.unpack_from("<IHB", data, position)
        if rest_of_block < HEADER_BYTES or not kind:
            position += rest_of_block
            continue
        position += HEADER_BYTES
        content += data[position : position + length]
        position += length
        if kind in (WHOLE_CHUNK, LAST_CHUNK):
            yield Record.FromString(content)
            content = b""


def main(folder):
    """Print the logs of both trackers."""
    files = sorted(folder.glob("wandb/offline-run-*/*.wandb"))
    logs = {
        "tensorboard": read_tensorboard(folder),
        "wandb": [read_wandb(file) for file in files],
    }
    print(json.dumps(logs))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
