"""A `.pdparams` file, as `paddle.save(layer.state_dict(), path)` writes it: a pickle of a dict of numpy arrays.

The pickle is put down opcode by opcode. Python's own would name numpy's parts as the numpy at hand calls them, and what
numpy 2 says (`numpy._core`) a Paddle with an older numpy cannot read; both know the older name. A pickle that is being
written executes nothing.
"""

import pickle
import struct
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

# As numpy names types. Paddle keeps bfloat16 as the whole numbers that its bits make.
KINDS = {torch.float64: "f8", torch.float32: "f4", torch.float16: "f2", torch.bfloat16: "u2"}
# Paddle looks for this entry: by it, it knows a state dict. It holds the name that every tensor had in the program.
NAMES = "StructuredToParameterName@@"


def write_pdparams(tensors: Mapping[str, Tensor], file: Path) -> None:
    with open(file, "wb") as stream:
        stream.write(pickle.PROTO + bytes([4]) + pickle.EMPTY_DICT + pickle.MARK)
        for name, tensor in tensors.items():
            numbers = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
            stream.write(_text(name) + _array_before_numbers(tensor))
            stream.write(pickle.BINBYTES8 + struct.pack("<Q", len(numbers)))
            stream.write(numbers.numpy().data)
            stream.write(pickle.TUPLE + pickle.BUILD)
        names = b"".join(_text(name) + _text(name) for name in tensors)
        stream.write(_text(NAMES) + pickle.EMPTY_DICT + pickle.MARK + names + pickle.SETITEMS)
        stream.write(pickle.SETITEMS + pickle.STOP)


def _array_before_numbers(tensor: Tensor) -> bytes:
    """An empty array, and of its state all but the last part: version, shape, type, not in Fortran's order."""
    empty = _tuple(_name("numpy", "ndarray"), _tuple(_whole(0)), pickle.SHORT_BINBYTES + b"\x01b")
    array = _name("numpy.core.multiarray", "_reconstruct") + empty + pickle.REDUCE
    shape = _tuple(*map(_whole, tensor.shape))
    return array + pickle.MARK + _whole(1) + shape + _kind(KINDS[tensor.dtype]) + pickle.NEWFALSE


def _kind(code: str) -> bytes:
    """A type of numpy's, with the little end first."""
    kind = _name("numpy", "dtype") + _tuple(_text(code), pickle.NEWFALSE, pickle.NEWTRUE) + pickle.REDUCE
    return kind + _tuple(_whole(3), _text("<"), *[pickle.NONE] * 3, _whole(-1), _whole(-1), _whole(0)) + pickle.BUILD


def _name(module: str, name: str) -> bytes:
    return pickle.GLOBAL + f"{module}\n{name}\n".encode()


def _text(text: str) -> bytes:
    return pickle.BINUNICODE + struct.pack("<I", len(text.encode())) + text.encode()


def _whole(number: int) -> bytes:
    return pickle.BININT + struct.pack("<i", number)


def _tuple(*items: bytes) -> bytes:
    return pickle.MARK + b"".join(items) + pickle.TUPLE
