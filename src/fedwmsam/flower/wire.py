"""The content of the messages between server and clients on Flower.

Vectors travel as flat arrays of raw bytes, and a ConfigRecord next to them says what they are.
Nothing that arrives is trusted: names, types, shapes and lengths are compared with what is expected
before memory is allocated for them, and nothing is unpickled.
"""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from fedwmsam import rng
from fedwmsam.engine.checkpoint import to_device
from fedwmsam.engine.client_state import RowLayout, as_bytes, digest_of
from fedwmsam.engine.rounds import Federation, Job
from fedwmsam.engine.schedule import LearningRate, SeededSchedule
from fedwmsam.errors import InputError, printable
from fedwmsam.methods import Info, Method
from fedwmsam.methods.vectors import Vectors
from fedwmsam.settings.method_table import known_class, method_with_options
from fedwmsam.settings.options import truncated_repr
from fedwmsam.settings.parsers import LearningRateRule
from fedwmsam.training.local import LocalResult, LocalRules
from fedwmsam.training.task import Task

VERSION = 2
"""The version of this format; server and clients must use the same one."""
RAW = "fedwmsam.raw"
"""Serialization type of an array that holds the bytes of its values, little-endian."""
HALF = "fedwmsam.half"
"""Serialization type of an array that holds a float32 scale, then each value over it as float16."""
TRANSPORTS = ("float32", "float16")
"""The number formats in which vectors can travel."""
CONFIG_KEY = "fedwmsam"
"""Key of the ConfigRecord in a message."""
VECTORS = "vectors"
"""Key of the ArrayRecord with the downlink or the uplink."""
BUFFERS = "buffers"
"""Key of the ArrayRecord with the buffers of the model."""
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    )
}
"""The types that an array may have, by name."""
MAX_DIMENSIONS = 16
"""Dimensions that an array may have."""
MAX_NUMBERS = 2**40
"""Numbers that an array may have, and the largest size of a dimension."""
LARGEST_COUNT = 2**40
"""The largest number of samples, rounds, steps or the like that is believed."""
assert sys.byteorder == "little"
Scalar = TypeVar("Scalar", int, float, str)
Number = TypeVar("Number", int, float)


