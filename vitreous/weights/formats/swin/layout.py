"""The table that all Swin formats share, and the fields that follow from the shapes of tensors."""

import itertools
import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from vitreous.common.checks import Size
from vitreous.model.swin_config import SwinConfig, SwinV1, SwinV2, WindowRule, fit_windows
from vitreous.model.window_position import log_offsets
from vitreous.model.windows import Windows, pair_offsets, separated_pairs
from vitreous.weights.formats.base import ConfigBuilder, Format, StateDict
from vitreous.weights.formats.mapping import Conversion, Row, concat, packed_rows, reshape, row, rows
from vitreous.weights.formats.write_checks import range_differences
from vitreous.weights.io.errors import BadCheckpoint

NORM_EPS = 1e-5  # of all libraries


class SwinLayout(Format):
    """Base class of the Swin formats. The defaults are Microsoft's names."""

    config_class = SwinConfig
    distinctive = True
    norm_eps = NORM_EPS
    rule: ClassVar[WindowRule] = "microsoft"

    patches: ClassVar[str] = "patch_embed.proj"
    patch_norm: ClassVar[str] = "patch_embed.norm"
    norms: ClassVar[tuple[str, str]] = ("norm1", "norm2")
    attention: ClassVar[str] = "attn"
    output: ClassVar[str] = "attn.proj"
    bias_mlp: ClassVar[str] = "attn.cpb_mlp"
    mlp: ClassVar[tuple[str, str]] = ("mlp.fc1", "mlp.fc2")
    norm: ClassVar[str] = "norm"
    head: ClassVar[str] = "head"

    @abstractmethod
    def block(self, stage: int, number: int) -> str:
        """Return the prefix of a block's tensors."""

    @abstractmethod
    def merge(self, stage: int) -> str:
        """Return the prefix of the tensors that merge patches before a stage."""

    # ---- The table ----

    def table(self, config: SwinConfig) -> list[Row]:
        table = rows("patches.projection", self.patches) + rows("patch_norm", self.patch_norm)
        for stage, depth in enumerate(config.depths):
            if stage:
                ours, theirs = f"stages.{stage}.merge", self.merge(stage)
                table += rows(f"{ours}.norm", f"{theirs}.norm")
                table.append(row(f"{ours}.reduction.weight", f"{theirs}.reduction.weight"))
            for number in range(depth):
                table += self._block_rows(config, stage, number)
        table += rows("norm", self.norm)
        return table + (rows("head", self.head) if config.num_classes else [])

    def _block_rows(self, config: SwinConfig, stage: int, number: int) -> list[Row]:
        ours, theirs = f"stages.{stage}.blocks.{number}", self.block(stage, number)
        table = self.qkv_rows(config, f"{ours}.attention", f"{theirs}.{self.attention}")
        table += rows(f"{ours}.attention.output", f"{theirs}.{self.output}")
        for norm, name in zip(("attention_norm", "mlp_norm"), self.norms, strict=True):
            table += rows(f"{ours}.{norm}", f"{theirs}.{name}")
        for layer, name in zip(("up", "down"), self.mlp, strict=True):
            table += rows(f"{ours}.mlp.{layer}", f"{theirs}.{name}")
        position, heads = f"{ours}.attention.position", config.stage_heads[stage]
        if isinstance(config.version, SwinV1):
            (wh, ww), name = config.stage_windows[stage], f"{theirs}.{self.attention}.relative_position_bias_table"
            sides = (2 * wh - 1, 2 * ww - 1)
            table.append(row(f"{position}.table", name, reshape((*sides, heads), (math.prod(sides), heads))))
        else:
            table += rows(f"{position}.up", f"{theirs}.{self.bias_mlp}.0")
            table += rows(f"{position}.down", f"{theirs}.{self.bias_mlp}.2", parts=("weight",))
            name = f"{theirs}.{self.attention}.logit_scale"
            table.append(row(f"{ours}.attention.logit_scale", name, reshape((heads,), (heads, 1, 1))))
        return table

    def qkv_rows(self, config: SwinConfig, ours: str, theirs: str) -> list[Row]:
        """Return the rows of queries, keys and values. In V2, keys have no bias."""
        parts = [f"{ours}.{part}" for part in "qkv"]
        table = packed_rows(parts, f"{theirs}.qkv", parts=("weight",))
        if isinstance(config.version, SwinV1):
            return table + (packed_rows(parts, f"{theirs}.qkv", parts=("bias",)) if config.qkv_bias else [])
        biases = [row(f"{ours}.{part}.bias", f"{theirs}.{part}_bias") for part in "qv"]
        return table + (biases if config.qkv_bias else [])

    # ---- Reading ----

    def infer_shapes(
        self, state: StateDict, builder: ConfigBuilder, window: Size | None = None, image_size: Size | None = None
    ) -> None:
        """Set the fields that follow from tensors. `window` and `image_size` are those in a config file or name."""
        width, channels, *patch = state.shape(f"{self.patches}.weight", 4)
        depths = self._depths(state)
        first = self.block(0, 0)
        scale, table = (f"{self.attention}.{name}" for name in ("logit_scale", "relative_position_bias_table"))
        second = f"{first}.{scale}" in state.tensors
        heads = [
            state.shape(f"{self.block(i, 0)}.{scale}", 3)[0]
            if second
            else state.shape(f"{self.block(i, 0)}.{table}", 2)[1]
            for i in range(len(depths))
        ]
        qkv_bias = any(
            f"{first}.{self.attention}.{name}" in state.tensors for name in ("qkv.bias", "q_bias", "query.bias")
        )
        head = f"{self.head}.weight"
        builder.set(
            version=SwinV2() if second else SwinV1(),
            channels=channels,
            patch_size=(patch[0], patch[1]),
            width=width,
            depths=depths,
            stage_heads=tuple(heads),
            mlp_ratio=state.shape(f"{first}.{self.mlp[0]}.weight", 2)[0] / width,
            qkv_bias=qkv_bias,
            num_classes=state.shape(head, 2)[0] if head in state.tensors else 0,
        )
        builder.default(f"{self.title} default", norm_eps=self.norm_eps, window_rule=self.rule)
        self._set_windows(state, builder, window, image_size)

    def _depths(self, state: StateDict) -> tuple[int, ...]:
        depths: list[int] = []
        while depth := next(
            i for i in itertools.count() if f"{self.block(len(depths), i)}.{self.norms[0]}.weight" not in state.tensors
        ):
            depths.append(depth)
        return tuple(depths)

    def _set_windows(
        self, state: StateDict, builder: ConfigBuilder, window: Size | None, image_size: Size | None
    ) -> None:
        sides = [self._window_side(state, stage) for stage in range(len(builder.fields["depths"]))]
        if window is not None:
            builder.set(window=window)
        elif sides[0] is not None:
            builder.set(window=(sides[0], sides[0]))
        else:
            builder.assume("the tensors do not depend on it", window=(8, 8))
        ph, pw = builder.fields["patch_size"]
        if image_size is not None:
            builder.set(image_size=image_size)
        elif (grid := self._grid_side(state, sides[0])) is not None:
            builder.set(image_size=(grid * ph, grid * pw))
        else:
            side = (sides[-1] or min(builder.fields["window"])) << len(sides) - 1
            reason = "one window covers the last stage, as in all published models"
            builder.default(reason, image_size=(side * ph, side * pw))
        if builder.overrides.get("window", builder.fields["window"]) != builder.fields["window"]:
            fits = sides[0] is not None and _misfit(self._config(builder), sides) is None
            known = window is not None or sides[0] is not None
            builder.changed |= {"window"} if known and not fits else set()
        config = self._config(builder)
        if (stage := _misfit(config, sides)) is not None:
            height, width = config.stage_windows[stage]
            raise BadCheckpoint(
                f"{state.path} has windows of {sides[stage]} x {sides[stage]} in stage {stage}, but for "
                f"window={config.window} and image_size={config.image_size}, {self.title} has windows of "
                f"{height} x {width}; models with a window size per stage are not supported"
            )

    @staticmethod
    def _config(builder: ConfigBuilder) -> SwinConfig:
        given = {name: x for name, x in builder.stated.items() if name in ("window", "image_size")}
        return SwinConfig(**builder.fields | given)

    def _window_side(self, state: StateDict, stage: int) -> int | None:
        """Return the side of the windows of a stage, or None if no tensor depends on it or they are not square."""
        names = f"{self.block(stage, 0)}.{self.attention}."
        if (name := f"{names}relative_position_bias_table") in state.tensors:
            side = math.isqrt(rows_ := state.shape(name, 2)[0])
            return (side + 1) // 2 if side**2 == rows_ else None
        if (name := f"{names}relative_coords_table") in state.tensors:
            return (state.shape(name, 4)[1] + 1) // 2
        return None

    def _grid_side(self, state: StateDict, window: int | None) -> int | None:
        """Return the side of the grid of the first stage, which the masks of Microsoft's files determine."""
        name = f"{self.block(0, 1)}.attn_mask"
        if name not in state.tensors or window is None:
            return None
        return math.isqrt(state.shape(name, 3)[0]) * window

    # ---- Writing ----

    def unsupported(self, config: SwinConfig) -> list[str]:
        if isinstance(config.version, SwinV2):
            return []
        lines = []
        for (gh, gw), ours in zip(config.stage_grids, config.stage_windows, strict=True):
            if ours != (theirs := fit_windows((gh, gw), config.window, self.rule)[0]):
                lines.append(f"on {gh} x {gw} patches, {self.title} has windows of {theirs}, but the model of {ours}")
        return lines

    def differences(self, config: SwinConfig, folder: bool = False) -> list[str]:
        lines = range_differences(config, self.title)
        if config.norm_eps != self.norm_eps:
            lines.append(f"LayerNorm eps is {config.norm_eps:g} in Vitreous and {self.norm_eps:g} in {self.title}")
        if any(windows(config, grid) != windows(config, grid, self.rule) for grid in config.stage_grids):
            lines.append(self._other_rule(config))
        return lines

    def minor_differences(self, config: SwinConfig) -> list[str]:
        return [] if config.window_rule == self.rule else [f"at other image sizes, {self._other_rule(config)}"]

    def _other_rule(self, config: SwinConfig) -> str:
        return f"windows follow the rule of {config.window_rule} in Vitreous and that of {self.rule} in {self.title}"


