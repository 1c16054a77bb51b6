"""Helpers of all kernels: launching, tile sizes and deterministic sums."""

import functools
from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """Return the number of multiprocessors of a GPU. Triton's interpreter on a CPU has a few programs."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


def width_block(width: int) -> int:
    """Return the block size for `width` columns: Triton needs powers of two, and its matrix products at least 16."""
    return max(triton.next_power_of_2(width), 16)


SUMMED_COLUMNS, SUMMED_ROWS = 32, 64


@triton.jit
@no_type_check
def _column_sums(partial, out, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, rows, ROWS):
        row = start + tl.arange(0, ROWS)
        valid = (row[:, None] < rows) & (column[None] < columns)
        total += tl.load(partial + row[:, None] * columns + column[None], mask=valid, other=0.0)
    tl.store(out + column, tl.sum(total, 0), mask=column < columns)


def column_sums(partial: Tensor) -> Tensor:
    """Sum a float32 tensor [p, ...] over its first dimension, always in the same order."""
    out = torch.empty(partial.shape[1:], dtype=torch.float32, device=partial.device)
    grid = (triton.cdiv(out.numel(), SUMMED_COLUMNS),)
    _column_sums[grid](partial, out, partial.shape[0], out.numel(), SUMMED_ROWS, SUMMED_COLUMNS)
    return out
