"""Helpers of all kernels: devices, tile sizes and deterministic sums."""

import functools
from contextlib import AbstractContextManager, nullcontext
from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.compiler.compiler import max_shared_mem

from vitreous.common.compiler import traced_as_constant
from vitreous.kernels.fp8 import FP8


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """Return the number of multiprocessors of a GPU. Triton's interpreter on a CPU has a few programs."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


@traced_as_constant
def shared_memory(device: torch.device) -> int:
    """Return the bytes of shared memory that a program can use on a GPU. Triton's interpreter has no limit."""
    return int(max_shared_mem(device.index)) if device.type == "cuda" else 1 << 30  # what triton itself checks


def on_device_of(tensor: Tensor) -> AbstractContextManager[object]:
    """Make the tensor's GPU the current one, where triton launches kernels."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


def width_block(width: int) -> int:
    """Return the block size for `width` columns: Triton needs powers of two, and its matrix products at least 16."""
    return max(triton.next_power_of_2(width), 16)


@triton.jit
@no_type_check
def divided(x, scale):
    """Divide by the scale of an 8-bit tensor. Comparisons with NaN are false, so that NaN stays NaN."""
    x = x * (1.0 / tl.load(scale))
    return tl.where(x > 448.0, 448.0, tl.where(x < -448.0, -448.0, x))


def empty_result(x: Tensor, fp8_scale: Tensor | None) -> Tensor:
    """Return a new tensor like `x`, in 8 bits if it has a scale."""
    return torch.empty_like(x, dtype=None if fp8_scale is None else FP8)


ROWS, COLUMNS, SPLIT = 32, 64, 1024  # a tile of a sum, and the number of rows per program


@triton.jit
@no_type_check
def _column_sums(x, out, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr, SPLIT: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    first = tl.program_id(1) * SPLIT
    for start in range(first, tl.minimum(first + SPLIT, rows), ROWS):
        row = start + tl.arange(0, ROWS)[:, None]
        valid = (row < rows) & (column[None] < columns)
        total += tl.load(x + row.to(tl.int64) * columns + column[None], mask=valid, other=0.0).to(tl.float32)
    tl.store(out + tl.program_id(1) * columns + column, tl.sum(total, 0), mask=column < columns)


def column_sums(x: Tensor) -> Tensor:
    """Sum a tensor [n, ...] over its first dimension in float32, always in the same order."""
    splits = triton.cdiv(x.shape[0], SPLIT)
    out = torch.empty(splits, *x.shape[1:], dtype=torch.float32, device=x.device)
    columns = out[0].numel()
    grid = (triton.cdiv(columns, COLUMNS), splits)
    with on_device_of(x):
        _column_sums[grid](x, out, x.shape[0], columns, ROWS, COLUMNS, SPLIT)
    return out[0] if splits == 1 else column_sums(out)
