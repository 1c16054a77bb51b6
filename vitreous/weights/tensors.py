"""A safetensors file: written, looked at without reading it, compared with what is expected, and memory-mapped.

Whatever is wrong with it is a `BadCheckpoint` whose one line names the file and lists what is wrong.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from vitreous.model.checks import suggestion

NAMES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
DTYPES = tuple(NAMES.values())
ALIGNMENT = 64  # bytes: a cache line, and torch's own


class BadCheckpoint(ValueError):
    """What was found is not a whole checkpoint; the message says where and why."""


class Entry(NamedTuple):
    """What a file's header says of a tensor. The type is named as safetensors names it: F32, BF16, ..."""

    dtype: str
    shape: tuple[int, ...]


def write_tensors(tensors: Mapping[str, Tensor], file: Path) -> None:
    """In place, not atomically: for a file inside a folder that is (see files.py).

    Every tensor but the few of odd sizes begins at a multiple of 64 bytes, as torch would have it in memory: mapped
    from such a file, a model computes as fast as before it was saved, and to the same last bit.
    """
    order = sorted(tensors, key=lambda name: (tensors[name].nbytes % ALIGNMENT != 0, -tensors[name].itemsize))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in order:
        tensor, start = tensors[name], end
        end += tensor.nbytes
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % ALIGNMENT)
    with open(file, "wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            flat = tensors[name].detach().cpu().contiguous().flatten().view(torch.uint8)
            stream.write(flat.numpy().data)


def read_header(file: Path) -> dict[str, Entry]:
    """The tensors' names, types and shapes; their numbers are not read."""
    try:
        with safe_open(file, framework="pt") as tensors:
            slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118
            return {name: Entry(part.get_dtype(), tuple(part.get_shape())) for name, part in slices.items()}
    except (SafetensorError, OSError) as error:
        raise BadCheckpoint(f"{file} cannot be read: {error}") from error


def read_tensors(file: Path) -> dict[str, Tensor]:
    """The tensors, memory-mapped: the disk is read when they are used, and changes to them do not reach the file.

    Only those that do not begin at a multiple of 64 bytes are copied into memory that does.
    """
    try:
        tensors = load_file(file)
    except (SafetensorError, OSError) as error:
        raise BadCheckpoint(f"{file} cannot be read: {error}") from error
    return {name: tensor.clone() if tensor.data_ptr() % ALIGNMENT else tensor for name, tensor in tensors.items()}


def check_tensors(file: Path, found: Mapping[str, Entry], expected: Mapping[str, tuple[int, ...]]) -> None:
    """That the file has the tensors of a model: these names and shapes, no others, and all of them real numbers."""
    shared = [name for name in expected if name in found]
    missing = [name for name in expected if name not in found]
    problems = {
        "missing": missing,
        "unexpected": [name + suggestion(name, missing) for name in found if name not in expected],
        "of another shape": [
            f"{name} is {list(found[name].shape)}, but must be {list(expected[name])}"
            for name in shared
            if found[name].shape != expected[name]
        ],
        "of another type": [
            f"{name} is {found[name].dtype}, but must be one of {', '.join(DTYPES)}"
            for name in shared
            if found[name].dtype not in DTYPES
        ],
    }
    said = [f"{len(names)} {kind}: {_listed(names)}" for kind, names in problems.items() if names]
    if said:
        raise BadCheckpoint(f"{file} does not fit the model: {'; '.join(said)}")


def _listed(names: list[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
