"""What is chosen where the user said nothing, for the data at hand. Every choice is said aloud."""

import dataclasses
import functools
import itertools
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from vitreous.common.checks import BadValue
from vitreous.common.codec import parse_fields
from vitreous.common.text import plural
from vitreous.common.threads import cores
from vitreous.data.augment.config import Augmentation
from vitreous.data.image import UnreadableImage, size_of
from vitreous.data.loader import is_array
from vitreous.data.sources.base import DataSet, Source
from vitreous.model.config import SegmenterConfig, ViTConfig
from vitreous.model.kinds import AnyConfig
from vitreous.model.presets import configure
from vitreous.training.batch_memory import fitting_batch, free_memory
from vitreous.training.config import Augment, TrainConfig
from vitreous.training.initial_model import model_config, start_config

# Parts that learn from few pictures: a convolution that tells position, and the mean of the patches. On the digits they
# leave a quarter of the mistakes that learned positions and a class token make (0.992 against 0.964).
FEW_PICTURES = ('position={"kind": "Conditional"}', 'pool={"kind": "GlobalAverage"}', "class_token=false")

# For pixels of small pictures: half of ViT-Lite's width, four layers and 64 patches reach a mean IoU of 0.93 on the
# shapes in two and a half minutes on two cores.
FEW_PIXELS = ("patch_size=8", "width=128", "depth=4", "num_heads=4", "mlp_width=256", *FEW_PICTURES)

# Fewest steps, to learn something from any data, and most. A small model takes a CPU about a second for three of them.
STEPS, CPU_STEPS = (600, 40_000), (300, 1_500)
# At least so many steps between evaluations (an epoch of 50 pictures is over in two), unless there were fewer than so
# many evaluations then.
EVALUATED_STEPS, EVALUATIONS = 25, 10
SMALL = 48  # pixels
CPU_SIDE = 224  # the most that a CPU is given unasked
FEW = 2_000  # fewer pictures than this are little to learn from without a checkpoint to start from

# Data whose pictures mean something else when mirrored.
UNMIRRORED = {"digits": "a mirrored 2 is no digit"}


@dataclass(frozen=True)
class Chosen:
    """A config with nothing left open, and what was chosen for which reason."""

    config: TrainConfig
    notes: list[str]
    advice: str = ""  # what would do better than any choice


def choose(config: TrainConfig, data: DataSet, device: str, processes: int = 1) -> Chosen:
    """Fill in what was left open, in an order in which each choice can rest on those before it."""
    choices = _Choices(config, data, device, processes)
    choices.model()
    choices.image_size()
    choices.decoder()
    choices.light_decoder()
    choices.batch_size()
    choices.augmentation()
    choices.length()
    choices.rate()
    choices.workers()
    choices.out()
    return Chosen(choices.config, choices.notes, choices.advice())