def _misfit(config: SwinConfig, sides: Sequence[int | None]) -> int | None:
    """Return the first stage whose windows have another side, or None. Sides are None if no tensor depends on them."""
    stages = enumerate(zip(sides, config.stage_windows, strict=True))
    return next((stage for stage, (side, size) in stages if side is not None and (side, side) != size), None)


def windows(config: SwinConfig, grid: Size, rule: WindowRule | None = None) -> Windows:
    """Return the shifted windows on a grid. The order of shift and padding is ignored if there is only one of them."""
    rule = rule or config.window_rule
    found = Windows(grid, *fit_windows(grid, config.window, rule), shift_first=rule == "timm")
    return found if found.padding != (0, 0) and found.shift != (0, 0) else found._replace(shift_first=False)


def window_buffers(config: SwinConfig, layout: SwinLayout, masks: bool, flat_index: bool) -> dict[str, Tensor]:
    """Return the buffers that follow from the window sizes, which Microsoft and torchvision store in their files."""
    found: dict[str, Tensor] = {}
    for stage, depth in enumerate(config.depths):
        grid, size = config.stage_grids[stage], config.stage_windows[stage]
        index = pair_offsets(size, torch.device("cpu"))
        separated = separated_pairs(windows(config, grid), torch.device("cpu"))
        for number in range(depth):
            block = layout.block(stage, number)
            found[f"{block}.{layout.attention}.relative_position_index"] = index.flatten() if flat_index else index
            if masks and number % 2 and separated is not None:
                found[f"{block}.attn_mask"] = separated * -100.0
            if isinstance(config.version, SwinV2):
                table = log_offsets(size, config.pretrained_windows[stage], torch.device("cpu"))
                found[f"{block}.{layout.attention}.relative_coords_table"] = table[None]
    return found


