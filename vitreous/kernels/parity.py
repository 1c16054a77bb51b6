"""Comparison of the fused kernels with their plain PyTorch operations in float64, on the GPU that will run them.

A wrong result of a kernel is worse than a slow one, and compilers differ between GPUs and versions of Triton. So each
process compares all kernels on small inputs before it uses them; tests and benchmarks use the same comparison.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 5e-3}  # of relative errors
TOKENS, HEADS = 197, 2  # of the inputs of `wrong_kernel`


def relative_error(found: Tensor, expected: Tensor) -> float:
    if found.shape != expected.shape:
        raise ValueError(f"expected shape {tuple(expected.shape)}, got {tuple(found.shape)}")
    found, expected = found.detach().double(), expected.detach().double()
    return float((found - expected).norm() / expected.norm().clamp(min=1e-12))


def _outputs(result: Tensor | tuple[Tensor, ...]) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else list(result)


def errors(
    fused: Callable[..., Any],
    plain: Callable[..., Any],
    inputs: Sequence[Tensor | None],
    generator: torch.Generator | None = None,
) -> list[float]:
    """Return the relative errors of the outputs and of the gradients, for random gradients of the outputs.

    The reference is `plain` with float64 inputs; those in 8 bits stay as they are. `generator` draws the gradients.
    """
    exact = [
        x if x is None or x.dtype.itemsize == 1 else x.detach().double().requires_grad_(x.requires_grad) for x in inputs
    ]
    found, expected = _outputs(fused(*inputs)), _outputs(plain(*exact))
    wanted, references = ([x for x in tensors if x is not None and x.requires_grad] for tensors in (inputs, exact))
    if wanted:
        grads = [torch.randn(out.shape, generator=generator, device=out.device).to(out.dtype) for out in found]
        found += torch.autograd.grad(found, wanted, grads)
        expected += torch.autograd.grad(expected, references, [grad.double() for grad in grads])
    return [relative_error(one, other) for one, other in zip(found, expected, strict=True)]


def wrong_kernel(device: torch.device, dtype: torch.dtype) -> str | None:
    """Return the name and the error of a kernel whose outputs or gradients are wrong on this device, or None."""
    generator = torch.Generator(device).manual_seed(0)  # training continues with its own random numbers
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast(device.type, enabled=False):
        for name, fused, plain, inputs in _cases(device, dtype, generator):
            for error in errors(fused, plain, inputs, generator):
                if not error < TOLERANCE[dtype]:  # true for NaN
                    return f"{name} has a relative error of {error:.1e}"
    return None


def _cases(
    device: torch.device, dtype: torch.dtype, generator: torch.Generator
) -> Iterator[tuple[str, Callable[..., Any], Callable[..., Any], list[Tensor]]]:
    from vitreous.kernels.add_norm import Branch, add_norm, layer_norm, plain_add_norm
    from vitreous.kernels.attention import attention, plain_attention, supports
    from vitreous.kernels.bias_gelu import bias_gelu, plain_bias_gelu
    from vitreous.kernels.window_attention import plain_window_attention, window_attention

    def random(*shape: int, kind: torch.dtype = dtype) -> Tensor:
        return torch.randn(shape, generator=generator, device=device).to(kind).requires_grad_()

    def vector(width: int) -> Tensor:
        return random(width, kind=torch.float32)

    def norm(call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x, y, bias, scale, weight, shift: call(x, Branch(y, bias, scale), weight, shift, 1e-6)

    def layer_norm_(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return layer_norm(x, weight, bias, 1e-6)

    def plain_layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], weight, bias, 1e-6)

    def windows(call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda qkv, bias: call(qkv, torch.arange(98, device=device).view(2, 49), bias, None, 0.18)

    calls: list[Callable[..., Any]]
    width = 64 * HEADS
    tokens = TOKENS if supports(TOKENS, 64, device) else 65
    x = random(2, tokens, width)
    yield "add_norm", norm(add_norm), norm(plain_add_norm), [x, random(2, tokens, width), *map(vector, [width] * 4)]
    yield "layer_norm", layer_norm_, plain_layer_norm, [x, vector(width), vector(width)]
    for kind in ("erf", "tanh"):
        calls = [lambda x, bias, f=f, kind=kind: f(x, bias, kind) for f in (bias_gelu, plain_bias_gelu)]
        yield f"bias_gelu ({kind})", calls[0], calls[1], [x, vector(width)]
    calls = [lambda qkv, bias, f=f: f(qkv, bias, HEADS, 0.125) for f in (attention, plain_attention)]
    yield "attention", calls[0], calls[1], [random(2, tokens, 3 * width), vector(3 * width)]
    packed = [random(2, 98, 3 * 32 * HEADS), random(HEADS, 49, 49, kind=torch.float32)]
    yield "window_attention", windows(window_attention), windows(plain_window_attention), packed
