"""Configuration of a training run: everything that decides its outcome.

Every field is a flag of `vitreous train`; one that is None is chosen for the data (see training/setup.py). This file
imports no torch, so that `vitreous --help` stays fast. `train` checks the config, not its constructor, because the
parser would report errors of the constructor in other words.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, get_type_hints

from vitreous.common.checks import (
    BadValue,
    check_fraction,
    check_positive,
    check_real,
    check_whole,
    check_words,
    fail,
    suggestion,
)
from vitreous.common.codec import decode
from vitreous.data.augment.config import Augmentation
from vitreous.model.config import ViTConfig

C = TypeVar("C")


@dataclass(frozen=True)
class Augment:
    """Augmentation of training images; None is chosen for the data."""

    crop: Literal["resized", "padded", "none"] | None = None
    """A random region at a random scale, a window of the padded image, or the whole image."""
    crop_scale: tuple[float, float] | None = None
    """Smallest and largest fraction of the image's area in a resized crop."""
    flip: float | None = None
    """Probability of a horizontal flip."""
    policy: Literal["none", "randaugment", "trivial", "three"] | None = None
    """RandAugment, TrivialAugment, or DeiT-III's 3-Augment."""
    policy_layers: int | None = None
    """RandAugment: number of operations."""
    policy_magnitude: float | None = None
    """RandAugment: strength of the operations; 10 is full strength."""
    colour_jitter: float | None = None
    """Largest relative change of brightness, contrast and saturation."""
    erasing: float | None = None
    """Probability that a rectangle is replaced by noise."""
    mixup: float | None = None
    """Parameter of mixup's Beta distribution; 0 turns it off."""
    cutmix: float | None = None
    """Parameter of CutMix's Beta distribution; 0 turns it off."""
    repeats: int | None = None
    """Variants of each image in an epoch."""

    def check(self) -> None:
        self.on(Augmentation())  # which checks its fields

    def on(self, base: Augmentation) -> Augmentation:
        """Replace the fields of `base` that are set here."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        return dataclasses.replace(base, **given)


@dataclass(frozen=True)
class Distillation:
    """Learning from a teacher in addition to the labels (DeiT, arXiv 2012.12877)."""

    teacher: Path | None = None
    """Checkpoint of the teacher, with the same classes."""
    distill: Literal["soft", "hard"] = "hard"
    """Match the teacher's probabilities, or use its top-1 class as a label."""
    distill_weight: float = 0.5
    """Weight of the teacher's loss; the loss of the labels has the rest."""
    distill_temperature: float = 3.0
    """Temperature of the soft probabilities."""

    def check(self) -> None:
        check_real("distill_weight", self.distill_weight, 0, 1)
        check_positive("distill_temperature", self.distill_temperature)
        for name, default in vars(Distillation()).items():
            if self.teacher is None and getattr(self, name) != default:
                fail(name, getattr(self, name), "omitted, or used with --teacher")