def without_key_bias() -> Conversion:
    """Create a conversion for a packed bias of queries, keys and values, whose part for the keys is not used."""

    def read(theirs: list[Tensor]) -> list[Tensor]:
        q, _, v = theirs[0].chunk(3)
        return [q, v]

    def write(ours: list[Tensor]) -> list[Tensor]:
        return [concat([ours[0], torch.zeros_like(ours[0]), ours[1]])]

    return Conversion(read, write)


def pretrained_windows(state: StateDict, layout: SwinLayout, stages: int) -> tuple[int, ...]:
    """Return `SwinV2.pretrained_windows` from the tables of offsets: () if all have the size of the windows."""
    found = []
    for stage in range(stages):
        name = f"{layout.block(stage, 0)}.{layout.attention}.relative_coords_table"
        if name not in state.tensors:
            return ()
        side = (state.shape(name, 4)[1] + 1) // 2
        largest = float(state.tensors[name].max())  # log2(8 (side - 1) / (pretrained - 1) + 1) / 3
        found.append(round(8 * (side - 1) / (2 ** (3 * largest) - 1)) + 1)
        if found[-1] == side:
            found[-1] = 0
    return tuple(found) if any(found) else ()


def stated(value: Any, path: object, name: str) -> Size | None:
    """Return a size from a config file: an integer, or a list of two integers."""
    if value is None:
        return None
    sides = [value, value] if type(value) is int else value
    if not isinstance(sides, list) or len(sides) != 2 or not all(type(side) is int and side > 0 for side in sides):
        raise BadCheckpoint(f"{path}: {name} must be one or two positive integers, got {value!r:.80}")
    return sides[0], sides[1]
