"""Checks before a model is written for another system: one line for each part that it lacks or computes differently."""

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

# The options that all formats were written for. Formats check the few that they cannot hold, so that an option that
# is not listed here would be written as something else.
KNOWN: dict[str, tuple[type, ...]] = {
    "stem": (ResNetStem, type(None)),
    "position": (Learned1d, Learned2d, SinCos2d, RelativeBias, Rotary2d, Conditional, NoPosition),
    "mlp": (Gelu, SwiGlu),
    "pool": (ClassToken, GlobalAverage, AttentionPool),
    "head": (LinearHead, TanhHead, MlpHead),
}
Check = Callable[[ViTConfig, str], list[str]]  # config and name of the system to problems


def unknown_options(config: ViTConfig) -> list[str]:
    """Options that are newer than the formats."""
    kinds = {field: type(getattr(config, field)) for field in KNOWN}
    new = {field: kind for field, kind in kinds.items() if kind not in KNOWN[field]}
    return [f"{field} {kind.__name__}: no other system has it" for field, kind in new.items()]


def _lacks(part: str, present: Callable[[ViTConfig], bool]) -> Check:
    return lambda config, system: [f"{part}: {system} has none"] if present(config) else []


def _requires(part: str, present: Callable[[ViTConfig], bool]) -> Check:
    return lambda config, system: [] if present(config) else [f"no {part}: {system} has one"]


def _positions(config: ViTConfig, system: str) -> list[str]:
    if isinstance(config.position, Learned1d):
        return []
    return [f"position {type(config.position).__name__}: {system} has one learned vector per patch"]


def _prefix_positions(config: ViTConfig, system: str) -> list[str]:
    if not isinstance(config.position, Learned1d) or config.position.prefix_entries or not config.class_token:
        return []
    return [f"position without an entry for the class token: {system} has one"]


def _partial_patches(config: ViTConfig, system: str) -> list[str]:
    lines = []
    stride = config.stem.stride if config.stem is not None else 1
    for side, patch in zip(config.image_size, config.patch_size, strict=True):
        if -(-side // stride) % patch:
            lines.append(f"pad: {system} has no partial patches, and {side} is no multiple of {patch * stride}")
    return lines


def _rectangles(config: ViTConfig, system: str) -> list[str]:
    sizes = {"image_size": config.image_size, "patch_size": config.patch_size}
    return [f"{field} {h} x {w}: {system} has squares" for field, (h, w) in sizes.items() if h != w]


def _head_dim(config: ViTConfig, system: str) -> list[str]:
    if config.head_width * config.num_heads == config.width:
        return []
    return [f"head_dim {config.head_dim}: in {system} it is width / num_heads"]


def _qk_scale(config: ViTConfig, system: str) -> list[str]:
    if config.qk_scale is None or math.isclose(config.qk_scale, config.head_width**-0.5):
        return []
    return [f"qk_scale {config.qk_scale:g}: in {system} it is 1 / sqrt(head_dim)"]


def _pooling(config: ViTConfig, system: str) -> list[str]:
    if isinstance(config.pool, ClassToken):
        return []
    return [f"pool {type(config.pool).__name__}: {system} has only ClassToken"]


# What a system may lack, by the name that `Format.missing` gives it.
CHECKS: dict[str, Check] = {
    "stem": _lacks("stem", lambda config: config.stem is not None),
    "patch_norm": _lacks("patch_norm", lambda config: config.patch_norm),
    "pad": _lacks("pad", lambda config: config.pad),
    "distillation_token": _lacks("distillation_token", lambda config: config.distillation_token),
    "registers": _lacks("registers", lambda config: config.registers > 0),
    "qk_norm": _lacks("qk_norm", lambda config: config.qk_norm),
    "layer_scale": _lacks("layer_scale", lambda config: config.layer_scale is not None),
    "SwiGLU": _lacks("SwiGLU", lambda config: isinstance(config.mlp, SwiGlu)),
    "head of two layers": _lacks("head of two layers", lambda config: not isinstance(config.head, LinearHead)),
    "classifier": _lacks("classifier", lambda config: config.num_classes > 0),
    "models without a class token": _requires("class token", lambda config: config.class_token),
    "models without qkv_bias": _requires("qkv_bias", lambda config: config.qkv_bias),
    "models without a classifier": _requires("classifier", lambda config: config.num_classes > 0),
    "other positions": _positions,
    "positions without the class token": _prefix_positions,
    "partial patches": _partial_patches,
    "rectangles": _rectangles,
    "head_dim": _head_dim,
    "qk_scale": _qk_scale,
    "other pooling": _pooling,
}


def missing_parts(config: ViTConfig, system: str, missing: Iterable[str]) -> list[str]:
    """Lines on the parts of a model that are among those that a system lacks."""
    return [line for name in missing for line in CHECKS[name](config, system)]


def resize_differences(config: ViTConfig, theirs: Preprocessing, system: str) -> list[str]:
    """Lines on resizing, if another system, reading our preprocessing as `theirs`, resizes differently."""
    ours, size, lines = config.preprocessing, config.image_size, []
    if ours.interpolation != theirs.interpolation:
        lines.append(f"images are resized by {ours.interpolation} interpolation, by {system} by {theirs.interpolation}")
    for image in _sample_sizes(size):
        (height, width), (other_height, other_width) = (resized_for(image, size, how) for how in (ours, theirs))
        if (height, width) != (other_height, other_width):
            lines.append(
                f"an image of {image[0]} x {image[1]} pixels is resized to {height} x {width}, and by {system} to "
                f"{other_height} x {other_width}"
            )
            break
    return lines


def margin_differences(config: ViTConfig, theirs: Preprocessing, system: str) -> list[str]:
    """A line if another system cuts the centre out of some image one pixel further to the left or top."""
    ours, size = config.preprocessing, config.image_size
    for image in _sample_sizes(size):
        resized = resized_for(image, size, ours)
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


def numeric_differences(config: ViTConfig, system: str, norm_eps: float, gelu: str | None = "erf") -> list[str]:
    """Lines on LayerNorm's eps and GELU where another system has others. gelu=None: it has both kinds of GELU."""
    lines = []
    if config.norm_eps != norm_eps:
        lines.append(f"LayerNorm's eps is {config.norm_eps:g}, and {system}'s is {norm_eps:g}")
    if gelu is not None and isinstance(config.mlp, Gelu) and config.mlp.approximation != gelu:
        lines.append(f"GELU is computed by {config.mlp.approximation}, and in {system} by {gelu}")
    return lines
