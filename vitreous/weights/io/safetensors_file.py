"""Writes, checks and memory-maps safetensors files."""

import json
import math
import mmap
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from vitreous.common.checks import suggestion
from vitreous.common.text import first_few
from vitreous.common.untrusted_files import check_regular
from vitreous.weights.io.errors import BadCheckpoint

NAMES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
DTYPES = tuple(NAMES.values())
STORED = {name: dtype for dtype, name in NAMES.items()}
# Other dtypes can be read, but are not supported in a model.
STORED |= {f"I{bits}": getattr(torch, f"int{bits}") for bits in (8, 16, 32, 64)}
STORED |= {f"U{bits}": getattr(torch, f"uint{bits}") for bits in (8, 16, 32, 64)}
STORED |= {"BOOL": torch.bool, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2}
DTYPE_NAMES = {dtype: name for name, dtype in STORED.items()}
ALIGNMENT = 64  # bytes; the size of a cache line and torch's alignment
MAX_TENSORS = 30_000  # per checkpoint; 1,024 blocks with all options need fewer
MAX_HEADER_BYTES = 400 * MAX_TENSORS
MAP_NORESERVE = 0x4000  # Linux's flag, which the module mmap has only since Python 3.13
MAX_ELEMENTS = 1 << 48  # limit for empty tensors, with empty dimensions counted as 1


class Entry(NamedTuple):
    """Dtype (F32, BF16, ...) and shape of a tensor, as stated in the file header."""

    dtype: str
    shape: tuple[int, ...]


def write_tensors(tensors: Mapping[str, Tensor], file: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors (not atomically)."""
    start, order = header_for(tensors, metadata)
    with open(file, "wb") as stream:
        stream.write(start)
        for name in order:
            flat = tensors[name].detach().cpu().contiguous().flatten().view(torch.uint8)
            stream.write(flat.numpy().data)


def header_for(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> tuple[bytes, dict[str, int]]:
    """Return the start of a file, and the offset of each tensor. Most tensors are aligned to 64 bytes."""
    order = sorted(tensors, key=lambda name: (tensors[name].nbytes % ALIGNMENT != 0, -tensors[name].itemsize))
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **(metadata or {})}}
    end = 0
    for name in order:
        tensor, start = tensors[name], end
        end += tensor.nbytes
        header[name] = {"dtype": DTYPE_NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % ALIGNMENT)
    text = len(text).to_bytes(8, "little") + text
    return text, {name: len(text) + header[name]["data_offsets"][0] for name in order}


def read_header(file: Path) -> dict[str, Entry]:
    """Read the names, dtypes and shapes of the tensors, without their data."""
    try:
        check_regular(file)
        with open(file, "rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
        if MAX_HEADER_BYTES < size <= file.stat().st_size:  # safetensors rejects larger sizes
            raise BadCheckpoint(f"{file} has a header of {size:,} bytes; the maximum is {MAX_HEADER_BYTES:,} bytes")
        with safe_open(file, framework="numpy") as tensors:  # "pt" cannot map files larger than memory
            check_count(file, len(tensors.keys()))
            slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118
            return {name: Entry(part.get_dtype(), tuple(part.get_shape())) for name, part in slices.items()}
    except (SafetensorError, OSError) as error:
        raise BadCheckpoint(f"{file} cannot be read: {error}") from error


def check_count(file: Path, tensors: int) -> None:
    """Raise BadCheckpoint if there are more than MAX_TENSORS tensors. Even empty tensors take time to load."""
    if tensors > MAX_TENSORS:
        raise BadCheckpoint(f"{file} has {tensors:,} tensors; the maximum is {MAX_TENSORS:,}")


class Mapped(dict[str, Tensor]):
    """Tensors by name, memory-mapped from files and read from disk on first use."""

    def __init__(self, tensors: Mapping[str, Tensor] | None = None, *files: mmap.mmap):
        super().__init__(tensors or {})
        self.files = files
        self.metadata: dict[str, str] = {}

    def forget(self) -> None:
        """Free the pages read so far. Changes to the tensors are lost."""
        for file in self.files:
            if hasattr(mmap, "MADV_DONTNEED"):  # Linux; other systems free pages when memory is low
                file.madvise(mmap.MADV_DONTNEED)


def map_copy_on_write(stream: BinaryIO) -> mmap.mmap:
    """Memory-map a file, which may be larger than memory. Changes are not written to it."""
    if sys.platform != "linux":
        return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
    return mmap.mmap(stream.fileno(), 0, flags=mmap.MAP_PRIVATE | MAP_NORESERVE)


def read_tensors(file: Path, alignment: int = ALIGNMENT) -> Mapped:
    """Memory-map the tensors copy-on-write. Tensors that are not aligned to `alignment` bytes are copied."""
    read_header(file)  # rejects truncated files and invalid offsets
    with open(file, "rb") as stream:
        mapped = map_copy_on_write(stream)
    start = 8 + int.from_bytes(mapped[:8], "little")
    header = json.loads(mapped[8:start])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        if entry["dtype"] not in STORED:
            raise BadCheckpoint(f"{file} cannot be read: torch does not support {entry['dtype']}, the dtype of {name}")
        dtype, (first, last) = STORED[entry["dtype"]], entry["data_offsets"]
        if first == last:
            # torch computes strides even for empty dimensions
            if math.prod(side or 1 for side in entry["shape"]) > MAX_ELEMENTS:
                raise BadCheckpoint(f"{file} cannot be read: {name} has the invalid shape {entry['shape']}")
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
    """Copy memory-mapped weights to memory, because truncating a mapped file crashes the process (SIGBUS)."""
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone(memory_format=torch.contiguous_format)


def check_tensors(file: Path, found: Mapping[str, Entry], expected: Mapping[str, tuple[int, ...]]) -> None:
    """Raise BadCheckpoint unless the file has exactly the expected tensors, all with floating-point dtypes."""
    shared = [name for name in expected if name in found]
    missing = [name for name in expected if name not in found]
    problems = {
        "missing": missing,
        "unexpected": [name + suggestion(name, missing) for name in found if name not in expected],
        "with the wrong shape": [
            f"{name} is {list(found[name].shape)}, expected {list(expected[name])}"
            for name in shared
            if found[name].shape != expected[name]
        ],
        "with an unsupported dtype": [
            f"{name} is {found[name].dtype}, expected one of {', '.join(DTYPES)}"
            for name in shared
            if found[name].dtype not in DTYPES
        ],
    }
    lines = [f"{len(names)} {kind}: {first_few(names)}" for kind, names in problems.items() if names]
    if lines:
        raise BadCheckpoint(f"{file} does not match the model: {'; '.join(lines)}")
