"""Prepares the training step for speed: CUDA graphs and torch.compile.

CUDA graphs replay all kernels of a forward and backward pass with one call, so small batches do not wait for Python.
Recording them takes a second, so they are used by default. The transformer blocks are also compiled if that makes the
run shorter; all blocks run the same code, which is compiled only once. --compile compiles the whole model instead. This
gives the fastest steps but takes a minute.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.common.distributed import World
from vitreous.common.text import roughly, single_spaced
from vitreous.tasks.base import Choice
from vitreous.tasks.config import TrainConfig
from vitreous.training.optimizer_step import Stepper

# Measured on an H200 with ViT-S: compiling the blocks takes 9.5 s and makes a step 1.33 times as fast.
COMPILE_SECONDS, SPEED_UP = 10.0, 1.3
WARM_UP, MEASURED = 3, 5  # steps
# The model or its blocks must be compiled again for evaluation. This pays off with at least this many evaluated images.
EVALUATED_IMAGES = 500_000


def uncompiled_blocks(uncompiled: bool) -> AbstractContextManager[object]:
    """If `uncompiled`, run compiled blocks without compilation inside the `with` block."""
    return torch.compiler.set_stance("force_eager") if uncompiled else nullcontext()


def suits_graphs(config: TrainConfig, world: World, called_once: bool) -> bool:
    """Return True if CUDA graphs support the step: their outputs must be consumed before the next call."""
    return world.device.type == "cuda" and not world.many and config.accumulate == 1 and called_once


def compiled(module: nn.Module, graphs: bool) -> nn.Module:
    """Compile a whole module."""
    return torch.compile(module, mode="reduce-overhead" if graphs else None)  # type: ignore[return-value]


class GraphedModule(nn.Module):
    """Replays the forward and backward pass of a module as CUDA graphs, which are recorded in the first call.

    All calls must have inputs of the same shape. Kernels and random numbers are those of the module itself.
    """

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module
        self._replay: Callable[..., Any] | None = None

    def forward(self, *inputs: Tensor) -> Any:
        if self._replay is None:
            # Recording keeps nodes of the autograd graph that belong to its own stream, which torch handles correctly.
            torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
            # A cached half-precision copy of a weight would not be updated in later calls.
            dtype, mixed = torch.get_autocast_dtype("cuda"), torch.is_autocast_enabled("cuda")
            with torch.autocast("cuda", dtype, mixed, cache_enabled=False):
                self._replay = torch.cuda.make_graphed_callables(_Call(self.module), inputs, allow_unused_input=True)
            torch.cuda.empty_cache()  # the graphs have their own memory
        return self._replay(*inputs)


class _Call(nn.Module):
    """Calls a module. Recording replaces the `forward` method of its argument, which must not be that of the model."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, *inputs: Tensor) -> Any:
        return self.module(*inputs)


def compiled_evaluation(module: nn.Module) -> nn.Module:
    """Compile a module for evaluations, whose batches all have the same size."""
    return torch.compile(module, dynamic=False)  # type: ignore[return-value]


def compile_blocks(blocks: Sequence[nn.Module]) -> None:
    """Compile transformer blocks in place."""
    for block in blocks:
        block.compile(dynamic=False)


def record_graphs(stepper: Stepper, rehearse: Callable[[], None]) -> str:
    """Use CUDA graphs for the steps. If they cannot be recorded, return the reason and keep the present module."""
    module, stepper.compiled = stepper.compiled, GraphedModule(stepper.compiled)
    try:
        rehearse()
    except Exception as error:  # any operation that waits for the GPU raises an error
        stepper.compiled = module
        return _first_words(error)
    return ""


def choose_compile(
    stepper: Stepper, rehearse: Callable[[], None], steps: int, blocks: Sequence[nn.Module], graphs: bool, world: World
) -> Choice:
    """Record CUDA graphs if `graphs`, and compile the blocks if that makes the run shorter.

    `rehearse` runs a training step without updating weights.
    """
    module = stepper.compiled
    failed = record_graphs(stepper, rehearse) if graphs else "not supported for this run"
    seconds = max(world.gather(steps * seconds_per_step(rehearse, world.device)))  # the same choice in all processes
    estimate = f"all steps together take about {roughly(seconds)}"
    if blocks and seconds * (1 - 1 / SPEED_UP) >= COMPILE_SECONDS:
        stepper.compiled = module
        compile_blocks(blocks)
        reason = ""
        try:
            rehearse()
        except Exception as error:  # torch.compile raises many kinds of errors, e.g. if there is no C compiler
            reason = _first_words(error)
        if not any(world.gather(reason)):
            if not failed:
                record_graphs(stepper, rehearse)
            return Choice("compile", "blocks", f"without compiling, {estimate}")
        for block in blocks:
            block._compiled_call_impl = None
        estimate = f"torch.compile failed: {next(filter(None, world.gather(reason)))}"
        failed = failed or record_graphs(stepper, rehearse)
    return Choice(
        "compile", False if failed else "graphs", estimate + (f"; no CUDA graphs: {failed}" if failed else "")
    )


def _first_words(error: Exception) -> str:
    return single_spaced(str(error) or type(error).__name__, 80)


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
