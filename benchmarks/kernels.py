"""Time of each fused kernel beside its plain PyTorch operation and torch.compile of that operation.

    python -m benchmarks.kernels                                           # a GPU: ViT-B, S and L, batch 256, minutes
    python -m benchmarks.kernels --batch-size 1 --sizes test --device cpu  # Triton's interpreter: values only

Values and gradients are compared with float64 on the first images. On a GPU, the times are those of CUDA graphs, so
they do not include the launches. The rates are those of the fused kernel; inputs, outputs and gradients count once.
"""

import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
import tyro
from torch import Tensor

from vitreous.common.text import single_spaced
from vitreous.kernels.parity import errors

Size = Literal["S", "B", "L", "test"]
WIDTHS: dict[Size, int] = {"S": 384, "B": 768, "L": 1024, "test": 64}
TOKENS, CHECKED, EPS = 197, 2, 1e-6  # CHECKED: images that are compared with float64


@dataclass(frozen=True)
class Options:
    """Benchmark options."""

    sizes: tuple[Size, ...] = ("B", "S", "L")
    batch_size: int = 256
    tokens: int = TOKENS
    device: str = "cuda"
    compile: bool = True
    seconds: float = 270.0  # time limit; later measurements are skipped
    out: Path = Path("runs/bench/kernels.json")


@dataclass(frozen=True)
class Case:
    """An operation with its inputs. All functions take the same tensors."""

    name: str
    fused: Callable[..., Any]
    plain: Callable[..., Any]
    inputs: tuple[Tensor, ...]
    per_image: int  # the number of inputs at the front whose first dimension is the batch
    operations: float = 0.0  # multiply-adds of a forward pass, times two; 0 if memory is the limit
    trains: bool = True


@dataclass(frozen=True)
class Result:
    operation: str
    size: str
    direction: str
    system: str
    milliseconds: float | None = None
    gigabytes_per_second: float | None = None
    teraflops: float | None = None
    speed: float | None = None  # relative to plain PyTorch; above 1 is faster
    error: float | None = None  # relative, of outputs or gradients; the largest
    problem: str = ""


