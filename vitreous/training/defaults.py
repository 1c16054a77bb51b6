"""Automatic choices: the settings that a config does not give, chosen for the data and the device, with reasons."""

import dataclasses
import itertools
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitreous.common.checks import BadValue
from vitreous.common.text import plural
from vitreous.common.threads import cores
from vitreous.data.image import UnreadableImage, size_of
from vitreous.data.loader import is_array
from vitreous.data.sources.base import DataSet, Source
from vitreous.inference.device import total_memory
from vitreous.model.presets import configure
from vitreous.model.protocol import ModelConfig
from vitreous.tasks import task_named
from vitreous.tasks.base import SMALL, Choice, Task, checkpoint_config
from vitreous.tasks.config import with_fields
from vitreous.training.config import Augment, TrainConfig

# Fewest and most steps. A small model takes about a third of a second per step on a CPU.
STEPS, CPU_STEPS = (600, 40_000), (300, 1_500)
# Fewest steps between evaluations (an epoch of 50 images has two), unless this leaves too few evaluations.
EVALUATED_STEPS, EVALUATIONS = 25, 10
CPU_SIDE = 224  # largest image size that is chosen for a CPU
FEW = 2_000  # with fewer images, starting from a checkpoint is much better

# Data whose images have another meaning when mirrored.
UNMIRRORED = {"digits": "a mirrored 2 is not a digit"}


@dataclass(frozen=True)
class Chosen:
    """A complete config, and a note for every automatic choice."""

    config: TrainConfig
    notes: list[str]
    advice: str = ""


def choose(
    config: TrainConfig, data: DataSet, device: str, processes: int = 1, task: type[Task] | None = None
) -> Chosen:
    """Complete a config, in an order in which each choice can depend on the earlier ones."""
    return _Choices(config, data, device, processes, task or task_named(config.task)).complete()


