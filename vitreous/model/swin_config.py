"""Config of a Swin Transformer. This module does not import torch."""

import math
from dataclasses import dataclass
from types import NoneType
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
    check_whole,
    fail,
)
from vitreous.model.base_config import (
    MAX_DEPTH,
    MAX_SIDE,
    MAX_TOKENS,
    MAX_WIDTH,
    AttentionShape,
    ModelConfig,
    check_budget,
    check_classes,
    check_output,
)
from vitreous.model.calibration import Calibration
from vitreous.model.options import IMAGENET, Dropout, OutputConfig, Preprocessing, SingleLabel


@dataclass(frozen=True)
class SwinV1:
    """Swin Transformer (arXiv 2103.14030): pre-norm, dot-product attention, learned table of relative positions."""


@dataclass(frozen=True)
class SwinV2:
    """Swin Transformer V2 (arXiv 2111.09883): post-norm, cosine attention, relative positions from a small MLP.

    pretrained_windows: For each stage, the side of the windows in pre-training if they had another size. The MLP then
        gets the offsets in units of those windows. 0 (or an empty tuple): the stage's own windows.
    """

    pretrained_windows: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for side in self.pretrained_windows:
            check_whole("version.pretrained_windows", side, 0, 4096)


SwinVersion = SwinV1 | SwinV2

# Library whose windows are used where they do not fit the feature map of a stage (see `fit_windows`).
WindowRule = Literal["microsoft", "timm", "torchvision"]


