"""A safetensors file: written, looked at without reading it, compared with what is expected, and memory-mapped.

Whatever is wrong with it is a `BadCheckpoint` whose one line names the file and lists what is wrong.
"""

import json
import math
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from vitreous.common.checks import suggestion
from vitreous.common.regular_files import check_regular

NAMES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
DTYPES = tuple(NAMES.values())
STORED = {name: dtype for dtype, name in NAMES.items()} | {  # these can be read, and refused by name
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
ALIGNMENT = 64  # bytes: a cache line, and torch's own
MAX_TENSORS = 30_000  # in one checkpoint: more than 1,024 blocks with all parts have
MAX_HEADER_BYTES = 400 * MAX_TENSORS
MOST = 1 << 48  # elements that a tensor without any would have, were its empty sides not empty


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
    """Read the names, types and shapes of the tensors, but not their data."""
    try:
        check_regular(file)
        with open(file, "rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
        if MAX_HEADER_BYTES < size <= file.stat().st_size:  # a longer one is no header, or a truncated file
            raise BadCheckpoint(f"{file} has a header of {size:,} bytes, but must have at most {MAX_HEADER_BYTES:,}")
        with safe_open(file, framework="pt") as tensors:
            check_count(file, len(tensors.keys()))
            slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118
            return {name: Entry(part.get_dtype(), tuple(part.get_shape())) for name, part in slices.items()}
    except (SafetensorError, OSError) as error:
        raise BadCheckpoint(f"{file} cannot be read: {error}") from error


def check_count(file: Path, tensors: int) -> None:
    """Refuse more tensors than any Vision Transformer has: each of them takes time, even an empty one."""
    if tensors > MAX_TENSORS:
        raise BadCheckpoint(f"{file} has {tensors:,} tensors, but must have at most {MAX_TENSORS:,}")


class Mapped(dict[str, Tensor]):
    """Tensors by name, and the files they are mapped from: the disk is read when they are used."""

    def __init__(self, tensors: Mapping[str, Tensor] | None = None, *files: mmap.mmap):
        super().__init__(tensors or {})
        self.files = files
        self.metadata: dict[str, str] = {}

    def forget(self) -> None:
        """Give back the memory that using them has taken so far. What is used again is read again.

        For tensors that nobody has changed yet: a change would be forgotten too.
        """
        for file in self.files:
            if hasattr(mmap, "MADV_DONTNEED"):  # elsewhere than on Linux, the system does it when it needs the memory
                file.madvise(mmap.MADV_DONTNEED)


def read_tensors(file: Path, alignment: int = ALIGNMENT) -> Mapped:
    """The tensors, memory-mapped: the disk is read when they are used, and changes to them do not reach the file.

    Only those that do not begin at a multiple of `alignment` bytes are copied into memory that does.
    """
    read_header(file)  # refuses a file that is not whole, and offsets that are not the tensors' own
    with open(file, "rb") as stream:
        mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
    start = 8 + int.from_bytes(mapped[:8], "little")
    header = json.loads(mapped[8:start])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        if entry["dtype"] not in STORED:
            raise BadCheckpoint(f"{file} cannot be read: {name} is {entry['dtype']}, which torch has no numbers of")
        dtype, (first, last) = STORED[entry["dtype"]], entry["data_offsets"]
        if first == last:
            if math.prod(side or 1 for side in entry["shape"]) > MOST:  # torch counts steps along empty sides too
                raise BadCheckpoint(f"{file} cannot be read: {name} has the shape {entry['shape']}")
            tensors[name] = torch.empty(entry["shape"], dtype=dtype)
            continue
        flat = torch.frombuffer(mapped, dtype=dtype, count=(last - first) // dtype.itemsize, offset=start + first)
        flat = flat.clone() if flat.data_ptr() % alignment else flat
        tensors[name] = flat.reshape(entry["shape"])
    result = Mapped(tensors, mapped)
    result.metadata = metadata
    return result


@torch.no_grad()
def copy_to_memory(model: nn.Module) -> None:
    """Replace memory-mapped weights by contiguous copies, one tensor at a time.

    A process dies (SIGBUS) when it reads a mapped file that was truncated, such as by `cp` over it. So what runs for
    long must not depend on the file.
    """
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone(memory_format=torch.contiguous_format)


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
