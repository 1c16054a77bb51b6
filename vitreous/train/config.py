"""A training run as data: everything that decides its outcome, and nothing that does not fit on the command line.

Every field is a flag of `vitreous train`. A field left at None is chosen for the data at hand (see defaults.py), and
the run says what was chosen. This file imports no torch, so that the command line can use it and stay quick. `train`
checks the whole of it first: were it checked as it is made, the parser would tell what is wrong in words of its own.
"""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from vitreous.data.config import Augmentation
from vitreous.model.checks import check_fraction, check_positive, check_real, check_whole, fail, refuse_unused

Optimizer = Literal["adamw", "sgd", "muon"]
Schedule = Literal["cosine", "linear", "rsqrt", "constant"]
Precision = Literal["auto", "fp32", "bf16", "fp16"]
# Fields of a run that are whole numbers, with the least and the most that they may be.
WHOLE = (
    ("steps", 1, 10**9), ("accumulate", 1, 10**4), ("seed", 0, 2**62), ("workers", 0, 1024), ("lora_rank", 1, 4096),
    ("evaluate_every", 1, 10**6), ("patience", 1, 10**6), ("keep", 0, 10**4),
)  # fmt: skip


@dataclass(frozen=True)
class Optim:
    """How weights are moved."""

    optimizer: Optimizer = "adamw"
    """Muon moves the matrices of the blocks, AdamW everything else then."""
    lr: float | None = None
    """Peak learning rate."""
    weight_decay: float = 0.05
    """On matrices only: biases, norms, tokens and positions are left alone."""
    momentum: float = 0.9
    """Of SGD and Muon."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Of AdamW."""
    schedule: Schedule = "cosine"
    """How the learning rate goes on after the warm-up."""
    warmup: float = 0.05
    """Share of the run over which the learning rate rises linearly."""
    cooldown: float = 0.2
    """Share of the run over which rsqrt falls linearly to zero at the end."""
    final_lr: float = 0.0
    """Where cosine and linear end, as a share of the peak."""
    layer_decay: float = 1.0
    """Factor on the learning rate from each layer to the one below it; 0.75 is usual for fine-tuning."""
    clip: float = 1.0
    """Largest norm of the gradient; 0 for no limit."""
    ema: float | None = None
    """Decay of the running average of the weights that is evaluated and saved, such as 0.9998."""

    def check(self) -> None:
        if self.lr is not None:
            check_positive("lr", self.lr)
        check_real("weight_decay", self.weight_decay, 0, 100)
        check_fraction("momentum", self.momentum)
        for beta in self.betas:
            check_fraction("betas", beta)
        check_real("warmup", self.warmup, 0, 1)
        check_real("cooldown", self.cooldown, 0, 1)
        if self.warmup + self.cooldown > 1 and self.schedule == "rsqrt":
            fail("cooldown", self.cooldown, f"at most 1 - warmup ({1 - self.warmup:g})")
        check_real("final_lr", self.final_lr, 0, 1)
        check_real("layer_decay", self.layer_decay, 1e-3, 1)
        if self.clip != 0:
            check_positive("clip", self.clip)
        if self.ema is not None:
            check_fraction("ema", self.ema)