@dataclass(frozen=True)
class SwinConfig(ModelConfig):
    """Config of a Swin Transformer. The defaults are Swin-Ti/4 with windows of 7 x 7, as released by Microsoft."""

    # Image to patches
    image_size: Size = (224, 224)
    channels: int = 3
    patch_size: Size = (4, 4)

    # Stages. Each stage after the first merges 2 x 2 patches and doubles the width.
    version: SwinVersion = SwinV1()
    width: int = 96  # of the first stage
    depths: tuple[int, ...] = (2, 2, 6, 2)
    stage_heads: tuple[int, ...] = (3, 6, 12, 24)
    window: Size = (7, 7)
    window_rule: WindowRule = "microsoft"
    mlp_ratio: float = 4.0
    qkv_bias: bool = True
    norm_eps: float = 1e-5

    # Regularisation in training
    dropout: Dropout = Dropout()
    stochastic_depth: float = 0.0  # rate of the last block; increases linearly from 0

    # Output
    num_classes: int = 1000  # 0: no classifier; the model returns the pooled features
    labels: tuple[str, ...] = ()
    output: OutputConfig = SingleLabel()

    preprocessing: Preprocessing = IMAGENET
    calibration: Calibration | None = None

    def __post_init__(self) -> None:
        check_size("image_size", self.image_size, MAX_SIDE)
        check_whole("channels", self.channels, 1, 4096)
        check_size("patch_size", self.patch_size, 4096)
        patches = math.prod(self.stage_grids[0]) if self.depths else 0
        if patches > MAX_TOKENS:
            fail("image_size", self.image_size, f"small enough for at most {MAX_TOKENS} patches, not {patches}")
        self._check_stages()
        check_classes(self.num_classes, self.labels)
        check_output(self.output, self.num_classes)
        check_kind("preprocessing", self.preprocessing, (Preprocessing,))
        self.preprocessing.check_channels(self.channels)
        check_kind("calibration", self.calibration, (Calibration, NoneType))
        blocks = sum(
            depth * width**2 * (4 + 2 * self.mlp_ratio)
            for depth, width in zip(self.depths, self.stage_widths, strict=True)
        )
        check_budget(int(blocks) + self.feature_width * self.num_classes)

    family = "swin"
    same_steps_for_all_sizes = False  # windows, padding and masks depend on the grid

    @property
    def num_layers(self) -> int:
        return sum(self.depths)

    @property
    def num_heads(self) -> int:
        """Heads of the last stage."""
        return self.stage_heads[-1]

    @property
    def feature_width(self) -> int:
        return self.stage_widths[-1]

    @property
    def stage_widths(self) -> tuple[int, ...]:
        return tuple(self.width << stage for stage in range(len(self.depths)))

    @property
    def pyramid_widths(self) -> tuple[int, ...]:
        return self.stage_widths

    @property
    def resampled_fields(self) -> frozenset[str]:
        return frozenset({"window"})

    @property
    def head_dim(self) -> int:
        """Width of a head in the last stage."""
        return self.feature_width // self.num_heads

    @property
    def mlp_width(self) -> int:
        """Width of the MLP in the last stage."""
        return self.stage_mlp_widths[-1]

    @property
    def stage_mlp_widths(self) -> tuple[int, ...]:
        return tuple(int(round(self.mlp_ratio * width, 3)) for width in self.stage_widths)  # 3.999... is 4

    @property
    def patch_stride(self) -> Size:
        """Image pixels per patch of the last stage."""
        scale = 1 << len(self.depths) - 1
        return (self.patch_size[0] * scale, self.patch_size[1] * scale)

    @property
    def stage_grids(self) -> tuple[Size, ...]:
        """Rows and columns of the patches of each stage. Images are padded to whole patches, and patches to pairs."""
        (height, width), (ph, pw) = self.image_size, self.patch_size
        return tuple((-(-height // (ph << stage)), -(-width // (pw << stage))) for stage in range(len(self.depths)))

    @property
    def attention_shapes(self) -> tuple[AttentionShape, ...]:
        stages = zip(self.stage_heads, self.stage_grids, self.stage_windows, self.stage_widths, strict=True)
        return tuple(
            AttentionShape(heads, math.prod(grid), math.prod(window), grid, stride, width)
            for stage, (heads, grid, window, width) in enumerate(stages)
            for stride in [(self.patch_size[0] << stage, self.patch_size[1] << stage)] * self.depths[stage]
        )

    @property
    def position_grid(self) -> Size:
        return self.stage_windows[0]

    @property
    def position_name(self) -> str:
        return "relative bias of log offsets" if isinstance(self.version, SwinV2) else "relative bias"

    @property
    def stage_windows(self) -> tuple[Size, ...]:
        """Window size of each stage, which determines the size of its table of relative positions."""
        return tuple(fit_windows(grid, self.window, self.window_rule)[0] for grid in self.stage_grids)

    @property
    def pretrained_windows(self) -> tuple[int, ...]:
        """For each stage, `SwinV2.pretrained_windows`, or 0."""
        windows = self.version.pretrained_windows if isinstance(self.version, SwinV2) else ()
        return windows or (0,) * len(self.depths)

    @property
    def summary(self) -> str:
        version = "V2 " if isinstance(self.version, SwinV2) else ""
        depths, windows = ", ".join(map(str, self.depths)), f"{self.window[0]} x {self.window[1]} windows"
        return f"Swin {version}(width {self.width}, depths {depths}, {windows})"

    def details(self) -> list[tuple[str, str]]:
        rows = zip(self.stage_grids, self.stage_windows, self.depths, self.stage_widths, self.stage_heads, strict=True)
        (gh, gw), (ph, pw) = self.stage_grids[0], self.patch_size
        return [
            ("patches", f"{gh} x {gw}, each {ph} x {pw}"),
            *(
                (
                    f"stage {stage}",
                    f"{grid[0]} x {grid[1]} tokens in windows of {window[0]} x {window[1]}, "
                    f"width {width}, depth {depth}, {heads} heads",
                )
                for stage, (grid, window, depth, width, heads) in enumerate(rows, 1)
            ),
            ("parts", f"{self.version}, windows as in {self.window_rule}"),
            ("numerics", f"LayerNorm eps {self.norm_eps:g}"),
        ]

    def _check_stages(self) -> None:
        check_kind("version", self.version, get_args(SwinVersion))
        check_whole("width", self.width, 1, MAX_WIDTH)
        if not isinstance(self.depths, tuple) or not 1 <= len(self.depths) <= 8:
            fail("depths", self.depths, "a tuple of 1 to 8 integers, the blocks of each stage")
        for depth in self.depths:
            check_whole("depths", depth, 1, MAX_DEPTH)
        if not isinstance(self.stage_heads, tuple) or len(self.stage_heads) != len(self.depths):
            fail("stage_heads", self.stage_heads, f"a tuple of {len(self.depths)} integers, one per stage")
        for heads, width in zip(self.stage_heads, self.stage_widths, strict=True):
            check_whole("stage_heads", heads, 1, MAX_WIDTH)
            if width % heads:
                fail("stage_heads", self.stage_heads, f"divisors of the widths of the stages {self.stage_widths}")
        check_size("window", self.window, 4096)
        check_choice("window_rule", self.window_rule, get_args(WindowRule))
        if len(self.pretrained_windows) != len(self.depths):
            fail("version.pretrained_windows", self.pretrained_windows, f"empty or {len(self.depths)} integers")
        check_positive("mlp_ratio", self.mlp_ratio)
        check_real("mlp_ratio", self.mlp_ratio, 0.01, 64)
        check_flag("qkv_bias", self.qkv_bias)
        check_real("norm_eps", self.norm_eps, 1e-15, 1)
        check_kind("dropout", self.dropout, (Dropout,))
        check_fraction("stochastic_depth", self.stochastic_depth)


def fit_windows(grid: Size, window: Size, rule: WindowRule) -> tuple[Size, Size]:
    """Return the size of the windows on a grid of patches, and their shift in every second block.

    Where windows do not fill the grid, it is zero-padded at the right and bottom, and padding takes part in attention.

    "microsoft": If a side of the grid is not larger than the window, windows have the shorter side of the grid, and
        are not shifted. Patches are padded, then shifted. transformers does the same.
    "timm": The same, but for each side on its own. Patches are shifted, then padded.
    "torchvision": Windows keep their size, and are not shifted along a side that they cover. Patches are padded, then
        shifted.

    >>> [fit_windows((6, 10), (7, 7), rule) for rule in ("microsoft", "timm", "torchvision")]
    [((6, 6), (0, 0)), ((6, 7), (0, 3)), ((7, 7), (0, 3))]
    """
    (gh, gw), (wh, ww) = grid, window
    if rule == "microsoft" and (gh <= wh or gw <= ww):
        side = min(gh, gw)
        return (side, side), (0, 0)
    shift = (0 if gh <= wh else wh // 2, 0 if gw <= ww else ww // 2)
    if rule == "timm":
        return (min(gh, wh), min(gw, ww)), shift
    return window, shift
