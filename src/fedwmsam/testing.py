"""Tests for methods: whether a class keeps the contract of `fedwmsam.Method`.

The author of a method, in whatever repository, tests it in one line:

    def test_my_method():
        fedwmsam.testing.check_method(MyMethod)

Each check below is a function of a method that raises AssertionError with a sentence for its
author. They run a few rounds of a small federation in float64, and take a second together.
"""

import inspect
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from fedwmsam.data.clients import TensorSamples
from fedwmsam.engine import checkpoint
from fedwmsam.engine.client_state import ClientMemory, Store
from fedwmsam.engine.records import Record
from fedwmsam.engine.rounds import Federation, Job, State, first_state, run_round, train_client
from fedwmsam.engine.schedule import LearningRate, SeededSchedule
from fedwmsam.errors import InputError
from fedwmsam.methods.base import FUNCTIONS, Info, Method
from fedwmsam.methods.vectors import Vectors
from fedwmsam.settings.config import setting_names
from fedwmsam.settings.method_table import check_class
from fedwmsam.settings.parsers import LearningRateRule
from fedwmsam.training.local import LocalResult, LocalRules
from fedwmsam.training.objectives import OBJECTIVES
from fedwmsam.training.task import Task, deterministic_torch

RETURNS: dict[str, tuple[tuple[Any, ...], str]] = {
    "direction": (
        (Tensor, dict),
        "two values, (direction, scratch): a tensor and a dictionary of tensors",
    ),
    "settle": ((dict, dict), "two values, (memory, contribution): dictionaries of tensors"),
    "pull": ((Tensor | None,), "a tensor or None"),
}
"""The functions that do not return a dictionary → the types of what they return, and in words."""
LOCAL_RULES = LocalRules(weight_decay=1e-3, weight_decay_mode="objective", clip_norm=1.0)
"""Local steps with weight decay and clipping."""


def check_method(method: Method | type[Method]) -> None:
    """Raise AssertionError, with a sentence that says what is wrong, unless all checks pass.

    Give a class, or an instance with options. The declared cost is compared with the counted one
    for the default options only, for which it is declared.

    >>> fedwmsam.testing.check_method(MyMethod)
    """
    if isinstance(method, type):
        check_declaration(method)
        method = method()
    else:
        check_declaration(type(method))
    for check in CHECKS:
        try:
            check(method)
        except Exception as error:
            raise AssertionError(describe_error(method, error)) from error


def describe_error(method: Method, error: Exception) -> str:
    """Return the sentence of a failed check, or where and how a function of the class failed."""
    if isinstance(error, AssertionError):
        return str(error)
    files = {inspect.getfile(cls) for cls in type(method).__mro__ if issubclass(cls, Method)}
    place = "with what one of its functions returned"
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename in files:
            place = f"in {frame.name}, line {frame.lineno}"
    return (
        f"{type(method).__name__} fails {place}: {type(error).__name__}: {error}. "
        "help(fedwmsam.Method) says what each function is given and returns."
    )


def require(condition: object, message: str) -> None:
    """Raise AssertionError with the message unless the condition holds."""
    if not condition:
        raise AssertionError(message)


# A small federation


def make_federation(
    method: Method,
    rules: LocalRules = LOCAL_RULES,
    *,
    sizes: tuple[int, ...] = (9, 14, 5, 11, 7),
    per_round: int = 3,
    batch_size: int = 4,
    epochs: int = 2,
) -> Federation:
    """Return a federation with one client for each of the sizes, `per_round` in a cohort.

    The clients' data differ, and their last batches are partial.
    """
    generator = torch.Generator().manual_seed(0)
    clients = []
    for client, size in enumerate(sizes):
        x = torch.randn(size, 4, generator=generator, dtype=torch.float64) + client
        y = torch.randint(3, (size,), generator=generator)
        clients.append(TensorSamples(x, y))
    schedule = SeededSchedule(
        seed=1,
        clients=len(sizes),
        cohort_size=per_round,
        sampling="fixed",
        local_epochs=epochs,
        batch_size=batch_size,
        learning_rate=LearningRate(0.1, LearningRateRule("exponential", value=0.99)),
    )
    task = Task(make_network, OBJECTIVES["classification"], seed=3)
    return Federation(method, task, clients, schedule, rules)


def make_network() -> nn.Module:
    """Return a classifier of three classes in float64."""
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def run_rounds(federation: Federation, rounds: int = 6) -> tuple[list[State], list[Record]]:
    """Return the server's states, the first one included, and the records of the rounds."""
    states = [first_state(federation)]
    records = []
    with deterministic_torch():
        for _ in range(rounds):
            state, record = run_round(federation, states[-1])
            states.append(state)
            records.append(record)
    return states, records


