"""Checks before a model is written for another system: one line for each part that it lacks or computes differently."""

import math
from collections.abc import Callable, Iterable, Iterator

from vitreous.common.checks import Size
from vitreous.model import options
from vitreous.model.centre_crop import centre, resized_for
from vitreous.model.config import ViTConfig

# The options that all formats were written for. Formats check the few that they cannot hold, so that an option that
# is not listed here would be written as something else.
KNOWN: dict[str, tuple[type, ...]] = {
    "stem": (options.ResNetStem, type(None)),
    "position": (
        *(options.Learned1d, options.Learned2d, options.SinCos2d, options.RelativeBias),
        *(options.Rotary2d, options.Conditional, options.NoPosition),
    ),
    "mlp": (options.Gelu, options.SwiGlu),
    "pool": (options.ClassToken, options.GlobalAverage, options.AttentionPool),
    "head": (options.LinearHead, options.TanhHead, options.MlpHead),
}


def unknown_options(config: ViTConfig) -> list[str]:
    """Options that are newer than the formats."""
    kinds = {field: type(getattr(config, field)) for field in KNOWN}
    new = {field: kind for field, kind in kinds.items() if kind not in KNOWN[field]}
    return [f"{field} {kind.__name__}: no other system has it" for field, kind in new.items()]


# What a system may lack, by the name that `Format.missing` gives it: a message about "{}", the system, or False.
# Other names are fields of the config, which must be unset.
CHECKS: dict[str, Callable[[ViTConfig], str | bool]] = {
    "layer_scale": lambda c: c.layer_scale is not None and "layer_scale: {} has none",
    "SwiGLU": lambda c: isinstance(c.mlp, options.SwiGlu) and "SwiGLU: {} has none",
    "head of two layers": lambda c: not isinstance(c.head, options.LinearHead) and "head of two layers: {} has none",
    "classifier": lambda c: c.num_classes > 0 and "classifier: {} has none",
    "models without a class token": lambda c: not c.class_token and "no class token: {} has one",
    "models without qkv_bias": lambda c: not c.qkv_bias and "no qkv_bias: {} has one",
    "models without a classifier": lambda c: not c.num_classes and "no classifier: {} has one",
    "other positions": lambda c: (
        not isinstance(c.position, options.Learned1d)
        and f"position {type(c.position).__name__}: {{}} has one learned vector per patch"
    ),
    "positions without the class token": lambda c: (
        isinstance(c.position, options.Learned1d)
        and not c.position.prefix_entries
        and c.class_token
        and "position without an entry for the class token: {} has one"
    ),
    "partial patches": lambda c: (
        _has_partial_patches(c)
        and f"pad: {{}} has no partial patches, and {_by(c.image_size)} is no multiple of {_by(c.patch_stride)}"
    ),
    "rectangular images": lambda c: (
        len(set(c.image_size)) > 1 and f"image_size {_by(c.image_size)}: {{}} has square images"
    ),
    "rectangular patches": lambda c: (
        len(set(c.patch_size)) > 1 and f"patch_size {_by(c.patch_size)}: {{}} has square patches"
    ),
    "head_dim": lambda c: (
        c.head_width * c.num_heads != c.width and f"head_dim {c.head_dim}: in {{}} it is width / num_heads"
    ),
    "qk_scale": lambda c: (
        not math.isclose(c.qk_scale or c.head_width**-0.5, c.head_width**-0.5)
        and f"qk_scale {c.qk_scale:g}: in {{}} it is 1 / sqrt(head_dim)"
    ),
    "other pooling": lambda c: (
        not isinstance(c.pool, options.ClassToken) and f"pool {type(c.pool).__name__}: {{}} has only ClassToken"
    ),
}


def missing_parts(config: ViTConfig, system: str, missing: Iterable[str]) -> list[str]:
    """Lines on the parts of a model that are among those that a system lacks."""
    messages = (
        CHECKS[name](config) if name in CHECKS else getattr(config, name) and f"{name}: {{}} has none"
        for name in missing
    )
    return [str(message).format(system) for message in messages if message]


def _has_partial_patches(config: ViTConfig) -> bool:
    stride = config.stem.stride if config.stem is not None else 1
    return any(-(-side // stride) % patch for side, patch in zip(config.image_size, config.patch_size, strict=True))


def _by(size: Size) -> str:
    return f"{size[0]} x {size[1]}"


def resize_differences(config: ViTConfig, theirs: options.Preprocessing, system: str) -> list[str]:
    """Lines on resizing, if another system, reading our preprocessing as `theirs`, resizes differently."""
    ours, size, lines = config.preprocessing, config.image_size, []
    if ours.interpolation != theirs.interpolation:
        lines.append(f"images are resized by {ours.interpolation} interpolation, by {system} by {theirs.interpolation}")
    for image in _sample_sizes(size):
        (height, width), (other_height, other_width) = (resized_for(image, size, how) for how in (ours, theirs))
        if (height, width) != (other_height, other_width):
            line = f"an image of {_by(image)} pixels is resized to {height} x {width}, and by {system} to "
            return [*lines, f"{line}{other_height} x {other_width}"]
    return lines


def margin_differences(config: ViTConfig, theirs: options.Preprocessing, system: str) -> list[str]:
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
    if gelu is not None and isinstance(config.mlp, options.Gelu) and config.mlp.approximation != gelu:
        lines.append(f"GELU is computed by {config.mlp.approximation}, and in {system} by {gelu}")
    return lines
