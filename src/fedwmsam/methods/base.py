"""The contract every method keeps.

A method is a frozen dataclass: its fields are its hyper-parameters, its functions are pure. State
comes in as an argument and goes out as a value; nothing is remembered on `self`, no argument is
changed, no random number is drawn. One round, in the order in which the engine calls it:

    server side   down = downlink(server, memory_k)                     for each sampled client k
    client side   scratch = begin(down)
                  B times: v = direction(w, …),  w ← w − lr · (clip(v) + pull(w))
                  up = uplink(w_B − w_0)
    server side   memory_k, contribution = settle(server, memory_k, up) for each upload
                  server = aggregate(server, mean of contributions)
"""

import difflib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from types import CodeType
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedwmsam.errors import InputError
from fedwmsam.methods.vectors import Vectors
from fedwmsam.settings.options import option, validate_fields

Gradient = Callable[[Tensor], Tensor]
"""A function from weights to the gradient of the current mini-batch's loss there.

Each call costs one backprop. The result is in memory of its own, which the caller may overwrite.
"""


class ParameterSlice(NamedTuple):
    """The place of one trainable tensor in the flat vector of all parameters."""

    name: str
    slice: slice
    shape: torch.Size


@dataclass(frozen=True)
class Info:
    """The facts about a round that a method may use.

    `steps` and `samples` are the numbers of the client; in `aggregate`, of the whole cohort.
    """

    round: int
    lr: float
    clients: int
    """N, the number of all registered clients."""
    cohort: int
    """S, the number of clients of this round; in `aggregate`, of those whose upload counted."""
    share: float
    """S/N, the cohort's share of all clients; in `aggregate`, if averaging by size, of samples."""
    steps: int = 0
    samples: int = 0
    layout: tuple[ParameterSlice, ...] = ()


class Cost(NamedTuple):
    """The cost of a method with its default options.

    `backprops` are per local step; `down`, `up` and `memory` are vectors of P parameters per client
    and round, the scalars single numbers beside them.
    """

    backprops: int
    down: int
    up: int
    memory: int
    down_scalars: int = 0
    full_gradients: int = 0
    """Further passes over all local data, per client and round."""
    memory_scalars: int = 0


@dataclass(frozen=True)
class Method:
    """The base class of all methods.

    Its defaults are a method without state that sends the model down and the update up.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    cost: ClassVar[Cost] = Cost(backprops=1, down=1, up=1, memory=0)
    needs_plain_gradients: ClassVar[str] = ""
    """Why the clients' optimizer must be plain SGD; empty if any will do."""
    needs_own_steps: ClassVar[str] = "what its clients compute in each step is part of the method"
    """Why clients must take the method's own local steps; empty if any training will do.

    It is empty for methods that ask nothing of a client but to train the model it is sent and to
    return the update: their share is the server's. A term of the loss that they have beside, such
    as FedProx's, is then for whoever trains to add.
    """
    means: ClassVar[Mapping[str, str]] = {}
    """The server vectors that must stay the mean of the clients' memories.

    Each name in the server's state is mapped to the name of the vector in a client's memory whose
    mean over all clients it is. An aggregation rule that would break this is refused.
    """

    def __post_init__(self) -> None:
        validate_fields(f"{self.name}: ", self)

    def server_init(self, w: Tensor) -> Vectors:
        """Return the server's state before the first round; "w" in it is the global model."""
        return {"w": w}

    def memory_init(self, w: Tensor) -> Vectors:
        """Return the memory of a client that takes part for the first time.

        `w` is the global model at that time. The memory is kept by the server between the rounds.
        """
        return {}

    def downlink(self, server: Vectors, memory: Vectors, info: Info) -> Vectors:
        """Return exactly what is sent to the client; local training starts at its "w"."""
        return {"w": server["w"]}

    def begin(self, down: Vectors, full_gradient: Gradient, info: Info) -> Vectors:
        """Return the client's scratch state before its first local step of the round.

        The scratch state is what a client carries from step to step; it ends with the round.
        `full_gradient(w)` is the gradient over all local data; each call costs a pass over them.
        """
        return {}

    def direction(
        self, w: Tensor, grad: Gradient, down: Vectors, scratch: Vectors
    ) -> tuple[Tensor, Vectors]:
        """Return the direction of one local step and the scratch state for the next step.

        The direction is in units of a gradient; the training loop clips it and steps against it.
        """
        raise AssertionError(f"{type(self).__name__} defines no direction")

    def pull(self, w: Tensor, down: Vectors) -> Tensor | None:
        """Return the gradient of the proximal term at w, or None if the method has no such term.

        It pulls the client back to the model it started from, and is added after the clip.
        """
        return None

    def uplink(self, delta: Tensor, down: Vectors, scratch: Vectors, info: Info) -> Vectors:
        """Return exactly what is sent back to the server.

        `delta` is w_B − down["w"], the client's update, and must be sent under that name.
        """
        return {"delta": delta}

    def settle(
        self, server: Vectors, memory: Vectors, up: Vectors, info: Info
    ) -> tuple[Vectors, Vectors]:
        """Process one client's upload at the server.

        Return the client's new memory and its contribution to the mean over the round's clients.
        """
        return memory, {"delta": up["delta"]}

    def aggregate(self, server: Vectors, mean: Vectors, info: Info) -> Vectors:
        """Return the server's next state from the mean of the contributions.

        `server` is the state at the beginning of the round, the same that `settle` received.
        """
        raise AssertionError(f"{type(self).__name__} defines no aggregate")


FUNCTIONS = {
    name: tuple(inspect.signature(function).parameters)[1:]
    for name, function in inspect.getmembers(Method, inspect.isfunction)
    if not name.startswith("_")
}
"""The functions of the contract, each with the names of its arguments."""


def check_functions(cls: type[Method]) -> None:
    """Raise InputError for a function with a misspelt name, and for one with other arguments.

    A misspelt one would be called by nobody, and that of the base class in its place.
    """
    functions = dict(inspect.getmembers(cls, inspect.isfunction))
    called = chain.from_iterable(names_in(function.__code__) for function in functions.values())
    for name in sorted(functions.keys() - set(dir(Method)) - set(called)):
        for meant in difflib.get_close_matches(name, FUNCTIONS, n=1, cutoff=0.8):
            raise InputError(
                f"{cls.__name__} has a function {name}, which nobody calls: did you mean {meant}?"
            )
    method = object.__new__(cls)  # bound to it, a function's arguments are those without self
    for name, arguments in FUNCTIONS.items():
        try:
            inspect.signature(getattr(method, name)).bind(*arguments)
        except TypeError as error:
            raise InputError(
                f"{name} of {cls.__name__} must take ({', '.join(arguments)}): {error}."
            ) from error


def names_in(code: CodeType) -> Iterator[str]:
    """Yield the names that a piece of code uses, also in its comprehensions."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_in(constant)


@dataclass(frozen=True)
class Averaging(Method):
    """The base class of methods whose server moves by the mean update: w ← w + η_g ū."""

    global_lr: float = option(1.0, "η_g, the part of the mean update that is applied", low=0.0)

    def aggregate(self, server: Vectors, mean: Vectors, info: Info) -> Vectors:
        return {"w": server["w"] + self.global_lr * mean["delta"]}


def mean_direction(delta: Tensor, info: Info) -> Tensor:
    """Return d_k = −u_k / (η_r B_k), the mean direction of a client's steps, in gradient units."""
    return delta / (-info.lr * info.steps)
