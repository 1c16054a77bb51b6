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
    """Resources of a compiled kernel. Bytes of shared memory are those of a program, spilled bytes those of a thread."""

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


def operations() -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield every operation at the sizes of common models, without the dispatcher, which would not launch anything."""
    fp32 = torch.float32
    for width in (192, 384, 768, 1024, 1280, 1536):  # ViT-Ti, S, B, L, H and g
        x, vector = tensor(2, 197, width), tensor(width, dtype=fp32)
        norm = (vector, vector, 1e-6)
        yield f"layer_norm {width}", lambda x=x, norm=norm: add_norm._layer_norm._init_fn(x, *norm)
        scale, factor = vector, tensor(2, dtype=fp32)
        for name, branch in (("", (vector, None, None)), (" scaled", (vector, scale, factor))):

            def both(x=x, branch=branch, norm=norm) -> None:
                add_norm._add_norm._init_fn(x, x, *branch, *norm)
                add_norm._add_norm_backward._init_fn(x, x, x, x, *branch, norm[0], 1e-6)

            yield f"add_norm {width}{name}", both
    for kind in ("erf", "tanh", "quick"):

        def gelu(kind=kind, x=tensor(2, 197, 3072), vector=tensor(3072, dtype=fp32)) -> None:
            bias_gelu._bias_gelu._init_fn(x, vector, kind)
            bias_gelu._bias_gelu_backward._init_fn(x, x, vector, kind)

        yield f"bias_gelu {kind}", gelu
    for tokens in (65, 197, 256):

        def attend(t=tokens) -> None:
            if not attention.supports(t, 64, torch.device("meta")):
                return
            qkv, bias = tensor(2, t, 3 * 768), tensor(3 * 768, dtype=fp32)
            out, lse = attention._attention._init_fn(qkv, bias, 12, 0.125)
            attention._attention_backward._init_fn(out, qkv, bias, out, lse, 12, 0.125)

        yield f"attention {tokens}", attend
    for tokens, separated in ((49, False), (49, True), (64, True)):

        def window(t=tokens, separated=separated) -> None:
            pairs = tensor(64, t, t, dtype=torch.bool) if separated else None
            inputs = (tensor(2, 64 * t, 3 * 96), tensor(64, t, dtype=torch.int64), tensor(3, t, t, dtype=fp32), pairs)
            out = window_attention._window_attention._init_fn(*inputs, 0.17)
            window_attention._window_attention_backward._init_fn(out, *inputs, 0.17)

        yield f"window_attention {tokens}{' shifted' * separated}", window


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
    attention.shared_memory = lambda _: SHARED_LIMIT[capability] * 1024
    JITFunction.run = compile_only
    try:
        for current, call in operations():
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
