"""Options for each part of a model: unions of small frozen dataclasses that validate their fields.

`build.py` uses `match` to build modules from the options. This module does not import torch.
"""

import re
from dataclasses import dataclass
from typing import Literal, get_args

from vitreous.common.checks import (
    Size,
    check_choice,
    check_flag,
    check_fraction,
    check_numbers,
    check_positive,
    check_real,
    check_size,
    check_whole,
    fail,
)


def label_of(option: object) -> str:
    """Return the short name of an option: the `label` of its class, or the class name in words.

    >>> label_of(SinCos2d()), label_of(TanhHead())
    ('sincos', 'tanh head')
    """
    words = re.sub(r"(?<=[a-z])(?=[A-Z0-9])", " ", type(option).__name__).lower()
    return str(getattr(option, "label", words))


# ---- Position embedding ----------------------------------------------------------------------------------------------

# Library whose resampling is used for positions at another image size (see position.py).
Interpolation = Literal["google", "timm", "huggingface", "torchvision", "dinov2", "dinov2-registers", "naflex"]


def check_interpolation(value: object) -> None:
    check_choice("position.interpolation", value, get_args(Interpolation))


@dataclass(frozen=True)
class NoPosition:
    """No position embedding (ViT paper, appendix D.4)."""

    label = "none"


@dataclass(frozen=True)
class Learned1d:
    """One learned vector per patch, as chosen in the ViT paper (E_pos in equation 1).

    With `prefix_entries`, the class and distillation tokens also have vectors. Registers never do.
    """

    label = "learned"

    prefix_entries: bool = True
    interpolation: Interpolation = "google"

    def __post_init__(self) -> None:
        check_flag("position.prefix_entries", self.prefix_entries)
        check_interpolation(self.interpolation)


@dataclass(frozen=True)
class Learned2d:
    """One learned vector of half the width per row and per column, concatenated (ViT paper, appendix D.4)."""

    label = "learned 2d"

    prefix_entries: bool = True
    interpolation: Interpolation = "google"

    def __post_init__(self) -> None:
        check_flag("position.prefix_entries", self.prefix_entries)
        check_interpolation(self.interpolation)


@dataclass(frozen=True)
class SinCos2d:
    """Fixed sines and cosines of x and y. For width d, exponents are divided by d/4 (MAE) or d/4 - 1 (big_vision)."""

    label = "sincos"

    convention: Literal["mae", "big_vision"] = "mae"
    temperature: float = 10_000.0

    def __post_init__(self) -> None:
        check_choice("position.convention", self.convention, ("mae", "big_vision"))
        check_positive("position.temperature", self.temperature)


@dataclass(frozen=True)
class RelativeBias:
    """Learned bias per head and offset (dy, dx), added to the attention logits. All layers share it."""

    label = "relative"

    interpolation: Interpolation = "google"

    def __post_init__(self) -> None:
        check_interpolation(self.interpolation)


@dataclass(frozen=True)
class Rotary2d:
    """Rotary embedding: queries and keys are rotated by angles proportional to y and x.

    base: The longest of n periods is base^(1 - 1/n) times the shortest.
    coordinates: "edges": 2 pi times a number from -1 to 1 between the edges of the image (DINOv3). "index": the number
        of the row or column, starting at 0 (RoPE-ViT).
    reference_grid: Size of the grid for which "index" coordinates are computed; those of other grids are scaled to it
        (EVA-02). None: not scaled.
    period_dtype: "bfloat16" rounds the periods, as in DINOv3's published files.
    learned: Learned positions that are also added to the tokens (EVA-02), or None.
    """

    label = "rotary"

    base: float = 100.0
    coordinates: Literal["edges", "index"] = "edges"
    reference_grid: Size | None = None
    period_dtype: Literal["float32", "bfloat16"] = "float32"
    learned: Learned1d | None = None

    def __post_init__(self) -> None:
        check_positive("position.base", self.base)
        check_choice("position.coordinates", self.coordinates, ("edges", "index"))
        if self.reference_grid is not None:
            check_size("position.reference_grid", self.reference_grid, 2**16)
            if self.coordinates != "index":
                fail("position.reference_grid", self.reference_grid, "None unless coordinates are 'index'")
        check_choice("position.period_dtype", self.period_dtype, ("float32", "bfloat16"))


@dataclass(frozen=True)
class MixedRotary2d:
    """Rotary embedding with learned frequencies of x and y for each layer and head (RoPE-Mixed, arXiv 2403.13298).

    base: The periods at initialisation, as in `Rotary2d`. learned: Learned positions that are also added to the tokens.
    """

    label = "mixed rotary"

    base: float = 10.0
    learned: Learned1d | None = None

    def __post_init__(self) -> None:
        check_positive("position.base", self.base)


