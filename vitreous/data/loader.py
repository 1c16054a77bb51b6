"""Data loaders. The sample order is a pure function of (seed, epoch), independent of the number of workers.

Worker processes decode images to uint8 and apply the same random crop to each image and its mask. Augmentation
(vitreous.data.augment) then runs on the device, on whole batches. Data sets that fit in memory are read only once (see
resident.py).

b: batch; c: channels; h, w: height and width; d: feature dimension.
"""

import dataclasses
import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped, UInt8
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vitreous.common.checks import Size
from vitreous.common.rng import SampleRng
from vitreous.common.text import one_line
from vitreous.common.threads import in_threads, thread_pool
from vitreous.data.augment.config import Augmentation
from vitreous.data.image.crop import crop_mask, fit, fit_mask, random_resized_crop
from vitreous.data.image.decoding import UnreadableImage
from vitreous.data.sources.base import ArraySource, Source, StoredImage, Subset
from vitreous.model.options import IGNORED, Preprocessing

UNLABELLED_SEED = 1 << 61  # added to the seed for unlabelled images, so that their random numbers are independent

# ---- One batch -------------------------------------------------------------------------------------------------------


class Batch(NamedTuple):
    """One process's slice of a batch. Indices and keys stay on the CPU, so that random numbers need no device sync."""

    images: UInt8[Tensor, "b c h w"]
    labels: Int[Tensor, "b"]  # -1 if the image or its mask is unreadable
    indices: Int[Tensor, "b"]
    keys: Int[Tensor, "b"]  # keys of the sample RNG: the index combined with the repeat
    epoch: int
    problems: list[str]  # "name: reason" for each unreadable image
    masks: UInt8[Tensor, "b h w"] | None = None  # indices into mask_classes, or IGNORED
    features: Float[Tensor, "b d"] | None = None  # of a frozen encoder, instead of images (training/cached_head.py)
    targets: Shaped[Tensor, "b k"] | None = None  # as `Source.targets`, on the CPU
    inputs: tuple[Tensor, ...] | None = None  # of the loss, if they are computed already (training/grouped_loader.py)
    unlabelled: "Batch | None" = None  # images without labels, for semi-supervised training

    def to(self, device: torch.device) -> "Batch":
        """Copy images, labels and masks to a device."""
        images, labels = (tensor.to(device, non_blocking=True) for tensor in (self.images, self.labels))
        masks = self.masks.to(device, non_blocking=True) if self.masks is not None else None
        return self._replace(images=images, labels=labels, masks=masks)


def join_batches(parts: Sequence[Batch]) -> Batch:
    """Join the parts of a batch that a reader has read."""
    images, labels, indices, keys = (torch.cat(tensors) for tensors in zip(*(part[:4] for part in parts), strict=True))
    masks = [part.masks for part in parts if part.masks is not None]
    problems = [problem for part in parts for problem in part.problems]
    return Batch(images, labels, indices, keys, parts[0].epoch, problems, torch.cat(masks) if masks else None)


class Request(NamedTuple):
    """Indices and RNG keys of the samples in one batch."""

    epoch: int
    indices: Int[Tensor, "b"]
    keys: Int[Tensor, "b"]


