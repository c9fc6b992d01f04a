"""What travels between server and client on Flower: flat arrays as raw bytes, and one record that says what they are.

Nothing that arrives is trusted: names, types, shapes and lengths are compared with what is expected before memory is
taken for them, and nothing is unpickled.
"""

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from fedwmsam import rng
from fedwmsam.engine.client_state import RowLayout, as_bytes, digest_of
from fedwmsam.engine.rounds import Federation, Job
from fedwmsam.engine.schedule import KeyedSchedule
from fedwmsam.errors import InputError
from fedwmsam.methods import Info, Method, make_method
from fedwmsam.methods.vectors import Vectors
from fedwmsam.training.local import LocalResult, LocalRules
from fedwmsam.training.task import Task

VERSION = 1
"""Of this format; both sides must speak the same."""
RAW = "fedwmsam.raw"
"""The numbers' bytes, little-endian."""
HALF = "fedwmsam.half"
"""A float32 scale, then each number divided by it as float16."""
TRANSPORTS = ("float32", "float16")
CONFIG_KEY, VECTORS, BUFFERS = "fedwmsam", "vectors", "buffers"
assert sys.byteorder == "little"
Scalar = TypeVar("Scalar", int, float, str)


class WireError(InputError):
    """What arrived is not what the other side should have sent."""


def pack(vectors: Vectors, transport: str = "float32") -> tuple[ArrayRecord, float]:
    """The bundle as arrays, and the largest relative error that float16 made in one of its vectors."""
    arrays, worst = {}, 0.0
    for name, value in vectors.items():
        if transport == "float16" and value.dtype == torch.float32 and value.ndim:
            arrays[name], error = pack_float16(value)
            worst = max(worst, error)
        else:
            arrays[name] = Array(
                dtype_name(value.dtype), tuple(value.shape), RAW, bytes(as_bytes(value))
            )
    return ArrayRecord(arrays), worst


def pack_float16(value: Tensor) -> tuple[Array, float]:
    """Scaled by the largest number: updates are small, and float16 loses what is below 6e-8."""
    largest = value.abs().max()
    scale = torch.where(largest > 0, largest, 1.0)
    small = (value / scale).half()
    error = float(
        torch.linalg.vector_norm(small.float() * scale - value)
        / (torch.linalg.vector_norm(value) + 1e-30)
    )
    data = bytes(as_bytes(scale)) + bytes(as_bytes(small))
    return Array(dtype_name(value.dtype), tuple(value.shape), HALF, data), error


def unpack(record: object, expected: RowLayout | None = None) -> Vectors:
    """The bundle in an ArrayRecord; `expected` says what it must hold."""
    if not isinstance(record, ArrayRecord):
        raise WireError("the arrays are missing.")
    if expected is not None and set(record) != set(expected.parts):
        raise WireError(f"it holds {listed(record)} instead of {listed(expected.parts)}.")
    return {name: tensor_of(name, array, expected) for name, array in record.items()}


def tensor_of(name: str, array: Array, expected: RowLayout | None) -> Tensor:
    dtype, shape = getattr(torch, array.dtype, None), tuple(array.shape)
    if (
        not isinstance(dtype, torch.dtype)
        or array.stype not in (RAW, HALF)
        or any(size < 0 for size in shape)
    ):
        raise WireError(
            f"{name!r} is written in an unknown way ({array.stype!r}, {array.dtype!r})."
        )
    if expected is not None and (dtype, shape) != expected.parts[name]:
        wanted, size = expected.parts[name]
        raise WireError(
            f"{name!r} is {array.dtype}{list(shape)} instead of {dtype_name(wanted)}{list(size)}."
        )
    kind = torch.float16 if array.stype == HALF else dtype
    head = 4 if array.stype == HALF else 0
    if len(array.data) != head + kind.itemsize * math.prod(shape):
        raise WireError(
            f"{name!r} has {len(array.data)} bytes, which is not {array.dtype}{list(shape)}."
        )
    value = tensor_from_bytes(kind, shape, array.data[head:])
    return value.to(dtype) * tensor_from_bytes(dtype, (), array.data[:head]) if head else value


def tensor_from_bytes(dtype: torch.dtype, shape: tuple[int, ...], data: bytes) -> Tensor:
    """In torch's own aligned memory: vector instructions may round differently on other."""
    value = torch.empty(shape, dtype=dtype)
    as_bytes(value)[:] = data
    return value


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def listed(names: Mapping[str, object]) -> str:
    return ", ".join(sorted(names)[:5]) or "nothing"


def typed_entry(record: Mapping[str, Any], key: str, kind: type[Scalar]) -> Scalar:
    value = record.get(key)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise WireError(f"its {key!r} is {value!r}, not {kind.__name__}.")
    return value


def config_record_of(content: RecordDict) -> ConfigRecord:
    """The record beside the arrays; refuses another version of this format."""
    note = content.get(CONFIG_KEY)
    if not isinstance(note, ConfigRecord):
        raise WireError("it carries no fedwmsam record: the other side is no fedwmsam app.")
    if note.get("version") != VERSION:
        raise WireError(
            f"it speaks version {note.get('version')!r} of the format, this side {VERSION}; update both."
        )
    return note


