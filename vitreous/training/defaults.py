"""Chooses all settings that a config does not specify. The choices are based on measurements in docs/en/measured.md."""

import dataclasses
import itertools
import math
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from vitreous.common.checks import BadValue
from vitreous.common.device import free_memory
from vitreous.common.distributed import World
from vitreous.common.text import plural
from vitreous.common.threads import cores
from vitreous.data.image import UnreadableImage, size_of
from vitreous.data.image.decoding import brightest_value, range_for
from vitreous.data.loader import Reader, is_array
from vitreous.data.resident import kept_bytes
from vitreous.data.sources.base import DataSet, Source, StoredImage
from vitreous.model.presets import configure
from vitreous.model.protocol import ModelConfig
from vitreous.tasks.base import LARGEST, SMALL, Choice, FineTuning, Task, checkpoint_config, open_init
from vitreous.tasks.config import Augment, TrainConfig, with_fields
from vitreous.training.cached_head import can_cache
from vitreous.training.setup import EVALUATION_COST, KEPT_FRACTION, task_class_of, train_reader
from vitreous.weights.catalog import BY_PRESET
from vitreous.weights.hub import HubUnavailable
from vitreous.weights.load import Checkpoint, open_checkpoint

# Minimum and maximum number of steps. Fine-tuning converges in fewer steps (see docs/en/measured.md).
STEPS, FINE_TUNING_STEPS, CPU_FINE_TUNING_STEPS = (600, 40_000), (400, 1_500), (100, 500)
# Minimum number of steps between evaluations (an epoch can have only two steps), and minimum evaluations per run.
EVALUATED_STEPS, EVALUATIONS = 25, 10
EVALUATION_FRACTION = 0.02  # largest time of all evaluations as a fraction of the time of all steps
GPU_BATCH = 512  # largest default batch size
LORA_IMAGES = 20_000  # with more images, fine-tuning all weights is better than LoRA
FEW = 2_000  # with fewer images, --init is recommended
MANY = 100_000  # with more images, --init auto uses a smaller model to keep the run short

T = TypeVar("T")

# Data sets whose images must not be mirrored, with the reason.
UNMIRRORED = {"digits": "a mirrored 2 is not a digit"}


@dataclass(frozen=True)
class Chosen:
    """A complete config, with a note about every automatic choice."""

    config: TrainConfig
    notes: list[str]
    advice: str = ""


def choose(
    config: TrainConfig,
    data: DataSet,
    device: str,
    processes: int = 1,
    task: type[Task] | None = None,
    init: Checkpoint | None = None,
) -> Chosen:
    """Choose all values that a config does not specify. `init` is the --init checkpoint if it is already open."""
    task, init = task or task_class_of(config), init or open_init(config)
    return _Choices(config, data, device, processes, task, init).complete()


