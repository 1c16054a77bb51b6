"""Configuration that tasks read: data, model, augmentation and the options of each task.

Every field is a flag of `vitreous train`. This file imports no torch, so that `vitreous --help` stays fast.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, get_type_hints

from vitreous.common.checks import BadValue, check_fraction, check_positive, check_real, check_whole, fail, suggestion
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
        """Width and depth of MAE's decoder: the given ones, or light ones for this encoder.

        Half the width and a sixth of the depth are a twenty-fourth of the encoder's work per token, on four times as
        many tokens. MAE's own decoder for a ViT-L has width 512 and depth 8; with 2 or 4 blocks its authors found the
        same accuracy after fine-tuning (84.9 %, table 1a), and less with a linear probe (70.0, 71.9, 73.5 %).

        >>> Masking().decoder_shape(ViTConfig(width=768, depth=12, num_heads=12))
        (384, 2)
        """
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


@dataclass(frozen=True)
class TaskConfig:
    """The fields of a run's config that tasks read."""

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

    def check(self) -> None:
        """Raise if a value is invalid. The task checks which options it uses."""
        for group in (self.augment, self.distillation, self.masking, self.segmenting):
            group.check()
        if self.model is not None and self.init is not None:
            fail("model", self.model, "omitted with --init: a checkpoint has its own architecture")
        check_real("val_fraction", self.val_fraction, 0.01, 0.9)
        check_whole("seed", self.seed, 0, 2**62)
        check_whole("lora_rank", self.lora_rank, 1, 4096)
        for name in ("smoothing", "stochastic_depth", "dropout", "patch_dropout"):
            if getattr(self, name) is not None:
                check_fraction(name, getattr(self, name))
        if self.train_only != "lora" and self.lora_rank != TaskConfig.lora_rank:
            fail("lora_rank", self.lora_rank, "omitted, or used with --train-only lora")


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
