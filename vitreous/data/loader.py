"""Batches, in an order that is a pure function of (seed, epoch): the same on any number of workers and processes.

A small set of equal pictures lives on the device whole; everything else is read by worker processes (reader.py).
Augmentation follows on the device, for the whole batch at once (augment.py, mix.py).

b: batch; c: channels; h, w: height and width.
"""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils.data import DataLoader

from vitreous.common.checks import Size

# Under these names also for those who only deal with loaders.
from vitreous.data.batch_reader import Batch as Batch
from vitreous.data.batch_reader import Reader as Reader
from vitreous.data.batch_reader import Request as Request
from vitreous.data.sources.base import ArraySource, Source, Subset
from vitreous.data.sources.shapes import ShapesSource

RESIDENT_BYTES = 2 << 30  # a set of equal pictures up to this size lives on the device
DRAWN_BYTES = 1 << 28  # and one that must be drawn first, lest that takes minutes


@dataclass(frozen=True)
class Place:
    """A step's place in the run, and this process's place among all."""

    batch_size: int  # over all processes
    rank: int = 0
    ranks: int = 1

    @property
    def share(self) -> slice:
        part = self.batch_size // self.ranks
        return slice(self.rank * part, (self.rank + 1) * part)


def epoch_order(count: int, seed: int, epoch: int, repeats: int = 1) -> tuple[Int[Tensor, "n"], Int[Tensor, "n"]]:
    """The indices of an epoch, shuffled, and their keys. Repeats stand side by side, so that one batch has them."""
    generator = torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)
    order = torch.randperm(count, generator=generator)
    if repeats == 1:
        return order, order
    copies = torch.arange(repeats).repeat(count)[:count]
    order = order.repeat_interleave(repeats)[:count]
    return order, order + copies * count


def schedule(
    count: int, seed: int, place: Place, repeats: int, start: int, stop: int
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Epoch, indices and keys of every step from `start` to `stop`. Each epoch leaves out the rest below a batch."""
    steps = count // place.batch_size
    order: tuple[Tensor, Tensor] | None = None
    for step in range(start, stop):
        epoch, within = divmod(step, steps)
        if order is None or within == 0:
            order = epoch_order(count, seed, epoch, repeats)
        batch = slice(within * place.batch_size, (within + 1) * place.batch_size)
        yield epoch, order[0][batch][place.share], order[1][batch][place.share]


@runtime_checkable
class TrainLoader(Protocol):
    """Batches of a run, from one step to another."""

    def batches(self, start: int, stop: int) -> Iterator[Batch]: ...


class ResidentLoader:
    """The whole set on the device, at the model's size; a batch is an indexing operation."""

    def __init__(
        self, images: Tensor, labels: Tensor, seed: int, place: Place, repeats: int, masks: Tensor | None = None
    ):
        self.images, self.labels, self.masks = images, labels, masks
        self.seed, self.place, self.repeats = seed, place, repeats

    def batches(self, start: int, stop: int) -> Iterator[Batch]:
        device = self.images.device
        for epoch, indices, keys in schedule(len(self.labels), self.seed, self.place, self.repeats, start, stop):
            there = indices.to(device, non_blocking=True)
            masks = self.masks[there] if self.masks is not None else None
            yield Batch(self.images[there], self.labels[there], indices, keys, epoch, [], masks)


class StreamLoader:
    """Pictures decoded and cropped by workers, a few batches ahead."""

    def __init__(self, reader: Reader, place: Place, workers: int, device: torch.device):
        self.reader, self.place, self.workers, self.device = reader, place, workers, device

    def batches(self, start: int, stop: int) -> Iterator[Batch]:
        reader = self.reader
        repeats = reader.augmentation.repeats if reader.augmentation is not None else 1
        plan = schedule(len(reader.source), reader.seed, self.place, repeats, start, stop)
        pinned = self.device.type == "cuda"  # memory that the device fetches by itself, while the host goes on
        for batch in _read(reader, (Request(*step) for step in plan), self.workers, pinned):
            yield _to(batch, self.device)


class EvalLoader:
    """Every picture, in order, fitted to the model's size; this process's share of them.

    All processes get equally many batches, as FSDP needs: at the end the last picture may come more than once.
    """

    def __init__(self, reader: Reader, place: Place, workers: int, resident: torch.device | None = None):
        self.reader, self.workers = reader, workers
        count = len(reader.source)
        mine = torch.arange(place.rank, -(-count // place.ranks) * place.ranks, place.ranks).clamp(max=count - 1)
        size = max(place.batch_size // place.ranks, 1)
        self.parts = [mine[start : start + size] for start in range(0, len(mine), size)]
        self.held = hold(reader, resident) if resident is not None else None

    def __iter__(self) -> Iterator[Batch]:
        if self.held is None:
            requests = (Request(0, part, part) for part in self.parts)
            return _read(self.reader, requests, min(self.workers, len(self.parts)))
        images, labels, masks = self.held.images, self.held.labels, self.held.masks
        return (
            Batch(images[part], labels[part], part, part, 0, [], masks[part] if masks is not None else None)
            for part in self.parts
        )


def can_reside(source: Source, size: Size, channels: int) -> bool:
    """Whether a set is one of arrays, or of drawings, and small enough to live on the device."""
    most = RESIDENT_BYTES if is_array(source) else DRAWN_BYTES if isinstance(_whole(source), ShapesSource) else 0
    return len(source) * channels * size[0] * size[1] <= most


def is_array(source: Source) -> bool:
    """Whether the pictures are in memory, decoded and of one size."""
    return isinstance(_whole(source), ArraySource)


def _whole(source: Source) -> Source:
    return source.source if isinstance(source, Subset) else source


def hold(reader: Reader, device: torch.device) -> Batch:
    """Everything that a reader has, at its size, as one batch on the device."""
    everything = torch.arange(len(reader.source))
    return _to(reader[Request(0, everything, everything)], device)


def _to(batch: Batch, device: torch.device) -> Batch:
    """Indices and keys stay where they are."""
    images, labels = (tensor.to(device, non_blocking=True) for tensor in batch[:2])
    masks = batch.masks.to(device, non_blocking=True) if batch.masks is not None else None
    return batch._replace(images=images, labels=labels, masks=masks)


def _read(reader: Reader, requests: Iterator[Request], workers: int, pinned: bool = False) -> Iterator[Batch]:
    """The answers to requests, in their order, read by so many processes."""
    loader: DataLoader[Batch] = DataLoader(
        reader,
        sampler=_Once(requests),
        batch_size=None,  # a request is a batch already
        num_workers=workers,
        prefetch_factor=4 if workers else None,
        pin_memory=pinned,
        worker_init_fn=_prepare_worker,
    )
    return iter(loader)


def _prepare_worker(worker: int) -> None:
    """Ctrl-C and most schedulers signal every process, but the parent needs its workers to finish its step and save.

    It also comes first where there are as many workers as cores: a GPU that waits for it waits for nothing else.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if hasattr(os, "nice"):
        os.nice(5)


class _Once:
    """Requests, handed out once: what DataLoader calls a sampler."""

    def __init__(self, requests: Iterator[Request]):
        self.requests = requests

    def __iter__(self) -> Iterator[Request]:
        return self.requests
