"""Conversion of tensors from and to the formats of other libraries, with one table for both directions.

`ours` are the names or tensors of Vitreous, and `theirs` are those of the checkpoint. The expected shapes of the
checkpoint's tensors are computed from Vitreous meta tensors with the same table.
"""

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitreous.weights.io.safetensors_file import NAMES, Entry, check_tensors

Tensors = Mapping[str, Tensor]
PARTS = ("weight", "bias")


class Conversion(NamedTuple):
    """Functions that convert the checkpoint's tensors to Vitreous tensors and back."""

    read: Callable[[list[Tensor]], list[Tensor]]
    write: Callable[[list[Tensor]], list[Tensor]]


class Row(NamedTuple):
    """Vitreous tensor names, the checkpoint's names for the same tensors, and the conversion between them."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    conversion: Conversion


def row(ours: str | tuple[str, ...], theirs: str | tuple[str, ...], conversion: Conversion | None = None) -> Row:
    """Create a row. Without a conversion, the tensor is used unchanged."""
    both = [(names,) if isinstance(names, str) else names for names in (ours, theirs)]
    return Row(both[0], both[1], conversion or IDENTITY)


def rows(ours: str, theirs: str, matrix: Conversion | None = None, parts: Sequence[str] = PARTS) -> list[Row]:
    """Create rows for the weight and bias of a layer. `matrix` converts the weight."""
    return [row(f"{ours}.{part}", f"{theirs}.{part}", matrix if part == "weight" else None) for part in parts]


def packed_rows(
    ours: Sequence[str], theirs: str, matrix: Conversion | None = None, parts: Sequence[str] = PARTS
) -> list[Row]:
    """Create rows for a checkpoint layer that packs several layers, such as qkv. `matrix` converts its weight."""
    table = []
    for part in parts:
        conversion = split(len(ours), matrix if part == "weight" else None)
        table.append(row(tuple(f"{layer}.{part}" for layer in ours), f"{theirs}.{part}", conversion))
    return table


def per_layer(table: Sequence[Row], count: int) -> list[Row]:
    """Repeat the rows for `count` layers, replacing {i} in names with the layer index."""

    def fill(names: tuple[str, ...], layer: int) -> tuple[str, ...]:
        return tuple(name.replace("{i}", str(layer)) for name in names)

    return [Row(fill(row.ours, i), fill(row.theirs, i), row.conversion) for i in range(count) for row in table]


# ---- Conversions -----------------------------------------------------------------------------------------------------


def single(read: Callable[[Tensor], Tensor], write: Callable[[Tensor], Tensor]) -> Conversion:
    """Create a conversion between one tensor of the checkpoint and one Vitreous tensor."""
    return Conversion(lambda theirs: [read(theirs[0])], lambda ours: [write(ours[0])])


IDENTITY = single(lambda x: x, lambda x: x)
TRANSPOSE = single(lambda x: x.T.contiguous(), lambda x: x.T.contiguous())


def reshape(ours: tuple[int, ...], theirs: tuple[int, ...]) -> Conversion:
    """Create a conversion that reshapes a tensor. One dimension of each shape may be -1."""
    return single(lambda x: x.reshape(ours), lambda x: x.reshape(theirs))


def split(parts: int, matrix: Conversion | None = None) -> Conversion:
    """Create a conversion that applies `matrix` to a packed weight (e.g. qkv) and splits the result by rows."""
    read, write = matrix or IDENTITY
    return Conversion(lambda theirs: list(read(theirs)[0].chunk(parts)), lambda ours: write([concat(ours)]))


def position_table(prefix: int, grid: tuple[int, int], batch: bool = True) -> Conversion:
    """Convert positions [1, prefix + n, d] (or [prefix + n, d] if not `batch`) to [prefix, d] and [gh, gw, d]."""

    def read(theirs: list[Tensor]) -> list[Tensor]:
        table = theirs[0].flatten(0, -2)
        patches = table[prefix:].reshape(*grid, table.shape[-1])
        return [table[:prefix], patches] if prefix else [patches]

    def write(ours: list[Tensor]) -> list[Tensor]:
        table = concat([part.flatten(0, -2) for part in ours])
        return [table[None] if batch else table]

    return Conversion(read, write)


def concat(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate as torch.cat does, but faster and without importing torch's compiler for meta tensors."""
    shape = (sum(len(part) for part in parts), *parts[0].shape[1:])
    if parts[0].is_meta:
        return parts[0].new_empty(shape)
    if len({part.dtype for part in parts}) > 1:
        return torch.cat(list(parts))
    result = torch.empty(shape, dtype=parts[0].dtype)
    arrays = [part.detach().contiguous().view(torch.uint8).numpy() for part in parts]
    np.concatenate(arrays, out=result.view(torch.uint8).numpy())
    return result


# ---- Applying a table ------------------------------------------------------------------------------------------------


def read_table(table: list[Row], theirs: Tensors, ours: Tensors, path: Path, ignored: Iterable[str] = ()) -> Tensors:
    """Check the checkpoint's tensors and convert them to Vitreous tensors."""
    used = check_table(table, theirs, ours, path, ignored)
    result: dict[str, Tensor] = {}
    for entry in table:
        result |= zip(entry.ours, entry.conversion.read([used[name] for name in entry.theirs]), strict=True)
    # Some checkpoints store positions or norms in a different dtype. Converting all tensors to the widest dtype avoids
    # rounding.
    widest = functools.reduce(torch.promote_types, {tensor.dtype for tensor in result.values()})
    return {name: tensor.to(widest) for name, tensor in result.items()}


def check_table(table: list[Row], theirs: Tensors, ours: Tensors, path: Path, ignored: Iterable[str] = ()) -> Tensors:
    """Check tensor names and shapes against the meta tensors `ours`. Return all tensors that are not `ignored`."""
    expected = {name: tuple(tensor.shape) for name, tensor in write_table(table, ours).items()}
    used = {name: tensor for name, tensor in theirs.items() if name in expected or not matches(name, ignored)}
    types = {name: NAMES.get(tensor.dtype, str(tensor.dtype).removeprefix("torch.")) for name, tensor in used.items()}
    check_tensors(path, {name: Entry(types[name], tuple(tensor.shape)) for name, tensor in used.items()}, expected)
    return used


def write_table(table: list[Row], ours: Tensors) -> dict[str, Tensor]:
    """Convert Vitreous tensors to those of a checkpoint. All Vitreous names must be in the table."""
    known = {name for entry in table for name in entry.ours}
    if unknown := [name for name in ours if name not in known]:
        more = " and more" if len(unknown) > 5 else ""
        raise ValueError(f"the format has no tensors corresponding to {', '.join(unknown[:5])}{more}")
    result: dict[str, Tensor] = {}
    for entry in table:
        result |= zip(entry.theirs, entry.conversion.write([ours[name] for name in entry.ours]), strict=True)
    return result


def matches(name: str, patterns: Iterable[str]) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in patterns)


def renamed(tensors: Tensors, changes: Iterable[tuple[str, str]]) -> dict[str, Tensor]:
    """Apply regular-expression replacements to tensor names, in order."""
    result = {}
    for name, tensor in tensors.items():
        for pattern, replacement in changes:
            name = re.sub(pattern, replacement, name)
        result[name] = tensor
    return result
