"""Bytes of numpy arrays to tensors, without numpy's reader. Only numbers: other dtypes are refused by name."""

import math
import reprlib
import sys
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitreous.weights.io.errors import Refused, shown

NUMBERS = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")
CODES = {code: torch.from_numpy(np.empty(0, code)).dtype for code in NUMBERS}
CODES |= {"V2": torch.bfloat16, "bfloat16": torch.bfloat16}  # numpy stores jax's bfloat16 as two untyped bytes
MAX_DIMENSIONS = 32
MAX_ELEMENTS = 1 << 48  # more than any memory; keeps products of untrusted sizes within 64 bits


class ArrayType(NamedTuple):
    """The dtype and byte order of an array."""

    dtype: torch.dtype
    big_endian: bool


def array_type(description: str) -> ArrayType:
    """Parse numpy's dtype string: byte order, kind and bytes per number.

    >>> array_type("<f4"), array_type("|V2").dtype, array_type(">i8").big_endian
    (ArrayType(dtype=torch.float32, big_endian=False), torch.bfloat16, True)
    """
    order, code = (description[0], description[1:]) if description[:1] in tuple("<>=|") else ("=", description)
    if code.startswith("O"):
        raise Refused("holds an array of Python objects, which is not a tensor: nothing of it was executed")
    if code not in CODES:
        raise Refused(f"holds an array of type {shown(description)!r}, but must hold only numbers: {', '.join(CODES)}")
    return ArrayType(CODES[code], order == ">" or (order == "=" and sys.byteorder == "big"))


def count_elements(shape: tuple[object, ...]) -> int:
    """Validate a shape and return its number of elements."""
    sides = [side for side in shape[:MAX_DIMENSIONS] if type(side) is int and 0 <= side <= MAX_ELEMENTS]
    if len(sides) != len(shape) or math.prod(filter(None, sides)) > MAX_ELEMENTS:
        raise Refused(f"holds a tensor of shape {shown(reprlib.repr(shape))}, which is invalid")
    return math.prod(sides)


def as_tensor(flat: Tensor, kind: ArrayType, shape: tuple[int, ...], fortran: bool) -> Tensor:
    """Return the bytes `flat` as a contiguous tensor, which shares their memory unless they must be rearranged."""
    if kind.big_endian:
        unit = kind.dtype.itemsize // (2 if kind.dtype.is_complex else 1)
        flat = flat.view(-1, unit).flip(1).flatten()
    numbers = flat.ne(0) if kind.dtype == torch.bool else flat.view(kind.dtype)  # torch assumes that a bool is 0 or 1
    if fortran and len(shape) > 1:
        return numbers.view(shape[::-1]).permute(*range(len(shape) - 1, -1, -1)).contiguous()
    return numbers.view(shape)
