"""Configuration of a training run: everything that decides its outcome.

Every field is a flag of `vitreous train`; one that is None is chosen for the data (see defaults.py). This file imports
no torch, so that `vitreous --help` stays fast. `train` checks the config, not its constructor, because the parser would
report errors of the constructor in other words.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from vitreous.common.checks import (
    BadValue,
    check_fraction,
    check_positive,
    check_real,
    check_whole,
    check_words,
    fail,
)
from vitreous.tasks.config import Augment, Distillation, Masking, Segmenting, TaskConfig

__all__ = ["Augment", "Distillation", "Masking", "Optim", "Segmenting", "TrainConfig"]

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
class TrainConfig(TaskConfig):
    """A training run. `TrainConfig(data="images/")` is complete: every field that is None is chosen for the data."""

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
        check_words(self)
        self.optim.check()
        super().check()
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
