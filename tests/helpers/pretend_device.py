"""A pretend accelerator: a PyTorch device whose memory and arithmetic are the CPU's.

After `register_pretend_device()` a tensor can be moved to "pretend" as to "cuda". Every operation
runs on the CPU underneath, so results are those of the CPU bit by bit. What a real accelerator
refuses is refused, such as operands on different devices; what makes a program wait for it, or
moves data to and from it, is counted in `TRAFFIC`.

PyTorch's autograd starts a thread per device at the first backward pass of a process, so the device
must be registered before. It cannot be removed again. Tests that use it run in a process of their
own, tests/devices/test_devices.py starts it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._mode_utils import no_dispatch

NAME = "pretend"
CPU = torch.device("cpu")
aten = torch.ops.aten


@dataclass
class Traffic:
    """How often data moved to or from the device, and how often the program waited for it.

    Each event is counted once: `.cpu()` and `.tolist()` are downloads, although they wait, too.
    """

    uploads: int = 0
    """Copies of a tensor from the host to the device."""
    downloads: int = 0
    """Copies of a tensor from the device to the host."""
    waits: int = 0
    """Single values that were asked for (`.item()`, `float`, `bool`), and results whose size is
    known only when they are computed (`nonzero`, boolean masks)."""

    @property
    def total(self) -> int:
        """Return the number of all events."""
        return self.uploads + self.downloads + self.waits

    def __sub__(self, other: "Traffic") -> "Traffic":
        return Traffic(
            self.uploads - other.uploads,
            self.downloads - other.downloads,
            self.waits - other.waits,
        )


TRAFFIC = Traffic()
"""All traffic of this process so far."""
refused_types: set[torch.dtype] = set()
"""Types of numbers that the device does not have."""


@contextmanager
def refuse_type(dtype: torch.dtype) -> Iterator[None]:
    """Let the device have no numbers of this type while the context lasts."""
    refused_types.add(dtype)
    try:
        yield
    finally:
        refused_types.remove(dtype)


@contextmanager
def measure_traffic() -> Iterator[Traffic]:
    """Yield what holds the traffic of the block when the block is over."""
    before = TRAFFIC - Traffic()
    measured = Traffic()
    yield measured
    measured.__dict__.update((TRAFFIC - before).__dict__)


class PretendTensor(Tensor):
    """A tensor on the device: what PyTorch sees of it is shape and type, `memory` has its values.

    A view's memory is a view of the memory of what it views.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl
    memory: Tensor

    @staticmethod
    def __new__(cls, memory: Tensor) -> "PretendTensor":
        if memory.dtype in refused_types:
            raise TypeError(f"The device {NAME!r} has no {memory.dtype}.")
        tensor = Tensor._make_wrapper_subclass(
            cls,
            memory.size(),
            strides=memory.stride(),
            storage_offset=memory.storage_offset(),
            dtype=memory.dtype,
            device=torch.device(NAME, 0),
        )
        tensor.memory = memory
        return tensor

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
        return compute(operation, args, kwargs or {})

    @property
    def data(self) -> Tensor:
        return self.detach()

    @data.setter
    def data(self, value: Tensor) -> None:
        Tensor.data.__set__(self, value)
        self.memory = value.memory

    def untyped_storage(self) -> torch.UntypedStorage:
        """Return the memory's storage, by which code finds out who shares memory."""
        return self.memory.untyped_storage()

    def data_ptr(self) -> int:
        """Return where the memory begins."""
        return self.memory.data_ptr()

    def tolist(self) -> Any:
        """Return the values, which are copied to the host first."""
        return self.cpu().tolist()

    def __repr__(self) -> str:
        return f"{self.memory!r} on {NAME!r}"


