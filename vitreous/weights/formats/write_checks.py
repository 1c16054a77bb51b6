"""Checks before writing a model for another library. Each unsupported part or difference is reported as one line."""

import math
from collections.abc import Callable, Iterable, Iterator

from vitreous.common.checks import Size
from vitreous.model import options
from vitreous.model.base_config import ModelConfig
from vitreous.model.centre_crop import centre, resized_for
from vitreous.model.config import ViTConfig

# Option types that the formats can handle or reject. A new type must be added here once all formats do so; until then,
# it is rejected for every format.
KNOWN: dict[str, tuple[type, ...]] = {
    "stem": (options.ResNetStem, type(None)),
    "position": (
        *(options.Learned1d, options.Learned2d, options.SinCos2d, options.RelativeBias),
        *(options.Rotary2d, options.MixedRotary2d, options.Conditional, options.NoPosition),
    ),
    "mlp": (options.Gelu, options.SwiGlu),
    "pool": (options.ClassToken, options.GlobalAverage, options.AttentionPool),
    "head": (options.LinearHead, options.TanhHead, options.MlpHead),
    "output": (options.SingleLabel,),
}


def unknown_options(config: ModelConfig) -> list[str]:
    """Return one line per option whose type is not in KNOWN."""
    kinds = {field: type(getattr(config, field)) for field in KNOWN if hasattr(config, field)}
    new = {field: kind for field, kind in kinds.items() if kind not in KNOWN[field]}
    return [f"{kind.__name__} (as {field}) is not supported by any other library" for field, kind in new.items()]


# Checks by name in `Format.missing`. Each returns False or a message with "{}" in place of the library name.
# Other names in `Format.missing` are config fields that must be unset.
CHECKS: dict[str, Callable[[ViTConfig], str | bool]] = {
    "layer_scale": lambda c: c.layer_scale is not None and "layer_scale is not supported by {}",
    "SwiGLU": lambda c: isinstance(c.mlp, options.SwiGlu) and "SwiGLU is not supported by {}",
    "head of two layers": lambda c: (
        not isinstance(c.head, options.LinearHead) and "a head of two layers is not supported by {}"
    ),
    "classifier": lambda c: c.num_classes > 0 and "a classifier is not supported by {}",
    "models without a class token": lambda c: not c.class_token and "{} requires a class token",
    "patches without a bias": lambda c: not c.patch_bias and "{} requires patch_bias",
    "keys without a bias": lambda c: c.qkv_bias and not c.key_bias and "{} requires key_bias",
    "SwiGLU with a norm": lambda c: c.mlp == options.SwiGlu(norm=True) and "a norm in SwiGLU is not supported by {}",
    "models without qkv_bias": lambda c: not c.qkv_bias and "{} requires qkv_bias",
    "models without a classifier": lambda c: not c.num_classes and "{} requires a classifier",
    "other positions": lambda c: (
        not isinstance(c.position, options.Learned1d)
        and f"{{}} requires Learned1d positions, got {type(c.position).__name__}"
    ),
    "positions without the class token": lambda c: (
        isinstance(c.position, options.Learned1d)
        and not c.position.prefix_entries
        and c.class_token
        and "{} requires a position for the class token"
    ),
    "partial patches": lambda c: (
        not c.truncate
        and _has_partial_patches(c)
        and f"{{}} cannot pad images to a multiple of {_by(c.patch_stride)}, got an image size of {_by(c.image_size)}"
    ),
    "rectangular images": lambda c: (
        len(set(c.image_size)) > 1 and f"{{}} requires square images, got {_by(c.image_size)}"
    ),
    "rectangular patches": lambda c: (
        len(set(c.patch_size)) > 1 and f"{{}} requires square patches, got {_by(c.patch_size)}"
    ),
    "head_dim": lambda c: (
        c.head_width * c.num_heads != c.width and f"{{}} requires head_dim = width / num_heads, got {c.head_dim}"
    ),
    "qk_scale": lambda c: (
        not math.isclose(c.qk_scale or c.head_width**-0.5, c.head_width**-0.5)
        and f"{{}} requires qk_scale = 1 / sqrt(head_dim), got {c.qk_scale:g}"
    ),
    "other pooling": lambda c: (
        not isinstance(c.pool, options.ClassToken) and f"{{}} requires ClassToken pooling, got {type(c.pool).__name__}"
    ),
}


