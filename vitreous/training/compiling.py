"""Compiles models with torch.compile before the first step, by default only if that makes the run shorter.

--compile compiles the whole model, with CUDA graphs if possible. This gives the fastest steps but takes a minute. By
default, only the transformer blocks are compiled; all blocks run the same code, which is compiled only once.
"""

import time
from collections.abc import Callable, Sequence

import torch
from torch import nn

from vitreous.common.distributed import World
from vitreous.common.text import roughly, single_spaced
from vitreous.tasks.base import Choice
from vitreous.tasks.config import TrainConfig

# Measured on an H200 with ViT-S: compiling the blocks takes 9.5 s and makes a step 1.33 times as fast.
COMPILE_SECONDS, SPEED_UP = 10.0, 1.3
WARM_UP, MEASURED = 3, 5  # steps
# The model must be compiled separately for evaluation. This only pays off with at least this many evaluated images.
EVALUATED_IMAGES = 500_000


def compiled(module: nn.Module, config: TrainConfig, world: World, called_once: bool) -> nn.Module:
    """Compile a module, with CUDA graphs if its outputs are consumed before the next call."""
    graphs = world.device.type == "cuda" and not world.many and config.accumulate == 1 and called_once
    return torch.compile(module, mode="reduce-overhead" if graphs else None)  # type: ignore[return-value]


def compiled_evaluation(module: nn.Module) -> nn.Module:
    """Compile a module for evaluations, whose batches all have the same size."""
    return torch.compile(module, dynamic=False)  # type: ignore[return-value]


def compile_blocks(blocks: Sequence[nn.Module]) -> None:
    """Compile transformer blocks in place."""
    for block in blocks:
        block.compile(dynamic=False)


def choose_compile(
    rehearse: Callable[[], None], steps: int, blocks: Sequence[nn.Module], config: TrainConfig, world: World
) -> Choice:
    """Compile the blocks if that makes the run shorter. `rehearse` runs a training step without updating weights."""
    if not blocks or config.parallel == "fsdp":
        return Choice("compile", False, "not supported for this model or with --parallel fsdp")
    seconds = max(world.gather(steps * seconds_per_step(rehearse, world.device)))  # the same choice in all processes
    if seconds * (1 - 1 / SPEED_UP) < COMPILE_SECONDS:
        return Choice("compile", False, f"all steps together take only about {roughly(seconds)}")
    compile_blocks(blocks)
    reason = ""
    try:
        rehearse()
    except Exception as error:  # torch.compile raises many kinds of errors, e.g. if there is no C compiler
        reason = single_spaced(str(error) or type(error).__name__, 80)
    if reason := next(filter(None, world.gather(reason)), ""):
        for block in blocks:
            block._compiled_call_impl = None
        return Choice("compile", False, f"torch.compile failed: {reason}")
    return Choice("compile", "blocks", f"without compiling, all steps together would take about {roughly(seconds)}")


def seconds_per_step(rehearse: Callable[[], None], device: torch.device) -> float:
    """Return the mean duration of a step in seconds, measured after a few warm-up steps."""
    repeat(rehearse, WARM_UP, device)
    started = time.perf_counter()
    repeat(rehearse, MEASURED, device)
    return (time.perf_counter() - started) / MEASURED


def repeat(rehearse: Callable[[], None], times: int, device: torch.device) -> None:
    """Call `rehearse` several times, then wait for the device to finish."""
    for _ in range(times):
        rehearse()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
