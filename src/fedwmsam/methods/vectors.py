"""The few vector operations methods are written in, on the last axis: one client `(P,)` or a stack `(C, P)`."""

import torch
from torch import Tensor

Vectors = dict[str, Tensor]
"""A bundle of named vectors: server state, a client's memory, or what travels between the two."""


def norm(v: Tensor) -> Tensor:
    """The L2 norm over all parameters at once, kept as an axis of length one."""
    length: Tensor = torch.linalg.vector_norm(v, dim=-1, keepdim=True)
    return length


def unit(v: Tensor, tau: float) -> Tensor:
    """v / (‖v‖ + tau); tau keeps a zero vector zero."""
    return v / (norm(v) + tau)


def step_towards(
    w: Tensor, direction: Tensor, radius: float, tau: float, *, reuse: bool = False
) -> Tensor:
    """w + radius · unit(direction); with `reuse` in the memory of a direction that is needed no more."""
    out = direction if reuse else None
    return torch.mul(direction, radius / (norm(direction) + tau), out=out).add_(w)


def lerp_into_end(start: Tensor, end: Tensor, weight: Tensor | float) -> Tensor:
    """start + weight · (end − start), in the memory of `end`, which is needed no more."""
    return torch.lerp(start, end, weight, out=end)


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """The cosine between a and b; 0 where either is zero, because a missing momentum agrees with nothing."""
    lengths = (norm(a) * norm(b)).squeeze(-1)
    product = (a * b).sum(dim=-1)
    # Rounding may carry the quotient past 1.
    return torch.where(lengths > 0, product / torch.where(lengths > 0, lengths, 1.0), 0.0).clamp(
        -1.0, 1.0
    )


def clip(v: Tensor, max_norm: float) -> Tensor:
    """v scaled down to norm max_norm where it is longer (one norm over all parameters)."""
    length = norm(v)
    if (
        float(length.max()) + 2e-6 < 0.999 * max_norm
    ):  # by far the most frequent case; the rest decides exactly
        return v
    if bool(
        torch.isinf(length).any()
    ):  # the squares overflowed, not the vector: measure it in its largest entry
        largest = v.abs().amax(dim=-1, keepdim=True)
        return v / largest * (max_norm / norm(v / largest))
    scale = max_norm / (length + 1e-6)
    return v if bool((scale >= 1).all()) else v * scale.clamp(max=1.0)


def is_unsafe_to_overwrite(v: Tensor, *bundles: Vectors) -> bool:
    """Whether one of the bundles has a tensor in v's memory, or v cannot be written to as one piece."""
    memory = v.untyped_storage().data_ptr()
    return not v.is_contiguous() or any(
        value.untyped_storage().data_ptr() == memory
        for bundle in bundles
        for value in bundle.values()
    )
