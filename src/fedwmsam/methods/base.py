"""The contract every method keeps.

A method is a frozen dataclass: its fields are its hyper-parameters, its functions are pure. State comes in as an
argument and goes out as a value; nothing is remembered on `self`, no argument is changed, no random number is drawn.
One round, in the order the engine calls it:

    server side   down = downlink(server, memory_k)                     for each sampled client k
    client side   scratch = begin(down)
                  B times: v = direction(w, …),  w ← w − lr · (clip(v) + pull(w))
                  up = uplink(w_B − w_0)
    server side   memory_k, contribution = settle(server, memory_k, up) for each answer
                  server = aggregate(server, mean of contributions)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedwmsam.methods.vectors import Vectors
from fedwmsam.settings.options import option, validate_fields

Gradient = Callable[[Tensor], Tensor]
"""weights → gradient of the current mini-batch's loss there; a backprop each call, the result the caller's own."""


class ParameterSlice(NamedTuple):
    """Where one trainable tensor lies in the flat vector."""

    name: str
    slice: slice
    shape: torch.Size


@dataclass(frozen=True)
class Info:
    """What a method may know about the round; `steps` and `samples` are the client's (the cohort's in `aggregate`)."""

    round: int
    lr: float
    clients: int
    """N: all registered clients."""
    cohort: int
    """S: the clients of this round; in `aggregate`, those whose answer counted."""
    share: float
    """The part of the federation that S is: S/N; in `aggregate`, when averaging by size, by samples."""
    steps: int = 0
    samples: int = 0
    layout: tuple[ParameterSlice, ...] = ()


class Cost(NamedTuple):
    """Per step, and in vectors of P numbers per client and round; for the method's default options."""

    backprops: int
    down: int
    up: int
    memory: int
    down_scalars: int = 0
    full_gradients: int = 0
    """Passes over all local data per round, beside the steps."""


@dataclass(frozen=True)
class Method:
    """The contract; its defaults are a method that keeps nothing and sends the model down and the update up."""

    name: ClassVar[str]
    paper: ClassVar[str]
    cost: ClassVar[Cost] = Cost(backprops=1, down=1, up=1, memory=0)
    means: ClassVar[Mapping[str, str]] = {}
    """Server vectors that must stay the mean, over all clients, of a vector in their memory: name here → name there."""

    def __post_init__(self) -> None:
        validate_fields(f"{self.name}: ", self)

    def server_init(self, w: Tensor) -> Vectors:
        """The server's state before the first round; "w" is the global model."""
        return {"w": w}

    def memory_init(self, w: Tensor) -> Vectors:
        """A client's memory, made when it first takes part; w is the global model then."""
        return {}

    def downlink(self, server: Vectors, memory: Vectors, info: Info) -> Vectors:
        """Exactly what travels to the client; training starts at "w"."""
        return {"w": server["w"]}

    def begin(self, down: Vectors, full_gradient: Gradient, info: Info) -> Vectors:
        """Scratch for the local steps; full_gradient(w) is over all local data and costs a pass if called."""
        return {}

    def direction(
        self, w: Tensor, grad: Gradient, down: Vectors, scratch: Vectors
    ) -> tuple[Tensor, Vectors]:
        """One local step's direction (gradient units; the loop clips it) and the scratch for the next step."""
        raise AssertionError(f"{type(self).__name__} defines no direction")

    def pull(self, w: Tensor, down: Vectors) -> Tensor | None:
        """A proximal force, added after the clip, if there is one."""
        return None

    def uplink(self, delta: Tensor, down: Vectors, scratch: Vectors, info: Info) -> Vectors:
        """Exactly what travels back; delta = w_B − down["w"], always under that name."""
        return {"delta": delta}

    def settle(
        self, server: Vectors, memory: Vectors, up: Vectors, info: Info
    ) -> tuple[Vectors, Vectors]:
        """At the server, per client: its new memory and its contribution to the round's mean."""
        return memory, {"delta": up["delta"]}

    def aggregate(self, server: Vectors, mean: Vectors, info: Info) -> Vectors:
        """The next server state from the mean contribution; like `settle` it reads round-r state only."""
        raise AssertionError(f"{type(self).__name__} defines no aggregate")


@dataclass(frozen=True)
class Averaging(Method):
    """Methods whose server moves by the mean update: w ← w + η_g ū."""

    global_lr: float = option(1.0, "η_g, the part of the mean update that is applied", low=0.0)

    def aggregate(self, server: Vectors, mean: Vectors, info: Info) -> Vectors:
        return {"w": server["w"] + self.global_lr * mean["delta"]}


def mean_direction(delta: Tensor, info: Info) -> Tensor:
    """d_k = −u_k / (η_r B_k): the average of what the client multiplied by η, in gradient units."""
    return delta / (-info.lr * info.steps)
