"""What a model may have and another system has not, one line each: for systems with little more than a plain ViT."""

import math
from collections.abc import Callable, Iterable, Iterator

from vitreous.common.checks import Size
from vitreous.model.centre_crop import centre, resized_for
from vitreous.model.config import ViTConfig
from vitreous.model.options import (
    AttentionPool,
    ClassToken,
    Conditional,
    Gelu,
    GlobalAverage,
    Learned1d,
    Learned2d,
    LinearHead,
    MlpHead,
    NoPosition,
    Preprocessing,
    RelativeBias,
    ResNetStem,
    Rotary2d,
    SinCos2d,
    SwiGlu,
    TanhHead,
)

# The kinds of parts that all formats were written for. They ask for the few that matter to them and take the rest for
# the plain one, so that a kind that is not among these would be written as something else.
KNOWN: dict[str, tuple[type, ...]] = {
    "stem": (ResNetStem, type(None)),
    "position": (Learned1d, Learned2d, SinCos2d, RelativeBias, Rotary2d, Conditional, NoPosition),
    "mlp": (Gelu, SwiGlu),
    "pool": (ClassToken, GlobalAverage, AttentionPool),
    "head": (LinearHead, TanhHead, MlpHead),
}

PARTS: dict[str, Callable[[ViTConfig], bool]] = {
    "stem": lambda config: config.stem is not None,
    "patch_norm": lambda config: config.patch_norm,
    "distillation_token": lambda config: config.distillation_token,
    "registers": lambda config: config.registers > 0,
    "qk_norm": lambda config: config.qk_norm,
    "layer_scale": lambda config: config.layer_scale is not None,
    "SwiGLU": lambda config: isinstance(config.mlp, SwiGlu),
    "head of two layers": lambda config: not isinstance(config.head, LinearHead),
    "classifier": lambda config: config.num_classes > 0,
}


def unknown_kinds(config: ViTConfig) -> list[str]:
    """Parts of a kind that is newer than the formats."""
    kinds = {field: type(getattr(config, field)) for field in KNOWN}
    new = {field: kind for field, kind in kinds.items() if kind not in KNOWN[field]}
    return [f"{field} {kind.__name__}: it is none that other systems have" for field, kind in new.items()]


def absent(config: ViTConfig, system: str, parts: Iterable[str]) -> list[str]:
    """Those of `parts` that a model has."""
    return [f"{part}: {system} has none" for part in parts if PARTS[part](config)]


def unfit_positions(config: ViTConfig, system: str) -> list[str]:
    """Positions other than a learned vector for the class token, if there is one, and for every patch."""
    if not isinstance(config.position, Learned1d):
        return [f"position {type(config.position).__name__}: {system} has one learned vector per patch"]
    if config.class_token and not config.position.prefix_entries:
        return [f"position without an entry for the class token: {system} has one"]
    return []


def unfit_sizes(config: ViTConfig, system: str, square: bool = False) -> list[str]:
    """Images that patches do not tile; where `square`, also images and patches that are not square."""
    lines = []
    stride = config.stem.stride if config.stem is not None else 1
    for side, patch in zip(config.image_size, config.patch_size, strict=True):
        if -(-side // stride) % patch:
            lines.append(f"pad: {system} has no patch for what is left of {side} pixels by {patch * stride}")
    for field, (height, width) in (("image_size", config.image_size), ("patch_size", config.patch_size)):
        if square and height != width:
            lines.append(f"{field} {height} x {width}: {system} has squares")
    return lines


def unfit_attention(config: ViTConfig, system: str) -> list[str]:
    """Heads of a width of their own, or another scale than theirs."""
    lines = []
    if config.head_width * config.num_heads != config.width:
        lines.append(f"head_dim {config.head_dim}: in {system} it is width / num_heads")
    return lines + unfit_scale(config, system)


def unfit_scale(config: ViTConfig, system: str) -> list[str]:
    if config.qk_scale is None or math.isclose(config.qk_scale, config.head_width**-0.5):
        return []
    return [f"qk_scale {config.qk_scale:g}: in {system} it is 1 / sqrt(head_dim)"]


def resize_differences(config: ViTConfig, theirs: Preprocessing, system: str) -> list[str]:
    """Lines on resizing, if another system, reading our preprocessing as `theirs`, resizes differently."""
    ours, size, lines = config.preprocessing, config.image_size, []
    if ours.interpolation != theirs.interpolation:
        lines.append(f"images are resized by {ours.interpolation} interpolation, by {system} by {theirs.interpolation}")
    for picture in _sample_sizes(size):
        (height, width), (other_height, other_width) = (resized_for(picture, size, how) for how in (ours, theirs))
        if (height, width) != (other_height, other_width):
            lines.append(
                f"an image of {picture[0]} x {picture[1]} pixels is resized to {height} x {width}, and by {system} to "
                f"{other_height} x {other_width}"
            )
            break
    return lines


def margin_differences(config: ViTConfig, theirs: Preprocessing, system: str) -> list[str]:
    """A line if another system cuts the centre out of some image one pixel further to the left or top."""
    ours, size = config.preprocessing, config.image_size
    for picture in _sample_sizes(size):
        resized = resized_for(picture, size, ours)
        places = centre(resized, size, ours), centre(resized, size, theirs)
        if places[0] != places[1]:
            before = f"of {resized[0]} x {resized[1]} pixels the crop begins"
            return [f"{before} at {places[0]}, and in {system} at {places[1]}"]
    return []


def _sample_sizes(size: Size) -> Iterator[Size]:
    """Image sizes that show any difference in rounding: odd and even margins on either axis."""
    for longer in range(8):
        yield size[0], 2 * size[1] + longer
        yield 2 * size[0] + longer, size[1]
    yield 375, 500
    yield 500, 375


def numeric_losses(config: ViTConfig, system: str, norm_eps: float, gelu: str | None = "erf") -> list[str]:
    """Where another system computes otherwise with the same weights. gelu=None: it has both."""
    lines = []
    if config.norm_eps != norm_eps:
        lines.append(f"LayerNorm's eps is {config.norm_eps:g}, and {system}'s is {norm_eps:g}")
    if gelu is not None and isinstance(config.mlp, Gelu) and config.mlp.approximation != gelu:
        lines.append(f"GELU is computed by {config.mlp.approximation}, and in {system} by {gelu}")
    return lines