@dataclass(frozen=True)
class Conditional:
    """CPVT: a depth-wise convolution after each of the first `blocks` blocks; its zero padding encodes position.

    More than one convolution also mixes neighbouring patches, which helps on small data sets.
    """

    label = "conditional"

    kernel_size: int = 3
    blocks: int = 1

    def __post_init__(self) -> None:
        check_whole("position.blocks", self.blocks, 1, 1024)
        check_whole("position.kernel_size", self.kernel_size, 1, 31)
        if self.kernel_size % 2 == 0:
            fail("position.kernel_size", self.kernel_size, "odd to preserve the grid size")


PositionConfig = Learned1d | Learned2d | SinCos2d | RelativeBias | Rotary2d | MixedRotary2d | Conditional | NoPosition

# ---- Stem ------------------------------------------------------------------------------------------------------------

# Library whose epsilons a ResNet uses (see resnet.py).
ResNetNumerics = Literal["google", "timm", "bit"]


@dataclass(frozen=True)
class ResNetStem:
    """ResNet before the patch embedding: the hybrid of the ViT paper, section 3.1.

    `stages`: Units per stage. R50 is (3, 4, 6, 3), or (3, 4, 9) if stage 4 is moved into stage 3 (section 4.1).
    """

    stages: tuple[int, ...] = (3, 4, 9)
    width: int = 64
    numerics: ResNetNumerics = "google"

    def __post_init__(self) -> None:
        check_resnet("stem.", self.stages, self.width)
        check_choice("stem.numerics", self.numerics, get_args(ResNetNumerics))

    @property
    def stride(self) -> int:
        """Stride of the feature map: 4 from convolution and pooling, times 2 per stage after the first."""
        return 4 << max(len(self.stages) - 1, 0)


def check_resnet(prefix: str, stages: object, width: int) -> None:
    if not isinstance(stages, tuple) or len(stages) > 4:
        fail(f"{prefix}stages", stages, "a tuple of at most 4 integers (units per stage)")
    for units in stages:
        check_whole(f"{prefix}stages", units, 1, 256)
    check_whole(f"{prefix}width", width, 32, 1024)
    if width % 32:
        fail(f"{prefix}width", width, "a multiple of 32 (the number of GroupNorm groups)")


# ---- Encoder ---------------------------------------------------------------------------------------------------------


# "erf" is the exact GELU. The approximations are "tanh" in Google's code and "quick", x sigmoid(1.702 x), in CLIP.
GeluApproximation = Literal["erf", "tanh", "quick"]


@dataclass(frozen=True)
class Gelu:
    """MLP with GELU."""

    approximation: GeluApproximation

    def __post_init__(self) -> None:
        check_choice("mlp.approximation", self.approximation, get_args(GeluApproximation))


@dataclass(frozen=True)
class SwiGlu:
    """Gated MLP: silu(x W1) * (x W2), then a linear layer (DINOv2-g), with a norm before it if `norm` (EVA-02)."""

    norm: bool = False

    def __post_init__(self) -> None:
        check_flag("mlp.norm", self.norm)


MlpConfig = Gelu | SwiGlu


@dataclass(frozen=True)
class Dropout:
    """Dropout rates for token embeddings, attention weights, and the outputs of attention and MLP layers."""

    embedding: float = 0.0
    attention: float = 0.0
    hidden: float = 0.0

    def __post_init__(self) -> None:
        check_fraction("dropout.embedding", self.embedding)
        check_fraction("dropout.attention", self.attention)
        check_fraction("dropout.hidden", self.hidden)


# ---- Output ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClassToken:
    """Pool with the class token (ViT paper, equation 4)."""


@dataclass(frozen=True)
class GlobalAverage:
    """Pool with the mean of the patches. The final norm is before the mean (Google) or after it (timm, MAE)."""

    norm: Literal["before", "after"] = "before"

    def __post_init__(self) -> None:
        check_choice("pool.norm", self.norm, ("before", "after"))


@dataclass(frozen=True)
class AttentionPool:
    """Multi-head attention pooling (MAP, big_vision): one learned query attends to all tokens; an MLP follows."""


PoolConfig = ClassToken | GlobalAverage | AttentionPool


@dataclass(frozen=True)
class LinearHead:
    """Classification head with one linear layer."""


@dataclass(frozen=True)
class TanhHead:
    """The ViT paper's pre-training head: a hidden layer ("pre-logits") with tanh, then a linear layer."""

    width: int = 768

    def __post_init__(self) -> None:
        check_whole("head.width", self.width, 1, 2**16)


@dataclass(frozen=True)
class MlpHead:
    """Classification head: LayerNorm, a hidden layer with GELU, then a linear layer."""

    width: int = 768

    def __post_init__(self) -> None:
        check_whole("head.width", self.width, 1, 2**16)


