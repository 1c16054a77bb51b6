"""A training run as data: everything that decides its outcome, and nothing that does not fit on the command line.

Every field is a flag of `vitreous train`. A field left at None is chosen for the data at hand (see defaults.py), and
the run says what was chosen. This file imports no torch, so that the command line can use it and stay quick. `train`
checks the whole of it first: were it checked as it is made, the parser would tell what is wrong in words of its own.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from vitreous.common.checks import (
    check_fraction,
    check_positive,
    check_real,
    check_whole,
    check_words,
    fail,
    refuse_unused,
)
from vitreous.training.config_parts import Augment, Distillation, Masking, Optim, Segmenting

__all__ = ["Augment", "Distillation", "Masking", "Optim", "Segmenting", "TrainConfig"]

Precision = Literal["auto", "fp32", "bf16", "fp16"]
# Fields of a run that are whole numbers, with the least and the most that they may be.
WHOLE = (
    ("steps", 1, 10**9), ("accumulate", 1, 10**4), ("seed", 0, 2**62), ("workers", 0, 1024), ("lora_rank", 1, 4096),
    ("evaluate_every", 1, 10**6), ("patience", 1, 10**6), ("keep", 0, 10**4),
)  # fmt: skip


@dataclass(frozen=True)
class TrainConfig:
    """A run: `vitreous train --data DIR` is enough. What is None by default is chosen for the data, and said."""

    data: str = ""
    """A folder, a table, tar shards, a .npz, hf:owner/name, or a built-in name such as digits or cifar10."""
    model: str | None = None
    """A preset such as ViT-S/16."""
    init: Path | None = None
    """Start from this checkpoint instead of random weights; its head is replaced where the classes differ."""
    image_size: tuple[int, ...] = ()
    """One number or height and width; a checkpoint's positions are resampled to it."""
    set: tuple[str, ...] = ()
    """Other parts for the model, as field=JSON: --set registers=4 'position={"kind": "Rotary2d"}'."""
    task: Literal["classify", "segment", "mae", "mpp"] = "classify"
    """A class for every picture, or for every pixel; or, without labels, hidden patches, as MAE or the paper fills."""
    out: Path | None = None
    """The run's folder; runs/NAME-N where left out."""
    resume: bool = False
    """Go on with the run in --out, exactly where it stopped."""
    allow_data_change: bool = False
    """With --resume: accept that images were added or removed. Known ones keep their split, new ones join train."""
    data_root: Path | None = None
    """A local copy of a data set that would be downloaded."""
    val_fraction: float = 0.2
    """Share that is held out where the data has no validation part of its own."""

    epochs: float | None = None
    """Times that every picture is seen."""
    steps: int | None = None
    """Instead of epochs."""
    batch_size: int | Literal["auto"] | None = None
    """Pictures in a step, over all processes; auto is what fits into half of the free memory."""
    accumulate: int = 1
    """Parts into which a process cuts its share of the batch, to save memory."""
    seed: int = 0
    """Of all randomness: the split, the first weights, order, augmentation, dropout."""

    device: str = "auto"
    """auto, cpu, mps, cuda or cuda:N; auto is a GPU where there is one."""
    precision: Precision = "auto"
    """Of the computation; weights are fp32. auto is bf16 on a GPU that has it."""
    workers: int | None = None
    """Processes that decode pictures."""
    decode: Literal["auto", "exact", "fast"] = "auto"
    """Of JPEGs in training: fast reads large ones at a reduced scale; auto is fast until the last tenth of epochs."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """How torchrun's processes share the work."""
    compile: bool = False
    """Compile the training step's model; quicker after a minute."""
    checkpoint_blocks: bool = False
    """Recompute blocks in the backward pass, to save memory."""

    train_only: Literal["all", "head", "lora"] = "all"
    """Everything, only the head or decoder (a linear probe), or low-rank additions to attention and MLP besides."""
    lora_rank: int = 8
    """Of --train-only lora: how many directions each addition has."""
    smoothing: float = 0.0
    """Label smoothing."""
    stochastic_depth: float | None = None
    """Probability that the last block is left out; less for those below it."""
    dropout: float | None = None
    """Of the embedding and the hidden layers."""
    patch_dropout: float | None = None
    """Share of the patches that are left out in training."""

    evaluate_every: int | None = None
    """Epochs from one evaluation, and checkpoint, to the next."""
    patience: int | None = None
    """Stop after so many evaluations without improvement."""
    keep: int = 0
    """Keep this many earlier checkpoints besides last and best."""
    save_minutes: float = 5.0
    """Save at least this often within an epoch."""
    max_unreadable: float | None = None
    """Fail where a larger share of the pictures cannot be read; 0.05 where left out."""
    flip_test: bool = False
    """Average the evaluation over a picture and its mirror image."""
    tensorboard: bool = False
    """Write the figures of every epoch to --out/tensorboard as well."""

    optim: Optim = field(default_factory=Optim)
    augment: Augment = field(default_factory=Augment)
    distillation: Distillation = field(default_factory=Distillation)
    masking: Masking = field(default_factory=Masking)
    segmenting: Segmenting = field(default_factory=Segmenting)

    def check(self) -> None:
        check_words(self)
        for part in (self.optim, self.augment, self.distillation, self.masking, self.segmenting):
            part.check()
        self._check_run()
        self._check_use()

    def _check_use(self) -> None:
        """Nothing is said that would have no effect."""
        refuse_unused(self.task in ("mae", "mpp"), self.masking, Masking(), "--task mae or mpp")
        refuse_unused(self.task != "mae", self.masking, Masking(), "--task mpp", ("mpp_target",))
        refuse_unused(self.task != "mpp", self.masking, Masking(), "--task mae", ("decoder_width", "decoder_depth"))
        refuse_unused(self.task == "segment", self.segmenting, Segmenting(), "--task segment")
        classified = self.task == "classify"
        refuse_unused(classified, self, TrainConfig(data=""), "--task classify", ("smoothing", "flip_test"))
        refuse_unused(classified, self.distillation, Distillation(), "--task classify", ("teacher",))
        for name in ("mixup", "cutmix"):
            if self.task in ("mae", "mpp") and getattr(self.augment, name):
                fail(name, getattr(self.augment, name), f"left out, or 0, for --task {self.task}")
        refuse_unused(self.distillation.teacher is not None, self.distillation, Distillation(), "--teacher")
        if self.train_only != "lora" and self.lora_rank != TrainConfig.lora_rank:
            fail("lora_rank", self.lora_rank, "left out, or used with --train-only lora")

    def _check_run(self) -> None:
        if not self.data and not self.resume:
            fail("data", self.data, "a folder, a file or a name; `vitreous train --help` lists the kinds")
        if self.model is not None and self.init is not None:
            fail("model", self.model, "left out where init is given: a checkpoint says itself what it is")
        check_real("val_fraction", self.val_fraction, 0.01, 0.9)
        if self.epochs is not None:
            check_positive("epochs", self.epochs)
        if self.epochs is not None and self.steps is not None:
            fail("steps", self.steps, "left out where epochs is given, or the other way round")
        if self.batch_size not in (None, "auto"):
            check_whole("batch_size", self.batch_size, 1, 10**6)
        for name, least, most in WHOLE:
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), least, most)
        for name in ("smoothing", "stochastic_depth", "dropout", "patch_dropout"):
            if getattr(self, name) is not None:
                check_fraction(name, getattr(self, name))
        check_positive("save_minutes", self.save_minutes)
        check_real("max_unreadable", self.max_unreadable or 0, 0, 1)
        if self.resume and self.out is None:
            fail("resume", self.resume, "given together with --out, the folder of the run to go on with")
        if self.allow_data_change and not self.resume:
            fail("allow_data_change", self.allow_data_change, "given together with --resume")