def compute(operation: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operation of which an operand or the result is on the device; return its result.

    Raise RuntimeError where CUDA would not take the operands.
    """
    leaves: list[Any] = []
    map_leaves((args, *kwargs.values()), leaves.append)
    operands = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    if operation is aten.copy_.default:
        count_copy(source=args[1], target=args[0])
    elif operation is aten._to_copy.default and kwargs.get("device") == CPU:
        TRAFFIC.downloads += 1
    else:
        check_devices(operation, args, operands)
        count_waits(operation, args)
    # The device's own generator is PyTorch's default generator, so that it draws as the CPU does.
    if any(isinstance(leaf, torch.Generator) for leaf in leaves):
        raise RuntimeError(f"{operation}: expected a generator of {NAME!r}, but found one of cpu.")
    on_cpu = {name: map_leaves(value, to_memory) for name, value in kwargs.items()}
    result = operation(*map_leaves(args, to_memory), **on_cpu)
    if torch.Tag.inplace_view in operation.tags:  # also change the shape that PyTorch sees
        with no_dispatch():
            operation(*args, **kwargs)
    if kwargs.get("device") == CPU:
        return result
    # What an operation overwrites it also returns, as the same tensor.
    known = {id(to_memory(operand)): operand for operand in operands}
    return map_leaves(result, lambda value: to_device(value, known))


def map_leaves(value: Any, function: Callable[[Any], Any]) -> Any:
    """Return lists and tuples of lists and tuples with the function applied to what is in them.

    PyTorch's own function for that takes several times as long as the operations of small tests.
    """
    if isinstance(value, list | tuple):
        return type(value)([map_leaves(part, function) for part in value])
    return function(value)


def count_copy(source: Tensor, target: Tensor) -> None:
    """Count a copy from one tensor into another."""
    if not isinstance(source, PretendTensor):
        TRAFFIC.uploads += 1
    elif not isinstance(target, PretendTensor):
        TRAFFIC.downloads += 1


INDEXED = (
    aten.index.Tensor,
    aten.index_put_.default,
    aten.index_put.default,
    aten._index_put_impl_.default,
)


def check_devices(operation: Any, args: Any, operands: list[Tensor]) -> None:
    """Raise RuntimeError if tensors on the CPU are among the operands where CUDA refuses them.

    As on CUDA, `x[index]` uploads an index that is on the CPU, and in operations by element a
    tensor without axes counts as a number.
    """
    strangers = [operand for operand in operands if not isinstance(operand, PretendTensor)]
    if operation in INDEXED and isinstance(args[0], PretendTensor):
        uploaded = {id(index) for index in args[1] if type(index) is Tensor}
        TRAFFIC.uploads += len(uploaded)
        strangers = [tensor for tensor in strangers if id(tensor) not in uploaded]
    if torch.Tag.pointwise in operation.tags or operation in INDEXED:
        strangers = [tensor for tensor in strangers if tensor.ndim]
    if strangers:
        raise RuntimeError(
            f"{operation}: expected all tensors to be on the same device, but found at least two "
            f"devices, {NAME} and cpu."
        )


def count_waits(operation: Any, args: Any) -> None:
    """Count a wait if the result, or its size, must be known before the program goes on."""
    if operation in INDEXED:
        masks = (torch.bool, torch.uint8)
        TRAFFIC.waits += any(index is not None and index.dtype in masks for index in args[1])
    elif {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output} & {*operation.tags}:
        TRAFFIC.waits += 1


def to_memory(value: Any) -> Any:
    """Return what an operation gets on the CPU in place of an argument on the device."""
    if isinstance(value, PretendTensor):
        return value.memory
    return CPU if isinstance(value, torch.device) else value


def to_device(value: Any, known: dict[int, Tensor]) -> Any:
    """Return a result as a tensor on the device, or as the operand whose memory it is."""
    if not isinstance(value, Tensor):
        return value
    return known[id(value)] if id(value) in known else PretendTensor(value)


@cache
def register_pretend_device() -> tuple[torch.library.Library, ...]:
    """Make the device known to PyTorch; return what must live as long as it is used."""
    backend_registration._setup_privateuseone_for_python_backend(NAME)
    # PyTorch's own name for a device from outside.
    key = "PrivateUse1"
    # Operations without an operand, such as torch.zeros(3, device="pretend"), arrive here.
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(lambda operation, *args, **kwargs: compute(operation, args, kwargs), key)
    # torch.tensor(3.0, device="pretend") copies where subclasses are switched off.
    copies = torch.library.Library("aten", "IMPL")
    copies.impl("copy_", lambda *args: compute(aten.copy_.default, args, {}), key)
    return everything, copies