# What the functions must be


def check_declaration(cls: type[Method]) -> None:
    """Check that the class says who it is and what its options are."""
    try:
        check_class(getattr(cls, "name", cls.__name__), cls)
    except InputError as error:
        raise AssertionError(str(error)) from error
    require(cls.name == cls.name.lower(), f"The name {cls.name!r} must be in lower case.")
    require(":" not in cls.name, f"The name {cls.name!r} must not look like a path.")
    require(cls.__doc__, f"{cls.__name__} has no docstring: say in a sentence what it does.")
    for f in fields(cls):
        require(
            f.name not in setting_names(),
            f"The option {f.name!r} is the name of a setting: rename it.",
        )


def check_options(method: Method) -> None:
    """Check that no option accepts nonsense."""
    for f in fields(method):
        for wrong in ("nonsense", float("nan")):
            try:
                replace(method, **{f.name: wrong})
            except InputError:
                continue
            raise AssertionError(
                f"The option {f.name!r} accepts {wrong!r}: declare a range or choices, and call "
                "super().__post_init__() if you define __post_init__."
            )


class CheckedMethod:
    """A method whose every call is made twice, with its arguments compared before and after.

    What it returns must have the form that the contract asks for.
    """

    def __init__(self, method: Method) -> None:
        self.method = method

    def __getattr__(self, name: str) -> Any:
        function = getattr(self.method, name)
        if name not in FUNCTIONS:
            return function

        def call(*arguments: Any) -> Any:
            before = [deep_copy(argument) for argument in arguments]
            first = function(*arguments)
            check_returned(name, first)
            second = function(*arguments)
            for argument, copy in zip(arguments, before, strict=True):
                require(is_same(argument, copy), f"{name} changed one of its arguments in place.")
            require(
                is_same(first, second),
                f"{name} gave two results for the same input: it must draw no random numbers "
                "and remember nothing on self.",
            )
            return first

        return call


def check_returned(function: str, value: Any) -> None:
    """Raise AssertionError unless what a function returned has the form that the contract asks."""
    kinds, words = RETURNS.get(function, ((dict,), "a dictionary of tensors"))
    parts = value if isinstance(value, tuple) and len(kinds) > 1 else (value,)
    require(
        len(parts) == len(kinds) and all(map(isinstance, parts, kinds)),
        f"{function} returned {type_name(value)}; it must return {words}.",
    )
    for part in parts:
        if isinstance(part, dict):
            require_tensors(function, part)


def type_name(value: object) -> str:
    """Return the name of a value's type for a message; of a tuple, those of its elements."""
    if isinstance(value, tuple):
        return f"({', '.join(map(type_name, value))})"
    cls = type(value)
    return "None" if value is None else f"{cls.__module__}.{cls.__name__}".removeprefix("builtins.")


def deep_copy(value: Any) -> Any:
    """Return a value with copies of all tensors in it."""
    if isinstance(value, Tensor):
        return value.clone()
    return {k: deep_copy(v) for k, v in value.items()} if isinstance(value, dict) else value