class WireError(InputError):
    """The content of a message is not what the other side should have sent.

    Whatever the reason quotes of it, it is one line of at most 300 characters.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(printable(reason, 300))


def pack(vectors: Vectors, transport: str = "float32") -> tuple[ArrayRecord, float]:
    """Return the vectors as arrays, and the largest relative error that float16 made in one."""
    arrays = {}
    largest_error = 0.0
    for name, value in vectors.items():
        if transport == "float16" and value.dtype == torch.float32 and value.ndim:
            arrays[name], error = pack_float16(value)
            largest_error = max(largest_error, error)
        else:
            data = bytes(as_bytes(value))
            arrays[name] = Array(dtype_name(value.dtype), tuple(value.shape), RAW, data)
    return ArrayRecord(arrays), largest_error


def pack_float16(value: Tensor) -> tuple[Array, float]:
    """Return a vector in half precision, and the relative error that this made.

    The vector is divided by its largest entry: updates are small, and float16 loses what is below
    6e-8.
    """
    largest = value.abs().max()
    scale = torch.where(largest > 0, largest, 1.0)
    halves = (value / scale).half()
    difference = torch.linalg.vector_norm(halves.float() * scale - value)
    error = float(difference / (torch.linalg.vector_norm(value) + 1e-30))
    data = bytes(as_bytes(scale)) + bytes(as_bytes(halves))
    return Array(dtype_name(value.dtype), tuple(value.shape), HALF, data), error


def unpack(record: object, expected: RowLayout | None = None) -> Vectors:
    """Return the vectors in an ArrayRecord.

    Raise WireError if it is no ArrayRecord, if an array is damaged, or if `expected` is given and
    the names, types or shapes differ from it.
    """
    if not isinstance(record, ArrayRecord):
        raise WireError("the arrays are missing.")
    if expected is not None and set(record) != set(expected.parts):
        raise WireError(f"it holds {join_names(record)} instead of {join_names(expected.parts)}.")
    return {name: unpack_array(name, array, expected) for name, array in record.items()}


def unpack_array(name: str, array: Array, expected: RowLayout | None) -> Tensor:
    """Return the array as a tensor; raise WireError if type, shape or length do not fit."""
    dtype, shape = check_description(name, array)
    if expected is not None and (dtype, shape) != expected.parts[name]:
        expected_dtype, expected_shape = expected.parts[name]
        raise WireError(
            f"{name!r} is {array.dtype}{list(shape)} "
            f"instead of {dtype_name(expected_dtype)}{list(expected_shape)}."
        )
    stored_dtype = torch.float16 if array.stype == HALF else dtype
    scale_bytes = 4 if array.stype == HALF else 0
    if len(array.data) != scale_bytes + stored_dtype.itemsize * math.prod(shape):
        raise WireError(
            f"{name!r} has {len(array.data)} bytes, which is not {array.dtype}{list(shape)}."
        )
    value = tensor_from_bytes(stored_dtype, shape, array.data[scale_bytes:])
    if not scale_bytes:
        return value
    return value.to(dtype) * tensor_from_bytes(dtype, (), array.data[:scale_bytes])


def check_description(name: str, array: Array) -> tuple[torch.dtype, tuple[int, ...]]:
    """Return the type and the shape that an array claims to have.

    Raise WireError if it is of no type in DTYPES, too large, or serialized in an unknown way.
    """
    dtype = DTYPES.get(array.dtype) if isinstance(array.dtype, str) else None
    is_serialized = isinstance(array.data, bytes) and array.stype in (RAW, HALF)
    # Only vectors of float32 travel in half precision: see `pack`.
    is_half_possible = dtype == torch.float32 and len(array.shape) > 0
    if dtype is None or not is_serialized or (array.stype == HALF and not is_half_possible):
        raise WireError(
            f"{name!r} is written in an unknown way "
            f"({truncated_repr(array.stype)}, {truncated_repr(array.dtype)})."
        )
    shape = tuple(array.shape)
    is_shape = all(type(size) is int and 0 <= size <= MAX_NUMBERS for size in shape)
    if len(shape) > MAX_DIMENSIONS or not is_shape or math.prod(shape) > MAX_NUMBERS:
        raise WireError(f"{name!r} has the impossible shape {truncated_repr(shape)}.")
    return dtype, shape


def tensor_from_bytes(dtype: torch.dtype, shape: tuple[int, ...], data: bytes) -> Tensor:
    """Return the bytes as a tensor in memory that torch allocated.

    That memory is aligned; on other memory vector instructions may round differently.
    """
    value = torch.empty(shape, dtype=dtype)
    as_bytes(value)[:] = data
    return value


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a type without the prefix "torch."."""
    return str(dtype).removeprefix("torch.")


def join_names(names: Mapping[str, object]) -> str:
    """Return the first five names in alphabetical order for a message, or "nothing"."""
    return ", ".join(sorted(names)[:5]) or "nothing"


def typed_entry(record: Mapping[str, Any], key: str, kind: type[Scalar]) -> Scalar:
    """Return the entry of a record; raise WireError if it is missing or of another type."""
    value = record.get(key)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise WireError(f"its {key!r} is {truncated_repr(value)}, not {kind.__name__}.")
    return value


def number_entry(
    record: Mapping[str, Any], key: str, kind: type[Number], low: Number, high: Number
) -> Number:
    """Return the number in a record; raise WireError unless it lies between `low` and `high`."""
    value = typed_entry(record, key, kind)
    if not low <= value <= high:  # NaN does not
        raise WireError(f"its {key!r} is {truncated_repr(value)}, not {low} to {high}.")
    return value


def travelling_fields(kind: type[Any]) -> dict[str, Any]:
    """Return the names and types of the fields of a dataclass that travel as entries of a record.

    All fields travel except the layout of the parameters: server and clients both have the model.
    """
    types = get_type_hints(kind)
    return {field.name: types[field.name] for field in fields(kind) if field.name != "layout"}


