"""Forward passes as CUDA graphs, so that small batches do not wait for Python."""

import threading
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

LARGEST = 32  # images per batch. Larger batches keep the GPU busy anyway.
RECORDED_CALL = 3  # with the same shape. Recording takes as long as a few calls.
RECORDING = threading.Lock()  # a process can record one graph at a time, and its warnings are global

Outputs = TypeVar("Outputs", bound=Tensor | tuple[Tensor, ...])


def call_without_waiting(function: Callable[..., Any], *inputs: Tensor) -> None:
    """Call a function. Raise RuntimeError if it waits for the GPU, which CUDA cannot undo during a recording.

    Torch's mode "error" would also stop other threads, which may wait. Its warnings come in the thread that waits.
    """
    waited, thread, mode = False, threading.get_ident(), torch.cuda.get_sync_debug_mode()

    def notice(message: Warning | str, *_: Any) -> None:
        nonlocal waited
        waited |= threading.get_ident() == thread and "synchronizing" in str(message)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = notice  # type: ignore[assignment]
        torch.cuda.set_sync_debug_mode("warn")  # warns that this mode is a prototype
        waited = False
        try:
            function(*inputs)
        finally:
            torch.cuda.set_sync_debug_mode(mode)
    if waited:
        raise RuntimeError("the function waits for the GPU")


class CudaGraphs(Generic[Outputs]):
    """Calls a function of a batch of images on a GPU, for repeated shapes by replaying a CUDA graph.

    A graph has a fixed shape, so small batches are padded to a power of two. The weights may change, but their memory
    must stay the same.
    """

    def __init__(self, function: Callable[[Tensor], Outputs]):
        self.function = function
        self.calls: Counter[torch.Size] = Counter()
        self.graphs: dict[torch.Size, Callable[[Tensor], Outputs]] = {}
        self.lock = threading.Lock()  # a graph has one input buffer
        self.pool: Any = None  # the memory of all graphs, which never run at the same time

    def __call__(self, images: Tensor) -> Outputs:
        size = 1 << (len(images) - 1).bit_length()
        if size > LARGEST or not images.is_cuda:
            return self.function(images)
        shape = torch.Size([size, *images.shape[1:]])
        with self.lock:
            self.calls[shape] += 1
            if self.calls[shape] < RECORDED_CALL:
                return self.function(images)
            if shape not in self.graphs:
                with torch.inference_mode(False):  # the buffer can then be filled in any mode
                    buffer = torch.zeros(shape, dtype=images.dtype, device=images.device)
                with RECORDING, torch.cuda.device(buffer.device):
                    self.graphs[shape] = self.record(buffer)
            return self.graphs[shape](images)

    def record(self, buffer: Tensor) -> Callable[[Tensor], Outputs]:
        """Record the function, and return a function that replays it. If that fails, return the original function."""
        self.pool = self.pool or torch.cuda.graph_pool_handle()
        graph, before, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        try:
            call_without_waiting(self.function, buffer)
            with torch.cuda.graph(graph, self.pool, stream, capture_error_mode="thread_local"):
                recorded = self.function(buffer)
        except RuntimeError:  # e.g. a module that waits for the GPU
            torch.cuda.set_stream(before)  # a failed recording does not leave its own stream
            return self.function

        def replay(images: Tensor) -> Outputs:
            buffer[: len(images)].copy_(images)
            graph.replay()
            return tree_map(lambda output: output[: len(images)].clone(), recorded)

        return replay
