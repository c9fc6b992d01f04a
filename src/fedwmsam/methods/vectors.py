"""The few vector operations in which methods are written.

They act on the last axis: a vector is that of one client, `(P,)`, or a stack of them, `(C, P)`.
"""

import math

import torch
from torch import Tensor

Vectors = dict[str, Tensor]
"""A bundle of named vectors: the server's state, a client's memory, or what travels between."""


def norm(v: Tensor) -> Tensor:
    """Return the L2 norm over all parameters at once, with the axis kept at length one."""
    length: Tensor = torch.linalg.vector_norm(v, dim=-1, keepdim=True)
    return length


def unit(v: Tensor, tau: float) -> Tensor:
    """Return v / (‖v‖ + tau); tau keeps a zero vector zero."""
    return v / (norm(v) + tau)


def step_towards(
    w: Tensor, direction: Tensor, radius: float, tau: float, *, reuse: bool = False
) -> Tensor:
    """Return w + radius · unit(direction).

    With `reuse` the result overwrites the direction, which must not be needed any more.
    """
    out = direction if reuse else None
    return torch.addcmul(w, direction, radius / (norm(direction) + tau), out=out)


def lerp_into_end(start: Tensor, end: Tensor, weight: Tensor | float) -> Tensor:
    """Return start + weight · (end − start).

    The result overwrites `end`, which must not be needed any more.
    """
    return torch.lerp(start, end, weight, out=end)


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Return the cosine between a and b.

    It is 0 where either is zero, because a momentum that does not exist yet agrees with nothing.
    """
    lengths = (norm(a) * norm(b)).squeeze(-1)
    product = torch.linalg.vecdot(a, b)
    quotient = product / torch.where(lengths > 0, lengths, 1.0)
    return torch.where(lengths > 0, quotient, 0.0).clamp(-1.0, 1.0)  # rounding may carry it past 1


def clip(v: Tensor, max_norm: float) -> Tensor:
    """Return v, scaled down to norm max_norm where it is longer (one norm over all parameters)."""
    length = norm(v)
    if v.device.type != "cpu":
        return clip_without_waiting(v, length, max_norm)
    if float(length.max()) + 2e-6 < 0.999 * max_norm:
        return v  # by far the most frequent case; the code below decides exactly
    if bool(torch.isinf(length).any()):
        # The squares overflowed, not the vector: measure it in units of its largest entry.
        largest = v.abs().amax(dim=-1, keepdim=True)
        return v / largest * (max_norm / norm(v / largest))
    scale = max_norm / (length + 1e-6)
    return v if bool((scale >= 1).all()) else v * scale.clamp(max=1.0)


def clip_without_waiting(v: Tensor, length: Tensor, max_norm: float) -> Tensor:
    """Return what `clip` returns, without asking the device for a number.

    An accelerator computes while the program goes on; a question would make the program wait. So
    every vector is scaled, by 1 if it is short enough.
    """
    overflowed = torch.isinf(length)
    measure = torch.where(overflowed, torch.linalg.vector_norm(v, math.inf, -1, keepdim=True), 1.0)
    v = v / measure
    scale = (max_norm / (length + 1e-6)).clamp(max=1.0)
    return v * torch.where(overflowed, max_norm / norm(v), scale)


def is_unsafe_to_overwrite(v: Tensor, *bundles: Vectors) -> bool:
    """Return whether v is not contiguous or shares its storage with a tensor of the bundles."""
    if not v.is_contiguous():
        return True
    memory = v.untyped_storage().data_ptr()
    for bundle in bundles:
        for value in bundle.values():
            if value.untyped_storage().data_ptr() == memory:
                return True
    return False
