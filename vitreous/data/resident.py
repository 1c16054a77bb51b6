"""Images that are decoded once and kept in memory, so that training does not wait for image files.

For random resized crops, images of any size are kept. `PackedImages` keeps them on a GPU, where whole batches are
cropped at once. `KeptImages` keeps them in host memory, as a source for the loader's workers. For all other crops,
`WholeImages` keeps whole images, resized to the model's input size.

The random numbers of a sample are the same as when it is read from its file.
"""

import itertools
import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from vitreous.common.checks import Size
from vitreous.common.rng import SampleRng
from vitreous.common.threads import in_threads
from vitreous.data.image.batch_crop import crop_images, crop_masks
from vitreous.data.image.crop import RATIO, crop_box, shrink, shrink_mask, shrunk
from vitreous.data.image.decoding import UnreadableImage, size_of
from vitreous.data.loader import Batch, BatchSlice, Reader, Request, schedule
from vitreous.data.sources.base import Source, StoredImage
from vitreous.model.options import IGNORED

SAMPLED = 200  # number of images whose headers are read to estimate the total memory
PACK_BYTES = 1 << 27  # pixels to copy to the device at a time
READ = 64  # number of images that a thread reads at a time


# ---- Decoding --------------------------------------------------------------------------------------------------------


class DecodedImage(NamedTuple):
    """A decoded image and its mask, or the reason why they cannot be read."""

    pixels: UInt8[np.ndarray, "h w c"]  # one channel if the image is grey
    mask: UInt8[np.ndarray, "h w"] | None = None
    problem: str = ""


def kept_side(size: Size, crop_scale: tuple[float, float]) -> int:
    """Return the shorter side to which images are reduced before random resized crops.

    The smallest crop is then still about as large as the model's input. The side is limited to twice the input size, so
    for crop scales below 1/4, the smallest crops are enlarged a little. Edges in photos keep 93 to 96% of their
    contrast, as in JPEGs decoded at a reduced scale. With a limit of 1.28 times the input size, edges would keep only
    79 to 86%.
    """
    return round(max(size) * min(1 / math.sqrt(crop_scale[0]), 2))


def kept_bytes(reader: Reader) -> int:
    """Estimate the memory in bytes for all images and masks, based on the headers of some images."""
    source, (height, width) = reader.source, reader.size
    if reader.crop_scale is None:
        return len(source) * height * width * (reader.channels + reader.masks)
    side = kept_side(reader.size, reader.crop_scale)
    pixels = [math.prod(shrunk(size, side)) for size in sampled_sizes(source)]
    return math.ceil(len(source) * (reader.channels + reader.masks) * np.mean(pixels or [0]))


def sampled_sizes(source: Source, most: int = SAMPLED) -> list[Size]:
    """Return the sizes of up to `most` images. Unreadable images are skipped."""
    sizes = []
    for index in np.linspace(0, len(source) - 1, min(most, len(source))).astype(int):
        with suppress(UnreadableImage, OSError):
            sizes.append(size_of(source.image(int(index))))
    return sizes


def decode_images(reader: Reader, threads: int, fast: bool = False) -> Iterator[DecodedImage]:
    """Decode all images of a reader in order, and downsize each to the side given by `kept_side`."""
    assert reader.crop_scale is not None
    source, side = reader.source, kept_side(reader.size, reader.crop_scale)

    def decode(index: int) -> DecodedImage:
        try:
            stored = source.image(index)
            pixels = shrink(stored, side, reader.preprocessing.interpolation, reader.channels, fast)
            mask = shrink_mask(reader.stored_mask(index), stored, side) if reader.masks else None
        except (UnreadableImage, OSError) as problem:
            ignored = np.full((1, 1), IGNORED, np.uint8)
            return DecodedImage(np.zeros((1, 1, 1), np.uint8), ignored, str(problem))
        return DecodedImage(np.ascontiguousarray(pixels.permute(1, 2, 0).numpy()), mask)

    return in_threads(decode, range(len(source)), threads)


# ---- Kept images -----------------------------------------------------------------------------------------------------


class KeptImages(Source):
    """Decoded images of a source, in host memory."""

    def __init__(self, source: Source, images: Iterable[DecodedImage]):
        self.source, self.images = source, list(images)
        self.labels, self.classes = source.labels, source.classes
        self.mask_classes, self.mask_ids = source.mask_classes, source.mask_ids

    def image(self, index: int) -> StoredImage:
        pixels, _, problem = self.images[index]
        if problem:
            raise UnreadableImage(problem)
        return pixels

    def mask(self, index: int) -> np.ndarray:
        mask = self.images[index].mask
        assert mask is not None
        return mask

    def name(self, index: int) -> str:
        return self.source.name(index)


@runtime_checkable
class Kept(Protocol):
    """All images of a source on a device."""

    count: int

    def pick(self, request: Request) -> Batch:
        """Return a batch of the requested samples."""


