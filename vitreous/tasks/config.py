"""Configuration of a training run.

Every field is a flag of `vitreous train`. Fields that are None are chosen automatically (see training/defaults.py).
This file does not import torch, which keeps `vitreous --help` fast. Values are checked in `check` rather than in the
constructor, because the command-line parser alters error messages from constructors.
"""

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, get_type_hints

from vitreous.common.checks import (
    BadValue,
    as_size,
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
from vitreous.model.options import check_value_range

C = TypeVar("C")


def _convert(config: Any, **kinds: type[str] | type[Path]) -> None:
    """Convert paths and strings in the named fields of a frozen config to the given types. Skip other values."""
    for name, kind in kinds.items():
        if isinstance(value := getattr(config, name), str | os.PathLike):
            object.__setattr__(config, name, kind(os.fspath(value)))


@dataclass(frozen=True)
class Augment:
    """Augmentation of training images. Options that are None are chosen automatically."""

    crop: Literal["resized", "padded", "none"] | None = None
    """resized: random crop at a random scale; padded: random crop of the padded image; none: the whole image."""
    crop_scale: tuple[float, float] | None = None
    """Minimum and maximum area of a resized crop, as fractions of the image area."""
    flip: float | Literal["alternate"] | None = None
    """Probability of a horizontal flip; alternate: flip each image in every second epoch."""
    policy: Literal["none", "randaugment", "trivial", "three"] | None = None
    """Augmentation policy: RandAugment, TrivialAugment, or DeiT-III's 3-Augment."""
    policy_layers: int | None = None
    """RandAugment: number of operations per image."""
    policy_magnitude: float | None = None
    """RandAugment: strength of the operations; 10 is full strength."""
    colour_jitter: float | None = None
    """Maximum relative change of brightness, contrast and saturation."""
    erasing: float | None = None
    """Probability of replacing a random rectangle with noise."""
    mixup: float | None = None
    """Alpha of mixup's Beta distribution; 0 disables mixup."""
    cutmix: float | None = None
    """Alpha of CutMix's Beta distribution; 0 disables CutMix."""
    repeats: int | None = None
    """Repeated augmentation: number of variants of each image per epoch."""

    def check(self) -> None:
        self.on(Augmentation())  # checks the fields

    def on(self, base: Augmentation) -> Augmentation:
        """Return a copy of `base`, updated with the fields that are set here."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        return dataclasses.replace(base, **given)


@dataclass(frozen=True)
class Distillation:
    """Distillation from a teacher: of its classes (DeiT, arXiv 2012.12877) or, with --task distil, of its features."""

    teacher: str | Path | None = None
    """Checkpoint path or catalog name of the teacher, which must have the same classes, except with --task distil."""
    distill: Literal["soft", "hard"] = "hard"
    """soft: match the teacher's probabilities; hard: use the teacher's top-1 class as the label."""
    distill_weight: float = 0.5
    """Weight of the distillation loss, from 0 to 1; the label loss has weight 1 minus this value."""
    distill_temperature: float = 3.0
    """Softmax temperature of soft distillation."""
    teacher_size: tuple[int, ...] = ()
    """distil: image size of the teacher; by default that of its checkpoint, or 224 if that is larger than 256."""

    def __post_init__(self) -> None:
        _convert(self, teacher=str)

    def check(self) -> None:
        check_real("distill_weight", self.distill_weight, 0, 1)
        check_positive("distill_temperature", self.distill_temperature)
        if self.teacher_size:
            as_size(self.teacher_size, "teacher_size")
        for name, default in vars(Distillation()).items():
            if self.teacher is None and getattr(self, name) != default:
                raise BadValue(f"{name} is {getattr(self, name)!r}, but it has no effect without --teacher")


@dataclass(frozen=True)
class Masking:
    """Options for masked pre-training (--task mae or mpp)."""

    mask_rate: float | None = None
    """Fraction of patches to mask; 0.75 for mae and 0.5 for mpp by default, as in the papers."""
    mpp_target: Literal["colour", "colours", "pixels"] = "colour"
    """mpp: predict the mean colour of a patch (3 bits per channel), the mean colours of 4 x 4 cells, or the pixels."""
    decoder_width: int | None = None
    """mae: width of the decoder; by default half of the encoder's width, but at most 512."""
    decoder_depth: int | None = None
    """mae: number of decoder blocks; by default a sixth of the encoder's depth, but at least 2 and at most 8."""

    def decoder_shape(self, encoder: ViTConfig) -> tuple[int, int]:
        """Return the width and depth of the MAE decoder. The defaults depend on the encoder (MAE paper, table 1)."""
        width = self.decoder_width or min(max(encoder.width // 2 // 32, 1) * 32, 512)
        depth = self.decoder_depth or min(max(encoder.depth // 6, 2), encoder.depth, 8)
        return width, depth

    def check(self) -> None:
        if self.mask_rate is not None and not 0 < self.mask_rate < 1:
            fail("mask_rate", self.mask_rate, "more than 0 and less than 1")
        if self.decoder_width is not None:
            check_whole("decoder_width", self.decoder_width, 32, 2**16)
            if self.decoder_width % 32:
                fail("decoder_width", self.decoder_width, "a multiple of 32 (the width of a head)")
        if self.decoder_depth is not None:
            check_whole("decoder_depth", self.decoder_depth, 1, 1024)


@dataclass(frozen=True)
class Segmenting:
    """Options for semantic segmentation (--task segment)."""

    decoder: Literal["linear", "mask", "pyramid"] | None = None
    """linear: a linear layer on each patch; mask: a transformer over patch and class tokens (Segmenter); pyramid: an
    MLP on the feature maps of all stages, the default for Swin."""
    cells: int | None = None
    """Linear decoder: number of predictions per patch in each direction; more cells give finer outlines."""
    mask_blocks: int | None = None
    """Mask decoder: number of transformer blocks; 2 by default."""
    dice: float = 0.0
    """Weight of the Dice loss, which is added to the cross-entropy and helps with small regions."""
    ignore: tuple[str, ...] = ()
    """Classes to exclude from the loss and the metrics."""

    def check(self) -> None:
        for name in ("cells", "mask_blocks"):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), 1, 64)
        check_real("dice", self.dice, 0, 100)
        if self.decoder in ("mask", "pyramid") and self.cells is not None:
            fail("cells", self.cells, f"omitted with --decoder {self.decoder}")
        if self.decoder in ("linear", "pyramid") and self.mask_blocks is not None:
            fail("mask_blocks", self.mask_blocks, f"omitted with --decoder {self.decoder}")


@dataclass(frozen=True)
class TableTargets:
    """Options for several labels or numbers per image, from a table (--task multilabel or regress)."""

    target: tuple[str, ...] = ()
    """Columns of the table to predict; multilabel: the column of labels, or one 0/1 column per class; regress: one or
    several columns of numbers. By default, they are found by their names and values."""
    loss: Literal["bce", "asymmetric", "smooth-l1", "mse"] | None = None
    """multilabel: binary cross-entropy (bce, the default) or the asymmetric loss for many rare classes (arXiv
    2009.14119); regress: smooth-l1 (the default, less sensitive to outliers) or mse."""

    def check(self) -> None:
        if len(set(self.target)) < len(self.target):
            fail("target", " ".join(self.target), "distinct columns")


@dataclass(frozen=True)
class SemiSupervised:
    """Semi-supervised classification: images without labels, in addition to --data."""

    unlabelled: str | Path | None = None
    """Images without labels: a folder or any other data set of --data, whose labels are ignored. If it has splits, only
    train is used."""
    semi: Literal["noisy-student", "consistency", "meta-pseudo-labels"] = "noisy-student"
    """noisy-student: learn the predictions of a teacher, several times in a row (arXiv 1911.04252); consistency: learn
    the model's own confident predictions for weakly augmented images (FixMatch, arXiv 2001.07685); meta-pseudo-labels:
    the teacher learns from the progress of its student (arXiv 2003.10580)."""
    unlabelled_ratio: int = 7
    """Unlabelled images per labelled image in a batch; --batch-size counts only the labelled images."""
    unlabelled_weight: float = 1.0
    """Weight of the loss on unlabelled images; for meta-pseudo-labels, of the teacher's loss on weak views."""
    threshold: float | None = None
    """Minimum probability of a pseudo label; lower ones are ignored. By default 0.95 for consistency, 0.3 for
    noisy-student and 0.6 for meta-pseudo-labels, as chosen by the authors."""
    rounds: int = 3
    """noisy-student: number of students that are trained in a row; each is the teacher of the next."""

    def __post_init__(self) -> None:
        _convert(self, unlabelled=str)

    def check(self) -> None:
        check_whole("unlabelled_ratio", self.unlabelled_ratio, 1, 100)
        check_whole("rounds", self.rounds, 1, 100)
        check_real("unlabelled_weight", self.unlabelled_weight, 0, 1000)
        check_real("threshold", self.threshold or 0, 0, 1)
        for name, default in vars(SemiSupervised()).items():
            if self.unlabelled is None and getattr(self, name) != default:
                raise BadValue(f"{name} is {getattr(self, name)!r}, but it has no effect without --unlabelled")


# Integer fields with their minimum and maximum.
INTEGERS = (
    ("steps", 1, 10**9), ("accumulate", 1, 10**4), ("workers", 0, 1024), ("evaluate_every", 1, 10**6),
    ("patience", 1, 10**6), ("keep", 0, 10**4),
)  # fmt: skip


@dataclass(frozen=True)
class Optim:
    """Optimizer, learning-rate schedule and weight averaging."""

    optimizer: Literal["adamw", "sgd", "muon"] | None = None
    """muon: Muon for the matrices of the blocks, and AdamW for all other weights."""
    lr: float | None = None
    """Peak learning rate."""
    weight_decay: float = 0.05
    """Weight decay of matrices; biases, norms, tokens and position embeddings are not decayed."""
    momentum: float = 0.9
    """Momentum of SGD and Muon."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Beta coefficients of AdamW."""
    schedule: Literal["cosine", "linear", "rsqrt", "constant"] = "cosine"
    """Learning-rate schedule after the warm-up."""
    warmup: float = 0.05
    """Duration of the linear warm-up, as a fraction of the run."""
    cooldown: float = 0.2
    """Duration of the linear cooldown of the rsqrt schedule, as a fraction of the run."""
    final_lr: float = 0.0
    """Final learning rate of the cosine and linear schedules, as a fraction of the peak."""
    layer_decay: float | None = None
    """Layer-wise decay of the learning rate, from the last layer to the first; 1 disables it."""
    clip: float = 1.0
    """Maximum gradient norm; 0 disables clipping."""
    ema: float | None = None
    """Decay of a moving average of the weights, such as 0.9998. If set, the average is evaluated and saved."""

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
        if self.layer_decay is not None:
            check_real("layer_decay", self.layer_decay, 1e-3, 1)
        if self.clip != 0:
            check_positive("clip", self.clip)
        if self.ema is not None:
            check_fraction("ema", self.ema)


@dataclass(frozen=True)
class TrainConfig:
    """Configuration of a training run. Only `data` is required; fields that are None are chosen automatically."""

    data: str | Path = ""
    """Folder, table, tar shards, .npz file, hf:owner/name, or a built-in data set such as digits or cifar10."""
    model: str | None = None
    """Model preset, such as ViT-S/16."""
    init: str | Path | None = None
    """Initial weights: a checkpoint path, a catalog name such as dinov2-s (see `vitreous info --pretrained`),
    hf-hub:owner/name, or auto to choose from the catalog for the data and the device. The head is replaced if the
    classes differ."""
    image_size: tuple[int, ...] = ()
    """Image size: one number, or height and width. Position embeddings of a checkpoint are resampled."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Other fields of the model config, such as {"registers": 4, "position": Rotary2d()}."""
    task: Literal["classify", "multilabel", "regress", "segment", "mae", "mpp", "distil"] = "classify"
    """classify: one class per image; multilabel: any number of classes per image; regress: numbers; segment: one class
    per pixel; mae and mpp: masked pre-training without labels; distil: features of --teacher, without labels."""
    data_root: str | Path | None = None
    """Local copy of a data set that would otherwise be downloaded."""
    val_fraction: float = 0.2
    """Fraction of the training images to hold out if the data has no validation split."""
    value_range: tuple[float, float] | None = None
    """Values of 16-bit images that map to black and white, such as 0 4095 for 12-bit data. Saved with the model."""
    seed: int = 0
    """Random seed for the split, initial weights, data order, augmentation and dropout."""

    train_only: Literal["all", "head", "lora", "lda"] | None = None
    """all: all weights; head: only the head or decoder (linear probe); lora: the head, and LoRA matrices in all blocks;
    lda: the head, by linear discriminant analysis in one pass over the images (`vitreous extend` can add classes)."""
    lora_rank: int = 8
    """Rank of the LoRA matrices (with --train-only lora)."""
    cache_features: bool | None = None
    """With train_only="head": compute the features of each image once. By default if images are only flipped."""
    smoothing: float = 0.0
    """Label smoothing."""
    balance: float | None = None
    """Logit adjustment for imbalanced classes (arXiv 2007.07314), from 0 to 1: 0 disables it; with 1, all classes are
    equally likely for the model."""
    stochastic_depth: float | None = None
    """Stochastic depth: drop rate of the last block; earlier blocks have lower rates."""
    dropout: float | None = None
    """Dropout rate of the embedding and the hidden layers."""
    patch_dropout: float | None = None
    """Fraction of patches to drop in training."""
    progressive: float = 0.0
    """Progressive resizing: fraction of the epochs with smaller training images, which make steps faster. Their size
    grows from half of the image size to the full size."""
    whiten: bool = False
    """Initialise the patch embedding to whiten the patches of the training images before a random projection."""
    flip_test: bool = False
    """Average the predictions for each validation image and its mirror image."""

    augment: Augment = field(default_factory=Augment)
    distillation: Distillation = field(default_factory=Distillation)
    masking: Masking = field(default_factory=Masking)
    segmenting: Segmenting = field(default_factory=Segmenting)
    targets: TableTargets = field(default_factory=TableTargets)
    semi_supervised: SemiSupervised = field(default_factory=SemiSupervised)

    out: str | Path | None = None
    """Run folder; by default the first of runs/NAME, runs/NAME-2, ... that does not exist."""
    resume: bool = False
    """Resume the run in --out from its last checkpoint."""
    auto_resume: bool = False
    """Resume the run in --out if there is one, otherwise start it; for jobs that are restarted by torchrun or Slurm."""
    allow_data_change: bool = False
    """With --resume: accept added and removed images. Existing images keep their split; new images are for training."""

    epochs: float | None = None
    """Number of epochs."""
    steps: int | None = None
    """Number of optimizer steps, instead of --epochs."""
    batch_size: int | Literal["auto"] | None = None
    """Images per step across all processes; auto chooses the largest batch that fits in half of the free memory."""
    accumulate: int = 1
    """Gradient accumulation: number of micro-batches per step in each process."""

    device: str = "auto"
    """auto, cpu, mps, cuda or cuda:N; auto uses a GPU if available."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Compute precision; weights stay in fp32. auto chooses bf16 on GPUs that support it, and fp32 otherwise."""
    keep_images: Literal["gpu", "memory", "no"] | None = None
    """Keep decoded training images on the GPU or in main memory. By default, they are kept wherever they fit."""
    workers: int | None = None
    """Number of data-loading processes."""
    decode: Literal["auto", "exact", "fast"] = "auto"
    """JPEG decoding of training images. fast: decode at a reduced scale; exact: decode at full size; auto: exact for
    images that are kept in memory and in the last tenth of the run, otherwise fast."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """Strategy for multiple processes (torchrun)."""
    compile: bool | Literal["blocks", "graphs"] | None = None
    """True: compile the whole model with torch.compile; "blocks": compile only the transformer blocks, which takes
    10 to 20 seconds instead of a minute; "graphs": only record CUDA graphs, which the other two also use if possible.
    On a GPU, the default is "blocks" if that makes the run shorter, otherwise "graphs"."""
    checkpoint_blocks: bool = False
    """Activation checkpointing: recompute blocks in the backward pass to save memory."""

    evaluate_every: int | None = None
    """Number of epochs between evaluations."""
    patience: int | None = None
    """Stop after this many evaluations without improvement."""
    keep: int = 0
    """Number of earlier checkpoints to keep besides last/ and best/."""
    save_minutes: float = 5.0
    """Maximum minutes between checkpoints."""
    max_unreadable: float | None = None
    """Maximum fraction of unreadable training images before the run fails; 0.05 by default."""
    track: Literal["tensorboard", "wandb", "mlflow", "trackio"] | None = None
    """Also log metrics to an experiment tracker. tensorboard writes to the tensorboard/ folder of the run; the others
    use their own settings, e.g. WANDB_PROJECT or MLFLOW_TRACKING_URI."""
    tensorboard: bool = False
    """Also log metrics to TensorBoard, as --track tensorboard does."""

    optim: Optim = field(default_factory=Optim)

    def __post_init__(self) -> None:
        _convert(self, data=str, init=str, data_root=Path, out=Path)

    def check(self) -> None:
        """Raise BadValue if a value is invalid. `Task.check` rejects options that the task does not use."""
        check_words(self)
        for group in (self.optim, self.augment, self.distillation, self.masking, self.segmenting, self.targets):
            group.check()
        self.semi_supervised.check()
        if self.model is not None and self.init is not None:
            fail("model", self.model, "omitted with --init, because the checkpoint defines the architecture")
        check_real("val_fraction", self.val_fraction, 0.01, 0.9)
        if self.value_range is not None:
            check_value_range("value_range", self.value_range)
        check_whole("seed", self.seed, 0, 2**62)
        check_whole("lora_rank", self.lora_rank, 1, 4096)
        for name in ("smoothing", "stochastic_depth", "dropout", "patch_dropout"):
            if getattr(self, name) is not None:
                check_fraction(name, getattr(self, name))
        if self.balance is not None:
            check_real("balance", self.balance, 0, 1)
        check_real("progressive", self.progressive, 0, 1)
        if self.whiten and self.init is not None:
            fail("whiten", self.whiten, "False with --init, which contains a trained patch embedding")
        frozen = self.train_only not in (None, "all") and self.init is None
        if frozen and not (self.resume or self.auto_resume):  # a resumed run has its own init
            raise BadValue(f"--train-only {self.train_only} needs --init, because frozen random weights are useless")
        if self.train_only != "lora" and self.lora_rank != TrainConfig.lora_rank:
            raise BadValue(f"lora_rank is {self.lora_rank}, but it has no effect without --train-only lora")
        if self.train_only != "head" and self.cache_features:
            raise BadValue('cache_features is True, but it has no effect without train_only="head"')
        if not self.data and not self.resume:
            raise BadValue("data is required: a folder, a file or a data set name (see `vitreous train --help`)")
        if self.epochs is not None:
            check_positive("epochs", self.epochs)
        if self.epochs is not None and self.steps is not None:
            raise BadValue(f"epochs ({self.epochs:g}) and steps ({self.steps}) cannot be combined")
        if self.batch_size not in (None, "auto"):
            check_whole("batch_size", self.batch_size, 1, 10**6)
        for name, least, most in INTEGERS:
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), least, most)
        check_positive("save_minutes", self.save_minutes)
        check_real("max_unreadable", self.max_unreadable or 0, 0, 1)
        if self.resume and self.out is None:
            raise BadValue("--resume needs --out, the folder of the run to resume")
        if self.auto_resume and (self.out is None or self.resume):
            raise BadValue("--auto-resume needs --out and cannot be combined with --resume")
        if self.allow_data_change and not self.resume:
            raise BadValue("--allow-data-change can only be used with --resume")


# Task-specific options. `Task.options` lists the options that a task uses.
TASK_OPTIONS = frozenset({"smoothing", "balance", "progressive", "flip_test", "mixup", "cutmix"}).union(
    *(vars(group()) for group in (Distillation, Masking, Segmenting, TableTargets, SemiSupervised))
)


def typed_overrides(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Convert JSON values to the field types of ViTConfig. Fields of other models are not converted."""
    hints = get_type_hints(ViTConfig)
    return {name: decode(hints[name], value, name) if name in hints else value for name, value in fields.items()}


def flatten(config: Any) -> dict[str, Any]:
    """Return all fields of a config by name, including nested fields. Names are unique."""
    fields = dict(vars(config))
    for name in [name for name, value in fields.items() if dataclasses.is_dataclass(value)]:
        fields |= flatten(fields.pop(name))
    return fields


def with_fields(config: C, fields: Mapping[str, Any]) -> C:
    """Replace fields by name, including nested fields: with_fields(config, {"seed": 1, "flip": 0.5})."""
    known = {*vars(config), *flatten(config)}
    if unknown := next((name for name in fields if name not in known), None):
        raise BadValue(f"{unknown!r} is not a field of {type(config).__name__}{suggestion(unknown, known)}")
    hints, changes = get_type_hints(type(config)), {}
    for name, value in vars(config).items():
        if name in fields:
            given = fields[name]
            given = (given,) if name in ("image_size", "teacher_size") and isinstance(given, int) else given
            changes[name] = decode(hints[name], given, name)
        elif dataclasses.is_dataclass(value):
            changes[name] = with_fields(value, {key: fields[key] for key in vars(value).keys() & fields.keys()})
    return dataclasses.replace(config, **changes)  # type: ignore[type-var]