class _Choices:
    """The config as far as it is complete, and the notes so far."""

    def __init__(self, config: TrainConfig, data: DataSet, device: str, processes: int, task: type[Task]):
        self.config, self.data, self.device, self.processes, self.task = config, data, device, processes, task
        self.notes: list[str] = []
        self.count, self.side = len(data.train), typical_side(data.train)

    def complete(self) -> Chosen:
        config = self.config
        if config.model is None and config.init is None:
            self.pick(*self.task.choose_model(config, self.count, self.side))
        if not config.image_size:
            self.pick(self.image_size())
        self.pick(*self.task.choose_options(self.config, self.data))
        if not isinstance(config.batch_size, int):
            self.pick(self.batch_size())
        self.augmentation()
        self.length()
        if config.optim.lr is None:
            self.pick(learning_rate(self.config))
        if config.workers is None:
            self.pick(self.workers())
        if config.out is None:
            folder = free_folder(Path("runs"), Path(self.data.name).stem or "run")
            self.pick(Choice("out", folder, "the first free name"))
        return Chosen(self.config, self.notes, self.advice())

    def pick(self, *choices: Choice) -> None:
        for name, value, reason, apply in choices:
            self.notes.append(f"{name} = {_text(value)} ({reason})")
            if apply:
                self.config = with_fields(self.config, {name: value})

    def image_size(self) -> Choice:
        if (start := checkpoint_config(self.config)) is not None:
            height, width = start.image_size
            side = _tiled(lambda side: start.resized((side, side)), CPU_SIDE)
            if self.device != "cpu" or height * width <= max(CPU_SIDE, side) ** 2:
                return Choice("image_size", (height, width), "from the checkpoint", apply=False)
            times = f"{height * width / side**2:.2g}"
            return Choice(
                "image_size", (side,), f"the checkpoint's {height} x {width} takes a CPU {times} times as long"
            )
        large = 224 if self.side >= 160 and self.device != "cpu" else 128 if self.side >= 96 else 64
        pixels = min(max(-(-self.side // 4) * 4, 16), 32) if self.side <= SMALL else large
        model, overrides = self.config.model or "", self.config.overrides
        side = _tiled(lambda side: configure(model, image_size=side, overrides=overrides), pixels)
        return Choice("image_size", (side,), f"images of about {self.side} pixels on {self.device}")

    def batch_size(self) -> Choice:
        ideal, reason = (512 if self.device == "cuda" else 64), f"{self.count} images on {self.device}"
        if self.config.batch_size == "auto":
            model = self.task.planned_config(self.config, self.data)
            ideal = self.processes * fitting_batch(model, free_memory(self.device))
            reason = "fits into half of the free memory"
        parts = self.processes * self.config.accumulate
        return Choice("batch_size", batch_size(self.count, ideal, parts), reason)

    def augmentation(self) -> None:
        base, reason = self.task.choose_augmentation(self.config, self.count, self.side)
        if self.config.augment == Augment():
            self.notes.append(f"augmentation = {reason}")
        if self.config.augment.flip is None and self.data.name in UNMIRRORED:
            self.pick(Choice("flip", 0.0, UNMIRRORED[self.data.name]))
        whole = Augment(**dataclasses.asdict(self.config.augment.on(base)))
        self.config = dataclasses.replace(self.config, augment=whole)

    def length(self) -> None:
        """Choose the number of epochs, and how many of them pass between evaluations."""
        assert isinstance(self.config.batch_size, int)
        per_epoch = max(self.count // self.config.batch_size, 1)
        if self.config.epochs is None and self.config.steps is None:
            least, most = CPU_STEPS if self.device == "cpu" else STEPS
            large = self.count > 100_000 and self.side > SMALL
            usual = 20 if self.config.init is not None else 300 if large else 100
            epochs = max(min(usual, most // per_epoch), math.ceil(least / per_epoch), 1)
            self.pick(Choice("epochs", epochs, f"{plural(per_epoch, 'step')} each, on {self.device}"))
        total = self.config.epochs or (self.config.steps or 1) / per_epoch
        every = min(math.ceil(EVALUATED_STEPS / per_epoch), int(total / EVALUATIONS))
        if self.config.evaluate_every is None and every > 1:
            self.pick(Choice("evaluate_every", every, f"epochs of {plural(per_epoch, 'step')}"))

    def workers(self) -> Choice:
        if self.config.augment.crop != "resized" and is_array(self.data.train):
            return Choice("workers", 0, "the images are in memory")
        available = cores() // int(os.environ.get("LOCAL_WORLD_SIZE", max(self.processes, 1)))
        if self.device == "cpu":  # a quarter of the cores decodes as fast as the others train
            return Choice("workers", max(available // 4, 1), "the CPU also trains")
        return Choice("workers", min(max(available, 1), 16), "one for each core")

    def advice(self) -> str:
        if self.config.init is not None or self.count >= FEW or self.side <= SMALL:
            return ""
        return f"{self.count} images are few to train from scratch: start from a checkpoint with --init if you have one"


def typical_side(source: Source, samples: int = 25) -> int:
    """Median of the shorter sides of a few images, from their headers."""
    sides = []
    for index in np.linspace(0, len(source) - 1, min(samples, len(source))).astype(int):
        try:
            sides.append(min(size_of(source.image(int(index)))))
        except (UnreadableImage, OSError):
            continue  # counted and named when it is loaded
    if not sides:
        raise ValueError(f"none of {min(samples, len(source))} images can be read, such as {source.name(0)}")
    return int(np.median(sides))


def _tiled(fits: Callable[[int], object], pixels: int) -> int:
    """The size nearest to `pixels` that the model's patches tile: 126 for ViT-L/14 instead of 128."""
    for side in sorted(range(max(pixels - 64, 1), pixels + 64), key=lambda side: abs(side - pixels)):
        try:
            fits(side)
        except BadValue:
            continue
        return side
    return pixels  # something else is wrong with the model: building it will raise the error


def free_folder(parent: Path, name: str) -> Path:
    """The first of parent/name, parent/name-2, ... that does not exist."""
    names = itertools.chain([name], (f"{name}-{i}" for i in itertools.count(2)))
    return next(folder for folder in map(parent.joinpath, names) if not folder.exists())


def batch_size(count: int, ideal: int, parts: int) -> int:
    """At least eight steps per epoch, if batches still have sixteen images; equal micro-batches for every process."""
    size = min(ideal, max(count // 8, 16), count)
    unit = 2 * parts  # mixup and CutMix need pairs
    return max(size // unit * unit, unit)


def learning_rate(config: TrainConfig) -> Choice:
    assert isinstance(config.batch_size, int)
    peak, reason = 1e-3, "scaled with sqrt(batch size)"
    if config.train_only == "head":
        peak, reason = 3e-3, "for a head alone"
    elif config.optim.optimizer == "sgd":
        peak, reason = 0.03, f"for SGD, {reason}"
    elif config.init is not None and config.train_only == "all":
        peak, reason = 2e-4, f"for fine-tuning, {reason}"
    return Choice("lr", float(f"{peak * math.sqrt(config.batch_size / 512):.2g}"), reason)


def fitting_batch(model: ModelConfig, memory: int) -> int:
    """The largest power of two whose activations take at most half of the memory, up to 4096.

    >>> from vitreous.model.config import ViTConfig
    >>> fitting_batch(ViTConfig(), memory=16 << 30)
    64
    """
    from vitreous.model.cost import cost  # imports torch's fake tensors, which takes a moment

    each = cost(model).activation_bytes
    if model.task == "segment":  # the loss keeps the scores of every pixel, and their softmax
        each += 2 * 4 * model.num_classes * math.prod(model.image_size)
    return 1 << min(max(memory // (2 * each), 1), 4096).bit_length() - 1


def free_memory(device: str) -> int:
    """Free bytes for this process on the device of the run."""
    if device == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(free, total_memory(torch.device("cpu"))) // processes


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{name}={_text(item)}" for name, item in value.items())
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    if isinstance(value, float):
        return f"{value:.1e}".replace(".0e", "e").replace("e-0", "e-") if 0 < value < 0.01 else f"{value:g}"
    return str(value)