def fields_to_record(instance: Any) -> dict[str, Any]:
    """Return a dataclass instance as entries of a record; a field that is None has no entry."""
    values = {name: getattr(instance, name) for name in travelling_fields(type(instance))}
    return {name: value for name, value in values.items() if value is not None}


def fields_from_record(record: Mapping[str, Any], kind: type[Any]) -> dict[str, Any]:
    """Return the keyword arguments for a dataclass from the entries of a record.

    Raise WireError if an entry has another type than its field, or is missing and the field may
    not be None.
    """
    values: dict[str, Any] = {}
    for name, annotation in travelling_fields(kind).items():
        if name not in record and NoneType in get_args(annotation):
            values[name] = None
        else:
            values[name] = typed_entry(record, name, without_none(annotation))
    return values


def without_none(annotation: Any) -> Any:
    """Return T for the annotation `T | None`, and any other annotation unchanged."""
    types = [kind for kind in get_args(annotation) if kind is not NoneType]
    return types[0] if types else annotation


def config_record_of(content: RecordDict) -> ConfigRecord:
    """Return the ConfigRecord of a message; raise WireError for another version of this format."""
    record = content.get(CONFIG_KEY)
    if not isinstance(record, ConfigRecord):
        raise WireError("it carries no fedwmsam record: the other side is no fedwmsam app.")
    if record.get("version") != VERSION:
        raise WireError(
            f"it speaks version {truncated_repr(record.get('version'))} of the format, "
            f"this side {VERSION}; update both."
        )
    return record


@dataclass(frozen=True)
class TrainConfig:
    """The settings of local training that hold for every client and round of a run.

    They travel with every message, so that clients need no settings of their own.
    """

    method: Method
    local_rules: LocalRules
    seed: int
    local_epochs: int
    local_steps: int | None
    batch_size: int
    last_batch: str
    task: str
    """Fingerprint of the model and the loss."""
    transport: str

    @classmethod
    def of(cls, federation: Federation, transport: str) -> "TrainConfig":
        """Return the settings of a federation whose schedule is the default one."""
        schedule = federation.schedule
        assert isinstance(schedule, SeededSchedule)
        return cls(
            method=federation.method,
            local_rules=federation.local_rules,
            seed=schedule.seed,
            local_epochs=schedule.local_epochs,
            local_steps=schedule.local_steps,
            batch_size=schedule.batch_size,
            last_batch=schedule.last_batch,
            task=task_fingerprint(federation.task),
            transport=transport,
        )

    def to_record(self) -> dict[str, Any]:
        """Return the entries of the ConfigRecord that carries these settings."""
        return fields_to_record(self.local_rules) | {
            "version": VERSION,
            "method": self.method.name,
            "options": json.dumps(asdict(self.method)),
            "seed": self.seed,
            "local_epochs": self.local_epochs,
            "local_steps": self.local_steps or 0,
            "batch_size": self.batch_size,
            "last_batch": self.last_batch,
            "task": self.task,
            "transport": self.transport,
        }

    @classmethod
    def from_record(
        cls, record: ConfigRecord, own_methods: Sequence[type[Method]] = ()
    ) -> "TrainConfig":
        """Return the settings in a ConfigRecord.

        The method is one of the client's own with that name, or one of the library: a message
        cannot have anything imported. Raise WireError if an entry is missing or of another type,
        InputError if there is no such method or it has no such options.
        """
        try:
            options = json.loads(typed_entry(record, "options", str))
        except (ValueError, RecursionError) as error:
            raise WireError(f"its options are not JSON: {error}.") from error
        if not isinstance(options, dict):
            raise WireError(f"its options are {truncated_repr(options)}, not names with values.")
        transport = typed_entry(record, "transport", str)
        if transport not in TRANSPORTS:
            raise WireError(f"its 'transport' is {truncated_repr(transport)}, not known here.")
        return cls(
            method=method_named(typed_entry(record, "method", str), options, own_methods),
            local_rules=LocalRules(**fields_from_record(record, LocalRules)),
            seed=typed_entry(record, "seed", int),
            local_epochs=number_entry(record, "local_epochs", int, 1, LARGEST_COUNT),
            local_steps=number_entry(record, "local_steps", int, 0, LARGEST_COUNT) or None,
            batch_size=number_entry(record, "batch_size", int, 1, LARGEST_COUNT),
            last_batch=typed_entry(record, "last_batch", str),
            task=typed_entry(record, "task", str),
            transport=transport,
        )

    def schedule(self, info: Info) -> SeededSchedule:
        """Return a schedule with the server's batches and learning rate for the round of `info`.

        A client uses no more of it: who takes part in a round is the server's decision.
        """
        return SeededSchedule(
            seed=self.seed,
            clients=info.clients,
            cohort_size=info.cohort,
            sampling="fixed",
            local_epochs=self.local_epochs,
            batch_size=self.batch_size,
            learning_rate=LearningRate(info.lr, LearningRateRule("exponential")),
            local_steps=self.local_steps,
            last_batch=self.last_batch,
        )


