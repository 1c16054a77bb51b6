"""Model configs: frozen dataclasses that are validated on construction.

This module does not import torch, so that the command line starts quickly.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any, Literal, get_args

from vitreous.common.checks import (
    BadValue,
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
from vitreous.model.base_config import (
    MASKS,
    MAX_DEPTH,
    MAX_SIDE,
    MAX_TOKENS,
    MAX_WIDTH,
    AttentionShape,
    ModelConfig,
    OutputKind,
    check_budget,
    check_classes,
    check_output,
)
from vitreous.model.calibration import Calibration
from vitreous.model.options import (
    IGNORED,
    AttentionPool,
    ClassToken,
    DecoderConfig,
    Dropout,
    Gelu,
    GlobalAverage,
    HeadConfig,
    Learned1d,
    Learned2d,
    LinearDecoder,
    LinearHead,
    MaskDecoder,
    MixedRotary2d,
    MlpConfig,
    MlpHead,
    OutputConfig,
    PoolConfig,
    PositionConfig,
    Preprocessing,
    ResNetStem,
    Rotary2d,
    SinCos2d,
    SingleLabel,
    TanhHead,
    check_resnet,
    label_of,
)
from vitreous.model.swin_config import SwinConfig


@dataclass(frozen=True)
class ViTConfig(ModelConfig):
    """Config of a Vision Transformer. The defaults are the paper's ViT-B/16 with the numerics of its released code.

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
    patch_norm: bool = False  # LayerNorm before and after the patch projection (vit-pytorch)
    patch_bias: bool = True  # bias of the patch projection; CLIP has none
    pad: bool = False  # zero-pad images, right and bottom, to a multiple of the patch size
    truncate: bool = False  # ignore pixels, right and bottom, that do not fill a patch (SigLIP with 384 pixels)

    # Tokens
    class_token: bool = True
    distillation_token: bool = False
    registers: int = 0
    position: PositionConfig = Learned1d()

    # Encoder
    pre_norm: bool = False  # LayerNorm of the tokens before the first block (CLIP)
    width: int = 768
    depth: int = 12
    num_heads: int = 12
    head_dim: int | None = None  # None: width / num_heads
    qkv_bias: bool = True
    key_bias: bool = True  # False: if qkv_bias, only queries and values have a bias (EVA, DINOv3)
    qk_norm: bool = False
    qk_scale: float | None = None  # None: 1 / sqrt(head_dim)
    attention_output_norm: bool = False  # LayerNorm before the output layer of attention (EVA-CLIP)
    mlp_width: int = 3072
    mlp: MlpConfig = Gelu("tanh")
    norm_eps: float = 1e-6
    layer_scale: float | None = None  # initial value of LayerScale; None: no LayerScale
    untied_norms: bool = False  # separate final norms for prefix tokens and patches (DINOv3)

    # Regularisation in training
    dropout: Dropout = Dropout()
    stochastic_depth: float = 0.0  # rate of the last block; increases linearly from 0
    patch_dropout: float = 0.0

    # Output
    pool: PoolConfig = ClassToken()
    projection: int | None = None  # width of a linear layer after the pooling (CLIP's image embedding); None: no layer
    num_classes: int = 1000  # 0: no classifier; the model returns the pooled features
    head: HeadConfig = LinearHead()
    labels: tuple[str, ...] = ()
    output: OutputConfig = SingleLabel()

    preprocessing: Preprocessing = Preprocessing()
    calibration: Calibration | None = None

    def __post_init__(self) -> None:
        self._check_image()
        self._check_encoder()
        self._check_tokens_and_output()
        self._check_budget()

    family = "vision-transformer"

    @property
    def num_layers(self) -> int:
        return self.depth

    @property
    def feature_width(self) -> int:
        return self.projection or self.width

    @property
    def patch_stride(self) -> Size:
        stride = self.stem.stride if self.stem is not None else 1
        return (self.patch_size[0] * stride, self.patch_size[1] * stride)

    @property
    def prefix_names(self) -> tuple[str, ...]:
        named = ["class"] * self.class_token + ["distillation"] * self.distillation_token
        return (*named, *(f"register {number + 1}" for number in range(self.registers)))

    can_drop_patches = True

    @property
    def position_name(self) -> str:
        return label_of(self.position)

    @property
    def pyramid_widths(self) -> tuple[int, ...]:
        return (self.width,)

    @property
    def num_tokens(self) -> int:
        return self.num_prefix_tokens + math.prod(self.grid)

    @property
    def attention_shapes(self) -> tuple[AttentionShape, ...]:
        tokens = self.num_tokens
        shape = AttentionShape(self.num_heads, tokens, tokens, self.grid, self.patch_stride, self.width)
        return (shape,) * self.depth

    @property
    def learned_position(self) -> Learned1d | None:
        """Learned positions that are added to the tokens, also those of a rotary embedding. None if there are none."""
        match self.position:
            case Learned1d():
                return self.position
            case Rotary2d() | MixedRotary2d():
                return self.position.learned
        return None

    @property
    def head_width(self) -> int:
        """Width of queries, keys and values in each head."""
        return self.head_dim or self.width // self.num_heads

    @property
    def summary(self) -> str:
        stem = "" if self.stem is None else " on a ResNet stem"
        patches = f"{self.patch_size[0]} x {self.patch_size[1]} patches"
        return f"ViT (width {self.width}, depth {self.depth}, {self.num_heads} heads, {patches}{stem})"

    def details(self) -> list[tuple[str, str]]:
        (gh, gw), (ph, pw) = self.grid, self.patch_size
        stem = "" if self.stem is None else f" on the feature map of a ResNet with stages {self.stem.stages}"
        embedding = "" if self.projection is None else f", then a projection to {self.projection} features"
        before = ", also before the first block" if self.pre_norm else ""
        return [
            ("patches", f"{gh} x {gw}, each {ph} x {pw}{stem}"),
            ("tokens", f"{self.num_tokens} = {self.num_prefix_tokens} prefix + {gh * gw} patches"),
            (
                "encoder",
                f"width {self.width}, depth {self.depth}, {self.num_heads} heads, MLP {self.mlp_width}{embedding}",
            ),
            ("parts", ", ".join(str(part) for part in (self.position, self.mlp, self.pool, self.head))),
            ("numerics", f"LayerNorm eps {self.norm_eps:g}{before}"),
        ]

    def grid_for(self, image_size: Size) -> Size:
        """Return the patch grid for an image size. If the size is invalid, the error names the nearest valid sizes.

        >>> ViTConfig().grid_for((224, 320))
        (14, 20)
        """
        if self.truncate and all(side >= step for side, step in zip(image_size, self.patch_size, strict=True)):
            return (image_size[0] // self.patch_size[0], image_size[1] // self.patch_size[1])
        if not self.pad:
            check_tiling(image_size, self.patch_stride, self.stem.stride if self.stem is not None else 1)
        return super().grid_for(image_size)

    def with_classes(self, num_classes: int, labels: tuple[str, ...] = ()) -> "ViTConfig":
        """Return a copy with other classes. If no label is kept, a `TanhHead` (for pre-training) becomes linear."""
        pretrained = isinstance(self.head, TanhHead) and not set(self.labels) & set(labels)
        head = LinearHead() if pretrained else self.head
        return dataclasses.replace(super().with_classes(num_classes, labels), head=head)

    def _check_image(self) -> None:
        check_size("image_size", self.image_size, MAX_SIDE)
        check_whole("channels", self.channels, 1, 4096)
        if self.stem is not None:
            check_kind("stem", self.stem, (ResNetStem,))
        check_size("patch_size", self.patch_size, 4096)
        check_choice("patch_method", self.patch_method, ("conv", "linear"))
        check_flag("patch_norm", self.patch_norm)
        if self.patch_norm and self.patch_method != "linear":
            fail("patch_method", self.patch_method, "'linear' when patch_norm=True")
        check_flag("patch_bias", self.patch_bias)
        check_flag("pad", self.pad)
        check_flag("truncate", self.truncate)
        if self.truncate and (self.pad or self.stem is not None):
            fail("truncate", self.truncate, "False if the model pads images or has a stem")
        patches = math.prod(self.grid)
        if patches > MAX_TOKENS:
            fail("image_size", self.image_size, f"small enough for at most {MAX_TOKENS} patches, not {patches}")
        check_kind("preprocessing", self.preprocessing, (Preprocessing,))
        self.preprocessing.check_channels(self.channels)

    def _check_encoder(self) -> None:
        check_flag("pre_norm", self.pre_norm)
        check_whole("width", self.width, 1, MAX_WIDTH)
        check_whole("depth", self.depth, 1, MAX_DEPTH)
        check_whole("num_heads", self.num_heads, 1, MAX_WIDTH)
        if self.head_dim is not None:
            check_whole("head_dim", self.head_dim, 1, MAX_WIDTH)
        elif self.width % self.num_heads:
            fail("num_heads", self.num_heads, f"a divisor of width ({self.width})")
        check_flag("qkv_bias", self.qkv_bias)
        check_flag("key_bias", self.key_bias)
        check_flag("qk_norm", self.qk_norm)
        if self.qk_scale is not None:
            check_positive("qk_scale", self.qk_scale)
        check_flag("attention_output_norm", self.attention_output_norm)
        check_whole("mlp_width", self.mlp_width, 1, 16 * MAX_WIDTH)
        check_kind("mlp", self.mlp, get_args(MlpConfig))
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
            fail("width", self.width, "an even number for Learned2d, which concatenates row and column vectors")
        if isinstance(self.position, SinCos2d) and (self.width % 4 or self.width < 8):
            fail("width", self.width, "a multiple of 4 and at least 8 for SinCos2d")
        if isinstance(self.position, Rotary2d | MixedRotary2d) and self.head_width % 4:
            kind, heads = type(self.position).__name__, f"{self.head_width} (num_heads={self.num_heads})"
            raise BadValue(f"{kind} requires a head width that is a multiple of 4, got {heads}")
        check_kind("pool", self.pool, get_args(PoolConfig))
        if isinstance(self.pool, AttentionPool) and self.width % self.num_heads:
            fail("num_heads", self.num_heads, f"a divisor of width ({self.width}) for AttentionPool")
        if isinstance(self.pool, ClassToken) and not self.class_token:
            fail("pool", self.pool, "GlobalAverage() or AttentionPool() when class_token=False")
        check_flag("untied_norms", self.untied_norms)
        if self.untied_norms and (self.pool == GlobalAverage("after") or not self.num_prefix_tokens):
            fail("untied_norms", True, "False for models without prefix tokens or without a norm before pooling")
        if self.distillation_token and not isinstance(self.pool, ClassToken):
            fail("pool", self.pool, "ClassToken() when distillation_token=True")
        if self.projection is not None:
            check_whole("projection", self.projection, 1, MAX_WIDTH)
            if self.distillation_token:
                fail("projection", self.projection, "None when distillation_token=True")
        check_kind("head", self.head, get_args(HeadConfig))
        check_classes(self.num_classes, self.labels)
        check_output(self.output, self.num_classes)
        check_kind("calibration", self.calibration, (Calibration, NoneType))

    def _check_budget(self) -> None:
        """Raise ValueError if the estimated number of parameters is too large. The model is not built."""
        block = 4 * self.width * self.num_heads * self.head_width + 3 * self.width * self.mlp_width
        stem = 0 if self.stem is None else resnet_parameters(self.stem.stages, self.stem.width)
        patch = math.prod(self.patch_size) * (self.channels if self.stem is None else self.stem.width * 32)
        head = (self.head.width if isinstance(self.head, TanhHead | MlpHead) else self.feature_width) * self.num_classes
        check_budget(stem + self.depth * block + self.width * (patch + math.prod(self.grid)) + head)


@dataclass(frozen=True)
class ResNetConfig(ModelConfig):
    """Config of BiT, the paper's convolutional baseline: a pre-activation ResNet with GroupNorm."""

    image_size: Size = (224, 224)
    channels: int = 3
    stages: tuple[int, ...] = (3, 4, 6, 3)
    width: int = 64
    num_classes: int = 1000
    labels: tuple[str, ...] = ()
    output: OutputConfig = SingleLabel()
    preprocessing: Preprocessing = Preprocessing()
    calibration: Calibration | None = None

    def __post_init__(self) -> None:
        check_size("image_size", self.image_size, MAX_SIDE)
        check_whole("channels", self.channels, 1, 4096)
        check_resnet("", self.stages, self.width)
        check_classes(self.num_classes, self.labels)
        check_output(self.output, self.num_classes)
        check_kind("calibration", self.calibration, (Calibration, NoneType))
        check_kind("preprocessing", self.preprocessing, (Preprocessing,))
        self.preprocessing.check_channels(self.channels)
        check_budget(resnet_parameters(self.stages, self.width) + 32 * self.width * self.num_classes)

    family = "resnet"

    @property
    def num_layers(self) -> int:
        return sum(self.stages)

    @property
    def feature_width(self) -> int:
        return 4 * self.width << len(self.stages) - 1 if self.stages else self.width

    @property
    def patch_stride(self) -> Size:
        stride = 4 << max(len(self.stages) - 1, 0)
        return (stride, stride)

    @property
    def summary(self) -> str:
        return f"BiT ResNet (width {self.width}, stages {', '.join(map(str, self.stages))})"


EncoderConfig = ViTConfig | SwinConfig  # encoders of a segmenter


@dataclass(frozen=True)
class SegmenterConfig(ModelConfig):
    """Config of a segmentation model: a Transformer with a per-pixel decoder."""

    encoder: EncoderConfig
    decoder: DecoderConfig = LinearDecoder()
    num_classes: int = 2
    labels: tuple[str, ...] = ()
    ids: tuple[int, ...] = ()  # pixel value of each class in mask files

    def __post_init__(self) -> None:
        check_kind("encoder", self.encoder, get_args(EncoderConfig))
        check_kind("decoder", self.decoder, get_args(DecoderConfig))
        if self.encoder.num_classes:
            fail("encoder.num_classes", self.encoder.num_classes, "0, because the decoder replaces the head")
        if dropped := getattr(self.encoder, "patch_dropout", 0):
            fail("encoder.patch_dropout", dropped, "0 for a segmenter")
        check_whole("num_classes", self.num_classes, 2, IGNORED)  # masks have 8 bits, and IGNORED is reserved
        check_classes(self.num_classes, self.labels)
        if self.ids and len(set(self.ids)) != self.num_classes:
            fail("ids", self.ids, f"empty or {self.num_classes} distinct values, one per class")
        for number in self.ids:
            check_whole("ids", number, 0, 65_535)

    @property
    def image_size(self) -> Size:
        return self.encoder.image_size

    @property
    def channels(self) -> int:
        return self.encoder.channels

    @property
    def preprocessing(self) -> Preprocessing:
        return self.encoder.preprocessing

    @property
    def family(self) -> str:
        return self.encoder.family

    @property
    def output_kind(self) -> OutputKind:
        return MASKS

    @property
    def loss_bytes(self) -> int:
        return 2 * 4 * self.num_classes * math.prod(self.image_size)  # float32 logits of every pixel, and their softmax

    @property
    def backbone(self) -> EncoderConfig:
        return self.encoder

    @property
    def num_layers(self) -> int:
        return self.encoder.num_layers + (self.decoder.depth if isinstance(self.decoder, MaskDecoder) else 0)

    @property
    def feature_width(self) -> int:
        return self.encoder.feature_width

    @property
    def patch_stride(self) -> Size:
        return self.encoder.patch_stride

    @property
    def num_heads(self) -> int:
        return self.encoder.num_heads

    @property
    def num_tokens(self) -> int:
        return self.encoder.num_tokens

    @property
    def attention_shapes(self) -> tuple[AttentionShape, ...]:
        return self.encoder.attention_shapes

    @property
    def summary(self) -> str:
        return f"{self.encoder.summary} with a {label_of(self.decoder)}"

    def details(self) -> list[tuple[str, str]]:
        return [("decoder", str(self.decoder)), *self.encoder.details()]

    def resized(self, image_size: Size) -> "SegmenterConfig":
        return dataclasses.replace(self, encoder=self.encoder.resized(image_size))

    def with_classes(self, num_classes: int, labels: tuple[str, ...] = ()) -> "SegmenterConfig":
        fail("num_classes", num_classes, "omitted for a segmenter, because only training can change its classes")

    def override(self, fields: Mapping[str, Any]) -> "SegmenterConfig":
        return dataclasses.replace(self, encoder=self.encoder.override(fields))


AnyConfig = ViTConfig | SwinConfig | ResNetConfig | SegmenterConfig  # configs that a checkpoint can contain


def resnet_parameters(stages: tuple[int, ...], width: int) -> int:
    """Estimate the number of parameters of a ResNet. A unit of width w has about 17 w^2 parameters."""
    return sum(17 * (width << stage) ** 2 * units for stage, units in enumerate(stages))
