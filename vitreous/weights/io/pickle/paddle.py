"""Paddle's `.pdparams` files: a plain pickle of numpy arrays, as `paddle.save(layer.state_dict(), path)` writes it.

Known from files of Paddle 3.3: a dict of arrays with an entry "StructuredToParameterName@@", the names of the tensors
in the program. Inside another dict, a tensor is `tuple((name, array))`. bfloat16 is stored as uint16. Protocol 4 is
usual; in protocols 2 and 3 an array above 1 GiB is cut into flat parts "<key>@@.<i>", listed under
"UnpackBigParamInfor@@".
"""

import pickle
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitreous.weights.io.errors import Refused, shown
from vitreous.weights.io.numpy_arrays import count_elements

NAMES = "StructuredToParameterName@@"  # Paddle recognises a state dict by this entry
PARTS = "UnpackBigParamInfor@@"
NUMPY_CODES = {torch.float64: "f8", torch.float32: "f4", torch.float16: "f2", torch.bfloat16: "u2"}


def from_paddle(content: Any) -> Any:
    """Drop Paddle's own entries and join arrays that were too large for their protocol, as `paddle.load` does."""
    if not isinstance(content, dict):
        return content
    content.pop(NAMES, None)
    parts = content.pop(PARTS, {})
    for key, part in parts.items() if isinstance(parts, dict) else ():
        match part:
            case {"OriginShape": tuple(shape), "slices": list(names)} if all(type(name) is str for name in names):
                found = [content.pop(name, None) for name in names]  # a part is used once, so nothing grows
                flat = [piece for piece in found if isinstance(piece, Tensor) and piece.ndim == 1]
                numbers, dtypes = sum(piece.numel() for piece in flat), {piece.dtype for piece in flat}
                if len(flat) == len(names) and len(dtypes) == 1 and numbers == count_elements(shape):
                    content[key] = torch.cat(flat).view(shape)
                    continue
        raise Refused(f"holds {shown(key)} in parts that do not make a whole")
    return content


def write_pdparams(tensors: Mapping[str, Tensor], file: Path) -> None:
    """Write a state dict for `paddle.load`, opcode by opcode.

    `pickle.dump` would name numpy's functions as the installed numpy does, and Paddle with numpy 1 cannot read the
    names of numpy 2 (`numpy._core`). Both read the older names.
    """
    with open(file, "wb") as stream:
        stream.write(pickle.PROTO + bytes([4]) + pickle.EMPTY_DICT + pickle.MARK)
        for name, tensor in tensors.items():
            numbers = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
            stream.write(_text(name) + _array_head(tensor))
            stream.write(pickle.BINBYTES8 + struct.pack("<Q", len(numbers)))
            stream.write(numbers.numpy().data)
            stream.write(pickle.TUPLE + pickle.BUILD)
        names = b"".join(_text(name) + _text(name) for name in tensors)
        stream.write(_text(NAMES) + pickle.EMPTY_DICT + pickle.MARK + names + pickle.SETITEMS)
        stream.write(pickle.SETITEMS + pickle.STOP)


def _array_head(tensor: Tensor) -> bytes:
    """Encode an empty array and its state up to the bytes: version, shape, dtype, not Fortran order."""
    empty = _tuple(_global("numpy", "ndarray"), _tuple(_int(0)), pickle.SHORT_BINBYTES + b"\x01b")
    array = _global("numpy.core.multiarray", "_reconstruct") + empty + pickle.REDUCE
    kind = _tuple(_text(NUMPY_CODES[tensor.dtype]), pickle.NEWFALSE, pickle.NEWTRUE)
    little_endian = _tuple(_int(3), _text("<"), *[pickle.NONE] * 3, _int(-1), _int(-1), _int(0))
    dtype = _global("numpy", "dtype") + kind + pickle.REDUCE + little_endian + pickle.BUILD
    return array + pickle.MARK + _int(1) + _tuple(*map(_int, tensor.shape)) + dtype + pickle.NEWFALSE


def _global(module: str, name: str) -> bytes:
    return pickle.GLOBAL + f"{module}\n{name}\n".encode()


def _text(text: str) -> bytes:
    return pickle.BINUNICODE + struct.pack("<I", len(text.encode())) + text.encode()


def _int(number: int) -> bytes:
    return pickle.BININT + struct.pack("<i", number)


def _tuple(*items: bytes) -> bytes:
    return pickle.MARK + b"".join(items) + pickle.TUPLE
