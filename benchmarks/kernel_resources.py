"""Registers, spills and shared memory of the fused kernels, compiled for several GPUs by a machine that needs none.

    python -m benchmarks.kernel_resources [--capabilities 80 86 90 100] [--operations "attention.*"] [--json FILE]

A kernel that needs more shared memory than a multiprocessor lends to it fails when it is launched. One that spills
registers is slow. The launches are those of the operations themselves, for tensors on the meta device.
"""

import argparse
import json
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from vitreous.kernels import add_norm, attention, bias_gelu, window_attention

SHARED_LIMIT = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}  # KiB per program, by compute capability


class Usage(NamedTuple):
    """Resources of a compiled kernel. Shared bytes are those of a program, spilled bytes those of a thread."""

    operation: str
    kernel: str
    capability: int
    warps: int
    registers: int
    spilled: int
    shared: int

    @property
    def problem(self) -> str:
        limit = SHARED_LIMIT[self.capability] * 1024
        if self.shared > limit:
            return f"{self.shared:,} bytes of shared memory, but sm_{self.capability} has {limit:,}"
        return f"{self.spilled} bytes spilled" if self.spilled else ""


class Target:
    """Replaces Triton's driver: compiles for a GPU that this machine need not have."""

    def __init__(self, capability: int):
        self.capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return self.capability

    def get_current_stream(self, device: int) -> int:
        return 0


def usage(operation: str, kernel: Any, capability: int) -> Usage:
    """Read the resources of a kernel from its machine code."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(kernel.asm["cubin"])
        tool = triton.knobs.nvidia.cuobjdump.path
        text = subprocess.run([tool, "-res-usage", str(file)], capture_output=True, text=True, check=True).stdout
    found = {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", text)}
    meta = kernel.metadata
    spilled = found["STACK"] + found["LOCAL"]
    return Usage(operation, meta.name, capability, meta.num_warps, found["REG"], spilled, meta.shared)


def tensor(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def norms(width: int, scaled: bool) -> None:
    """Launch the norms with all inputs that a model has. Implementations are called without the dispatcher.

    With LayerScale, the tokens are in 32 bits.
    """
    y, vector = tensor(2, 197, width), tensor(width, dtype=torch.float32)
    x = tensor(2, 197, width, dtype=torch.float32) if scaled else y
    branch = (vector, vector, tensor(2, dtype=torch.float32)) if scaled else (vector, None, None)
    add_norm._layer_norm._init_fn(x, vector, vector, 1e-6, y.dtype)
    add_norm._add_norm._init_fn(x, y, *branch, vector, vector, 1e-6)
    add_norm._add_norm_backward._init_fn(x, y, x, y, *branch, vector, 1e-6)


def gelu(kind: str) -> None:
    x, bias = tensor(2, 197, 3072), tensor(3072, dtype=torch.float32)
    bias_gelu._bias_gelu._init_fn(x, bias, kind)
    bias_gelu._bias_gelu_backward._init_fn(x, x, bias, kind)


def attend(tokens: int) -> None:
    if attention.supports(tokens, 64, torch.device("meta")):
        qkv, bias = tensor(2, tokens, 3 * 768), tensor(3 * 768, dtype=torch.float32)
        out, lse = attention._attention._init_fn(qkv, bias, 12, 0.125)
        attention._attention_backward._init_fn(out, qkv, bias, out, lse, 12, 0.125)


def attend_in_windows(tokens: int, shifted: bool) -> None:
    pairs = tensor(64, tokens, tokens, dtype=torch.bool) if shifted else None
    bias = tensor(3, tokens, tokens, dtype=torch.float32)
    inputs = (tensor(2, 64 * tokens, 3 * 96), tensor(64, tokens, dtype=torch.int64), bias, pairs)
    out = window_attention._window_attention._init_fn(*inputs, 0.17)
    window_attention._window_attention_backward._init_fn(out, *inputs, 0.17)


def quantised() -> None:
    """Launch the kernels that write 8 bits."""
    x, vector, scale = tensor(2, 197, 768), tensor(768, dtype=torch.float32), tensor(dtype=torch.float32)
    add_norm._add_norm._init_fn(x, x, vector, None, None, vector, vector, 1e-6, scale)
    bias_gelu._bias_gelu._init_fn(x, vector, "erf", scale)
    attention._attention._init_fn(tensor(2, 197, 3 * 768), None, 12, 0.125, scale)


def operations(capability: int) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield every operation at the sizes of common models: ViT-Ti, S, B, L, H and g; Swin."""
    for width in (192, 384, 768, 1024, 1280, 1536):
        yield f"add_norm {width}", partial(norms, width, scaled=False)
        yield f"add_norm {width} scaled", partial(norms, width, scaled=True)
    for kind in ("erf", "tanh", "quick"):
        yield f"bias_gelu {kind}", partial(gelu, kind)
    for tokens in (65, 197, 256):
        yield f"attention {tokens}", partial(attend, tokens)
    for tokens, shifted in ((49, False), (49, True), (64, True)):
        yield f"window_attention {tokens}{' shifted' * shifted}", partial(attend_in_windows, tokens, shifted)
    if capability >= 89:
        yield "fp8", quantised


def measure(capability: int, wanted: str) -> list[Usage]:
    """Compile the kernels of the operations whose names match a pattern, for one kind of GPU."""
    found: list[Usage] = []
    seen: set[int] = set()
    run, current = JITFunction.run, ""

    def compile_only(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> None:
        kernel = run(self, *arguments, grid=grid, warmup=True, **options)
        if id(kernel) not in seen:
            seen.add(id(kernel))
            found.append(usage(current, kernel, capability))

    driver.set_active(Target(capability))
    vars(attention)["shared_memory"] = lambda _: SHARED_LIMIT[capability] * 1024
    JITFunction.run = compile_only
    try:
        for current, call in operations(capability):
            if re.fullmatch(wanted, current):
                call()
    finally:
        JITFunction.run = run
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capabilities", type=int, nargs="+", default=[80, 86, 90, 100])
    parser.add_argument("--operations", default=".*", help="a regular expression for their names")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = [row for capability in options.capabilities for row in measure(capability, options.operations)]
    print(f"{'operation':<28}{'kernel':<16}{'sm':>4}{'warps':>6}{'registers':>10}{'spilled':>9}{'shared':>9}  problem")
    for row in rows:
        numbers = f"{row.capability:>4}{row.warps:>6}{row.registers:>10}{row.spilled:>9}{row.shared:>9}"
        print(f"{row.operation:<28}{row.kernel:<16}{numbers}  {row.problem}")
    if options.json:
        options.json.write_text(
            json.dumps([{**row._asdict(), "problem": row.problem} for row in rows], indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