def task_fingerprint(task: Task) -> str:
    """Return a digest of all that both sides must share and that does not travel.

    That is the architecture, the loss and the frozen weights.
    """
    frozen = digest_of(as_bytes(value) for value in task.copy_frozen().values()).hex()
    loss = getattr(task.objective.loss, "__qualname__", type(task.objective.loss).__name__)
    return rng.digest(f"{task.model!r} {task.layout} {loss} {frozen}")


def method_named(
    name: str, options: Mapping[str, Any], own_methods: Sequence[type[Method]]
) -> Method:
    """Return the method that a message names, from a client's own methods or the library's.

    Raise InputError if there is no such method or it has no such options.
    """
    by_name = {cls.name: cls for cls in own_methods}
    cls = by_name.get(name) or known_class(name)
    if cls is None:
        raise InputError(
            f"This client has no method {printable(name)!r}: name its class in "
            "make_client_app(methods=[…]), or install the package that has it."
        )
    method: Method = method_with_options(cls, options)
    return method


def pack_job(job: Job, train_config: TrainConfig) -> tuple[RecordDict, float]:
    """Return a client's job as the content of a message, and the relative error of its vectors."""
    entries = train_config.to_record() | fields_to_record(job.info) | {"client": job.client}
    record = ConfigRecord(entries)
    vectors, error = pack(job.down, train_config.transport)
    buffers, _ = pack(job.buffers)
    return RecordDict({CONFIG_KEY: record, VECTORS: vectors, BUFFERS: buffers}), error


def unpack_job(content: RecordDict, task: Task) -> Job:
    """Return the job in a message, on the client's device.

    Raise WireError if it does not fit the client's model.
    """
    record = config_record_of(content)
    info = Info(**fields_from_record(record, Info), layout=task.layout)
    down = unpack(content.get(VECTORS))
    w = down.get("w")
    if w is None or w.shape != task.initial_weights.shape or w.dtype != task.dtype:
        raise WireError(
            f"The server sent no weights of {task.parameter_count} numbers "
            f"of type {dtype_name(task.dtype)}."
        )
    client = typed_entry(record, "client", int)
    buffers = unpack(content.get(BUFFERS), RowLayout.from_row(task.initial_buffers))
    return Job(client, to_device(down, task.device), to_device(buffers, task.device), info)


def pack_result(job: Job, result: LocalResult, transport: str) -> RecordDict:
    """Return the result of a job as the content of the reply."""
    vectors, error = pack(result.up, transport)
    buffers, _ = pack(result.buffers)
    record = ConfigRecord(
        {
            "version": VERSION,
            "round": job.info.round,
            "client": job.client,
            "loss": result.loss,
            "backprops": result.backprops,
            "transport_error": error,
        }
    )
    return RecordDict({CONFIG_KEY: record, VECTORS: vectors, BUFFERS: buffers})


def payload_size(content: RecordDict) -> int:
    """Return how many bytes the arrays of a message have."""
    size = 0
    for record in content.array_records.values():
        size += sum(len(array.data) for array in record.values())
    return size
