"""Chooses where training images are kept, and builds the training and evaluation loaders."""

import copy
import os
from collections.abc import Iterable
from typing import Protocol, TypeVar, runtime_checkable

import torch

from vitreous.common.device import free_memory
from vitreous.common.threads import cores
from vitreous.data.augment.config import Augmentation
from vitreous.data.loader import BatchSlice, EvalLoader, Reader, StreamLoader, TrainLoader, is_array
from vitreous.data.resident import (
    READ,
    KeptImages,
    PackedImages,
    ResidentLoader,
    WholeImages,
    decode_images,
    kept_bytes,
    read_images,
)
from vitreous.data.sources.base import Source
from vitreous.model.protocol import ModelConfig
from vitreous.tasks.base import Choice
from vitreous.tasks.config import TrainConfig

KEPT_FRACTION = 1 / 4  # of the free memory; the model and its activations need the rest
MOST_THREADS = 32

T = TypeVar("T")


@runtime_checkable
class Counted(Protocol):
    """Iterates over items and shows a progress bar."""

    def __call__(self, items: Iterable[T], total: int, description: str) -> Iterable[T]: ...


def choose_keep(reader: Reader, device: str, epochs: float) -> Choice:
    """Choose where decoded training images are kept: on the GPU, in main memory, or nowhere."""
    if epochs < 2 and not is_array(reader.source):
        return Choice("keep_images", "no", "most images are used only once")
    needed = kept_bytes(reader)
    size = f"{needed / 1e9:.2g} GB" if needed >= 1e9 else f"{needed / 1e6:.0f} MB"
    if device == "cuda" and torch.cuda.is_available() and needed <= KEPT_FRACTION * free_memory("cuda"):
        return Choice("keep_images", "gpu", f"all images are decoded once, to {size}")
    if needed <= KEPT_FRACTION * free_memory("cpu"):
        return Choice("keep_images", "memory", f"all images are decoded once, to {size}")
    return Choice("keep_images", "no", f"decoded images need {size}")


def train_reader(
    source: Source, config: TrainConfig, model: ModelConfig, masks: bool = False, exact_from: int = 0
) -> Reader:
    """Return the reader of the training images for a model. Images that are kept are decoded exactly."""
    augmentation = config.augment.on(Augmentation())
    exact_from = 0 if config.decode == "auto" and config.keep_images in ("gpu", "memory") else exact_from
    form = model.image_size, model.channels, model.preprocessing
    return Reader(source, *form, augmentation, config.seed, masks=masks, exact_from=exact_from)


def train_loader(
    reader: Reader, config: TrainConfig, place: BatchSlice, device: torch.device, counted: Counted
) -> TrainLoader:
    """Return the loader of the training batches; first decode all images if they are kept."""
    keep, workers, threads = config.keep_images, config.workers or 0, decoding_threads()
    if keep in (None, "no"):
        return StreamLoader(reader, place, workers, device)
    repeats = reader.augmentation.repeats if reader.augmentation is not None else 1
    where = device if keep == "gpu" else torch.device("cpu")
    if reader.crop_scale is None:
        parts = -(-len(reader.source) // READ)
        whole = WholeImages(counted(read_images(reader, threads), parts, "reading images"), where)
        return ResidentLoader(whole, config.seed, place, repeats, device)
    images = counted(decode_images(reader, threads, config.decode == "fast"), len(reader.source), "decoding images")
    if keep == "gpu":
        packed = PackedImages(reader, images, where)
        return ResidentLoader(packed, config.seed, place, repeats, device)
    kept = copy.copy(reader)
    kept.source = KeptImages(reader.source, images)
    return StreamLoader(kept, place, workers, device)


def eval_loader(
    source: Source, model: ModelConfig, place: BatchSlice, device: torch.device, workers: int, masks: bool
) -> EvalLoader:
    """Return the evaluation batches of a split, which are kept if they fit."""
    reader = Reader(source, model.image_size, model.channels, model.preprocessing, masks=masks)
    needed = kept_bytes(reader) / place.world_size
    fits = (where for where in (device, torch.device("cpu")) if needed <= KEPT_FRACTION / 2 * free_memory(where.type))
    return EvalLoader(reader, place, workers, keep=next(fits, None), threads=decoding_threads())


def decoding_threads() -> int:
    """Return the number of threads that decode images before training, as many as this process has cores."""
    return min(max(cores() // int(os.environ.get("LOCAL_WORLD_SIZE", 1)), 1), MOST_THREADS)
