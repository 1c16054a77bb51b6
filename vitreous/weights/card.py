"""The model card of a checkpoint: `README.md`, for a person who finds the folder, with the front matter that hubs read.

Labels and provenance come from anywhere, so every word of theirs is escaped and cut to a length that can be read.
"""

import dataclasses
import html
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from vitreous.model.config import ResNetConfig, SegmenterConfig, ViTConfig
from vitreous.model.kinds import AnyConfig
from vitreous.model.options import LinearDecoder
from vitreous.model.presets import PRESETS

# What a preset's name does not speak of: sizes and outputs, regularisation, and what belongs to the data.
BESIDE = {"image_size", "num_classes", "labels", "preprocessing", "dropout", "stochastic_depth", "patch_dropout", "pad"}
SHOWN_LABELS = 20


def model_card(
    config: AnyConfig,
    name: str,
    parameters: int,
    provenance: Mapping[str, Any],
    source: str = ".",
    library: str = "vitreous",
) -> str:
    """The whole card. `provenance` may hold `license`, `metrics` (a figure for each name) and anything else.

    `source` is what `vitreous.load` finds the checkpoint by, and `library` the one whose files they are.

    >>> model_card(ViTConfig(), "pets", 86_567_656, {"license": "apache-2.0"}).splitlines()[:3]
    ['---', 'library_name: "vitreous"', 'pipeline_tag: "image-classification"']
    """
    rest = {key: value for key, value in provenance.items() if key not in ("license", "metrics")}
    parts = [
        front_matter(config, provenance, library),
        f"# {plain(name)}",
        _what_it_is(config, parameters),
        _how_to_use_it(config, source),
        _table("Figures", ("", "value"), provenance.get("metrics")),
        _labels(config.labels, config.num_classes),
        f"## Preprocessing\n\n{_preprocessing(config)}",
        _table("Provenance", ("", ""), rest),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def front_matter(config: AnyConfig, provenance: Mapping[str, Any], library: str = "vitreous") -> str:
    """YAML, in which every value is a JSON string, which YAML reads as it is meant."""
    kind = "resnet" if isinstance(config, ResNetConfig) else "vision-transformer"
    purpose = "image-classification" if config.num_classes else "image-feature-extraction"
    fields: dict[str, Any] = {
        "library_name": library,
        "pipeline_tag": "image-segmentation" if isinstance(config, SegmenterConfig) else purpose,
        "license": provenance.get("license"),
        "tags": ["vitreous", kind],
    }
    lines = [f"{key}: {json.dumps(value)}" for key, value in fields.items() if value]
    return "\n".join(["---", *lines, "---"])


def title(config: AnyConfig) -> str:
    """The preset that a config has the shape of, or else its shape in numbers.

    >>> title(ViTConfig(num_classes=37, image_size=(384, 384)))
    'ViT-B/16'
    >>> title(ViTConfig(depth=6))
    'ViT of width 768, depth 6, 12 heads, patches of 16 x 16'
    """
    if isinstance(config, SegmenterConfig):
        decoder = "a linear decoder" if isinstance(config.decoder, LinearDecoder) else "a mask transformer"
        return f"{title(config.encoder)} with {decoder}"
    shape = _shape(config)
    for name, preset in PRESETS.items():
        if type(preset) is type(config) and _shape(preset) == shape:
            return name
    if isinstance(config, ResNetConfig):
        return f"BiT ResNet of width {config.width}, stages {', '.join(map(str, config.stages))}"
    stem = "" if config.stem is None else " of a ResNet's feature map"
    patch = f"{config.patch_size[0]} x {config.patch_size[1]}"
    return f"ViT of width {config.width}, depth {config.depth}, {config.num_heads} heads, patches of {patch}{stem}"


def plain(value: object, length: int = 100) -> str:
    """Any text as one short line that Markdown and HTML show as it is.

    >>> plain("<b>a|b*\\n# c")
    '&lt;b&gt;a\\\\|b\\\\* \\\\# c'
    """
    text = " ".join("".join(c if c.isprintable() else " " for c in str(value)).split())
    text = text if len(text) <= length else text[: length - 3] + "..."
    return re.sub(r"([\\`*_{}\[\]#|~!])", r"\\\1", html.escape(text, quote=False))


def _shape(config: AnyConfig) -> dict[str, Any]:
    return {f.name: getattr(config, f.name) for f in dataclasses.fields(config) if f.name not in BESIDE}


def _what_it_is(config: AnyConfig, parameters: int) -> str:
    height, width = config.image_size
    colours = {1: "Grey", 3: "RGB"}.get(config.channels, f"{config.channels}-channel")
    made = f"{config.num_classes:,} classes" if config.num_classes else "features, without a head for classes"
    made += " of pixels" if isinstance(config, SegmenterConfig) else ""
    encoder = config.encoder if isinstance(config, SegmenterConfig) else config
    tokens = f", seen as {encoder.num_tokens:,} tokens" if isinstance(encoder, ViTConfig) else ""
    return (
        f"{plain(title(config))}: {parameters:,} parameters. "
        f"{colours} pictures of {height} x {width} pixels{tokens}; {made}."
    )


def _how_to_use_it(config: AnyConfig, source: str) -> str:
    if isinstance(config, SegmenterConfig):
        python = 'vitreous.SegmentPredictor(model)(["picture.jpg"])[0].mask'
        shell = f"vitreous predict {source} picture.jpg --out segmented/"
    elif config.num_classes:
        python, shell = 'vitreous.Predictor(model)(["picture.jpg"])', f"vitreous predict {source} picture.jpg"
    else:
        python = 'vitreous.Predictor(model).embed(["picture.jpg"])'
        shell = f"vitreous embed {source} picture.jpg --out features.parquet"
    where = "In this folder (or with its path instead of the dot), after" if source == "." else "After"
    return (
        f"## How to use it\n\n{where} `pip install vitreous`:\n\n```python\nimport vitreous\n\n"
        f'model = vitreous.load("{source}")\nprint({python})\n```\n\n```sh\n{shell}\n```'
    )


def _labels(labels: Sequence[str], num_classes: int) -> str:
    if not num_classes:
        return ""
    if not labels:
        return f"## Labels\n\nThe {num_classes:,} classes have no names."
    more = f" and {len(labels) - SHOWN_LABELS:,} more" if len(labels) > SHOWN_LABELS else ""
    return f"## Labels\n\n{len(labels):,}: {', '.join(plain(label, 40) for label in labels[:SHOWN_LABELS])}{more}"


def _preprocessing(config: AnyConfig) -> str:
    how, (height, width) = config.preprocessing, config.image_size
    if isinstance(config, SegmenterConfig):
        fit = (
            f"Resized ({how.interpolation}) to cover {height} x {width} pixels at its own aspect, and seen to its ends "
            "through windows of that size, which overlap"
        )
    elif how.fit == "squash":
        fit = f"Resized to {height} x {width} pixels, whatever the aspect ({how.interpolation})"
    elif how.fit == "squash-crop":
        fit = (
            f"Resized ({how.interpolation}), whatever the aspect, and cropped to the central {height} x {width} "
            f"pixels, which are {how.crop_fraction:g} of either side"
        )
    elif how.fit == "pad":
        fit = (
            f"Resized ({how.interpolation}) so that the longer side is {how.crop_fraction:g} of {height} x {width} "
            "pixels or just fits them, and padded with the mean colour"
        )
    else:
        fit = (
            f"Resized ({how.interpolation}) and cropped to the central {height} x {width} pixels, "
            f"which are {how.crop_fraction:g} of the side that is cropped less"
        )
    numbers = [", ".join(f"{value:g}" for value in values) for values in (how.mean, how.std)]
    return f"{fit}; scaled to [0, 1], minus {numbers[0]}, divided by {numbers[1]}."


def _table(heading: str, columns: tuple[str, str], rows: object) -> str:
    if not isinstance(rows, Mapping) or not rows:
        return ""
    lines = [f"## {heading}\n", f"| {columns[0]} | {columns[1]} |", "|---|---|"]
    for key, value in rows.items():
        shown = (
            f"{value:.4g}"
            if isinstance(value, float)
            else value
            if isinstance(value, str)
            else json.dumps(value, default=str)
        )
        lines.append(f"| {plain(key)} | {plain(shown, 300)} |")
    return "\n".join(lines)