HeadConfig = LinearHead | TanhHead | MlpHead


# ---- Meaning of the outputs ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SingleLabel:
    """One class per image: the softmax of the outputs."""


@dataclass(frozen=True)
class MultiLabel:
    """Any number of classes per image: the sigmoid of each output.

    A class is predicted if its probability reaches its threshold, which is 0.5 if there are no thresholds.
    """

    thresholds: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for threshold in self.thresholds:
            check_real("output.thresholds", threshold, 0, 1)


@dataclass(frozen=True)
class Numbers:
    """One number per target: each output times `std`, plus `mean`."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        for mean in self.mean:
            check_real("output.mean", mean, -1e300, 1e300)
        for std in self.std:
            check_positive("output.std", std)


OutputConfig = SingleLabel | MultiLabel | Numbers


@dataclass(frozen=True)
class LinearDecoder:
    """Linear layer that scores the classes of `cells` x `cells` cells in each patch."""

    cells: int = 1

    def __post_init__(self) -> None:
        check_whole("decoder.cells", self.cells, 1, 64)


@dataclass(frozen=True)
class MaskDecoder:
    """Segmenter's mask transformer (arXiv 2105.05633): self-attention over patches and one token per class."""

    label = "mask transformer"

    depth: int = 2

    def __post_init__(self) -> None:
        check_whole("decoder.depth", self.depth, 1, 64)


@dataclass(frozen=True)
class PyramidDecoder:
    """Scores the classes at the resolution of the first stage, from the feature maps of all stages.

    Each map is normalised, projected to `width` and enlarged; a linear layer with GELU combines them, as in SegFormer
    (arXiv 2105.15203).
    """

    width: int = 256

    def __post_init__(self) -> None:
        check_whole("decoder.width", self.width, 1, 2**16)


DecoderConfig = LinearDecoder | MaskDecoder | PyramidDecoder

# Mask value of unlabelled pixels, which losses and metrics ignore.
IGNORED = 255

# ---- Preprocessing ---------------------------------------------------------------------------------------------------


# Library whose rounding is used for resizing and centre crops (see centre_crop.py).
Geometry = Literal["torchvision", "timm", "huggingface"]


def check_value_range(field: str, value: tuple[float, float]) -> None:
    numbers = value if isinstance(value, tuple | list) else ()
    for number in numbers:
        check_real(field, number, -(2**32), 2**32)
    if len(numbers) != 2 or numbers[0] >= numbers[1]:
        fail(field, value, "two increasing numbers, such as 0 4095")


@dataclass(frozen=True)
class Preprocessing:
    """Image preprocessing: resize, crop, scale to [0, 1], subtract `mean`, divide by `std`.

    fit: How an image is resized to the model's input size. "crop" resizes the shorter side to size / crop_fraction and
        crops the centre. "squash" resizes both sides and ignores the aspect ratio. "squash-crop" squashes to
        size / crop_fraction and crops the centre (transformers' DeiT). "pad" resizes the longer side to
        size / crop_fraction and fills the rest with `mean` (timm's "border").
    geometry: Library whose rounding is used. Config files without this field use "torchvision".
    mean, std: One number for all channels, or one per channel.
    value_range: Pixel values that become black and white in images with more than 8 bits, e.g. (0, 4095) for 12-bit
        data in 16-bit files. None uses the range of the file format.
    """

    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)
    fit: Literal["crop", "squash", "squash-crop", "pad"] = "crop"
    crop_fraction: float = 0.875
    interpolation: Literal["bilinear", "bicubic"] = "bicubic"
    geometry: Geometry = "torchvision"
    value_range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        check_numbers("preprocessing.mean", self.mean)
        check_numbers("preprocessing.std", self.std)
        for value in self.std:
            check_positive("preprocessing.std", value)
        check_choice("preprocessing.fit", self.fit, ("crop", "squash", "squash-crop", "pad"))
        check_real("preprocessing.crop_fraction", self.crop_fraction, 0.01, 1)
        check_choice("preprocessing.interpolation", self.interpolation, ("bilinear", "bicubic"))
        check_choice("preprocessing.geometry", self.geometry, get_args(Geometry))
        if self.value_range is not None:
            check_value_range("preprocessing.value_range", self.value_range)

    def check_channels(self, channels: int) -> None:
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (1, channels):
                fail(f"preprocessing.{name}", values, f"one number, or one per channel (channels={channels})")


IMAGENET = Preprocessing(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
CLIP = Preprocessing(
    mean=(0.48145466, 0.4578275, 0.40821073), std=(0.26862954, 0.26130258, 0.27577711), crop_fraction=1.0
)
SIGLIP = Preprocessing(fit="squash", crop_fraction=1.0, interpolation="bilinear")