# Parts that few libraries have. A format lists those that it supports in `Format.supports`.
RARE = (
    *("pre_norm", "patches without a bias", "truncate", "projection"),
    *("keys without a bias", "attention_output_norm", "SwiGLU with a norm", "untied_norms"),
)


def missing_parts(config: ViTConfig, system: str, missing: Iterable[str]) -> list[str]:
    """Return one line per entry of `missing` that applies to the model. `system` is the library name."""
    messages = (
        CHECKS[name](config) if name in CHECKS else getattr(config, name) and f"{name} is not supported by {{}}"
        for name in missing
    )
    return [str(message).format(system) for message in messages if message]


def _has_partial_patches(config: ViTConfig) -> bool:
    stride = config.stem.stride if config.stem is not None else 1
    return any(-(-side // stride) % patch for side, patch in zip(config.image_size, config.patch_size, strict=True))


def _by(size: Size) -> str:
    return f"{size[0]} x {size[1]}"


def resize_differences(config: ModelConfig, theirs: options.Preprocessing, system: str) -> list[str]:
    """Return one line per difference in resizing between the config and `theirs`, the preprocessing of `system`."""
    ours, size, lines = config.preprocessing, config.image_size, []
    if ours.interpolation != theirs.interpolation:
        lines.append(f"interpolation is {ours.interpolation} in Vitreous and {theirs.interpolation} in {system}")
    for image in _sample_sizes(size):
        (height, width), (other_height, other_width) = (resized_for(image, size, how) for how in (ours, theirs))
        if (height, width) != (other_height, other_width):
            line = f"a {_by(image)} image is resized to {height} x {width} in Vitreous and to "
            return [*lines, f"{line}{other_height} x {other_width} in {system}"]
    return lines


def margin_differences(config: ModelConfig, theirs: options.Preprocessing, system: str) -> list[str]:
    """Return a line if the centre crop of `system` (preprocessing `theirs`) has a different offset for an image."""
    ours, size = config.preprocessing, config.image_size
    for image in _sample_sizes(size):
        resized = resized_for(image, size, ours)
        places = centre(resized, size, ours), centre(resized, size, theirs)
        if places[0] != places[1]:
            crop = f"the centre crop of {resized[0]} x {resized[1]} pixels starts"
            return [f"{crop} at {places[0]} in Vitreous and at {places[1]} in {system}"]
    return []


def _sample_sizes(size: Size) -> Iterator[Size]:
    """Yield image sizes that reveal rounding differences: odd and even margins on both axes."""
    for longer in range(8):
        yield size[0], 2 * size[1] + longer
        yield 2 * size[0] + longer, size[1]
    yield 375, 500
    yield 500, 375


def range_differences(config: ModelConfig, system: str) -> list[str]:
    """Return a line if the config scales the values of 16-bit images, which no other library does."""
    if config.preprocessing.value_range is None:
        return []
    low, high = config.preprocessing.value_range
    return [f"16-bit images are scaled from {low:g}..{high:g} in Vitreous, but not in {system}"]


def numeric_differences(config: ViTConfig, system: str, norm_eps: float, gelu: str | None = "erf") -> list[str]:
    """Return one line per difference from `system` in value range, LayerNorm eps or GELU.

    If `gelu` is None, GELU is not compared.
    """
    lines = range_differences(config, system)
    if config.norm_eps != norm_eps:
        lines.append(f"LayerNorm eps is {config.norm_eps:g} in Vitreous and {norm_eps:g} in {system}")
    if gelu is not None and isinstance(config.mlp, options.Gelu) and config.mlp.approximation != gelu:
        lines.append(f"GELU is computed with {config.mlp.approximation} in Vitreous and with {gelu} in {system}")
    return lines
