"""8-bit floating point (e4m3) with one scale per tensor, and its matrix product in plain PyTorch."""

import torch
from jaxtyping import Float
from torch import Tensor

FP8, LARGEST = torch.float8_e4m3fn, 448.0


def quantise(x: Float[Tensor, "*shape"], scale: Float[Tensor, ""]) -> Float[Tensor, "*shape"]:
    """Divide by the scale and round to 8 bits. Values out of range become the largest, and NaN stays NaN."""
    return (x.float() / scale).clamp(-LARGEST, LARGEST).to(FP8)


def product(
    x: Float[Tensor, "*b k"],
    weight: Float[Tensor, "n k"],
    scales: tuple[Float[Tensor, ""], Float[Tensor, ""]],
    bias: Float[Tensor, " n"] | None,
    dtype: torch.dtype,
) -> Float[Tensor, "*b n"]:
    """Return x weight^T + bias in `dtype`, for `x` and `weight` in 8 bits with these scales."""
    rows = torch._scaled_mm(x.flatten(0, -2), weight.t(), *scales, bias=bias, out_dtype=dtype, use_fast_accum=True)
    return rows.view(*x.shape[:-1], -1)