@dataclass(frozen=True)
class Augment:
    """What is said about augmentation; what is not said (None) is chosen for the data. See data/config.py."""

    crop: Literal["resized", "padded", "none"] | None = None
    """A random part at a random scale, a window of the padded picture, or the whole picture."""
    crop_scale: tuple[float, float] | None = None
    """The part of the area that a resized crop shows, from and to."""
    flip: float | None = None
    """Probability of a horizontal flip."""
    policy: Literal["none", "randaugment", "trivial", "three"] | None = None
    """Colours and shapes, varied: RandAugment, TrivialAugment, or DeiT-III's 3-Augment."""
    policy_layers: int | None = None
    """Of RandAugment."""
    policy_magnitude: float | None = None
    """Of RandAugment; 10 is full strength."""
    colour_jitter: float | None = None
    """Brightness, contrast and saturation change by up to this share."""
    erasing: float | None = None
    """Probability that a rectangle is replaced by noise."""
    mixup: float | None = None
    """Beta parameter; 0 is off."""
    cutmix: float | None = None
    """Beta parameter; 0 is off."""
    repeats: int | None = None
    """Different variants of a picture in an epoch."""

    def check(self) -> None:
        self.on(Augmentation())  # which checks what was said

    def on(self, base: Augmentation) -> Augmentation:
        """`base`, with what was said in its place."""
        said = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return dataclasses.replace(base, **{name: value for name, value in said.items() if value is not None})


@dataclass(frozen=True)
class Distillation:
    """Learning from a teacher besides the labels (DeiT, arXiv 2012.12877)."""

    teacher: Path | None = None
    """Checkpoint of the teacher, with the same classes."""
    distill: Literal["soft", "hard"] = "hard"
    """Match the teacher's probabilities, or take its answer for a label."""
    distill_weight: float = 0.5
    """Share of the teacher in the loss."""
    distill_temperature: float = 3.0
    """Of the soft probabilities."""

    def check(self) -> None:
        check_real("distill_weight", self.distill_weight, 0, 1)
        check_positive("distill_temperature", self.distill_temperature)


@dataclass(frozen=True)
class Masking:
    """What is hidden and what is asked about it, in learning without labels."""

    mask_rate: float | None = None
    """Share of the patches that is hidden; 0.75 for mae and 0.5 for mpp where left out, as in their papers."""
    mpp_target: Literal["colour", "colours", "pixels"] = "colour"
    """Of mpp: a patch's mean colour in 3 bits a channel, the colours of its 4 x 4 parts, or all of its pixels."""
    decoder_width: int | None = None
    """Of mae; half of the encoder's where left out, 512 at most."""
    decoder_depth: int | None = None
    """Of mae; a third of the encoder's where left out, 8 blocks at most."""

    def check(self) -> None:
        if self.mask_rate is not None and not 0 < self.mask_rate < 1:
            fail("mask_rate", self.mask_rate, "between 0 and 1")
        if self.decoder_width is not None:
            check_whole("decoder_width", self.decoder_width, 32, 2**16)
            if self.decoder_width % 32:
                fail("decoder_width", self.decoder_width, "a multiple of 32, the width of a head")
        if self.decoder_depth is not None:
            check_whole("decoder_depth", self.decoder_depth, 1, 1024)


@dataclass(frozen=True)
class Segmenting:
    """How pixels are told apart (--task segment)."""

    decoder: Literal["linear", "mask"] | None = None
    """A linear layer on each patch, or a transformer over patches and a vector for each class (Segmenter)."""
    cells: int | None = None
    """Of a linear decoder: each patch is seen as so many parts down and across."""
    mask_blocks: int | None = None
    """Of a mask decoder; 2 where left out."""
    dice: float = 0.0
    """Weight of the Dice loss beside cross-entropy; it helps small classes."""
    ignore: tuple[str, ...] = ()
    """Classes whose pixels are neither learned nor counted."""

    def check(self) -> None:
        if self.cells is not None:
            check_whole("cells", self.cells, 1, 64)
        if self.mask_blocks is not None:
            check_whole("mask_blocks", self.mask_blocks, 1, 64)
        check_real("dice", self.dice, 0, 100)
        if self.decoder == "mask" and self.cells is not None:
            fail("cells", self.cells, "left out with --decoder mask: it is for the linear decoder")
        if self.decoder == "linear" and self.mask_blocks is not None:
            fail("mask_blocks", self.mask_blocks, "left out with --decoder linear: it is for the mask decoder")


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
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """How torchrun's processes share the work."""
    compile: bool = False
    """Compile the model; quicker after a minute."""
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