class Reader(Dataset[Batch]):
    """Reads requested batches in a worker process. Without augmentation, images are preprocessed as for evaluation.

    Before epoch `exact_from`, large JPEGs are decoded at a reduced scale, which is faster.
    """

    def __init__(
        self,
        source: Source,
        size: Size,
        channels: int,
        preprocessing: Preprocessing,
        augmentation: Augmentation | None = None,
        seed: int = 0,
        masks: bool = False,
        exact_from: int = 0,
    ):
        if masks and not source.mask_classes:
            raise ValueError("this data set has image labels but no masks, which segmentation requires")
        self.source, self.size, self.channels, self.masks = source, size, channels, masks
        self.preprocessing, self.augmentation, self.seed = preprocessing, augmentation, seed
        self.exact_from = exact_from
        self.crop_scale: tuple[float, float] | None = None
        if augmentation is not None and augmentation.crop == "resized":
            self.crop_scale = augmentation.crop_scale
        elif augmentation is not None:  # keep the whole image; padded crops follow on the device
            self.preprocessing = dataclasses.replace(preprocessing, crop_fraction=1.0)

    def __getitem__(self, request: Request) -> Batch:
        epoch, indices, keys = request
        numbers = SampleRng(self.seed, epoch, keys).uniform("crop", 4).tolist()
        # Channels last in memory, like decoded images, which avoids a transpose per image.
        images = torch.zeros(len(indices), *self.size, self.channels, dtype=torch.uint8).permute(0, 3, 1, 2)
        labels = torch.from_numpy(self.source.labels[indices.numpy()])
        masks = torch.full((len(indices), *self.size), IGNORED, dtype=torch.uint8) if self.masks else None
        problems = []
        fast = epoch < self.exact_from
        for i, index in enumerate(indices.tolist()):
            try:
                stored = self.source.image(index)
                images[i] = self._read(stored, numbers[i], fast)
                if masks is not None:
                    masks[i] = self._read_mask(index, stored, numbers[i], fast)
            except (UnreadableImage, OSError) as problem:
                labels[i] = -1
                problems.append(self.describe(index, problem))
        return Batch(images, labels, indices, keys, epoch, problems, masks)

    def describe(self, index: int, problem: object) -> str:
        """Return the name of an unreadable image, followed by the reason."""
        return f"{one_line(self.source.name(index))}: {problem}"

    def stored_mask(self, index: int) -> UInt8[np.ndarray, "h w"]:
        """Return the mask of an image. Raise UnreadableImage if the mask cannot be read."""
        try:
            return self.source.mask(index)
        except (UnreadableImage, OSError) as problem:
            raise UnreadableImage(f"cannot read the mask: {problem}") from problem

    def _read(self, image: StoredImage, numbers: Sequence[float], fast: bool) -> Tensor:
        if self.crop_scale is None:
            return fit(image, self.size, self.preprocessing, self.channels, fast)
        how = self.preprocessing
        return random_resized_crop(
            image, self.size, numbers, self.crop_scale, interpolation=how.interpolation, channels=self.channels,
            fast=fast, value_range=how.value_range,
        )  # fmt: skip

    def _read_mask(self, index: int, image: StoredImage, numbers: Sequence[float], fast: bool) -> Tensor:
        ids = self.stored_mask(index)
        if self.crop_scale is None:
            return fit_mask(ids, image, self.size, self.preprocessing, fast)
        return crop_mask(ids, image, self.size, numbers, self.crop_scale, fast=fast)


# ---- Order -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BatchSlice:
    """Global batch size, and the process whose slice of each batch is read."""

    batch_size: int  # over all processes
    rank: int = 0
    world_size: int = 1

    @property
    def local(self) -> slice:
        size = self.batch_size // self.world_size
        return slice(self.rank * size, (self.rank + 1) * size)


def epoch_order(count: int, seed: int, epoch: int, repeats: int = 1) -> tuple[Int[Tensor, "n"], Int[Tensor, "n"]]:
    """Return the shuffled image indices of an epoch and their RNG keys. Repeats of an image are adjacent."""
    generator = torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)
    order = torch.randperm(count, generator=generator)
    if repeats == 1:
        return order, order
    copies = torch.arange(repeats).repeat(count)[:count]
    order = order.repeat_interleave(repeats)[:count]
    return order, order + copies * count


def schedule(count: int, seed: int, batch_slice: BatchSlice, repeats: int, start: int, stop: int) -> Iterator[Request]:
    """Yield the requests of steps `start` to `stop` - 1. If the last batch of an epoch is incomplete, it is dropped."""
    steps = count // batch_slice.batch_size
    order: tuple[Tensor, Tensor] | None = None
    for step in range(start, stop):
        epoch, within = divmod(step, steps)
        if order is None or within == 0:
            order = epoch_order(count, seed, epoch, repeats)
        batch = slice(within * batch_slice.batch_size, (within + 1) * batch_slice.batch_size)
        yield Request(epoch, order[0][batch][batch_slice.local], order[1][batch][batch_slice.local])


# ---- Loaders ---------------------------------------------------------------------------------------------------------


@runtime_checkable
class TrainLoader(Protocol):
    """Iterates over training batches."""

    def batches(self, start: int, stop: int) -> Iterator[Batch]: ...


class TargetLoader:
    """Adds the targets of the images to the batches of another loader."""

    def __init__(self, loader: TrainLoader, source: Source):
        self.loader, self.source = loader, source

    def batches(self, start: int, stop: int) -> Iterator[Batch]:
        return with_targets(self.loader.batches(start, stop), self.source)


class PairedLoader:
    """Adds a batch of unlabelled images to each batch of another loader."""

    def __init__(self, labelled: TrainLoader, unlabelled: TrainLoader):
        self.labelled, self.unlabelled = labelled, unlabelled

    def batches(self, start: int, stop: int) -> Iterator[Batch]:
        pairs = zip(self.labelled.batches(start, stop), self.unlabelled.batches(start, stop), strict=True)
        for batch, more in pairs:
            yield batch._replace(unlabelled=more)


