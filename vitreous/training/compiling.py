"""Prepares the training step for speed: CUDA graphs and torch.compile.

CUDA graphs replay all kernels of a forward and backward pass with one call, so small batches do not wait for Python.
Recording them takes a second, so they are used by default. The transformer blocks are also compiled if that makes the
run shorter; all blocks run the same code, which is compiled only once. --compile compiles the whole model instead. This
gives the fastest steps but takes a minute.
"""

import gc
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.common.distributed import World
from vitreous.common.text import plural, roughly, single_spaced
from vitreous.inference.cuda_graphs import call_without_waiting
from vitreous.model.block import StochasticDepth
from vitreous.tasks.base import Choice
from vitreous.tasks.config import TrainConfig
from vitreous.training.optimizer_step import Stepper

# Measured on an H200 with ViT-S: compiling the blocks takes 9.5 s per image size and makes a step 1.33 times as fast.
COMPILE_SECONDS, SPEED_UP = 10.0, 1.3
WARM_UP, MEASURED = 3, 5  # steps
# The model or its blocks must be compiled again for evaluation. This pays off with at least this many evaluated images.
EVALUATED_IMAGES = 500_000
MOST_COMPILED = 64  # versions of a block: of every stage and shift of a Swin, for every image size, and for evaluation
GRAPH_MEMORY = 0.4  # largest fraction of a GPU's memory for a step that is recorded


def eager_if(condition: bool) -> AbstractContextManager[object]:
    """If `condition`, run compiled modules without compilation inside the `with` block."""
    return torch.compiler.set_stance("force_eager") if condition else nullcontext()


def suits_graphs(config: TrainConfig, world: World, called_once: bool) -> bool:
    """Return True if CUDA graphs support the step.

    Their outputs must be consumed before the next call, and activation checkpointing reads the state of the RNG.
    """
    single = world.device.type == "cuda" and not world.many and config.accumulate == 1
    return single and called_once and not config.checkpoint_blocks


def compiled(module: nn.Module, graphs: bool) -> nn.Module:
    """Compile a whole module."""
    return torch.compile(module, mode="reduce-overhead" if graphs else None)  # type: ignore[return-value]


class GraphedModule(nn.Module):
    """Replays the forward and backward pass of a module as CUDA graphs, which are recorded for every input shape.

    After the first `count` shapes, inputs of other shapes are passed to the module itself.
    """

    def __init__(self, module: nn.Module, count: int = 1):
        super().__init__()
        self.module, self.count = module, count
        self._replays: dict[tuple[torch.Size, ...], Callable[..., Any]] = {}

    def forward(self, *inputs: Tensor) -> Any:
        shapes = tuple(tensor.shape for tensor in inputs)
        if shapes not in self._replays and len(self._replays) < self.count:
            self._replays[shapes] = self._record(inputs)
        return self._replays.get(shapes, self.module)(*inputs)

    def _record(self, inputs: tuple[Tensor, ...]) -> Callable[..., Any]:
        call_without_waiting(self.module, *inputs)
        copies = tuple(tensor.clone() for tensor in inputs)  # replaced by the inputs of every call
        # Recording keeps nodes of the autograd graph that belong to its own stream. Autograd synchronises streams.
        torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
        replay = torch.cuda.make_graphed_callables(_Call(self.module), copies, allow_unused_input=True)
        torch.cuda.empty_cache()  # the graphs have their own memory
        return replay


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
    """Compile transformer blocks in place. Their rates of stochastic depth become tensors, so that they share code."""
    from torch._dynamo import config  # slow import

    config.recompile_limit = max(config.recompile_limit, MOST_COMPILED)
    parts = _stochastic_depths(blocks)
    if any(part.rate for part in parts):
        device = next(blocks[0].parameters()).device
        for part in parts:
            part.rate_tensor = torch.tensor(part.rate, device=device)
    for block in blocks:
        block.compile(dynamic=False)


def _discard_compiled(blocks: Sequence[nn.Module]) -> None:
    """Undo `compile_blocks`."""
    for part in _stochastic_depths(blocks):
        part.rate_tensor = None
    for block in blocks:
        block._compiled_call_impl = None


def _stochastic_depths(blocks: Sequence[nn.Module]) -> list[StochasticDepth]:
    return [part for block in blocks for part in block.modules() if isinstance(part, StochasticDepth)]


def record_graphs(stepper: Stepper, rehearse: Callable[[], None], count: int = 1) -> str:
    """Use CUDA graphs for the steps, after `rehearse` has run without them. If they fail, return the reason.

    `rehearse` runs a step for each of the `count` shapes of the inputs.

    The memory of a step remains reserved for the graphs. A step that needs much of it keeps the GPU busy anyway.
    """
    available = torch.cuda.is_available()
    if available and torch.cuda.max_memory_allocated() * count > GRAPH_MEMORY * torch.cuda.mem_get_info()[1]:
        return f"{plural(count, 'step')} would need more than {GRAPH_MEMORY:.0%} of the memory"
    stream = torch.cuda.current_stream() if available else None
    stepper.compiled = GraphedModule(stepper.compiled, count)
    if failed := _error(rehearse):
        if stream is not None:
            torch.cuda.set_stream(stream)  # a failed recording does not leave its own stream
        release_graphs(stepper)
    return failed


def release_graphs(stepper: Stepper) -> None:
    """Stop using CUDA graphs, and free their memory."""
    if isinstance(stepper.compiled, GraphedModule):
        stepper.compiled = stepper.compiled.module
        gc.collect()  # a recorded module refers to itself
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def choose_compile(
    stepper: Stepper,
    rehearsals: Sequence[Callable[[], None]],
    steps: Sequence[int],
    blocks: Sequence[nn.Module],
    graphs: bool,
    world: World,
) -> Choice:
    """Record CUDA graphs if `graphs`, and compile the blocks if that makes the run shorter.

    Each of the `rehearsals` runs a training step for one shape of the inputs, without updating weights. `steps` are the
    numbers of steps with these shapes.
    """
    rehearse, count = all_of(rehearsals), len(rehearsals)
    rehearse()  # errors of the model itself must not be taken for errors of the compiler
    failed = record_graphs(stepper, rehearse, count) if graphs else "not supported for this run"
    durations = [seconds_per_step(one, world.device) for one in rehearsals]
    seconds = sum(number * duration for number, duration in zip(steps, durations, strict=True))
    seconds = max(world.gather(seconds))  # the same choice in all processes
    value: str | bool = False if failed else "graphs"
    reason = f"without compiling, all steps together take about {roughly(seconds)}"
    if blocks and seconds * (1 - 1 / SPEED_UP) >= COMPILE_SECONDS * count:
        release_graphs(stepper)
        compile_blocks(blocks)
        # torch.compile raises many kinds of errors, e.g. if there is no C compiler.
        if broken := next(filter(None, world.gather(_error(rehearse))), ""):
            reason = f"torch.compile failed: {broken}"
            _discard_compiled(blocks)
        else:
            value = "blocks"
        if not failed:
            failed = record_graphs(stepper, rehearse, count)
    return Choice("compile", value, f"{reason}; no CUDA graphs: {failed}" if failed else reason)


def _error(function: Callable[[], None]) -> str:
    """Call a function. If it raises an error, return the beginning of the message."""
    try:
        function()
    except Exception as error:
        return single_spaced(str(error) or type(error).__name__, 80)
    return ""


def all_of(functions: Sequence[Callable[[], None]]) -> Callable[[], None]:
    """Return a function that calls all functions."""

    def call() -> None:
        for function in functions:
            function()

    return call


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
