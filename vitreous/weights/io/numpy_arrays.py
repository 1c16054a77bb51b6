"""The bytes of a numpy array as a tensor: what numpy's type codes mean in torch, without numpy's own reader.

Only numbers: whatever would need Python objects, text, dates or records is refused by the name numpy gives it.
"""

import math
import reprlib
import sys
from typing import NamedTuple

import torch
from torch import Tensor

from vitreous.weights.io.errors import Refused, shown

CODES = {
    "b1": torch.bool,
    "i1": torch.int8,
    "i2": torch.int16,
    "i4": torch.int32,
    "i8": torch.int64,
    "u1": torch.uint8,
    "u2": torch.uint16,
    "u4": torch.uint32,
    "u8": torch.uint64,
    "f2": torch.float16,
    "f4": torch.float32,
    "f8": torch.float64,
    "c8": torch.complex64,
    "c16": torch.complex128,
    "V2": torch.bfloat16,  # numpy has no bfloat16; jax's own is written as two bytes of no known type
    "bfloat16": torch.bfloat16,
}
MOST_DIMENSIONS = 32
MOST_ELEMENTS = 1 << 48  # what fits no memory; keeps the products of strangers' numbers far from torch's 64 bits


class ArrayType(NamedTuple):
    """How numbers are stored: of which type, and which end first."""

    dtype: torch.dtype
    big_endian: bool


def array_type(description: str) -> ArrayType:
    """From numpy's own description: the order of bytes, the kind of number, its bytes.

    >>> array_type("<f4"), array_type("|V2").dtype, array_type(">i8").big_endian
    (ArrayType(dtype=torch.float32, big_endian=False), torch.bfloat16, True)
    """
    order, code = (description[0], description[1:]) if description[:1] in tuple("<>=|") else ("=", description)
    if code.startswith("O"):
        raise Refused("holds an array of Python objects, which is not a tensor: nothing of it was executed")
    if code not in CODES:
        raise Refused(f"holds an array of type {shown(description)!r}, but must hold only numbers: {', '.join(CODES)}")
    return ArrayType(CODES[code], order == ">" or (order == "=" and sys.byteorder == "big"))


def count(shape: tuple[object, ...]) -> int:
    """How many elements a shape has, once it is known to be one."""
    sides = [side for side in shape[:MOST_DIMENSIONS] if type(side) is int and 0 <= side <= MOST_ELEMENTS]
    if len(sides) != len(shape) or math.prod(filter(None, sides)) > MOST_ELEMENTS:
        raise Refused(f"holds a tensor of shape {shown(reprlib.repr(shape))}, which no tensor can have")
    return math.prod(sides)


def as_tensor(flat: Tensor, kind: ArrayType, shape: tuple[int, ...], fortran: bool) -> Tensor:
    """The array whose bytes are `flat`, contiguous; it shares their memory where nothing is to be rearranged."""
    if kind.big_endian:
        unit = kind.dtype.itemsize // (2 if kind.dtype.is_complex else 1)
        flat = flat.view(-1, unit).flip(1).flatten()
    numbers = flat.ne(0) if kind.dtype == torch.bool else flat.view(kind.dtype)  # torch trusts a bool to be 0 or 1
    if fortran and len(shape) > 1:
        return numbers.view(shape[::-1]).permute(*range(len(shape) - 1, -1, -1)).contiguous()
    return numbers.view(shape)