def with_targets(batches: Iterable[Batch], source: Source) -> Iterator[Batch]:
    """Add the targets of the images to batches of a source, if it has targets."""
    for batch in batches:
        found = None if source.targets is None else torch.from_numpy(source.targets[batch.indices.numpy()])
        yield batch._replace(targets=found)


class StreamLoader:
    """Reads and prefetches batches in worker processes.

    Without workers on a CPU, one thread per core reads a part of each batch. There, torch does not wake its other
    threads for each image, which takes longer than to crop a small image.
    """

    def __init__(self, reader: Reader, batch_slice: BatchSlice, workers: int, device: torch.device):
        self.reader, self.batch_slice, self.workers, self.device = reader, batch_slice, workers, device

    def batches(self, start: int, stop: int) -> Iterator[Batch]:
        reader = self.reader
        repeats = reader.augmentation.repeats if reader.augmentation is not None else 1
        requests = schedule(len(reader.source), reader.seed, self.batch_slice, repeats, start, stop)
        pinned = self.device.type == "cuda"  # for asynchronous copies
        if not self.workers and not pinned:
            return self._read_in_threads(requests)
        return (batch.to(self.device) for batch in _loader(reader, requests, self.workers, pinned))

    def _read_in_threads(self, requests: Iterable[Request]) -> Iterator[Batch]:
        threads = torch.get_num_threads()
        with thread_pool(threads) as pool:
            for epoch, indices, keys in requests:
                parts = zip(indices.chunk(threads), keys.chunk(threads), strict=True)
                read = pool.map(self.reader.__getitem__, [Request(epoch, *part) for part in parts])
                yield join_batches(list(read)).to(self.device)


class EvalLoader:
    """Iterates over this process's slice of the images, in order and resized for evaluation.

    All processes get the same number of batches, as FSDP requires, and all batches have the same size, so that a
    compiled model is compiled once. The last image is repeated where necessary. If `keep` is a device, threads
    read the batches during the first evaluation, and the batches are then kept on that device. Otherwise worker
    processes read them in every evaluation.
    """

    def __init__(
        self,
        reader: Reader,
        batch_slice: BatchSlice,
        workers: int,
        keep: torch.device | None = None,
        threads: int = 1,
    ):
        count, world_size = len(reader.source), batch_slice.world_size
        each = -(-count // world_size)  # images per process
        steps = -(-each // max(batch_slice.batch_size // world_size, 1))
        size = -(-each // steps)
        mine = torch.arange(batch_slice.rank, steps * size * world_size, world_size).clamp(max=count - 1)
        self.requests = [Request(0, indices, indices) for indices in torch.split(mine, size)]
        self.reader, self.keep, self.threads = reader, keep, threads
        self.streamed = _loader(reader, self.requests, min(workers, steps), stay=True)
        self.kept: list[Batch] = []

    def __len__(self) -> int:
        return len(self.requests)

    def __iter__(self) -> Iterator[Batch]:
        if self.keep is None:
            return iter(self.streamed)
        return iter(self.kept) if self.kept else self._read_and_keep(self.keep)

    def _read_and_keep(self, device: torch.device) -> Iterator[Batch]:
        batches = []
        for batch in in_threads(self.reader.__getitem__, self.requests, self.threads):
            batches.append(batch.to(device))
            yield batches[-1]
        self.kept = batches  # only if the evaluation was completed


def is_array(source: Source) -> bool:
    """Return True if the images are an array in memory."""
    return isinstance(source.source if isinstance(source, Subset) else source, ArraySource)


def _loader(
    reader: Reader, requests: Iterable[Request], workers: int, pinned: bool = False, stay: bool = False
) -> DataLoader[Batch]:
    return DataLoader(
        reader,
        sampler=requests,
        batch_size=None,  # each request is a whole batch
        num_workers=workers,
        prefetch_factor=4 if workers else None,
        pin_memory=pinned,
        worker_init_fn=_prepare_worker,
        persistent_workers=stay and workers > 0,
    )


def _prepare_worker(worker: int) -> None:
    """Ignore termination signals in a worker and lower its priority.

    Ctrl-C and most schedulers signal every process, but the parent needs its workers to finish the current step. The
    GPU waits only for the parent, so workers must not compete with the parent for a core.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if hasattr(os, "nice"):
        os.nice(5)