@dataclass(frozen=True)
class Masking:
    """Masks and targets of self-supervised training (--task mae or mpp)."""

    mask_rate: float | None = None
    """Fraction of the patches that is hidden; by default 0.75 for mae and 0.5 for mpp, as in their papers."""
    mpp_target: Literal["colour", "colours", "pixels"] = "colour"
    """mpp: mean colour of a patch in 3 bits per channel, the colours of its 4 x 4 cells, or all of its pixels."""
    decoder_width: int | None = None
    """mae: by default half of the encoder's width, at most 512."""
    decoder_depth: int | None = None
    """mae: by default a sixth of the encoder's depth, 2 to 8 blocks. More blocks help features that stay frozen."""

    def decoder_shape(self, encoder: ViTConfig) -> tuple[int, int]:
        """Width and depth of MAE's decoder: the given ones, or light ones for this encoder (see MAE's table 1)."""
        width = self.decoder_width or min(max(encoder.width // 2 // 32, 1) * 32, 512)
        depth = self.decoder_depth or min(max(encoder.depth // 6, 2), encoder.depth, 8)
        return width, depth

    def check(self) -> None:
        if self.mask_rate is not None and not 0 < self.mask_rate < 1:
            fail("mask_rate", self.mask_rate, "more than 0 and less than 1")
        if self.decoder_width is not None:
            check_whole("decoder_width", self.decoder_width, 32, 2**16)
            if self.decoder_width % 32:
                fail("decoder_width", self.decoder_width, "a multiple of 32, the width of a head")
        if self.decoder_depth is not None:
            check_whole("decoder_depth", self.decoder_depth, 1, 1024)


@dataclass(frozen=True)
class Segmenting:
    """Decoder and loss of semantic segmentation (--task segment)."""

    decoder: Literal["linear", "mask"] | None = None
    """A linear layer on each patch, or a transformer over patches and one token per class (Segmenter)."""
    cells: int | None = None
    """Linear decoder: number of cells that each patch is divided into, vertically and horizontally."""
    mask_blocks: int | None = None
    """Mask decoder: number of blocks; 2 by default."""
    dice: float = 0.0
    """Weight of the Dice loss beside cross-entropy; it helps small classes."""
    ignore: tuple[str, ...] = ()
    """Classes whose pixels are excluded from the loss and the metrics."""

    def check(self) -> None:
        for name in ("cells", "mask_blocks"):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), 1, 64)
        check_real("dice", self.dice, 0, 100)
        if self.decoder == "mask" and self.cells is not None:
            fail("cells", self.cells, "omitted with --decoder mask: it is an option of the linear decoder")
        if self.decoder == "linear" and self.mask_blocks is not None:
            fail("mask_blocks", self.mask_blocks, "omitted with --decoder linear: it is an option of the mask decoder")


# Integer fields with their smallest and largest values.
INTEGERS = (
    ("steps", 1, 10**9), ("accumulate", 1, 10**4), ("workers", 0, 1024), ("evaluate_every", 1, 10**6),
    ("patience", 1, 10**6), ("keep", 0, 10**4),
)  # fmt: skip


@dataclass(frozen=True)
class Optim:
    """Optimizer, learning-rate schedule and weight average."""

    optimizer: Literal["adamw", "sgd", "muon"] = "adamw"
    """muon: Muon for the matrices of the blocks, AdamW for all other weights."""
    lr: float | None = None
    """Peak learning rate."""
    weight_decay: float = 0.05
    """Of matrices only: biases, norms, tokens and position embeddings are not decayed."""
    momentum: float = 0.9
    """Of SGD and Muon."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Of AdamW."""
    schedule: Literal["cosine", "linear", "rsqrt", "constant"] = "cosine"
    """Learning-rate schedule after the warm-up."""
    warmup: float = 0.05
    """Fraction of the run in which the learning rate rises linearly."""
    cooldown: float = 0.2
    """Fraction of the run in which rsqrt falls linearly to zero at the end."""
    final_lr: float = 0.0
    """Last learning rate of cosine and linear, as a fraction of the peak."""
    layer_decay: float = 1.0
    """Factor on the learning rate from each layer to the one below it; 0.75 is usual for fine-tuning."""
    clip: float = 1.0
    """Largest norm of the gradient; 0 for no limit."""
    ema: float | None = None
    """Decay of an exponential moving average of the weights, which is evaluated and saved; 0.9998, for example."""

    def check(self) -> None:
        if self.lr is not None:
            check_positive("lr", self.lr)
        check_real("weight_decay", self.weight_decay, 0, 100)
        for name, value in (("momentum", self.momentum), *(("betas", beta) for beta in self.betas)):
            check_fraction(name, value)
        for name in ("warmup", "cooldown", "final_lr"):
            check_real(name, getattr(self, name), 0, 1)
        if self.warmup + self.cooldown > 1 and self.schedule == "rsqrt":
            fail("cooldown", self.cooldown, f"at most 1 - warmup ({1 - self.warmup:g})")
        check_real("layer_decay", self.layer_decay, 1e-3, 1)
        if self.clip != 0:
            check_positive("clip", self.clip)
        if self.ema is not None:
            check_fraction("ema", self.ema)


@dataclass(frozen=True)
class TrainConfig:
    """A training run. `TrainConfig(data="images/")` is complete: every field that is None is chosen for the data."""

    data: str = ""
    """A folder, a table, tar shards, a .npz, hf:owner/name, or a built-in name such as digits or cifar10."""
    model: str | None = None
    """A preset such as ViT-S/16."""
    init: Path | None = None
    """Checkpoint to start from instead of random weights; its head is replaced if the classes differ."""
    image_size: tuple[int, ...] = ()
    """One number, or height and width; a checkpoint's position embeddings are resampled to it."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Other fields of the model's config: {"registers": 4, "position": Rotary2d()}."""
    task: Literal["classify", "segment", "mae", "mpp"] = "classify"
    """One class per image, one class per pixel, or training without labels: MAE or the paper's masked patches."""
    data_root: Path | None = None
    """A local copy of a data set that would be downloaded otherwise."""
    val_fraction: float = 0.2
    """Fraction of the training images that is held out if the data has no validation split."""
    seed: int = 0
    """Seed of all randomness: split, initial weights, order, augmentation, dropout."""

    train_only: Literal["all", "head", "lora"] = "all"
    """Train all weights, only the head or decoder (a linear probe), or the head and LoRA matrices in all blocks."""
    lora_rank: int = 8
    """Rank of the LoRA matrices (--train-only lora)."""
    smoothing: float = 0.0
    """Label smoothing."""
    stochastic_depth: float | None = None
    """Probability of skipping the last block; lower for earlier blocks."""
    dropout: float | None = None
    """Dropout of the embedding and the hidden layers."""
    patch_dropout: float | None = None
    """Fraction of the patches that is dropped in training."""
    flip_test: bool = False
    """Average validation predictions over each image and its mirror image."""

    augment: Augment = field(default_factory=Augment)
    distillation: Distillation = field(default_factory=Distillation)
    masking: Masking = field(default_factory=Masking)
    segmenting: Segmenting = field(default_factory=Segmenting)

    out: Path | None = None
    """Folder of the run; the first free one of runs/NAME, runs/NAME-2, ... by default."""
    resume: bool = False
    """Resume the run in --out from its last checkpoint."""
    allow_data_change: bool = False
    """With --resume: accept that images were added or removed. Known ones keep their split, new ones join train."""

    epochs: float | None = None
    """Number of passes over the training images."""
    steps: int | None = None
    """Number of optimizer steps, instead of epochs."""
    batch_size: int | Literal["auto"] | None = None
    """Images per step, over all processes; auto is the largest that fits into half of the free memory."""
    accumulate: int = 1
    """Number of micro-batches per step and process, to save memory."""

    device: str = "auto"
    """auto, cpu, mps, cuda or cuda:N; auto is a GPU if there is one."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Precision of the computation; weights are fp32. auto is bf16 on a GPU that supports it."""
    workers: int | None = None
    """Number of processes that decode images."""
    decode: Literal["auto", "exact", "fast"] = "auto"
    """JPEG decoding in training: fast reads large ones at a reduced scale; auto is fast until the last tenth."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """Strategy for several processes (torchrun)."""
    compile: bool = False
    """Compile the model with torch.compile; faster after about a minute."""
    checkpoint_blocks: bool = False
    """Recompute blocks in the backward pass, to save memory."""

    evaluate_every: int | None = None
    """Number of epochs between evaluations and checkpoints."""
    patience: int | None = None
    """Stop after this many evaluations without improvement."""
    keep: int = 0
    """Number of earlier checkpoints to keep besides last and best."""
    save_minutes: float = 5.0
    """Longest time between checkpoints within an epoch."""
    max_unreadable: float | None = None
    """Fail if a larger fraction of the training images is unreadable; 0.05 by default."""
    tensorboard: bool = False
    """Also write the metrics of every epoch to --out/tensorboard."""

    optim: Optim = field(default_factory=Optim)

    def check(self) -> None:
        """Raise if a value is invalid. The task checks which options it uses."""
        check_words(self)
        for group in (self.optim, self.augment, self.distillation, self.masking, self.segmenting):
            group.check()
        if self.model is not None and self.init is not None:
            fail("model", self.model, "omitted with --init: a checkpoint has its own architecture")
        check_real("val_fraction", self.val_fraction, 0.01, 0.9)
        check_whole("seed", self.seed, 0, 2**62)
        check_whole("lora_rank", self.lora_rank, 1, 4096)
        for name in ("smoothing", "stochastic_depth", "dropout", "patch_dropout"):
            if getattr(self, name) is not None:
                check_fraction(name, getattr(self, name))
        if self.train_only != "lora" and self.lora_rank != TrainConfig.lora_rank:
            fail("lora_rank", self.lora_rank, "omitted, or used with --train-only lora")
        if not self.data and not self.resume:
            fail("data", self.data, "a folder, a file or a name; `vitreous train --help` lists the kinds")
        if self.epochs is not None:
            check_positive("epochs", self.epochs)
        if self.epochs is not None and self.steps is not None:
            fail("steps", self.steps, "omitted with --epochs, or given instead of it")
        if self.batch_size not in (None, "auto"):
            check_whole("batch_size", self.batch_size, 1, 10**6)
        for name, least, most in INTEGERS:
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), least, most)
        check_positive("save_minutes", self.save_minutes)
        check_real("max_unreadable", self.max_unreadable or 0, 0, 1)
        if self.resume and self.out is None:
            raise BadValue("--resume needs --out, the folder of the run to resume")
        if self.allow_data_change and not self.resume:
            raise BadValue("--allow-data-change needs --resume: it accepts changed data when a run is resumed")


# Options of single tasks. A task lists those that it uses.
TASK_OPTIONS = frozenset({"smoothing", "flip_test", "mixup", "cutmix"}).union(
    *(vars(group()) for group in (Distillation, Masking, Segmenting))
)


def typed_overrides(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides with JSON values converted to the types of ViTConfig; fields of other models stay as they are."""
    hints = get_type_hints(ViTConfig)
    return {name: decode(hints[name], value, name) if name in hints else value for name, value in fields.items()}


def flatten(config: Any) -> dict[str, Any]:
    """All fields of a config by name, with those of nested groups: names are unique, as flags are."""
    fields = dict(vars(config))
    for name in [name for name, value in fields.items() if dataclasses.is_dataclass(value)]:
        fields |= flatten(fields.pop(name))
    return fields


def with_fields(config: C, fields: Mapping[str, Any]) -> C:
    """Replace fields by name, those of nested groups too: with_fields(config, {"seed": 1, "flip": 0.5})."""
    known = {*vars(config), *flatten(config)}
    if unknown := next((name for name in fields if name not in known), None):
        raise BadValue(f"{unknown!r} is not a field of {type(config).__name__}{suggestion(unknown, known)}")
    hints, changes = get_type_hints(type(config)), {}
    for name, value in vars(config).items():
        if name in fields:
            given = fields[name]
            given = (given,) if name == "image_size" and isinstance(given, int) else given
            changes[name] = decode(hints[name], given, name)
        elif dataclasses.is_dataclass(value):
            changes[name] = with_fields(value, {key: fields[key] for key in vars(value).keys() & fields.keys()})
    return dataclasses.replace(config, **changes)  # type: ignore[type-var]
