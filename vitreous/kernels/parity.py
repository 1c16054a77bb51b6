"""Comparison of the fused kernels with their plain PyTorch operations in float64, on the GPU that will run them.

A wrong result of a kernel is worse than a slow one, and compilers differ between GPUs and versions of Triton. So each
process compares the kernels on small inputs before it uses them; tests and benchmarks use the same comparison.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 5e-3}  # of relative errors
TOKENS, HEADS = 197, 12  # of the inputs of `wrong_kernel`: those of ViT-B/16


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


def wrong_kernel(device: torch.device, dtype: torch.dtype, gradients: bool) -> str | None:
    """Return the name and the error of a kernel whose outputs or gradients are wrong on this device, or None."""
    generator = torch.Generator(device).manual_seed(0)  # training continues with its own random numbers
    unhooked = torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x)  # hides those of the caller
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast(device.type, enabled=False), unhooked:
        for name, fused, plain, inputs in _cases(device, dtype, generator):
            given = [x if x is None else x.detach().requires_grad_(gradients) for x in inputs]
            for error in errors(fused, plain, given, generator):
                if not error < TOLERANCE[dtype]:  # true for NaN
                    return f"{name} has a relative error of {error:.1e}"
    return None


def _cases(
    device: torch.device, dtype: torch.dtype, generator: torch.Generator
) -> Iterator[tuple[str, Callable[..., Any], Callable[..., Any], list[Tensor | None]]]:
    from vitreous.kernels.add_norm import Branch, add_norm, layer_norm, plain_add_norm, plain_layer_norm
    from vitreous.kernels.attention import attention, plain_attention, supports
    from vitreous.kernels.bias_gelu import Gelu, bias_gelu, plain_bias_gelu
    from vitreous.kernels.window_attention import plain_window_attention, window_attention

    width, tokens = 64 * HEADS, TOKENS if supports(TOKENS, 64, device) else 65

    def random(*shape: int, kind: torch.dtype = dtype) -> Tensor:
        return torch.randn(shape, generator=generator, device=device).to(kind)

    def vector(length: int = width) -> Tensor:
        return random(length, kind=torch.float32)

    calls: list[Callable[..., Any]]
    x, y, wide = random(2, tokens, width), random(2, tokens, width), random(2, tokens, width, kind=torch.float32)
    for inputs, drop in (([x, y, vector(), None], None), ([wide, y, vector(), vector()], [0.0, 1.25])):
        factor = None if drop is None else torch.tensor(drop, device=device)
        calls = [
            lambda x, y, bias, scale, *norm, f=f, factor=factor: f(x, Branch(y, bias, scale, factor), *norm, 1e-6)
            for f in (add_norm, plain_add_norm)
        ]
        yield "add_norm", calls[0], calls[1], [*inputs, vector(), vector()]
    calls = [
        lambda x, weight, bias, f=f: f(x, weight, bias, 1e-6, x.dtype if x.dtype == torch.float64 else dtype)
        for f in (layer_norm, plain_layer_norm)
    ]
    yield "layer_norm", calls[0], calls[1], [wide, vector(), vector()]
    kinds: tuple[Gelu, ...] = ("erf", "tanh", "quick")
    for kind in kinds:
        calls = [lambda x, bias, f=f, kind=kind: f(x, bias, kind) for f in (bias_gelu, plain_bias_gelu)]
        yield f"bias_gelu ({kind})", calls[0], calls[1], [x, vector()]
    calls = [lambda qkv, bias, f=f: f(qkv, bias, HEADS, 0.125) for f in (attention, plain_attention)]
    yield "attention", calls[0], calls[1], [random(2, tokens, 3 * width), vector(3 * width)]
    indices = torch.randperm(98, generator=generator, device=device).view(2, 49)
    apart = torch.rand(2, 49, 49, generator=generator, device=device) < 0.3
    calls = [
        lambda qkv, bias, f=f: f(qkv, indices, bias, apart, 0.18) for f in (window_attention, plain_window_attention)
    ]
    yield "window_attention", calls[0], calls[1], [random(2, 98, 9 * 32), random(3, 49, 49, kind=torch.float32)]
