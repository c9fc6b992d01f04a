"""Reader of pickle files of plain data, which does not use Python's unpickler.

Plain data are dictionaries, lists, numbers, text and byte arrays. Unpickling runs whatever a file
names. Here the file's instructions are walked by pickletools, which executes nothing, and the few
that plain data need are carried out on a stack of our own: no import, no call, and no memory for a
length that is merely claimed. Everything else is refused. An instruction is a byte or two and makes
an object of a hundred, or a copy of a text that the file holds once; so the instructions are
counted, and all copies together are no longer than the file. Two placeholder classes below stand
for numpy's arrays and types.
"""

import math
import os
import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedwmsam.data.base import Array
from fedwmsam.errors import InputError, printable

MAX_INSTRUCTIONS = 2_000_000
"""Instructions of one file; 50,000 images with two labels and a name each take about 200,000."""
MAX_KEY_LENGTH = 100
"""Characters of a key of a dictionary, of a type's name and the like."""
MAX_DIMENSIONS = 8
ARRAY_MAKERS = {"numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct"}
ALLOWED_GLOBALS = {*ARRAY_MAKERS, "numpy ndarray", "numpy dtype", "_codecs encode"}
LITERAL_OPCODES = {
    "INT",
    "BININT",
    "BININT1",
    "BININT2",
    "LONG",
    "LONG1",
    "STRING",
    "BINSTRING",
    "SHORT_BINSTRING",
    "BINBYTES",
    "SHORT_BINBYTES",
    "BINBYTES8",
    "UNICODE",
    "BINUNICODE",
    "SHORT_BINUNICODE",
    "BINUNICODE8",
}
PARSE_ERRORS = (
    ValueError,
    IndexError,
    KeyError,
    TypeError,
    OverflowError,
    AttributeError,
    MemoryError,
    RecursionError,
    # pickletools decodes unusual escapes with this warning, which may have been made an error.
    DeprecationWarning,
)


class UnsupportedPickle(ValueError):
    """Raised when the file asks for something that plain data do not need."""


class GlobalName:
    """The name of a class or function that the file mentions; it is never looked up."""

    def __init__(self, text: str) -> None:
        if text not in ALLOWED_GLOBALS:
            raise UnsupportedPickle(f"it names {text.replace(' ', '.')!r}")
        self.text = text


class Uint8Dtype:
    """Stands for the numpy type of bytes, the only one that such files need."""


class ArrayPlaceholder:
    """Stands for a numpy array until its content is known."""

    array: Array | None = None

    def fill(self, state: tuple[Any, ...]) -> None:
        """Make the array of a pickled state, or raise UnsupportedPickle if it is inconsistent."""
        _version, shape, dtype, fortran, content = state
        # Many sizes of many digits would take hours to multiply.
        sizes_are_right = len(shape) <= MAX_DIMENSIONS and all(
            type(size) is int and 0 < size <= len(content) for size in shape
        )
        if (
            not isinstance(dtype, Uint8Dtype)
            or not sizes_are_right
            or math.prod(shape) != len(content)
        ):
            raise UnsupportedPickle("it holds an array whose shape and content differ")
        self.array = np.frombuffer(content, np.uint8).reshape(shape, order="F" if fortran else "C")


def read_plain_pickle(path: Path, max_bytes: int) -> dict[str, Any]:
    """Return the dictionary that a pickle file holds: text → value.

    Byte arrays become numpy arrays. Raise InputError if the file cannot be read, is longer than
    `max_bytes`, or holds anything but a dictionary of plain data.
    """
    try:
        with path.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            if not 0 < size <= max_bytes:
                raise UnsupportedPickle(f"it is not 1 to {max_bytes} bytes long")
            content = stream.read(size)
        result = _PickleMachine(copy_budget=size).run(content)
        if not isinstance(result, dict):
            raise UnsupportedPickle("it holds no dictionary")
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error.strerror or error}): check the file"
        ) from error
    except PARSE_ERRORS as error:
        raise InputError(
            f"{path} is not a pickle of plain data ({_short(error)}): get it again"
        ) from error
    return {
        key: value.array if isinstance(value, ArrayPlaceholder) else value
        for key, value in result.items()
    }


def _short(error: BaseException) -> str:
    return printable(error, 200) or type(error).__name__


