"""Without a GPU, the kernels run in Triton's interpreter (see tests/conftest.py)."""

from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="the kernels need triton")

from triton import language as tl
from triton.runtime import interpreter

convert = interpreter._convert_float


def rounded(data: Any, source: tl.dtype, target: tl.dtype, rounding: Any) -> Any:
    """Round to 8 bits as a GPU does. The interpreter's own conversion loses carries and NaN."""
    if (source, target) != (tl.float32, tl.float8e4nv):
        return convert(data, source, target, rounding)
    return torch.from_numpy(data).to(torch.float8_e4m3fn).view(torch.uint8).numpy()


interpreter._convert_float = rounded