class PackedImages:
    """Images of any size in one tensor on the device, for random resized crops of whole batches."""

    def __init__(self, reader: Reader, images: Iterable[DecodedImage], device: torch.device):
        assert reader.crop_scale is not None
        self.reader, self.crop_scale, self.device = reader, reader.crop_scale, device
        self.sizes: list[Size] = []
        self.problems: dict[int, str] = {}
        pixels, masks = _Packed(device), _Packed(device)
        for index, (image, mask, problem) in enumerate(images):
            self.sizes.append((image.shape[0], image.shape[1]))
            pixels.add(np.broadcast_to(image, (*image.shape[:2], reader.channels)).reshape(-1, reader.channels))
            if reader.masks and mask is not None:
                masks.add(mask.reshape(-1))
            if problem:
                self.problems[index] = reader.describe(index, problem)
        self.pixels = pixels.joined()
        self.masks = masks.joined() if reader.masks else None
        self.starts = [0, *itertools.accumulate(height * width for height, width in self.sizes)]
        self.labels = _labels(reader.source, self.problems).to(device)
        self.count = len(self.sizes)

    def pick(self, request: Request) -> Batch:
        epoch, indices, keys = request
        numbers = SampleRng(self.reader.seed, epoch, keys).uniform("crop", 4).tolist()
        which = indices.tolist()
        boxes = [crop_box(self.sizes[i], row, self.crop_scale, RATIO) for i, row in zip(which, numbers, strict=True)]
        starts, widths = [self.starts[i] for i in which], [self.sizes[i][1] for i in which]
        size, interpolation = self.reader.size, self.reader.preprocessing.interpolation
        images = crop_images(self.pixels, starts, widths, boxes, size, interpolation)
        masks = crop_masks(self.masks, starts, widths, boxes, size) if self.masks is not None else None
        labels = self.labels[indices.to(self.device, non_blocking=True)]
        problems = [self.problems[i] for i in which if i in self.problems]
        return Batch(images, labels, indices, keys, epoch, problems, masks)


class _Packed:
    """Concatenates arrays into one tensor on the device, PACK_BYTES at a time."""

    def __init__(self, device: torch.device):
        self.device, self.pending_bytes = device, 0
        self.pending: list[np.ndarray] = []
        self.chunks: list[Tensor] = []

    def add(self, array: np.ndarray) -> None:
        self.pending.append(array)
        self.pending_bytes += array.nbytes
        if self.pending_bytes >= PACK_BYTES:
            self._copy()

    def joined(self) -> Tensor:
        self._copy()
        return torch.cat(self.chunks)

    def _copy(self) -> None:
        if self.pending:
            self.chunks.append(torch.from_numpy(np.concatenate(self.pending)).to(self.device))
        self.pending, self.pending_bytes = [], 0


class WholeImages:
    """Images at the model's input size on the device, for padded crops or no cropping."""

    def __init__(self, batches: Iterable[Batch], device: torch.device):
        moved = [batch.to(device) for batch in batches]
        self.device, self.count = device, sum(len(batch.labels) for batch in moved)
        self.images = torch.cat([batch.images for batch in moved])
        self.labels = torch.cat([batch.labels for batch in moved])
        masks = [batch.masks for batch in moved if batch.masks is not None]
        self.masks = torch.cat(masks) if masks else None
        unreadable = torch.cat([batch.indices[batch.labels.cpu() < 0] for batch in moved])
        problems = [problem for batch in moved for problem in batch.problems]  # one per unreadable image, in order
        self.problems = dict(zip(unreadable.tolist(), problems, strict=True))

    def pick(self, request: Request) -> Batch:
        epoch, indices, keys = request
        which = indices.to(self.device, non_blocking=True)
        masks = self.masks[which] if self.masks is not None else None
        problems = [self.problems[i] for i in indices.tolist() if i in self.problems] if self.problems else []
        return Batch(self.images[which], self.labels[which], indices, keys, epoch, problems, masks)


def read_images(reader: Reader, threads: int) -> Iterator[Batch]:
    """Read all images of a reader in order, in batches of READ images."""

    def read(start: int) -> Batch:
        indices = torch.arange(start, min(start + READ, len(reader.source)))
        return reader[Request(0, indices, indices)]

    return in_threads(read, range(0, len(reader.source), READ), threads)


def _labels(source: Source, problems: Iterable[int]) -> Tensor:
    labels = torch.from_numpy(source.labels.copy())
    labels[list(problems)] = -1
    return labels


# ---- Loader ----------------------------------------------------------------------------------------------------------


class ResidentLoader:
    """Loads batches from images that are kept on the device."""

    def __init__(self, kept: Kept, seed: int, batch_slice: BatchSlice, repeats: int, device: torch.device):
        self.kept, self.seed, self.batch_slice, self.repeats, self.device = kept, seed, batch_slice, repeats, device

    def batches(self, start: int, stop: int) -> Iterator[Batch]:
        requests = schedule(self.kept.count, self.seed, self.batch_slice, self.repeats, start, stop)
        return (self.kept.pick(request).to(self.device) for request in requests)
