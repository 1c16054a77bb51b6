"""A pickle, read without executing it: its opcodes in, plain values and descriptions of tensors out.

A pickle is a program for a small machine with a stack and a memory ("memo"). Python's own machine calls whatever
functions the program names. This one calls none: what the program names, calls or fills is handed to a `Maker`, which
knows a few names and refuses all others (see pickle_tensors.py). Opcodes that neither tensors nor what training
scripts keep beside them need are refused too, and so are those of the text protocols 0 and 1, which neither torch nor
Paddle writes.

Whatever is read lies inside the file, the memo is a dict and not an array of a size that the program chooses, keys
are such that hashing them takes no time, and the number of steps is bounded; so no file can take long, or much memory.
"""

import pickle
import pickletools
import struct
from collections.abc import Callable
from typing import Any

from vitreous.weights.io.errors import Refused
from vitreous.weights.io.pickle.resolver import ADVICE, Ignored, Maker

MOST_STEPS = 500_000  # half a second; ten times what a ViT-g with its optimizer takes
LONGEST_NAME = 256
LARGEST_KEY = 1 << 60  # beyond it, Python gives many whole numbers the same hash

Step = Callable[["Machine"], None]


class Machine:
    """Runs one pickle, which begins at byte `at`; afterwards `at` is the byte after its end."""

    def __init__(self, data: memoryview, maker: Maker, at: int = 0) -> None:
        self.data, self.maker, self.at = data, maker, at
        self.stack: list[object] = []
        self.below: list[list[object]] = []  # the stacks under each mark
        self.memo: dict[int, object] = {}

    def run(self) -> object:
        try:
            for _ in range(MOST_STEPS):
                opcode = self.data[self.at]
                self.at += 1
                if opcode == pickle.STOP[0]:
                    return self.stack.pop()
                STEPS.get(opcode, _refuse)(self)
        except (IndexError, KeyError, UnicodeDecodeError) as error:
            raise Refused(f"is not a whole pickle: it breaks off or breaks down at byte {self.at:,}") from error
        raise Refused(f"holds a pickle of more than {MOST_STEPS:,} steps, which no set of weights needs")

    def take(self, length: int) -> memoryview:
        start, self.at = self.at, self.at + length
        if not 0 <= length <= len(self.data) - start:
            raise Refused(f"ends early: {length:,} bytes should follow byte {start:,} of {len(self.data):,}")
        return self.data[start : self.at]

    def number(self, layout: struct.Struct) -> Any:
        return layout.unpack(self.take(layout.size))[0]

    def line(self) -> str:
        line, newline, _ = bytes(self.data[self.at : self.at + LONGEST_NAME]).partition(b"\n")
        self.at += len(line) + len(newline)
        return str(line, "utf-8")

    def since_mark(self) -> list[object]:
        items, self.stack = self.stack, self.below.pop()
        return items


# ---- Opcodes ---------------------------------------------------------------------------------------------------------


def _refuse(machine: Machine) -> None:
    opcode = machine.data[machine.at - 1]
    if opcode not in OPCODES:
        raise Refused(f"is not a whole pickle: it has no opcode, but {opcode:#04x}, at byte {machine.at - 1:,}")
    raise Refused(f"uses the pickle opcode {OPCODES[opcode]}, which no tensor needs: {ADVICE}")


def _constant(value: object) -> Step:
    return lambda machine: machine.stack.append(value)


def _empty(kind: type) -> Step:
    return lambda machine: machine.stack.append(kind())


def _number(form: str) -> Step:
    layout = struct.Struct(form)
    return lambda machine: machine.stack.append(machine.number(layout))


def _sized(form: str, make: Callable[[memoryview], object]) -> Step:
    """What is stored as a length and so many bytes."""
    layout = struct.Struct(form)
    return lambda machine: machine.stack.append(make(machine.take(machine.number(layout))))


def _text(data: memoryview) -> str:
    return str(data, "utf-8")


def _python2_text(data: memoryview) -> str:
    return str(data, "latin-1")  # in which Python 2 kept bytes as well as text


def _whole(data: memoryview) -> int:
    return int.from_bytes(data, "little", signed=True)


def _tuple(length: int) -> Step:
    def step(machine: Machine) -> None:
        stack = machine.stack
        if len(stack) < length:
            raise IndexError
        stack[-length:] = [tuple(stack[-length:])]

    return step


def _marked_tuple(machine: Machine) -> None:
    items = tuple(machine.since_mark())
    machine.stack.append(items)


def _mark(machine: Machine) -> None:
    machine.below.append(machine.stack)
    machine.stack = []


def _append(machine: Machine) -> None:
    _extend(machine, [machine.stack.pop()])


def _appends(machine: Machine) -> None:
    _extend(machine, machine.since_mark())


def _extend(machine: Machine, items: list[object]) -> None:
    target = machine.stack[-1]
    if type(target) is not list:
        raise Refused(f"appends to a {type(target).__name__}, which is not a list: {ADVICE}")
    target += items


def _set_item(machine: Machine) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    _update(machine, [key, value])


def _set_items(machine: Machine) -> None:
    _update(machine, machine.since_mark())


def _update(machine: Machine, items: list[object]) -> None:
    target = machine.stack[-1]
    if type(target) is Ignored:  # settings that are a dict of a kind of their own
        return
    if type(target) is not dict or len(items) % 2:
        raise Refused(f"sets items of a {type(target).__name__}, which is not a dict: {ADVICE}")
    for at in range(0, len(items), 2):
        target[checked_key(items[at])] = items[at + 1]