class _Choices:
    """The config as far as it has been filled in, and what was said on the way."""

    def __init__(self, config: TrainConfig, data: DataSet, device: str, processes: int):
        self.config, self.data, self.device, self.processes = config, data, device, processes
        self.notes: list[str] = []
        self.count, self.side = len(data.train), typical_side(data.train)
        self.small = self.side <= SMALL

    def pick(self, field: str, value: Any, reason: str) -> None:
        self.notes.append(f"--{field.replace('_', '-')} {_plain(value)}: {reason}")
        self.config = dataclasses.replace(self.config, **{field: value})

    def model(self) -> None:
        if self.config.model is not None or self.config.init is not None:
            return
        size = f"pictures of about {self.side} pixels"
        if self.config.task == "segment" and self.side <= 96:
            self.pick("model", "ViT-Lite-6/4", size)
            if not self.config.set:
                self.pick("set", FEW_PIXELS, "a narrow model with patches of 8 pixels learns outlines quickest")
        elif self.small:
            self.pick("model", "ViT-Lite-7/4", size)
        else:
            self.pick("model", "ViT-Ti/16" if self.count < 50_000 else "ViT-S/16", f"{self.count} {size}")
        if not self.config.set and self.count < 100_000:
            self.pick("set", FEW_PICTURES, "parts that learn from few pictures; no other format has such positions")

    @functools.cached_property
    def start(self) -> AnyConfig | None:
        return start_config(self.config)

    def image_size(self) -> None:
        if self.config.image_size:
            return
        if self.start is not None:
            own, pixels = self.start.image_size, math.prod(self.start.image_size)
            side = _tiled(lambda side: self.start.resized((side, side)), CPU_SIDE)  # type: ignore[union-attr]
            if self.device == "cpu" and pixels > max(CPU_SIDE, side) ** 2:
                words = (
                    f"the checkpoint's own {own[0]} x {own[1]} would take a CPU {pixels / side**2:.2g} times as long"
                )
                self.pick("image_size", (side,), words)
            else:
                self.notes.append(f"--image-size {_plain(own)}: the checkpoint's own")
            return
        large = 224 if self.side >= 160 and self.device != "cpu" else 128 if self.side >= 96 else 64
        pixels = min(max(-(-self.side // 4) * 4, 16), 32) if self.small else large
        reason = f"pictures of about {self.side} pixels on {self.device}"
        model, fields = self.config.model or "", parse_fields(self.config.set)
        fits = lambda side: configure(model, image_size=side, overrides=fields)  # noqa: E731
        self.pick("image_size", (_tiled(fits, pixels),), reason)

    def decoder(self) -> None:
        """Of a segmenter: a linear one from scratch sees parts of patches; one that a checkpoint has stays."""
        how = self.config.segmenting
        if self.config.task != "segment" or how.decoder == "mask" or how.cells or how.mask_blocks:
            return
        if self.config.init is None:
            self.config = dataclasses.replace(self.config, segmenting=dataclasses.replace(how, cells=8))
            self.notes.append("--cells 8: outlines finer than a patch")
            return
        if how.decoder is None and isinstance(self.start, SegmenterConfig):
            known = self.start.labels == self.data.mask_classes
            what = "as the checkpoint has it" if known else "new, of the checkpoint's kind: the classes are others"
            self.notes.append(f"the decoder: {self.start.decoder}, {what}")

    def light_decoder(self) -> None:
        """Of MAE."""
        if self.config.task != "mae":
            return
        model, said = model_config(self.config, self.start, self.data), self.config.masking
        if not isinstance(model, ViTConfig):  # it has no patches to hide, which is said when the task is built
            return
        width, depth = said.decoder_beside(model)
        reason = f"beside an encoder {model.width} wide and {model.depth} deep"
        self.notes += [f"--decoder-width {width}: {reason}"] if said.decoder_width is None else []
        self.notes += [f"--decoder-depth {depth}: {reason}"] if said.decoder_depth is None else []
        light = dataclasses.replace(said, decoder_width=width, decoder_depth=depth)
        self.config = dataclasses.replace(self.config, masking=light)

    def batch_size(self) -> None:
        if isinstance(self.config.batch_size, int):
            return
        ideal, reason = (512 if self.device == "cuda" else 64), f"{self.count} pictures on {self.device}"
        if self.config.batch_size == "auto":
            model = model_config(self.config, self.start, self.data)
            ideal = self.processes * fitting_batch(model, free_memory(self.device))
            reason = "what fits into half of the free memory"
        self.pick("batch_size", _batch_size(self.count, ideal, self.processes * self.config.accumulate), reason)

    def augmentation(self) -> None:
        base, reason = _augmentation(self.config, self.count, self.side)
        if self.config.augment == Augment():
            self.notes.append(f"augmentation: {reason}")
        if self.config.augment.flip is None and self.data.name in UNMIRRORED:
            base = dataclasses.replace(base, flip=0.0)
            self.notes.append(f"--flip 0: {UNMIRRORED[self.data.name]}")
        whole = Augment(**dataclasses.asdict(self.config.augment.on(base)))
        self.config = dataclasses.replace(self.config, augment=whole)

    def length(self) -> None:
        """How long, and how often it is evaluated on the way."""
        assert isinstance(self.config.batch_size, int)
        per_epoch = max(self.count // self.config.batch_size, 1)
        if self.config.epochs is None and self.config.steps is None:
            least, most = CPU_STEPS if self.device == "cpu" else STEPS
            usual = 20 if self.config.init is not None else 300 if self.count > 100_000 and not self.small else 100
            epochs = max(min(usual, most // per_epoch), math.ceil(least / per_epoch), 1)
            self.pick("epochs", epochs, f"{plural(per_epoch, 'step')} each, on {self.device}")
        lasting = self.config.epochs or (self.config.steps or 1) / per_epoch
        every = min(math.ceil(EVALUATED_STEPS / per_epoch), int(lasting / EVALUATIONS))
        if self.config.evaluate_every is None and every > 1:
            self.pick("evaluate_every", every, f"epochs of {plural(per_epoch, 'step')}")

    def rate(self) -> None:
        if self.config.optim.lr is None:
            rate, reason = _learning_rate(self.config)
            self.config = dataclasses.replace(self.config, optim=dataclasses.replace(self.config.optim, lr=rate))
            self.notes.append(f"--lr {rate:g}: {reason}")

    def workers(self) -> None:
        if self.config.workers is None:
            self.pick("workers", *_workers(self.config, self.data.train, self.device, self.processes))

    def out(self) -> None:
        if self.config.out is None:
            name = Path(self.data.name).stem or "run"
            self.pick("out", free_folder(Path("runs"), name), "the first free name")

    def advice(self) -> str:
        if self.config.init is not None or self.count >= FEW or self.small:
            return ""
        return f"{self.count} pictures are few to learn all from: start from a checkpoint with --init if you have one"


def typical_side(source: Source, looks: int = 25) -> int:
    """The median of the shorter sides, from the headers of a few pictures."""
    sides = []
    for index in np.linspace(0, len(source) - 1, min(looks, len(source))).astype(int):
        try:
            sides.append(min(size_of(source.image(int(index)))))
        except (UnreadableImage, OSError):
            continue  # counted and named when it is read
    if not sides:
        raise ValueError(f"none of {min(looks, len(source))} pictures can be read, such as {source.name(0)}")
    return int(np.median(sides))


def _tiled(fits: Callable[[int], object], pixels: int) -> int:
    """The number nearest to `pixels` that the model's patches tile: 126 for ViT-L/14 where others get 128."""
    for side in sorted(range(max(pixels - 64, 1), pixels + 64), key=lambda side: abs(side - pixels)):
        try:
            fits(side)
        except BadValue:
            continue
        return side
    return pixels  # something else is wrong with the model, which building it will say


def _workers(config: TrainConfig, source: Source, device: str, processes: int) -> tuple[int, str]:
    """A CPU that trains has all its cores busy with that: a quarter of them decodes as fast as the rest can learn."""
    if config.augment.crop != "resized" and is_array(source):
        return 0, "the pictures are in memory"
    available = cores() // int(os.environ.get("LOCAL_WORLD_SIZE", max(processes, 1)))
    if device == "cpu":
        return max(available // 4, 1), "the CPU has to train as well"
    return min(max(available, 1), 16), "one for each core"


def free_folder(parent: Path, name: str) -> Path:
    """runs/name, runs/name-2, ..."""
    names = itertools.chain([name], (f"{name}-{i}" for i in itertools.count(2)))
    return next(folder for folder in map(parent.joinpath, names) if not folder.exists())


def _batch_size(count: int, ideal: int, parts: int) -> int:
    """At least eight steps in an epoch where that leaves sixteen pictures in a batch; even shares for every part."""
    size = min(ideal, max(count // 8, 16), count)
    unit = 2 * parts  # mixing needs pairs
    return max(size // unit * unit, unit)


def _augmentation(config: TrainConfig, count: int, side: int) -> tuple[Augmentation, str]:
    largest = 96 if config.task == "segment" else SMALL  # that a padded crop is for: it changes no outline
    crop: Literal["padded", "resized"] = "padded" if side <= largest else "resized"
    if config.task == "segment":
        with_masks = Augmentation(crop=crop, crop_scale=(0.35, 1.0), colour_jitter=0.3)
        return with_masks, "crop, flip and colours, with which masks can go along"
    if config.task != "classify":
        return Augmentation(crop=crop, crop_scale=(0.2, 1.0)), "crop and flip: hiding is hard enough"
    finetuning = config.init is not None
    if finetuning or count < 5_000:
        light = Augmentation(crop=crop, crop_scale=(0.35, 1.0), policy="trivial")
        return light, "TrivialAugment, for fine-tuning" if finetuning else f"TrivialAugment, for {count} pictures"
    strong = Augmentation(crop=crop, crop_scale=(0.2, 1.0), policy="trivial", mixup=0.2, cutmix=1.0)
    return strong, "TrivialAugment, mixup and cutmix, from scratch"


def _learning_rate(config: TrainConfig) -> tuple[float, str]:
    assert isinstance(config.batch_size, int)
    scale = math.sqrt(config.batch_size / 512)
    if config.train_only == "head":
        return float(f"{3e-3 * scale:.2g}"), "for a head alone"
    if config.optim.optimizer == "sgd":
        return float(f"{0.03 * scale:.2g}"), "for SGD, with the root of the batch size"
    if config.init is not None and config.train_only == "all":
        return float(f"{2e-4 * scale:.2g}"), "for fine-tuning, with the root of the batch size"
    return float(f"{1e-3 * scale:.2g}"), "with the root of the batch size"


def _plain(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else f"{value}"
