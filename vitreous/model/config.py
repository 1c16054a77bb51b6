"""A whole model as data: frozen, typed, checked on construction, before any tensor exists.

The same words are used everywhere: width, depth, num_heads, mlp_width, patch_size, grid, tokens, prefix.
This file imports no torch, so that the command line can use it and stay quick.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal, get_args

from vitreous.common.checks import (
    Size,
    check_choice,
    check_flag,
    check_fraction,
    check_kind,
    check_positive,
    check_real,
    check_size,
    check_tiling,
    check_whole,
    fail,
)
from vitreous.model.options import (
    AttentionPool,
    ClassToken,
    Dropout,
    Gelu,
    Head,
    Learned1d,
    Learned2d,
    LinearHead,
    Mlp,
    MlpHead,
    Pool,
    PositionConfig,
    Preprocessing,
    ResNetStem,
    Rotary2d,
    SinCos2d,
    TanhHead,
    check_resnet,
)

# Bounds far above every published model: what lies beyond is a slip, and would exhaust the memory before it failed.
MAX_WIDTH, MAX_DEPTH, MAX_SIDE, MAX_CLASSES, MAX_TOKENS = 2**16, 1024, 2**16, 10**7, 2**20
MAX_PARAMETERS = 10**11  # the largest published ViT has 22 billion


@dataclass(frozen=True)
class ViTConfig:
    """Everything needed to rebuild a model, preprocess an image and name the classes.

    The default is the paper's ViT-B/16 with the numerics of its released code.

    >>> ViTConfig(width=768, num_heads=10)
    Traceback (most recent call last):
        ...
    vitreous.common.checks.BadValue: num_heads is 10, but must be a divisor of width (768)
    """

    # Image to patches
    image_size: Size = (224, 224)
    channels: int = 3
    stem: ResNetStem | None = None
    patch_size: Size = (16, 16)
    patch_method: Literal["conv", "linear"] = "conv"
    patch_norm: bool = False  # LayerNorm on the pixels of a patch, and on their projection (vit-pytorch)
    pad: bool = False  # an image that patches do not tile is padded with zeros, right and bottom

    # Tokens
    class_token: bool = True
    distillation_token: bool = False
    registers: int = 0
    position: PositionConfig = Learned1d()

    # Encoder
    width: int = 768
    depth: int = 12
    num_heads: int = 12
    head_dim: int | None = None  # None: width / num_heads
    qkv_bias: bool = True
    qk_norm: bool = False
    qk_scale: float | None = None  # None: 1 / sqrt(head_dim)
    mlp_width: int = 3072
    mlp: Mlp = Gelu("tanh")
    norm_eps: float = 1e-6
    layer_scale: float | None = None  # the value LayerScale starts from; None: no LayerScale

    # Regularisation, active in training only
    dropout: Dropout = Dropout()
    stochastic_depth: float = 0.0  # the last block's rate; it rises linearly from 0
    patch_dropout: float = 0.0

    # Output
    pool: Pool = ClassToken()
    num_classes: int = 1000  # 0: no classifier, the model returns the pooled features
    head: Head = LinearHead()
    labels: tuple[str, ...] = ()

    preprocessing: Preprocessing = Preprocessing()

    def __post_init__(self) -> None:
        self._check_image()
        self._check_encoder()
        self._check_tokens_and_output()
        self._check_budget()

    @property
    def grid(self) -> Size:
        """Patches down and across."""
        return self.grid_for(self.image_size)

    @property
    def patch_stride(self) -> Size:
        """The pixels that one patch stands for, down and across."""
        stride = self.stem.stride if self.stem is not None else 1
        return (self.patch_size[0] * stride, self.patch_size[1] * stride)

    @property
    def num_prefix_tokens(self) -> int:
        """Tokens before the patches: class, distillation, registers, in this order."""
        return self.class_token + self.distillation_token + self.registers

    @property
    def num_tokens(self) -> int:
        return self.num_prefix_tokens + math.prod(self.grid)

    @property
    def head_width(self) -> int:
        """Of each head's queries, keys and values."""
        return self.head_dim or self.width // self.num_heads

    def grid_for(self, image_size: Size) -> Size:
        """The grid of an image of any size, or a ValueError that names the sizes that fit.

        >>> ViTConfig().grid_for((224, 320))
        (14, 20)
        """
        unit = self.patch_stride
        if not self.pad:
            check_tiling(image_size, unit, self.stem.stride if self.stem is not None else 1)
        return (-(-image_size[0] // unit[0]), -(-image_size[1] // unit[1]))

    def resized(self, image_size: Size) -> "ViTConfig":
        return dataclasses.replace(self, image_size=image_size)

    def _check_image(self) -> None:
        check_size("image_size", self.image_size, MAX_SIDE)
        check_whole("channels", self.channels, 1, 4096)
        if self.stem is not None:
            check_kind("stem", self.stem, (ResNetStem,))
        check_size("patch_size", self.patch_size, 4096)
        check_choice("patch_method", self.patch_method, ("conv", "linear"))
        check_flag("patch_norm", self.patch_norm)
        if self.patch_norm and self.patch_method != "linear":
            fail("patch_method", self.patch_method, "linear for patch_norm=True: a convolution never holds the pixels")
        check_flag("pad", self.pad)
        patches = math.prod(self.grid)
        if patches > MAX_TOKENS:
            fail("image_size", self.image_size, f"small enough for {MAX_TOKENS} patches (this makes {patches})")
        check_kind("preprocessing", self.preprocessing, (Preprocessing,))
        self.preprocessing.check_channels(self.channels)

    def _check_encoder(self) -> None:
        check_whole("width", self.width, 1, MAX_WIDTH)
        check_whole("depth", self.depth, 1, MAX_DEPTH)
        check_whole("num_heads", self.num_heads, 1, MAX_WIDTH)
        if self.head_dim is not None:
            check_whole("head_dim", self.head_dim, 1, MAX_WIDTH)
        elif self.width % self.num_heads:
            fail("num_heads", self.num_heads, f"a divisor of width ({self.width})")
        check_flag("qkv_bias", self.qkv_bias)
        check_flag("qk_norm", self.qk_norm)
        if self.qk_scale is not None:
            check_positive("qk_scale", self.qk_scale)
        check_whole("mlp_width", self.mlp_width, 1, 16 * MAX_WIDTH)
        check_kind("mlp", self.mlp, get_args(Mlp))
        check_real("norm_eps", self.norm_eps, 1e-15, 1)
        if self.layer_scale is not None:
            check_positive("layer_scale", self.layer_scale)
        check_kind("dropout", self.dropout, (Dropout,))
        check_fraction("stochastic_depth", self.stochastic_depth)
        check_fraction("patch_dropout", self.patch_dropout)

    def _check_tokens_and_output(self) -> None:
        check_flag("class_token", self.class_token)
        check_flag("distillation_token", self.distillation_token)
        check_whole("registers", self.registers, 0, 1024)
        check_kind("position", self.position, get_args(PositionConfig))
        if isinstance(self.position, Learned2d) and self.width % 2:
            fail("width", self.width, "even for Learned2d: half is for the row, half for the column")
        if isinstance(self.position, SinCos2d) and (self.width % 4 or self.width < 8):
            fail("width", self.width, "a multiple of 4, 8 or more, for SinCos2d: sine and cosine of x and y")
        if isinstance(self.position, Rotary2d) and self.head_width % 4:
            what = f"such that width / num_heads ({self.head_width}) is a multiple of 4 for Rotary2d"
            fail("num_heads", self.num_heads, what)
        check_kind("pool", self.pool, get_args(Pool))
        if isinstance(self.pool, AttentionPool) and self.width % self.num_heads:
            fail("num_heads", self.num_heads, f"a divisor of width ({self.width}) for AttentionPool")
        if isinstance(self.pool, ClassToken) and not self.class_token:
            fail("pool", self.pool, "GlobalAverage() or AttentionPool() in a model with class_token=False")
        if self.distillation_token and not isinstance(self.pool, ClassToken):
            fail("pool", self.pool, "ClassToken() in a model with a distillation token: their two heads are averaged")
        check_kind("head", self.head, get_args(Head))
        check_classes(self.num_classes, self.labels)

    def _check_budget(self) -> None:
        """Enough to tell a model from a slip without building it."""
        block = 4 * self.width * self.num_heads * self.head_width + 3 * self.width * self.mlp_width
        stem = 0 if self.stem is None else resnet_parameters(self.stem.stages, self.stem.width)
        patch = math.prod(self.patch_size) * (self.channels if self.stem is None else self.stem.width * 32)
        head = (self.head.width if isinstance(self.head, TanhHead | MlpHead) else self.width) * self.num_classes
        check_budget(stem + self.depth * block + self.width * (patch + math.prod(self.grid)) + head)


@dataclass(frozen=True)
class ResNetConfig:
    """The convolutional baseline that the paper compares with: BiT, a pre-activation ResNet with GroupNorm."""

    image_size: Size = (224, 224)
    channels: int = 3
    stages: tuple[int, ...] = (3, 4, 6, 3)
    width: int = 64
    num_classes: int = 1000
    labels: tuple[str, ...] = ()
    preprocessing: Preprocessing = Preprocessing()

    def __post_init__(self) -> None:
        check_size("image_size", self.image_size, MAX_SIDE)
        check_whole("channels", self.channels, 1, 4096)
        check_resnet("", self.stages, self.width)
        check_classes(self.num_classes, self.labels)
        check_kind("preprocessing", self.preprocessing, (Preprocessing,))
        self.preprocessing.check_channels(self.channels)
        check_budget(resnet_parameters(self.stages, self.width) + 32 * self.width * self.num_classes)

    def resized(self, image_size: Size) -> "ResNetConfig":
        return dataclasses.replace(self, image_size=image_size)


def resnet_parameters(stages: tuple[int, ...], width: int) -> int:
    """Roughly: a unit has 17 times the square of its width."""
    return sum(17 * (width << stage) ** 2 * units for stage, units in enumerate(stages))


def check_classes(num_classes: object, labels: object) -> None:
    check_whole("num_classes", num_classes, 0, MAX_CLASSES)
    if not isinstance(labels, tuple) or not all(isinstance(label, str) for label in labels):
        fail("labels", labels, "a tuple of strings")
    if labels and len(labels) != num_classes:
        raise ValueError(f"labels has {len(labels)} names, but must have num_classes ({num_classes}), or none")


def check_budget(parameters: int) -> None:
    if parameters > MAX_PARAMETERS:
        raise ValueError(
            f"the model would have about {parameters:.1e} parameters, but must have at most {MAX_PARAMETERS:.0e}: "
            "check width, depth, mlp_width, patch_size, image_size and num_classes"
        )