class _Choices:
    """Completes a config step by step. Later choices depend on earlier choices."""

    def __init__(
        self, config: TrainConfig, data: DataSet, device: str, processes: int, task: type[Task], init: Checkpoint | None
    ):
        self.config, self.data, self.device, self.processes = config, data, device, processes
        self.task, self.init = task, init
        self.notes: list[str] = []
        self.count, self.side = len(data.train), typical_side(data.train)

    def complete(self) -> Chosen:
        config = self.config
        if config.model is None and config.init is None:
            self.pick(*self.task.choose_model(config, self.count, self.side, self.device))
        if not config.image_size:
            self.pick(self.image_size())
        if config.value_range is None:
            self.pick(*self.value_range())
        self.pick(*self.task.choose_options(self.config, self.data, self.init))
        self.trained_weights()
        if not isinstance(config.batch_size, int):
            self.pick(self.batch_size())
        self.augmentation()
        if self.config.train_only == "head" and config.cache_features is None:
            self.pick(self.cache_features())
        self.length()
        self.optimizer()
        if config.optim.lr is None:
            self.pick(learning_rate(self.config, self.task.fine_tuning))
        if config.keep_images is None:
            self.pick(self.keep_images())
        if config.workers is None:
            self.pick(self.workers())
        if config.out is None:
            folder = free_folder(Path("runs"), Path(self.data.name).stem or "run")
            self.pick(Choice("out", folder, "first unused name"))
        return Chosen(self.config, self.notes, "" if config.init is not None else self.advice(config.model))

    def advice(self, model: str | None) -> str:
        """Recommend pretrained weights if there are few images, or if the catalog has weights for the given preset."""
        few = f"{self.count} images are very few for training from scratch; "
        few = few if self.count < FEW and self.side > SMALL else ""
        weights = BY_PRESET.get(model or "") if self.task.labelled and not self.config.overrides else None
        if weights:
            return f"{few}pretrained weights exist for {model}: use --init {weights[0]} instead of --model"
        if not self.task.labelled:
            return few and f"{few}consider starting from a checkpoint (--init)"
        task = "" if self.config.task == TrainConfig.task else f"--task {self.config.task} "
        target = f" --target {shlex.join(self.config.targets.target)}" if self.config.targets.target else ""
        command = f"vitreous train {task}--data {shlex.quote(str(self.config.data))}{target} --init auto"
        return few and f"{few}consider pretrained weights: `{command}`"

    def pick(self, *choices: Choice) -> None:
        for name, value, reason, apply in choices:
            self.notes.append(f"{name} = {_text(value)} ({reason})")
            if apply:
                self.config = with_fields(self.config, {name: value})

    def image_size(self) -> Choice:
        reason = f"for images of about {self.side} pixels per side on {self.device}"
        if (start := checkpoint_config(self.config, self.init)) is not None:
            height, width = start.image_size
            if height * width <= LARGEST**2:
                return Choice("image_size", (height, width), "from the checkpoint", apply=False)
            small = self.side < 160 if self.device == "cpu" else self.side <= SMALL and self.count > LORA_IMAGES
            pixels = 112 if small else 224 if self.device == "cpu" else self.task.fine_tuning.side
            side = _tiled(lambda side: start.resized((side, side)), pixels)
            return Choice("image_size", (side,), f"{reason}; the checkpoint uses {height} x {width}")
        large = 224 if self.side >= 160 and self.device != "cpu" else 128 if self.side >= 96 else 64
        pixels = min(max(-(-self.side // 4) * 4, 16), 32) if self.side <= SMALL else large
        model, overrides = self.config.model or "", self.config.overrides
        side = _tiled(lambda side: configure(model, image_size=side, overrides=overrides), pixels)
        return Choice("image_size", (side,), reason)

    def trained_weights(self) -> None:
        """Choose the layer decay, and which weights to train: LoRA matrices or all weights."""
        config, start = self.config, checkpoint_config(self.config, self.init)
        if start is None or not self.task.labelled:
            self.config = with_fields(config, {"train_only": config.train_only or "all"})
            return
        if config.train_only is None and self.suits_lora():
            self.pick(Choice("train_only", "lora", f"better than training all weights on {self.count:,} images"))
        elif config.train_only is None:
            self.pick(Choice("train_only", "all", f"better than LoRA for {self.count:,} images and this checkpoint"))
        if config.optim.layer_decay is None and self.config.train_only == "all" and start.backbone.has_attention:
            self.pick(Choice("layer_decay", self.task.fine_tuning.layer_decay, "for fine-tuning"))

    def value_range(self) -> list[Choice]:
        """Choose a value range for 16-bit images that use only low values, unless the checkpoint specifies a range."""
        start = checkpoint_config(self.config, self.init)
        if start is not None and start.preprocessing.value_range is not None:
            return []
        brightest = [value for value in sampled(self.data.train, brightest_value) if value is not None]
        used = range_for(max(brightest, default=0))
        reason = f"the 16-bit images would be nearly black, because their maximum is {max(brightest, default=0):,}"
        return [Choice("value_range", used, reason)] if used is not None else []

    def batch_size(self) -> Choice:
        ideal, reason = (
            (GPU_BATCH if self.device == "cuda" else self.task.cpu_batch),
            f"for {self.count:,} images on {self.device}",
        )
        if self.config.init is not None and self.task.labelled:
            ideal = self.task.fine_tuning.batch_size * (4 if self.count > LORA_IMAGES else 1)
        each = self.task.step_images(self.config)
        ideal = max(ideal // each, 16)
        if self.device == "cuda" or self.config.batch_size == "auto":
            model = self.task.planned_config(self.config, self.data, self.init)
            fitting = max(self.processes * fitting_batch(model, free_memory(self.device)) // each, 1)
            if self.config.batch_size == "auto" or fitting < ideal:
                ideal, reason = fitting, "fits in half of the free memory"
        if self.data.unlabelled is not None:
            most = max(len(self.data.unlabelled) // self.config.semi_supervised.unlabelled_ratio, 1)
            if most < ideal:
                ideal, reason = most, f"for {len(self.data.unlabelled)} unlabelled images"
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

    def cache_features(self) -> Choice:
        planned = self.task.planned_config(self.config, self.data, self.init)
        if can_cache(self.config, self.task, planned.backbone):
            return Choice("cache_features", True, "the encoder is frozen and images are only flipped")
        return Choice("cache_features", False, "the features of an image differ between epochs")

    def length(self) -> None:
        """Choose the number of epochs and the evaluation interval."""
        assert isinstance(self.config.batch_size, int)
        per_epoch = max(self.count // self.config.batch_size, 1)
        if self.config.epochs is None and self.config.steps is None:
            if self.config.init is not None and self.task.labelled:
                least, most = CPU_FINE_TUNING_STEPS if self.device == "cpu" else FINE_TUNING_STEPS
                usual, fewest = (10, 1) if self.device == "cpu" else (25, 3)
            else:
                least, most = self.task.cpu_steps if self.device == "cpu" else STEPS
                large = self.count > 100_000 and self.side > SMALL
                usual, fewest = (300 if large else 100), 1
            epochs = max(min(usual, most // per_epoch), math.ceil(least / per_epoch), fewest)
            self.pick(Choice("epochs", epochs, f"{plural(per_epoch, 'step')} per epoch, on {self.device}"))
        total = self.config.epochs or (self.config.steps or 1) / per_epoch
        trained = per_epoch * self.config.batch_size * self.task.step_images(self.config)
        evaluation = EVALUATION_COST * len(self.data.val) / trained  # as a fraction of the time of an epoch
        wanted = max(math.ceil(EVALUATED_STEPS / per_epoch), math.ceil(evaluation / EVALUATION_FRACTION))
        every = min(wanted, int(total / EVALUATIONS))
        if self.config.evaluate_every is None and every > 1:
            reason = f"{plural(per_epoch, 'step')} per epoch, {plural(len(self.data.val), 'validation image')}"
            self.pick(Choice("evaluate_every", every, reason))

    def suits_lora(self) -> bool:
        """Return True if LoRA is expected to be better than fine-tuning all weights, and all options support LoRA."""
        assert self.init is not None
        description, optim = self.init.describe(self.config.overrides), self.config.optim
        # LoRA is worse with masked autoencoders, and with checkpoints of Vitreous runs, which saw less data.
        suited = description.provenance.get("format") != "mae" and "run" not in description.provenance
        free = self.config.parallel != "fsdp" and optim.layer_decay is None and optim.optimizer in (None, "adamw")
        fits = description.config.backbone.has_attention and self.count < LORA_IMAGES
        return self.task.lora and suited and free and fits

    def optimizer(self) -> None:
        """Choose Muon for training a ViT from scratch, unless the user set a learning rate, which may be for AdamW."""
        config = self.config
        if config.optim.optimizer is None:
            scratch = config.init is None and config.optim.lr is None and self.task.muon
            if scratch and configure(config.model or "").has_attention:
                self.pick(Choice("optimizer", "muon", "for training from scratch"))
            else:
                self.config = with_fields(config, {"optimizer": "adamw"})

    def keep_images(self) -> Choice:
        planned = self.task.planned_config(self.config, self.data, self.init)
        readers = [train_reader(self.data.train, self.config, planned, self.task.masks)]
        assert isinstance(self.config.batch_size, int)
        steps_per_epoch = max(self.count // self.config.batch_size, 1)
        epochs = [self.config.epochs or (self.config.steps or 1) / steps_per_epoch]
        if self.data.unlabelled is not None:
            readers.append(train_reader(self.data.unlabelled, self.config, planned))
            batch = self.config.batch_size * self.config.semi_supervised.unlabelled_ratio
            epochs.append(epochs[0] * steps_per_epoch * batch / len(self.data.unlabelled))
        return choose_keep(readers, self.device, epochs)

    def workers(self) -> Choice:
        keep, resized = self.config.keep_images, self.config.augment.crop == "resized"
        if keep == "gpu" or (keep == "memory" and (not resized or self.device == "cpu")):
            return Choice("workers", 0, "the images are kept in memory")
        available = cores() // int(os.environ.get("LOCAL_WORLD_SIZE", max(self.processes, 1)))
        if self.device == "cpu":  # a quarter of the cores decode as fast as the other cores train
            return Choice("workers", max(available // 4, 1), "training also uses the CPU")
        return Choice("workers", min(max(available, 1), 16), "one per core")


def open_pretrained(
    config: TrainConfig, data: DataSet, world: World
) -> tuple[TrainConfig, Checkpoint | None, list[str]]:
    """Choose pretrained weights for --init auto. Return the new config, the open checkpoint and notes on the choice.

    If the Hub cannot be reached, the run starts from scratch.
    """
    count, side, device = len(data.train), typical_side(data.train), world.device.type
    about = f"{count:,} images of about {side} pixels per side on {device}"
    trains_all = config.train_only in (None, "all")
    if side <= SMALL and device == "cpu" and trains_all:
        return dataclasses.replace(config, init=None), None, [f"init = none (better from scratch: {about})"]
    large = device == "cuda" and count <= MANY
    name = "dinov2-b" if large else "dinov2-s"
    note = f"init = {name} ({'better' if large else 'faster'} than dinov2-{'s' if large else 'b'}; for {about})"
    try:
        world.first_only(lambda: str(open_checkpoint(name)))  # one download for all processes
        return dataclasses.replace(config, init=name), open_checkpoint(name), [note]
    except HubUnavailable as error:
        if not trains_all:  # frozen random weights are useless
            raise
        return dataclasses.replace(config, init=None), None, [f"init = none, training from scratch ({error})"]


def typical_side(source: Source, samples: int = 25) -> int:
    """Return the median shorter side of a sample of images, read from their headers."""
    sides = [min(size) for size in sampled(source, size_of, samples)]
    if not sides:
        count = min(samples, len(source))
        raise ValueError(f"none of the {count} sampled images can be read; the first is {source.name(0)}")
    return int(np.median(sides))


def sampled(source: Source, measure: Callable[[StoredImage], T], samples: int = 25) -> list[T]:
    """Apply a function to a sample of images. Unreadable images are skipped here and reported during training."""
    results = []
    for index in np.linspace(0, len(source) - 1, min(samples, len(source))).astype(int):
        with suppress(UnreadableImage, OSError):
            results.append(measure(source.image(int(index))))
    return results


def _tiled(fits: Callable[[int], object], pixels: int) -> int:
    """Return the image size nearest to `pixels` that the model accepts, such as 126 instead of 128 for ViT-L/14."""
    for side in sorted(range(max(pixels - 64, 1), pixels + 64), key=lambda side: abs(side - pixels)):
        try:
            fits(side)
        except BadValue:
            continue
        return side
    return pixels  # the config is invalid for another reason, which is reported when the model is built


def free_folder(parent: Path, name: str) -> Path:
    """Return the first of parent/name, parent/name-2, ... that does not exist."""
    names = itertools.chain([name], (f"{name}-{i}" for i in itertools.count(2)))
    return next(folder for folder in map(parent.joinpath, names) if not folder.exists())


def batch_size(count: int, ideal: int, parts: int) -> int:
    """Return an eighth of `count`, but at least 16 and at most `ideal`, rounded down to a multiple of 2 * `parts`."""
    size = min(ideal, max(count // 8, 16), count)
    unit = 2 * parts  # mixup and CutMix need pairs
    return max(size // unit * unit, unit)


def learning_rate(config: TrainConfig, fine_tuning: FineTuning) -> Choice:
    """Choose the peak learning rate. docs/en/measured.md compares learning rates for Muon, LoRA and fine-tuning."""
    assert isinstance(config.batch_size, int)
    if config.train_only == "head":
        return Choice("lr", 3e-3, "for training only the head")
    if config.optim.optimizer == "sgd":
        peak, batch, reason = 0.03, 512, "for SGD"
    elif config.train_only == "lora":
        peak, batch, reason = 1e-3, 64, "for LoRA"
    elif config.init is not None:
        peak, batch, reason = fine_tuning.lr, fine_tuning.batch_size, "for fine-tuning"
    elif config.optim.optimizer == "muon":
        return Choice("lr", 7e-3, "for Muon")
    else:
        peak, batch, reason = 1e-3, 512, "for AdamW"
    lr = float(f"{peak * math.sqrt(config.batch_size / batch):.2g}")
    return Choice("lr", lr, f"{reason}, scaled with sqrt(batch size)")


def choose_keep(readers: Sequence[Reader], device: str, epochs: Sequence[float]) -> Choice:
    """Choose where decoded training images are kept: on the GPU, in main memory, or nowhere.

    `epochs` is the number of epochs of each reader.
    """
    uses = np.average(epochs, weights=[len(reader.source) for reader in readers])
    if uses < 2 and not all(is_array(reader.source) for reader in readers):
        return Choice("keep_images", "no", "most images are used only once")
    needed = sum(map(kept_bytes, readers))
    size = f"{needed / 1e9:.2g} GB" if needed >= 1e9 else f"{max(needed / 1e6, 1):.0f} MB"
    if device == "cuda" and torch.cuda.is_available() and needed <= KEPT_FRACTION * free_memory("cuda"):
        return Choice("keep_images", "gpu", f"all images are decoded once and take {size}")
    if needed <= KEPT_FRACTION * free_memory("cpu"):
        return Choice("keep_images", "memory", f"all images are decoded once and take {size}")
    return Choice("keep_images", "no", f"decoded images would take {size}, over {KEPT_FRACTION:.0%} of the free memory")


def fitting_batch(model: ModelConfig, memory: int) -> int:
    """Return the largest power of two up to 4096 that, as batch size, needs at most half of `memory` (in bytes)."""
    from vitreous.model.cost import cost  # slow import: torch's fake tensors

    each = cost(model).activation_bytes + model.loss_bytes
    return 1 << min(max(memory // (2 * each), 1), 4096).bit_length() - 1


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{name}={_text(item)}" for name, item in value.items())
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    if isinstance(value, float):
        return f"{value:.1e}".replace(".0e", "e").replace("e-0", "e-") if 0 < value < 0.01 else f"{value:g}"
    return str(value)