def is_same(a: Any, b: Any) -> bool:
    """Return whether two values are equal to the last bit; functions count as equal."""
    if isinstance(a, Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(is_same(a[k], b[k]) for k in a)
    if isinstance(a, tuple) and not hasattr(a, "_fields"):
        return len(a) == len(b) and all(map(is_same, a, b))
    return bool(a == b) or callable(a)


def check_purity(method: Method) -> None:
    """Check that no argument is changed, nothing is kept on self, and nothing is random."""
    before = dict(vars(method))
    checked: Any = CheckedMethod(method)
    states, _ = run_rounds(make_federation(checked), 3)
    plain_states, _ = run_rounds(make_federation(method), 3)
    require(
        torch.equal(states[-1].server["w"], plain_states[-1].server["w"]),
        "The functions give other results when each is called twice: keep nothing outside the "
        "state that they are given.",
    )
    require(vars(method) == before, "The method has changed itself: keep nothing on self.")


def check_shapes(method: Method) -> None:
    """Check that every vector keeps its name, shape and type from round to round."""
    checked: Any = CheckedMethod(method)
    for dtype in (torch.float32, torch.float64):
        w = make_federation(method).task.initial_weights.to(dtype)
        server = checked.server_init(w)
        memory = checked.memory_init(w)
        info = Info(round=0, lr=0.1, clients=5, cohort=2, share=0.4, steps=3, samples=9)
        down = checked.downlink(server, memory, info)
        require("w" in down, 'downlink must send "w", the model that training starts at.')
        up = train_three_steps(checked, down, info)
        require("delta" in up, 'uplink must send "delta", the update.')
        new_memory, contribution = checked.settle(server, memory, up, info)
        new_server = checked.aggregate(server, Contribution(contribution), info)
        require_same_shapes("aggregate", "server's state", server, new_server)
        require_same_shapes("settle", "client's memory", memory, new_memory)
        for what, bundle in (("downlink", down), ("uplink", up), ("settle", contribution)):
            for name, value in bundle.items():
                require(
                    value.dtype == dtype and value.shape in (w.shape, torch.Size(())),
                    f"{what} returns {name!r} as {value.dtype} of shape {tuple(value.shape)}: it "
                    f"must be a vector like w or a single number, in the model's {dtype}.",
                )


class Contribution(dict[str, Tensor]):
    """What `settle` contributes, which says what it lacks."""

    def __missing__(self, name: str) -> Tensor:
        raise AssertionError(f"settle's contribution has no {name!r}, which aggregate uses.")


def train_three_steps(method: Method, down: Vectors, info: Info) -> Vectors:
    """Return what a client sends back after three steps on a made-up gradient."""
    w = down["w"]
    scratch = method.begin(down, lambda at: at * 0.1, info)
    at = w
    for _ in range(3):
        v, after = method.direction(at, lambda at: at * 0.1 + 0.01, down, scratch)
        require(
            v.shape == w.shape and v.dtype == w.dtype,
            f"direction returns {v.dtype} of shape {tuple(v.shape)} for a model of {w.dtype} and "
            f"shape {tuple(w.shape)}.",
        )
        require_same_shapes("direction", "scratch state", scratch, after)
        at = at - 0.1 * v
        scratch = after
    return method.uplink(at - w, down, scratch, info)


def require_tensors(function: str, bundle: Vectors) -> None:
    """Raise AssertionError if a function returns anything but tensors by name."""
    for name, value in bundle.items():
        require(
            isinstance(value, Tensor),
            f"{function} returns {name!r} as {type_name(value)}; state is made of tensors: a "
            "single number is w.new_tensor(number).",
        )


def require_same_shapes(function: str, what: str, before: Vectors, after: Vectors) -> None:
    """Raise AssertionError if a bundle of vectors has changed its names, shapes or types."""
    old = {name: (tuple(value.shape), value.dtype) for name, value in before.items()}
    new = {name: (tuple(value.shape), value.dtype) for name, value in after.items()}
    require(old == new, f"{function} changes what the {what} holds, from {old} to {new}.")


# What a run needs of it


def check_transport(method: Method) -> None:
    """Check that all a client uses is what was sent: through bytes nothing changes."""

    def through_bytes(vectors: Vectors) -> Vectors:
        copies = {name: value.clone() for name, value in vectors.items()}
        return safetensors.torch.load(safetensors.torch.save(copies))

    def train(federation: Federation, jobs: Iterable[Job]) -> Iterator[tuple[Job, LocalResult]]:
        for job in jobs:
            received = Job(job.client, through_bytes(job.down), job.buffers, job.info)
            result = train_client(federation, received)
            yield job, replace(result, up=through_bytes(result.up))

    federation = make_federation(method)
    expected = run_rounds(federation, 4)[0][-1]
    sent = run_rounds(replace(federation, trainer=train), 4)[0][-1]
    require(
        is_same(sent.server, expected.server),
        "The results differ if what is sent goes through bytes, as it does on a network.",
    )


def check_client_order(method: Method) -> None:
    """Check that the order in which clients answer changes rounding only."""

    class ReversedSchedule(SeededSchedule):
        """The same schedule with each cohort in the opposite order."""

        def cohort(self, round: int) -> list[int]:
            return super().cohort(round)[::-1]

    forward = make_federation(method)
    schedule = ReversedSchedule(**vars(forward.schedule))
    a = run_rounds(forward)[0][-1].server
    b = run_rounds(replace(forward, schedule=schedule))[0][-1].server
    for name in a:
        require(
            torch.allclose(a[name], b[name], atol=1e-10),
            f"The server's {name!r} depends on the order in which clients answer.",
        )


def check_cost(method: Method) -> None:
    """Check that the declared cost is the counted one; it is declared for the default options."""
    if method != type(method)():
        return
    federation = make_federation(method)
    states, records = run_rounds(federation, 2)
    record = records[1]
    cost = method.cost
    P = federation.task.parameter_count
    S = record["cohort"]
    steps = 0
    passes = 0
    for client in federation.schedule.cohort(1):
        samples = len(federation.clients[client])
        steps += len(federation.schedule.steps(1, client, samples))
        passes += federation.schedule.steps_per_epoch(samples)
    memory = [count_numbers(row) for row in states[-1].memory.values()]
    counted = {
        "bytes down": (8 * S * (cost.down * P + cost.down_scalars), record["bytes_down"]),
        "bytes up": (8 * S * cost.up * P, record["bytes_up"]),
        "backprops": (
            cost.backprops * steps + cost.full_gradients * passes,
            record["backprops"],
        ),
        "numbers kept for a client": (
            cost.memory * P + cost.memory_scalars,
            max(memory, default=0),
        ),
    }
    for what, (declared, actual) in counted.items():
        require(
            declared == actual,
            f"The cost declares {declared} {what} a round, counted are {actual} "
            f"(P = {P}, {S} clients, {steps} steps).",
        )


def count_numbers(vectors: Vectors) -> int:
    """Return how many numbers the vectors hold together."""
    return sum(vector.numel() for vector in vectors.values())


def check_learning(method: Method) -> None:
    """Check that everything stays finite, and that the training loss falls."""
    states, records = run_rounds(make_federation(method), 12)
    for name, value in states[-1].server.items():
        require(torch.isfinite(value).all(), f"The server's {name!r} is not finite any more.")
    first, last = (records[i]["train_loss"] for i in (0, -1))
    require(last < first, f"The training loss does not fall: {first:.4f}, then {last:.4f}.")


def check_means(method: Method) -> None:
    """Check that `means` names the server vectors that are means of the clients' memories.

    Robust aggregation would break them, so it must know.
    """
    federation = make_federation(method)
    state = run_rounds(federation, 5)[0][-1]
    names = method.memory_init(state.server["w"])
    actual = {}
    for name in names:
        rows = [row[name] for row in state.memory.values()]
        mean = torch.stack(rows).sum(dim=0) / len(federation.clients)
        for server_name, value in state.server.items():
            if value.shape == mean.shape and torch.allclose(value, mean, atol=1e-12):
                actual[server_name] = name
    declared = dict(method.means)
    if method != type(method)():  # some options keep nothing
        declared = {server_name: name for server_name, name in declared.items() if name in names}
    require(actual == declared, f"means must be {actual}, not {declared}.")


def check_resuming(method: Method) -> None:
    """Check that a run that goes on from its state on disk equals one that was never stopped."""
    federation = make_federation(method)
    state = first_state(federation)
    with tempfile.TemporaryDirectory() as folder, deterministic_torch():
        for round in range(4):
            saved = save_and_load(state, Path(folder) / f"state{round}")
            state, record = run_round(federation, state)
            resumed, resumed_record = run_round(make_federation(method), saved)
            same = (
                is_same(resumed.server, state.server)
                and is_same(dict(resumed.memory), dict(state.memory))
                and record == resumed_record
            )
            require(
                same,
                f"A run resumed after round {round} goes on otherwise: all that changes must be "
                "in the server's state and the clients' memories.",
            )


def save_and_load(state: State, path: Path) -> State:
    """Return the state as a checkpoint on disk gives it back."""
    store = Store(path.with_suffix(".rows"))
    changes = ClientMemory(store, budget=0).start_update()
    for client, row in state.memory.items():
        changes.put(client, row)
    index = store.describe(changes.build().save())
    bundles = {"server": state.server, "buffers": state.buffers} | index.bundles
    notes = {"round": state.round} | index.notes
    checkpoint.write_checkpoint(path, checkpoint.Checkpoint(bundles, notes))
    loaded = checkpoint.read_checkpoint(path)
    loaded_store = Store(store.path)
    loaded_store.check(loaded)
    slots = loaded_store.restore_slots([loaded])[0]
    memory = ClientMemory(loaded_store, budget=0).with_slots(slots)
    return State(state.round, loaded.bundles["server"], loaded.bundles["buffers"], memory)


def check_unequal_clients(method: Method) -> None:
    """Check a client with a single sample, and one whose last batch is one sample."""
    federation = make_federation(method, sizes=(1, 9, 25), per_round=3, batch_size=4)
    states, records = run_rounds(federation, 4)
    for name, value in states[-1].server.items():
        require(
            torch.isfinite(value).all(),
            f"The server's {name!r} is not finite where a client has a single sample.",
        )
    cohorts = [record["cohort"] for record in records]
    require(
        cohorts == [3] * 4,
        f"Where one of three clients has a single sample, not all counted: {cohorts} did.",
    )


CHECKS: tuple[Callable[[Method], None], ...] = (
    check_options,
    check_shapes,
    check_purity,
    check_transport,
    check_client_order,
    check_cost,
    check_learning,
    check_means,
    check_resuming,
    check_unequal_clients,
)
"""What `check_method` checks of an instance, the simplest first."""
