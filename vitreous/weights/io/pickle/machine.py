"""Interprets a pickle without executing it and returns plain values and tensor descriptions.

A pickle is a program for a stack machine with a memo. `pickletools.genops` only decodes the opcodes. The machine here
describes the results of a few allowed calls (tensors.py) and rejects all others. It also rejects opcodes that no
checkpoint needs and those of text protocols 0 and 1.

Python's Unpickler is unsafe even with an allow-list in `find_class`: six bytes make it allocate gigabytes (LONG_BINPUT
sizes its memo), and hashing keys of nested tuples takes exponential time. Here the memo is a dict, keys are checked
before they are hashed, lengths may not exceed the file, and the number of steps is limited.
"""

import pickle
import pickletools
from collections.abc import Sequence
from typing import IO, Any, cast

from vitreous.weights.io.errors import InvalidFile
from vitreous.weights.io.pickle.tensors import ADVICE, Ignored, TensorMaker, checked_key, find

MAX_STEPS = 500_000  # about a second; ten times what a ViT-g with its optimizer needs
MAX_NAME_BYTES = 256
PROTOCOL = pickle.HIGHEST_PROTOCOL
NUMBER_BYTES = 8  # size of the longest length field or number
BYTES_OPCODES = pickle.BINBYTES + pickle.BINBYTES8  # their data is not copied


def interpret(data: memoryview, maker: TensorMaker, at: int = 0) -> tuple[object, int]:
    """Interpret the pickle that starts at byte `at`. Return its value and its end offset."""
    reader = _Reader(data, at)
    machine = _Machine(reader, maker)
    try:
        for step, (opcode, argument, _) in enumerate(pickletools.genops(cast(IO[bytes], reader))):
            if step == MAX_STEPS:
                raise InvalidFile(f"contains a pickle with more than {MAX_STEPS:,} opcodes")
            if opcode.name == "STOP":
                break
            machine.step(opcode.name, argument)
        return machine.stack.pop(), reader.at
    except (IndexError, KeyError, ValueError) as error:
        raise InvalidFile(f"is not a complete pickle: it is truncated or invalid at byte {reader.at:,}") from error


class _Reader:
    """Minimal file object that reads from memory, for `pickletools.genops`."""

    def __init__(self, data: memoryview, at: int) -> None:
        self.data, self.at, self.opcode_at = data, at, at

    def tell(self) -> int:  # genops calls it before each opcode
        self.opcode_at = self.at
        return self.at

    def read(self, size: int) -> bytes | memoryview:
        if size > NUMBER_BYTES:  # longer reads come from a length field in the pickle
            self.check_length(size)
        chunk = self.data[self.at : self.at + size]
        self.at += len(chunk)
        is_array = size > NUMBER_BYTES and self.data[self.opcode_at] in BYTES_OPCODES
        return chunk if is_array else bytes(chunk)

    def readline(self) -> bytes:
        line, newline, _ = bytes(self.data[self.at : self.at + MAX_NAME_BYTES]).partition(b"\n")
        self.at += len(line) + len(newline)
        return line + newline

    def check_length(self, size: int) -> None:
        if size > len(self.data) - self.at:
            raise InvalidFile(f"is truncated: {size:,} more bytes expected at byte {self.at:,} of {len(self.data):,}")


class _Machine:
    def __init__(self, reader: _Reader, maker: TensorMaker) -> None:
        self.reader, self.maker = reader, maker
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []  # the stack below each mark
        self.memo: dict[int, object] = {}

    def step(self, opcode: str, argument: Any) -> None:
        stack = self.stack
        match opcode:
            case "BINPUT" | "LONG_BINPUT":
                self.memo[argument] = stack[-1]
            case "MEMOIZE":
                self.memo[len(self.memo)] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(self.memo[argument])
            case "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINFLOAT" | "SHORT_BINSTRING" | "BINSTRING":
                stack.append(argument)
            case "SHORT_BINUNICODE" | "BINUNICODE" | "BINUNICODE8":
                argument.encode()  # raises for lone surrogates, which genops accepts
                stack.append(argument)
            case "SHORT_BINBYTES" | "BINBYTES" | "BINBYTES8" | "BYTEARRAY8":
                stack.append(self.reader.data[self.reader.at - len(argument) : self.reader.at])
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[opcode])
            case "EMPTY_TUPLE" | "EMPTY_LIST" | "EMPTY_DICT":
                stack.append({"EMPTY_TUPLE": (), "EMPTY_LIST": [], "EMPTY_DICT": {}}[opcode])
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                length = int(opcode[-1])
                if len(stack) < length:
                    raise IndexError
                stack[-length:] = [tuple(stack[-length:])]
            case "MARK":
                self.below.append(stack)
                self.stack = []
            case "TUPLE":
                items = tuple(self._since_mark())
                self.stack.append(items)
            case "APPEND":
                self._extend([stack.pop()])
            case "APPENDS":
                self._extend(self._since_mark())
            case "SETITEM":
                value, key = stack.pop(), stack.pop()
                self._update([key, value])
            case "SETITEMS":
                self._update(self._since_mark())
            case "GLOBAL":
                stack.append(find(argument.replace(" ", ".", 1)))
            case "STACK_GLOBAL":
                name, module = stack.pop(), stack.pop()
                if type(name) is not str or type(module) is not str:
                    raise InvalidFile(f"has a global whose module or name is not a string {ADVICE}")
                stack.append(find(f"{module}.{name}"))
            case "REDUCE":
                arguments, function = stack.pop(), stack.pop()
                if type(arguments) is not tuple:
                    raise InvalidFile(f"passes arguments as {type(arguments).__name__} instead of a tuple {ADVICE}")
                stack.append(self.maker.call(function, arguments))
            case "NEWOBJ":
                _arguments, kind = stack.pop(), stack.pop()
                stack.append(self.maker.new(kind))
            case "BUILD":
                state = stack.pop()
                self.maker.set_state(stack[-1], state)
            case "BINPERSID":
                stack.append(self.maker.storage(stack.pop()))
            case "FRAME":
                self.reader.check_length(argument)
            case "PROTO":
                if argument > PROTOCOL:
                    raise InvalidFile(f"uses pickle protocol {argument}; the highest supported is {PROTOCOL}")
            case _:
                if opcode == "INST":
                    find(argument.replace(" ", ".", 1))  # raises an error that names the class
                raise InvalidFile(f"uses the pickle opcode {opcode}, which tensors do not need {ADVICE}")

    def _since_mark(self) -> list[Any]:
        items, self.stack = self.stack, self.below.pop()
        return items

    def _extend(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not list:
            raise InvalidFile(f"contains a pickle that appends to a {type(target).__name__} instead of a list {ADVICE}")
        target += items

    def _update(self, items: Sequence[Any]) -> None:
        target = self.stack[-1]
        if type(target) is Ignored:  # e.g. settings that subclass dict
            return
        if type(target) is not dict:
            raise InvalidFile(
                f"contains a pickle that sets items in a {type(target).__name__} instead of a dict {ADVICE}"
            )
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[checked_key(key)] = value