class _PickleMachine:
    """The stack machine of the pickle format, reduced to plain data.

    Its methods carry out the instructions; `OPCODE_HANDLERS` says which instruction needs which.
    Texts of `copy_budget` bytes together may be copied.
    """

    def __init__(self, copy_budget: int) -> None:
        self.copy_budget = copy_budget
        self.stack: list[Any] = []
        self.metastack: list[list[Any]] = []
        """The stacks below each mark."""
        self.memo: dict[int, Any] = {}

    def run(self, content: bytes) -> Any:
        """Return the object that a pickle describes, or raise UnsupportedPickle."""
        for count, (opcode, argument, _) in enumerate(pickletools.genops(content)):
            if count >= MAX_INSTRUCTIONS:
                raise UnsupportedPickle(f"it has more than {MAX_INSTRUCTIONS} instructions")
            name = opcode.name
            if name in LITERAL_OPCODES:
                self.stack.append(argument)
            elif name in OPCODE_HANDLERS:
                OPCODE_HANDLERS[name](self, argument)
            elif name == "STOP":
                return self.stack.pop()
            else:
                raise UnsupportedPickle(f"it uses {name}")
        raise UnsupportedPickle("it has no end")

    def push(self, value: Any) -> None:
        """Put a value on top of the stack."""
        self.stack.append(value)

    def mark(self) -> None:
        """Begin a new stack, above the mark."""
        self.metastack.append(self.stack)
        self.stack = []

    def pop_mark(self) -> list[Any]:
        """Return what is above the last mark, and go back to the stack below it."""
        items = self.stack
        self.stack = self.metastack.pop()
        return items

    def pop_many(self, count: int) -> tuple[Any, ...]:
        """Take the last `count` values off the stack and return them."""
        if len(self.stack) < count:
            raise UnsupportedPickle("it ends its lists before they begin")
        items = tuple(self.stack[len(self.stack) - count :])
        del self.stack[len(self.stack) - count :]
        return items

    def append(self, items: list[Any]) -> None:
        """Append these items to the list on top of the stack."""
        target = self.stack[-1]
        if not isinstance(target, list):
            raise UnsupportedPickle("it appends to what is no list")
        target.extend(items)

    def set_items(self, items: list[Any]) -> None:
        """Put these keys and values, which alternate, into the dictionary on top of the stack."""
        target = self.stack[-1]
        if not isinstance(target, dict) or len(items) % 2:
            raise UnsupportedPickle("it sets items of what is no dictionary")
        for key, value in zip(items[::2], items[1::2], strict=True):
            # Text only: the hash of tuples nested by reference would take time exponential in the
            # file's length.
            target[_text(key)] = value

    def make_dict(self) -> None:
        """Replace what is above the last mark by a dictionary of it."""
        items = self.pop_mark()
        self.stack.append({})
        self.set_items(items)

    def reduce(self) -> None:
        """Replace a name and its arguments by what that call stands for; nothing is called."""
        name, arguments = self.pop_many(2)
        if not isinstance(name, GlobalName) or not isinstance(arguments, tuple):
            raise UnsupportedPickle("it calls what is no known name")
        if name.text in ARRAY_MAKERS:
            self.stack.append(ArrayPlaceholder())
        elif name.text == "numpy dtype" and _text(arguments[0]) in ("u1", "uint8"):
            self.stack.append(Uint8Dtype())
        elif name.text == "_codecs encode" and arguments[1:] in (("latin1",), ("latin-1",)):
            self.stack.append(self.encode(arguments[0]))
        else:
            raise UnsupportedPickle(
                f"it calls {name.text.replace(' ', '.')} with other arguments than plain data need"
            )

    def encode(self, text: str) -> bytes:
        """Return the bytes that a text stands for, a copy that counts."""
        self.copy_budget -= len(text)
        if self.copy_budget < 0:
            raise UnsupportedPickle("it copies its texts again and again")
        return text.encode("latin-1")

    def build(self) -> None:
        """Give the object on top of the stack its state."""
        (state,) = self.pop_many(1)
        target = self.stack[-1]
        if isinstance(target, ArrayPlaceholder):
            *start, content = state
            target.fill((*start, self.encode(content) if isinstance(content, str) else content))
        elif not isinstance(target, Uint8Dtype):  # a dtype's state only repeats what its name said
            raise UnsupportedPickle(f"it changes a {type(target).__name__}")


def _text(value: Any) -> str:
    if not isinstance(value, bytes | str):
        raise UnsupportedPickle(f"it uses a {type(value).__name__} as a key")
    if len(value) > MAX_KEY_LENGTH:
        raise UnsupportedPickle(f"it uses a text of {len(value)} characters as a key")
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _put(machine: _PickleMachine, index: int) -> None:
    machine.memo[index] = machine.stack[-1]


def _get(machine: _PickleMachine, index: int) -> None:
    machine.push(machine.memo[index])


OPCODE_HANDLERS: dict[str, Callable[[_PickleMachine, Any], None]] = {
    "PROTO": lambda machine, _: None,
    "FRAME": lambda machine, _: None,
    "MARK": lambda machine, _: machine.mark(),
    "NONE": lambda machine, _: machine.push(None),
    "NEWTRUE": lambda machine, _: machine.push(True),
    "NEWFALSE": lambda machine, _: machine.push(False),
    "EMPTY_DICT": lambda machine, _: machine.push({}),
    "EMPTY_LIST": lambda machine, _: machine.push([]),
    "EMPTY_TUPLE": lambda machine, _: machine.push(()),
    "DICT": lambda machine, _: machine.make_dict(),
    "LIST": lambda machine, _: machine.push(machine.pop_mark()),
    "TUPLE": lambda machine, _: machine.push(tuple(machine.pop_mark())),
    "TUPLE1": lambda machine, _: machine.push(machine.pop_many(1)),
    "TUPLE2": lambda machine, _: machine.push(machine.pop_many(2)),
    "TUPLE3": lambda machine, _: machine.push(machine.pop_many(3)),
    "APPEND": lambda machine, _: machine.append(list(machine.pop_many(1))),
    "APPENDS": lambda machine, _: machine.append(machine.pop_mark()),
    "SETITEM": lambda machine, _: machine.set_items(list(machine.pop_many(2))),
    "SETITEMS": lambda machine, _: machine.set_items(machine.pop_mark()),
    "PUT": _put,
    "BINPUT": _put,
    "LONG_BINPUT": _put,
    "MEMOIZE": lambda machine, _: _put(machine, len(machine.memo)),
    "GET": _get,
    "BINGET": _get,
    "LONG_BINGET": _get,
    "GLOBAL": lambda machine, text: machine.push(GlobalName(text)),
    "STACK_GLOBAL": lambda machine, _: machine.push(
        GlobalName(" ".join(map(_text, machine.pop_many(2))))
    ),
    "REDUCE": lambda machine, _: machine.reduce(),
    "BUILD": lambda machine, _: machine.build(),
}