def cases(options: Options, size: Size, device: torch.device) -> Iterator[Case]:
    """Yield the operations of a Transformer of this size."""
    from vitreous.kernels.add_norm import Branch, add_norm, plain_add_norm
    from vitreous.kernels.attention import attention, plain_attention
    from vitreous.kernels.bias_gelu import bias_gelu, plain_bias_gelu
    from vitreous.kernels.window_attention import plain_window_attention, window_attention
    from vitreous.model.windows import Windows, token_indices

    b, t, d = options.batch_size, options.tokens, WIDTHS[size]
    half = torch.bfloat16 if device.type == "cuda" else torch.float16  # as in the tests

    def random(*shape: int, dtype: torch.dtype = half, scale: float = 1.0) -> Tensor:
        return (scale * torch.randn(shape, device=device)).to(dtype).requires_grad_()

    def vector(length: int = d) -> Tensor:
        return random(length, dtype=torch.float32)

    norm = (random(b, t, d), random(b, t, d), vector(), vector(), vector())

    def norms(call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x, y, bias, weight, shift: call(x, Branch(y, bias), weight, shift, EPS)

    yield Case("add + norm", norms(add_norm), norms(plain_add_norm), norm, 2)
    fp8 = device.type == "cpu" or torch.cuda.get_device_capability(device) >= (8, 9)
    if fp8:
        step = torch.tensor(0.02, device=device)  # one unit in 8 bits

        def eighths(call: Callable[..., Any]) -> Callable[..., Any]:
            return lambda x, y, bias, weight, shift: call(x, Branch(y, bias), weight, shift, EPS, step)

        yield Case("add + norm to fp8", eighths(add_norm), eighths(plain_add_norm), norm, 2, trains=False)

    def scaled(call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x, y, bias, weight, shift, scale: call(x, Branch(y, bias, scale), weight, shift, EPS)

    yield Case("LayerScale + add + norm", scaled(add_norm), scaled(plain_add_norm), (*norm, vector()), 2)
    calls: list[Callable[..., Any]]
    for kind in ("erf", "tanh"):
        inputs = (random(b, t, 4 * d), vector(4 * d))
        calls = [lambda x, bias, f=f, k=kind: f(x, bias, k) for f in (bias_gelu, plain_bias_gelu)]
        yield Case(f"bias + GELU ({kind})", calls[0], calls[1], inputs, 1)
    qkv = (random(b, t, 3 * d), vector(3 * d))
    calls = [lambda x, bias, f=f: f(x, bias, d // 64, 0.125) for f in (attention, plain_attention)]
    yield Case("attention", calls[0], calls[1], qkv, 1, 4 * b * t * t * d)
    side = 56 if device.type == "cuda" else 7
    indices = token_indices(Windows((side, side), (7, 7)), device)
    yield from linear_layers(random, b, t, d, fp8)
    # Swin-T's first stage has 3 heads of 32 channels.
    inputs = (random(max(b // 4, 1), side**2, 9 * 32), random(3, 49, 49, dtype=torch.float32))
    calls = [
        lambda x, bias, f=f: f(x, indices, bias, None, 32**-0.5) for f in (window_attention, plain_window_attention)
    ]
    if size in ("B", "test"):
        operations = 4 * inputs[0].shape[0] * side**2 * 49 * 96
        yield Case("attention in windows (Swin-T)", calls[0], calls[1], inputs, 1, operations)


def linear_layers(random: Callable[..., Tensor], b: int, t: int, d: int, fp8: bool) -> Iterator[Case]:
    """Yield the up projection in 16 bits, and in 8 bits beside it. Their speed limits that of a model."""
    from vitreous.kernels.fp8 import LARGEST, product, quantise

    x, weight, operations = random(b, t, d), random(4 * d, d, scale=d**-0.5), 8.0 * b * t * d * d
    yield Case("linear", F.linear, F.linear, (x, weight), 1, operations)
    if fp8:
        scales = tuple((value.detach().abs().amax() / LARGEST).float() for value in (x, weight))
        eight = [quantise(value.detach(), scale) for value, scale in zip((x, weight), scales, strict=True)]
        dtype = x.dtype

        def fused(x: Tensor, weight: Tensor) -> Tensor:
            return product(x, weight, (scales[0], scales[1]), None, dtype)

        def plain(x: Tensor, weight: Tensor) -> Tensor:  # 8 bits are exact in 16 bits
            return F.linear(x.to(dtype), weight.to(dtype)) * (scales[0] * scales[1]).to(dtype)

        yield Case("linear in fp8", fused, plain, tuple(eight), 1, operations, trains=False)


# ---- Measurement -----------------------------------------------------------------------------------------------------


def outputs_of(case: Case, function: Callable[..., Any], inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    found = function(*inputs)
    return (found,) if isinstance(found, Tensor) else tuple(found)


def error_of(case: Case, function: Callable[..., Any]) -> float:
    """Return the largest relative error of outputs and gradients on a few images, compared with float64."""
    few = [
        x.detach()[: CHECKED if place < case.per_image else None].requires_grad_(case.trains)
        for place, x in enumerate(case.inputs)
    ]
    generator = torch.Generator(case.inputs[0].device).manual_seed(0)  # the same for all functions
    return max(errors(function, case.plain, few, generator))


def seconds_of(call: Callable[[], object], device: torch.device) -> float:
    """Return the median duration of a call."""
    if device.type == "cuda":
        from triton.testing import do_bench_cudagraph

        return float(do_bench_cudagraph(call, rep=60, return_mode="median")) / 1e3
    times = []
    for _ in range(3):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def call_of(case: Case, function: Callable[..., Any], backward: bool) -> Callable[[], object]:
    """Return a function that runs a forward pass or both passes."""
    inputs = case.inputs
    if not backward:

        def forward() -> object:
            with torch.no_grad():
                return function(*inputs)

        return forward
    shapes = outputs_of(case, function, inputs)
    grads = [torch.randn_like(out) for out in shapes]
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    return lambda: torch.autograd.grad(outputs_of(case, function, inputs), wanted, grads)


def least_bytes(case: Case, backward: bool) -> int:
    """Count each input and output once; in training, each input again, and each gradient."""
    with torch.no_grad():
        found = outputs_of(case, case.plain, case.inputs)
    given = sum(x.nbytes for x in case.inputs)
    return given + sum(out.nbytes for out in found) + backward * (2 * given + sum(out.nbytes for out in found))


def measure(case: Case, size: Size, options: Options, device: torch.device, late: Callable[[], bool]) -> list[Result]:
    """Time the fused, plain and compiled operation, forward and in both directions."""
    systems: dict[str, Callable[..., Any]] = {"fused": case.fused, "plain": case.plain}
    if options.compile and device.type == "cuda":
        torch._dynamo.reset()  # it compiles a function for only a few sizes
        systems["compiled"] = torch.compile(case.plain, dynamic=False)
    found: dict[tuple[str, str], Result] = {}
    for backward in (False, True)[: 1 + case.trains]:
        direction = "forward + backward" if backward else "forward"
        moved, operations = least_bytes(case, backward), case.operations * (3.5 if backward else 1)
        for system, function in systems.items():
            key = (case.name, size, direction, system)
            if late() and system == "compiled":
                found[direction, system] = Result(*key, problem="skipped: time limit")
                continue
            try:
                error = error_of(case, function) if system != "compiled" and backward == case.trains else None
                seconds = seconds_of(call_of(case, function, backward), device)
            except Exception as problem:  # the other operations must still run
                found[direction, system] = Result(
                    *key, problem=single_spaced(f"{type(problem).__name__}: {problem}", 300)
                )
                continue
            rate = operations / seconds / 1e12 if operations else None
            found[direction, system] = Result(*key, seconds * 1e3, moved / seconds / 1e9, rate, error=error)
    return [with_speed(result, found.get((result.direction, "plain"))) for result in found.values()]


def with_speed(result: Result, plain: Result | None) -> Result:
    if plain is None or not plain.milliseconds or not result.milliseconds:
        return result
    return Result(**{**vars(result), "speed": plain.milliseconds / result.milliseconds})


def number(value: float | None, form: str) -> str:
    return "" if value is None or not math.isfinite(value) else format(value, form)


def row_of(results: dict[str, Result]) -> list[str]:
    """Return a row of the table from the results of all systems for an operation."""
    fused, plain = results["fused"], results["plain"]
    times = [results.get(system) for system in ("fused", "plain", "compiled")]
    return [
        f"{fused.operation}, {fused.size}, {fused.direction}",
        *("" if one is None else one.problem[:30] or number(one.milliseconds, ".4f") for one in times),
        number(fused.gigabytes_per_second, ".0f"),
        number(fused.teraflops, ".0f"),
        " / ".join(filter(None, (number(one.error, ".1e") for one in (fused, plain)))),
    ]


def main(options: Options) -> None:
    device, started = torch.device(options.device), time.perf_counter()
    if device.type == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"  # before the kernels are imported
    from benchmarks.publish_table import publish

    torch.manual_seed(0)
    results: list[Result] = []
    for size in options.sizes:
        for case in cases(options, size, device):
            results += measure(case, size, options, device, lambda: time.perf_counter() - started > options.seconds)
    where = torch.cuda.get_device_name() if device.type == "cuda" else "CPU, Triton's interpreter"
    setting = f"{where}, batch {options.batch_size}, {options.tokens} tokens"
    columns = ["operation", "fused, ms", "plain", "compiled", "fused, GB/s", "TFLOP/s", "error of fused / plain"]
    rows: dict[tuple[str, str, str], dict[str, Result]] = {}
    for result in results:
        rows.setdefault((result.operation, result.size, result.direction), {})[result.system] = result
    publish(setting, columns, list(map(row_of, rows.values())), results, options.out)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