def checked_key(key: object) -> object:
    """A key that a dict can hash at once: nested tuples take exponential time, and chosen numbers can collide."""
    if type(key) not in (str, int, bool, float, type(None)) or (type(key) is int and abs(key) > LARGEST_KEY):
        raise Refused(f"holds a dict with a key of type {type(key).__name__}, but a key must be text or a small number")
    return key


def _put(form: str) -> Step:
    layout = struct.Struct(form)

    def step(machine: Machine) -> None:
        machine.memo[machine.number(layout)] = machine.stack[-1]

    return step


def _get(form: str) -> Step:
    layout = struct.Struct(form)
    return lambda machine: machine.stack.append(machine.memo[machine.number(layout)])


def _memoize(machine: Machine) -> None:
    machine.memo[len(machine.memo)] = machine.stack[-1]


def _protocol(machine: Machine) -> None:
    if (version := machine.take(1)[0]) > pickle.HIGHEST_PROTOCOL:
        raise Refused(f"is a pickle of protocol {version}, but must be of {pickle.HIGHEST_PROTOCOL} or less")


def _frame(machine: Machine) -> None:
    """A hint for those who read in blocks. Ours has the whole file, but a frame beyond its end is a sign of damage."""
    length = machine.number(struct.Struct("<Q"))
    machine.take(length)
    machine.at -= length


def _global(machine: Machine) -> None:
    machine.stack.append(machine.maker.find(f"{machine.line()}.{machine.line()}"))


def _stack_global(machine: Machine) -> None:
    name, module = machine.stack.pop(), machine.stack.pop()
    if type(name) is not str or type(module) is not str:
        raise Refused(f"names something by a {type(module).__name__} and a {type(name).__name__}: {ADVICE}")
    machine.stack.append(machine.maker.find(f"{module}.{name}"))


def _instance(machine: Machine) -> None:
    at = machine.at
    machine.maker.find(f"{machine.line()}.{machine.line()}")  # names the culprit, if it is one
    machine.at = at
    _refuse(machine)


def _reduce(machine: Machine) -> None:
    arguments, function = machine.stack.pop(), machine.stack.pop()
    if type(arguments) is not tuple:
        raise Refused(f"calls with a {type(arguments).__name__}, which is not a tuple of arguments: {ADVICE}")
    machine.stack.append(machine.maker.call(function, arguments))


def _new_object(machine: Machine) -> None:
    _arguments, kind = machine.stack.pop(), machine.stack.pop()
    machine.stack.append(machine.maker.new(kind))


def _build(machine: Machine) -> None:
    state = machine.stack.pop()
    machine.maker.fill(machine.stack[-1], state)


def _refer(machine: Machine) -> None:
    machine.stack.append(machine.maker.refer(machine.stack.pop()))


_STEPS: dict[bytes, Step] = {
    pickle.PROTO: _protocol,
    pickle.FRAME: _frame,
    pickle.NONE: _constant(None),
    pickle.NEWTRUE: _constant(True),
    pickle.NEWFALSE: _constant(False),
    pickle.BININT1: _number("<B"),
    pickle.BININT2: _number("<H"),
    pickle.BININT: _number("<i"),
    pickle.BINFLOAT: _number(">d"),
    pickle.LONG1: _sized("<B", _whole),
    pickle.SHORT_BINUNICODE: _sized("<B", _text),
    pickle.BINUNICODE: _sized("<I", _text),
    pickle.BINUNICODE8: _sized("<Q", _text),
    pickle.SHORT_BINSTRING: _sized("<B", _python2_text),
    pickle.BINSTRING: _sized("<i", _python2_text),
    pickle.SHORT_BINBYTES: _sized("<B", memoryview),
    pickle.BINBYTES: _sized("<I", memoryview),
    pickle.BINBYTES8: _sized("<Q", memoryview),
    pickle.BYTEARRAY8: _sized("<Q", memoryview),
    pickle.EMPTY_TUPLE: _constant(()),
    pickle.TUPLE1: _tuple(1),
    pickle.TUPLE2: _tuple(2),
    pickle.TUPLE3: _tuple(3),
    pickle.MARK: _mark,
    pickle.TUPLE: _marked_tuple,
    pickle.EMPTY_LIST: _empty(list),
    pickle.APPEND: _append,
    pickle.APPENDS: _appends,
    pickle.EMPTY_DICT: _empty(dict),
    pickle.SETITEM: _set_item,
    pickle.SETITEMS: _set_items,
    pickle.BINPUT: _put("<B"),
    pickle.LONG_BINPUT: _put("<I"),
    pickle.MEMOIZE: _memoize,
    pickle.BINGET: _get("<B"),
    pickle.LONG_BINGET: _get("<I"),
    pickle.GLOBAL: _global,
    pickle.STACK_GLOBAL: _stack_global,
    pickle.INST: _instance,
    pickle.REDUCE: _reduce,
    pickle.NEWOBJ: _new_object,
    pickle.BUILD: _build,
    pickle.BINPERSID: _refer,
}
STEPS = {code[0]: step for code, step in _STEPS.items()}
OPCODES = {ord(opcode.code): opcode.name for opcode in pickletools.opcodes}  # all there are, to name what is refused
