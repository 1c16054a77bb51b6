"""The parts of a training run's config, by subject. Each of their fields is a flag of `vitreous train` as well."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vitreous.common.checks import check_fraction, check_positive, check_real, check_whole, fail
from vitreous.data.augment.config import Augmentation
from vitreous.model.config import ViTConfig

Optimizer = Literal["adamw", "sgd", "muon"]
Schedule = Literal["cosine", "linear", "rsqrt", "constant"]


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
    """Of mae; a sixth of the encoder's where left out, 2 to 8 blocks. More help features that stay frozen."""

    def decoder_beside(self, encoder: ViTConfig) -> tuple[int, int]:
        """Width and depth of MAE's decoder: those asked for, or light ones beside this encoder.

        Half the width and a sixth of the depth: a twenty-fourth of the encoder's work on a token, and it has four times
        as many. Beside a ViT-L, MAE's own is 512 wide and 8 deep; with 2 or 4 blocks its authors found fine-tuning the
        same (84.9 %, table 1a), while a linear probe wants more (70.0, 71.9, 73.5 %).

        >>> Masking().decoder_beside(ViTConfig(width=768, depth=12, num_heads=12))
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