@dataclass(frozen=True)
class TrainConfig:
    """What holds for every client and round of a run, so that clients need no settings of their own."""

    method: Method
    rules: LocalRules
    seed: int
    local_epochs: int
    batch_size: int
    task: str
    """Fingerprint of the model and loss."""
    transport: str

    @classmethod
    def of(cls, federation: Federation, transport: str) -> "TrainConfig":
        schedule = federation.schedule
        assert isinstance(schedule, KeyedSchedule)
        return cls(
            federation.method,
            federation.rules,
            schedule.seed,
            schedule.local_epochs,
            schedule.batch_size,
            task_fingerprint(federation.task),
            transport,
        )

    def note(self) -> dict[str, Any]:
        rules = {key: value for key, value in asdict(self.rules).items() if value is not None}
        return rules | {
            "version": VERSION,
            "method": self.method.name,
            "options": json.dumps(asdict(self.method)),
            "seed": self.seed,
            "local_epochs": self.local_epochs,
            "batch_size": self.batch_size,
            "task": self.task,
            "transport": self.transport,
        }

    @classmethod
    def read(cls, note: ConfigRecord) -> "TrainConfig":
        try:
            options = json.loads(typed_entry(note, "options", str))
        except (ValueError, RecursionError) as error:
            raise WireError(f"its options are not JSON: {error}.") from error
        if not isinstance(options, dict):
            raise WireError(f"its options are {options!r}, not names with values.")
        clip = typed_entry(note, "clip_norm", float) if "clip_norm" in note else None
        return cls(
            make_method(typed_entry(note, "method", str), **options),
            LocalRules(
                typed_entry(note, "weight_decay", float),
                typed_entry(note, "weight_decay_mode", str),
                clip,
            ),
            typed_entry(note, "seed", int),
            typed_entry(note, "local_epochs", int),
            typed_entry(note, "batch_size", int),
            typed_entry(note, "task", str),
            typed_entry(note, "transport", str),
        )

    def schedule(self, info: Info) -> KeyedSchedule:
        """The client's half of the server's schedule: its batches; who takes part is not its business."""
        return KeyedSchedule(
            seed=self.seed,
            clients=info.clients,
            per_round=info.cohort,
            sampling="fixed",
            local_epochs=self.local_epochs,
            batch_size=self.batch_size,
            learning_rate=info.lr,
            lr_decay=1.0,
        )


def task_fingerprint(task: Task) -> str:
    """Of all that both sides must share and that does not travel: the architecture, its loss and frozen weights."""
    frozen = digest_of(as_bytes(value) for value in task.frozen().values()).hex()
    loss = getattr(task.objective.loss, "__qualname__", type(task.objective.loss).__name__)
    return rng.digest(f"{task.model!r} {task.layout} {loss} {frozen}")


def pack_job(job: Job, terms: TrainConfig) -> tuple[RecordDict, float]:
    """What a client is asked, and the relative error of its vectors' transport."""
    info = {
        key: value for key, value in asdict(replace(job.info, layout=())).items() if key != "layout"
    }
    note = ConfigRecord(terms.note() | info | {"client": job.client})
    vectors, error = pack(job.down, terms.transport)
    return RecordDict({CONFIG_KEY: note, VECTORS: vectors, BUFFERS: pack(job.buffers)[0]}), error


def unpack_job(content: RecordDict, task: Task) -> Job:
    """What the server asks of this client, checked against the model."""
    note = config_record_of(content)
    info = Info(
        round=typed_entry(note, "round", int),
        lr=typed_entry(note, "lr", float),
        clients=typed_entry(note, "clients", int),
        cohort=typed_entry(note, "cohort", int),
        share=typed_entry(note, "share", float),
        steps=typed_entry(note, "steps", int),
        samples=typed_entry(note, "samples", int),
        layout=task.layout,
    )
    down = unpack(content.get(VECTORS))
    if (
        "w" not in down
        or down["w"].shape != task.initial_weights.shape
        or down["w"].dtype != task.dtype
    ):
        raise WireError(
            f"The server sent no weights of {task.size} numbers of type {dtype_name(task.dtype)}."
        )
    return Job(
        typed_entry(note, "client", int),
        down,
        unpack(content.get(BUFFERS), RowLayout.of(task.initial_buffers)),
        info,
    )


def pack_result(job: Job, result: LocalResult, transport: str) -> RecordDict:
    vectors, error = pack(result.up, transport)
    note = ConfigRecord(
        {
            "version": VERSION,
            "round": job.info.round,
            "client": job.client,
            "loss": result.loss,
            "backprops": result.backprops,
            "transport_error": error,
        }
    )
    return RecordDict({CONFIG_KEY: note, VECTORS: vectors, BUFFERS: pack(result.buffers)[0]})


def unpack_result(
    content: RecordDict, job: Job, up: RowLayout, buffers: RowLayout
) -> tuple[LocalResult, float]:
    """A client's answer to `job` and the relative error of its transport; WireError if it is no such answer."""
    note = config_record_of(content)
    round, client = typed_entry(note, "round", int), typed_entry(note, "client", int)
    if (round, client) != (job.info.round, job.client):
        raise WireError(
            f"it is client {client}'s for round {round + 1}, not client {job.client}'s for round {job.info.round + 1}."
        )
    vectors, moved = unpack(content.get(VECTORS), up), unpack(content.get(BUFFERS), buffers)
    result = LocalResult(
        vectors, moved, typed_entry(note, "loss", float), typed_entry(note, "backprops", int)
    )
    return result, typed_entry(note, "transport_error", float)


def payload(content: RecordDict) -> int:
    """Bytes of the arrays."""
    return sum(
        len(array.data) for record in content.array_records.values() for array in record.values()
    )
