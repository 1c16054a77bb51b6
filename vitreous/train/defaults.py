"""What is chosen where the user said nothing, for the data at hand. Every choice is said aloud."""

import dataclasses
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from vitreous.data.config import Augmentation
from vitreous.data.decode import UnreadableImage, size_of
from vitreous.data.loader import is_array
from vitreous.data.source import DataSet, Source
from vitreous.data.split import plural
from vitreous.model.checks import BadValue, as_size
from vitreous.model.codec import parse_fields
from vitreous.model.config import ResNetConfig, ViTConfig
from vitreous.model.presets import configure
from vitreous.model.segmenter import SegmenterConfig
from vitreous.threads import cores
from vitreous.train.config import Augment, TrainConfig
from vitreous.weights.load import describe

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
    """Fill in what was left open."""
    notes: list[str] = []

    def pick(field: str, value: Any, reason: str) -> None:
        nonlocal config
        notes.append(f"--{field.replace('_', '-')} {_plain(value)}: {reason}")
        config = dataclasses.replace(config, **{field: value})

    count, side = len(data.train), typical_side(data.train)
    small = side <= SMALL
    if config.model is None and config.init is None:
        if config.task == "segment" and side <= 96:
            pick("model", "ViT-Lite-6/4", f"pictures of about {side} pixels")
            if not config.set:
                pick("set", FEW_PIXELS, "a narrow model with patches of 8 pixels learns outlines quickest")
        elif small:
            pick("model", "ViT-Lite-7/4", f"pictures of about {side} pixels")
        else:
            pick("model", "ViT-Ti/16" if count < 50_000 else "ViT-S/16", f"{count} pictures of about {side} pixels")
        if not config.set and count < 100_000:
            pick("set", FEW_PICTURES, "parts that learn from few pictures")
    if not config.image_size and config.init is None:
        large = 224 if side >= 160 and device != "cpu" else 128 if side >= 96 else 64
        pixels = min(max(-(-side // 4) * 4, 16), 32) if small else large
        pick("image_size", (_tiled(config, pixels),), f"pictures of about {side} pixels on {device}")
    if not isinstance(config.batch_size, int):
        ideal, reason = (512 if device == "cuda" else 64), f"{count} pictures on {device}"
        if config.batch_size == "auto":
            ideal = processes * fitting_batch(_model_config(config), free_memory(device))
            reason = "what fits into half of the free memory"
        pick("batch_size", _batch_size(count, ideal, processes * config.accumulate), reason)
    if config.task == "segment":
        config, said = _with_decoder(config)
        notes += said
    base, reason = _augmentation(config, count, side)
    if config.augment == Augment():
        notes.append(f"augmentation: {reason}")
    if config.augment.flip is None and data.name in UNMIRRORED:
        base = dataclasses.replace(base, flip=0.0)
        notes.append(f"--flip 0: {UNMIRRORED[data.name]}")
    config = dataclasses.replace(config, augment=Augment(**dataclasses.asdict(config.augment.on(base))))
    assert isinstance(config.batch_size, int)
    per_epoch = max(count // config.batch_size, 1)
    if config.epochs is None and config.steps is None:
        least, most = CPU_STEPS if device == "cpu" else STEPS
        usual = 20 if config.init is not None else 300 if count > 100_000 and not small else 100
        pick(
            "epochs",
            max(min(usual, most // per_epoch), math.ceil(least / per_epoch), 1),
            f"{plural(per_epoch, 'step')} each, on {device}",
        )
    epochs = config.epochs or (config.steps or 1) / per_epoch
    every = min(math.ceil(EVALUATED_STEPS / per_epoch), int(epochs / EVALUATIONS))
    if config.evaluate_every is None and every > 1:
        pick("evaluate_every", every, f"epochs of {plural(per_epoch, 'step')}")
    if config.optim.lr is None:
        rate, reason = _learning_rate(config)
        config = dataclasses.replace(config, optim=dataclasses.replace(config.optim, lr=rate))
        notes.append(f"--lr {rate:g}: {reason}")
    if config.workers is None:
        pick("workers", *_workers(config, data.train, device, processes))
    if config.out is None:
        pick("out", free_folder(Path("runs"), Path(data.name).stem or "run"), "the first free name")
    few = config.init is None and count < FEW and not small
    advice = f"{count} pictures are few to learn all from: start from a checkpoint with --init if you have one"
    return Chosen(config, notes, advice if few else "")


def typical_side(source: Source, looks: int = 25) -> int:
    """The median of the shorter sides, from the headers of a few pictures."""
    sides = []
    for index in np.linspace(0, len(source) - 1, min(looks, len(source))).astype(int):
        try:
            sides.append(min(size_of(source.picture(int(index)))))
        except (UnreadableImage, OSError):
            continue  # counted and named when it is read
    if not sides:
        raise ValueError(f"none of the first {min(looks, len(source))} pictures can be read, such as {source.name(0)}")
    return int(np.median(sides))


def fitting_batch(model: ViTConfig | ResNetConfig, memory: int) -> int:
    """The largest power of two whose activations take at most half of the memory, up to 4096.

    >>> fitting_batch(ViTConfig(), memory=16 << 30)
    64
    """
    from vitreous.model.cost import cost

    return 1 << min(max(memory // (2 * cost(model).activation_bytes), 1), 4096).bit_length() - 1


def free_memory(device: str) -> int:
    """In bytes, on the device that the run will use."""
    if device == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _model_config(config: TrainConfig) -> ViTConfig | ResNetConfig:
    size = as_size(config.image_size) if config.image_size else None
    if config.init is not None:
        model = describe(config.init).config
        model = model.encoder if isinstance(model, SegmenterConfig) else model
        return model if size is None else model.resized(size)
    return configure(config.model or "", image_size=size, overrides=parse_fields(config.set))


def _tiled(config: TrainConfig, pixels: int) -> int:
    """The number nearest to `pixels` that the model's patches tile: 126 for ViT-L/14 where others get 128."""
    for side in sorted(range(max(pixels - 64, 1), pixels + 64), key=lambda side: abs(side - pixels)):
        try:
            configure(config.model or "", image_size=side, overrides=parse_fields(config.set))
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
    candidates = [parent / name] + [parent / f"{name}-{i}" for i in range(2, 10_000)]
    return next(folder for folder in candidates if not folder.exists())


def _batch_size(count: int, ideal: int, parts: int) -> int:
    """At least eight steps in an epoch where that leaves sixteen pictures in a batch; even shares for every part."""
    size = min(ideal, max(count // 8, 16), count)
    unit = 2 * parts  # mixing needs pairs
    return max(size // unit * unit, unit)


def _with_decoder(config: TrainConfig) -> tuple[TrainConfig, list[str]]:
    """A linear decoder from scratch sees parts of patches; one that a checkpoint has stays, and is named."""
    how = config.segmenting
    if how.decoder == "mask" or how.cells is not None or how.mask_blocks is not None:
        return config, []
    if config.init is None:
        chosen = dataclasses.replace(config, segmenting=dataclasses.replace(how, cells=8))
        return chosen, ["--cells 8: outlines finer than a patch"]
    before = describe(config.init).config
    known = how.decoder is None and isinstance(before, SegmenterConfig)
    return config, [f"the decoder: {before.decoder}, as the checkpoint has it"] if known else []  # type: ignore[union-attr]


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
