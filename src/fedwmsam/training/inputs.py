"""Inputs of any structure, and what a model makes of them.

Inputs are a tensor, a tuple of them or a mapping from names to them, each of which may hold such
again. The model is called as `model(x)`, `model(*x)` or `model(**x)`. What it returns is a tensor,
or an output of `transformers`, which has the tensor as `.logits` and, where the inputs hold
`labels`, the loss as `.loss`.
"""

from collections.abc import Callable, Iterator, Mapping
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedwmsam.errors import InputError

LABELS = "labels"
"""The name of the targets among the inputs of a model that computes its loss itself."""


class Output(NamedTuple):
    """The output of a model for one batch."""

    values: Tensor
    loss: Tensor | None = None
    """The loss that the model has computed itself, if its inputs hold the labels."""


def compute_output(model: nn.Module, inputs: Any) -> Output:
    """Return what the model returns for the inputs; raise InputError if that is no tensor."""
    if isinstance(inputs, Mapping):
        result = model(**inputs)
    elif isinstance(inputs, tuple):
        result = model(*inputs)
    else:
        result = model(inputs)
    if isinstance(result, Tensor):
        return Output(result)
    logits = getattr(result, "logits", None)
    if not isinstance(logits, Tensor):
        raise InputError(
            f"The model must return a tensor, or an output with .logits, not "
            f"{type(result).__name__}; wrap it in a module that does."
        )
    # Of tokens, transformers has the classes on the last axis, where cross-entropy has the second.
    values = logits.movedim(-1, 1) if logits.ndim == 3 else logits
    has_labels = isinstance(inputs, Mapping) and LABELS in inputs
    return Output(values, result.loss if has_labels else None)


def map_tensors(inputs: Any, function: Callable[[Any], Any]) -> Any:
    """Return inputs of the same structure with the function applied to each of their parts."""
    if isinstance(inputs, Mapping):
        return {name: map_tensors(part, function) for name, part in inputs.items()}
    if isinstance(inputs, tuple):
        return tuple(map_tensors(part, function) for part in inputs)
    return function(inputs)


def take_rows(inputs: Any, rows: slice) -> Any:
    """Return some rows of inputs of any structure."""
    return map_tensors(inputs, lambda tensor: tensor[rows])


def parts_of(inputs: Any) -> Iterator[Any]:
    """Yield the single parts of inputs of any structure, always in the same order."""
    if isinstance(inputs, Mapping):
        inputs = tuple(inputs.values())
    if isinstance(inputs, tuple):
        for part in inputs:
            yield from parts_of(part)
    else:
        yield inputs


def named_parts(inputs: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the single parts of inputs of any structure, each with the names that lead to it."""
    if isinstance(inputs, tuple):
        inputs = dict(enumerate(inputs))
    if isinstance(inputs, Mapping):
        for key, part in inputs.items():
            yield from named_parts(part, f"{name}/{key}")
    else:
        yield name, inputs


def describe(inputs: Any) -> str:
    """Return the shapes of inputs for a message."""
    if isinstance(inputs, Mapping):
        shapes = [f"{name} {describe(part)}" for name, part in inputs.items()]
        return "{" + ", ".join(shapes) + "}"
    if isinstance(inputs, tuple):
        return "(" + ", ".join(map(describe, inputs)) + ")"
    return str(tuple(inputs.shape))


def concat(pieces: list[Any]) -> Any:
    """Return batches of inputs of the same structure one after the other, as one batch."""
    first = pieces[0]
    if isinstance(first, Mapping):
        return {name: concat(list(map(itemgetter(name), pieces))) for name in first}
    if isinstance(first, tuple):
        return tuple(concat(list(group)) for group in zip(*pieces, strict=True))
    return torch.cat(pieces)
