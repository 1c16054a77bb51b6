"""Batches, in an order that is a pure function of (seed, epoch): the same on any number of workers and processes.

A small set of equal pictures lives on the device whole; everything else is decoded and cropped by worker processes,
which hand over uint8. Augmentation follows on the device, for the whole batch at once (augment.py, mix.py).

b: batch; c: channels; h, w: height and width.
"""

import dataclasses
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Int, UInt8
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vitreous.data.config import Augmentation
from vitreous.data.decode import UnreadableImage, fit, random_resized_crop
from vitreous.data.draws import Draws
from vitreous.data.source import ArraySource, Picture, Source, Subset
from vitreous.model.checks import Size
from vitreous.model.options import Preprocessing

RESIDENT_BYTES = 2 << 30  # a set of equal pictures up to this size lives on the device


class Batch(NamedTuple):
    """One process's share of a step. Indices and keys stay on the CPU, where drawing from them waits for no device."""

    images: UInt8[Tensor, "b c h w"]
    labels: Int[Tensor, "b"]  # -1 where the picture could not be read
    indices: Int[Tensor, "b"]
    keys: Int[Tensor, "b"]  # what randomness is drawn for: the index, and which repetition of it
    epoch: int
    problems: list[str]  # pictures that could not be read, by name and reason


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

    def __init__(self, images: Tensor, labels: Tensor, seed: int, place: Place, repeats: int):
        self.images, self.labels = images, labels
        self.seed, self.place, self.repeats = seed, place, repeats

    def batches(self, start: int, stop: int) -> Iterator[Batch]:
        device = self.images.device
        for epoch, indices, keys in schedule(len(self.labels), self.seed, self.place, self.repeats, start, stop):
            there = indices.to(device, non_blocking=True)
            yield Batch(self.images[there], self.labels[there], indices, keys, epoch, [])


class StreamLoader:
    """Pictures decoded and cropped by workers, a few batches ahead."""

    def __init__(self, reader: "Reader", place: Place, workers: int, device: torch.device):
        self.reader, self.place, self.workers, self.device = reader, place, workers, device

    def batches(self, start: int, stop: int) -> Iterator[Batch]:
        reader = self.reader
        repeats = reader.augmentation.repeats if reader.augmentation is not None else 1
        plan = schedule(len(reader.source), reader.seed, self.place, repeats, start, stop)
        pinned = self.device.type == "cuda"  # memory that the device fetches by itself, while the host goes on
        for batch in _read(reader, (Request(*step) for step in plan), self.workers, pinned):
            images, labels = (tensor.to(self.device, non_blocking=True) for tensor in batch[:2])
            yield batch._replace(images=images, labels=labels)


class EvalLoader:
    """Every picture, in order, fitted to the model's size; this process's share of them.

    All processes get equally many batches, as FSDP needs: at the end the last picture may come more than once.
    """

    def __init__(self, reader: "Reader", place: Place, workers: int, resident: torch.device | None = None):
        self.reader, self.workers = reader, workers
        count = len(reader.source)
        mine = torch.arange(place.rank, -(-count // place.ranks) * place.ranks, place.ranks).clamp(max=count - 1)
        size = max(place.batch_size // place.ranks, 1)
        self.parts = [mine[start : start + size] for start in range(0, len(mine), size)]
        self.held = resident_pictures(reader, resident) if resident is not None else None

    def __iter__(self) -> Iterator[Batch]:
        if self.held is None:
            requests = (Request(0, part, part) for part in self.parts)
            return _read(self.reader, requests, min(self.workers, len(self.parts)))
        images, labels = self.held
        return (Batch(images[part], labels[part], part, part, 0, []) for part in self.parts)


def can_reside(source: Source, size: Size, channels: int) -> bool:
    """Whether a set is one of arrays, and small enough to live on the device."""
    return is_array(source) and len(source) * channels * size[0] * size[1] <= RESIDENT_BYTES


def is_array(source: Source) -> bool:
    """Whether the pictures are in memory, decoded and of one size."""
    return isinstance(source.source if isinstance(source, Subset) else source, ArraySource)


def resident_pictures(reader: "Reader", device: torch.device) -> tuple[UInt8[Tensor, "n c h w"], Int[Tensor, "n"]]:
    """All pictures of a reader at its size, on the device."""
    everything = torch.arange(len(reader.source))
    batch = reader[Request(0, everything, everything)]
    return batch.images.to(device), batch.labels.to(device)


class Request(NamedTuple):
    """The pictures of one batch."""

    epoch: int
    indices: Int[Tensor, "b"]
    keys: Int[Tensor, "b"]


class Reader(Dataset[Batch]):
    """What a worker runs: a request to a batch. Without augmentation, pictures are fitted as in evaluation."""

    def __init__(
        self,
        source: Source,
        size: Size,
        channels: int,
        preprocessing: Preprocessing,
        augmentation: Augmentation | None = None,
        seed: int = 0,
    ):
        self.source, self.size, self.channels = source, size, channels
        self.preprocessing, self.augmentation, self.seed = preprocessing, augmentation, seed

    def __getitem__(self, request: Request) -> Batch:
        epoch, indices, keys = request
        numbers = Draws(self.seed, epoch, keys).uniform("crop", 4).tolist()
        # Channels last in memory, as pictures are decoded: no transposition for each of them.
        images = torch.zeros(len(indices), *self.size, self.channels, dtype=torch.uint8).permute(0, 3, 1, 2)
        labels = torch.from_numpy(self.source.labels[indices.numpy()])
        problems = []
        for i, index in enumerate(indices.tolist()):
            try:
                images[i] = self._read(self.source.picture(index), numbers[i])
            except (UnreadableImage, OSError) as problem:
                labels[i] = -1
                problems.append(f"{self.source.name(index)}: {problem}")
        return Batch(images, labels, indices, keys, epoch, problems)

    def _read(self, picture: Picture, numbers: Sequence[float]) -> Tensor:
        if self.augmentation is None:
            return fit(picture, self.size, self.preprocessing, self.channels)
        if self.augmentation.crop != "resized":  # what is cut off at the edges is for the batch's padded crop to decide
            whole = dataclasses.replace(self.preprocessing, crop_fraction=1.0)
            return fit(picture, self.size, whole, self.channels)
        scale, interpolation = self.augmentation.crop_scale, self.preprocessing.interpolation
        return random_resized_crop(
            picture, self.size, numbers, scale, interpolation=interpolation, channels=self.channels
        )


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
