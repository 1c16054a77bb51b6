"""One engine for every conversion. A format is a table of rows: their names, our names, and how numbers get across.

A row goes both ways, so that reading and writing cannot drift apart. What shapes their tensors must have follows from
ours by the same row, applied to tensors without memory.
"""

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitreous.weights.io.safetensors_file import NAMES, Entry, check_tensors

Tensors = Mapping[str, Tensor]
Change = Callable[[list[Tensor]], list[Tensor]]


class How(NamedTuple):
    """From theirs to ours, and back."""

    read: Change
    write: Change


@dataclass(frozen=True)
class Row:
    """Some of our tensors, some of theirs with the same numbers in them, and how."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    how: How


def row(ours: str | tuple[str, ...], theirs: str | tuple[str, ...], how: How | None = None) -> Row:
    """A row; with no more said, the tensor is the same on both sides."""
    both = [(names,) if isinstance(names, str) else names for names in (ours, theirs)]
    return Row(both[0], both[1], how or SAME)


def rows(ours: str, theirs: str, how: How | None = None, parts: tuple[str, ...] = ("weight", "bias")) -> list[Row]:
    """A row for the weight of a layer and one, always of the same tensor, for its bias. `how` is for the weight."""
    return [row(f"{ours}.{part}", f"{theirs}.{part}", how if part == "weight" else None) for part in parts]


def packed_rows(
    ours: Sequence[str], theirs: str, matrix: How | None = None, parts: tuple[str, ...] = ("weight", "bias")
) -> list[Row]:
    """The same for layers of ours that are one of theirs, such as query, key and value. `matrix` is for its weight."""
    table = []
    for part in parts:
        how = apart(len(ours), matrix if part == "weight" else None)
        table.append(row(tuple(f"{layer}.{part}" for layer in ours), f"{theirs}.{part}", how))
    return table


def repeated(table: Iterable[Row], count: int) -> list[Row]:
    """Rows for each of `count` layers: {i} in their names becomes the number of the layer."""
    table = list(table)

    def fill(names: tuple[str, ...], layer: int) -> tuple[str, ...]:
        return tuple(name.replace("{i}", str(layer)) for name in names)

    return [Row(fill(row.ours, i), fill(row.theirs, i), row.how) for i in range(count) for row in table]


# ---- Ways across -----------------------------------------------------------------------------------------------------


def one(read: Callable[[Tensor], Tensor], write: Callable[[Tensor], Tensor]) -> How:
    """One tensor to one tensor."""
    return How(lambda theirs: [read(theirs[0])], lambda ours: [write(ours[0])])


SAME = one(lambda x: x, lambda x: x)
TRANSPOSED = one(lambda x: x.T.contiguous(), lambda x: x.T.contiguous())


def stacked(parts: Sequence[Tensor]) -> Tensor:
    """torch.cat along the first dimension, but fast on fresh memory.

    New pages are faulted in one by one, and torch's threads wait on each other for them; numpy has one thread. On meta
    tensors, torch.cat would import torch's compiler to infer the shape.
    """
    shape = (sum(len(part) for part in parts), *parts[0].shape[1:])
    if parts[0].is_meta:
        return parts[0].new_empty(shape)
    if len({part.dtype for part in parts}) > 1:
        return torch.cat(list(parts))
    result = torch.empty(shape, dtype=parts[0].dtype)
    rows = [part.detach().contiguous().view(torch.uint8).numpy() for part in parts]
    np.concatenate(rows, out=result.view(torch.uint8).numpy())
    return result


def apart(parts: int, matrix: How | None = None) -> How:
    """A packed foreign weight (e.g. qkv) that maps to several of our layers. They are views of its rows, not copies."""
    read, write = matrix or SAME
    return How(lambda theirs: list(read(theirs)[0].chunk(parts)), lambda ours: write([stacked(ours)]))


def shaped(ours: tuple[int, ...], theirs: tuple[int, ...]) -> How:
    """The same numbers in the same order, in another shape. One side may be -1."""
    return one(lambda x: x.reshape(ours), lambda x: x.reshape(theirs))


def positions(entries: int, grid: tuple[int, int]) -> How:
    """Theirs: one table [1, entries + n, d]. Ours: the entries of the prefix, if any, and a table [gh, gw, d]."""

    def read(theirs: list[Tensor]) -> list[Tensor]:
        table = theirs[0].flatten(0, -2)
        patches = table[entries:].reshape(*grid, table.shape[-1])
        return [table[:entries], patches] if entries else [patches]

    def write(ours: list[Tensor]) -> list[Tensor]:
        return [stacked([part.flatten(0, -2) for part in ours])[None]]

    return How(read, write)


# ---- Across ----------------------------------------------------------------------------------------------------------


def read_rows(
    table: list[Row],
    tensors: Tensors,
    ours: Tensors,
    path: Path,
    dropped: Iterable[str] = (),
) -> Tensors:
    """Our tensors from theirs, after `check_rows`."""
    wanted = check_rows(table, tensors, ours, path, dropped)
    result: dict[str, Tensor] = {}
    for entry in table:
        result |= zip(entry.ours, entry.how.read([wanted[name] for name in entry.theirs]), strict=True)
    return _of_one_type(result)


def check_rows(
    table: list[Row], tensors: Tensors, ours: Tensors, path: Path, dropped: Iterable[str] = ()
) -> dict[str, Tensor]:
    """Check names and shapes of their tensors against `ours`, which has no memory; return those that are used.

    dropped: patterns of their names that are ignored on purpose.
    """
    expected = {name: tuple(tensor.shape) for name, tensor in write_rows(table, ours).items()}
    wanted = {name: tensor for name, tensor in tensors.items() if name in expected or not is_dropped(name, dropped)}
    check_tensors(path, {name: _entry(tensor) for name, tensor in wanted.items()}, expected)
    return wanted


def _of_one_type(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """As a model computes: some keep positions or norms wider, or narrower, than the rest. Nothing is rounded."""
    widest = functools.reduce(torch.promote_types, {tensor.dtype for tensor in tensors.values()})
    return {name: tensor.to(widest) for name, tensor in tensors.items()}


def write_rows(table: list[Row], ours: Tensors) -> dict[str, Tensor]:
    """Their tensors from ours, all of which the table must know."""
    known = {name for entry in table for name in entry.ours}
    if lost := [name for name in ours if name not in known]:
        raise ValueError(f"the format has no place for {', '.join(lost[:5])}{' and more' if len(lost) > 5 else ''}")
    result: dict[str, Tensor] = {}
    for entry in table:
        result |= zip(entry.theirs, entry.how.write([ours[name] for name in entry.ours]), strict=True)
    return result


def _entry(tensor: Tensor) -> Entry:
    return Entry(NAMES.get(tensor.dtype, str(tensor.dtype).removeprefix("torch.")), tuple(tensor.shape))


def is_dropped(name: str, dropped: Iterable[str]) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in dropped)


def renamed(tensors: Tensors, changes: Iterable[tuple[str, str]]) -> dict[str, Tensor]:
    """Tensors under the names that a table uses, where a system has called them otherwise in other versions.

    >>> renamed({"mlp.linear_1.bias": torch.zeros(1)}, [(r"mlp\\.linear_1\\.", "mlp.0.")])
    {'mlp.0.bias': tensor([0.])}
    """
    result = {}
    for name, tensor in tensors.items():
        for pattern, replacement in changes:
            name = re.sub(pattern, replacement, name)
        result[name] = tensor
    return result
