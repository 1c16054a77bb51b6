"""Writes model cards (`README.md`) with the front matter that the Hugging Face Hub reads.

Labels and provenance are untrusted, so they are escaped and truncated.
"""

import dataclasses
import html
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from vitreous.common.text import first_few, single_spaced
from vitreous.model.centre_crop import scaled
from vitreous.model.presets import PRESETS
from vitreous.model.protocol import ModelConfig

# Fields that a preset's name does not imply: input and output sizes, regularisation, and dataset properties.
NOT_NAMED = {
    "image_size", "num_classes", "labels", "output", "preprocessing", "dropout", "stochastic_depth", "patch_dropout",
    "pad", "truncate", "calibration",
}  # fmt: skip
SHOWN_LABELS = 20


def model_card(
    config: ModelConfig,
    name: str,
    parameters: int,
    provenance: Mapping[str, Any],
    source: str = ".",
    library: str = "vitreous",
) -> str:
    """Return the card as Markdown. `provenance` may contain `license`, `metrics` (numbers by name) and other entries.

    `source` is the argument of `vitreous.load` in the examples. `library` is the library that loads the files.
    """
    rest = {key: value for key, value in provenance.items() if key not in ("license", "metrics")}
    sections = [
        front_matter(config, provenance, library),
        f"# {plain(name)}",
        _summary(config, parameters),
        _usage(config, source),
        _table("Metrics", ("", "value"), provenance.get("metrics")),
        _labels(config.labels, config.num_classes),
        f"## Preprocessing\n\n{_preprocessing(config)}",
        _table("Provenance", ("", ""), rest),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def front_matter(config: ModelConfig, provenance: Mapping[str, Any], library: str = "vitreous") -> str:
    """Return the YAML front matter. Values are written as JSON, which is valid YAML."""
    fields: dict[str, Any] = {
        "library_name": library,
        "pipeline_tag": config.output_kind.pipeline_tag,
        "license": provenance.get("license"),
        "tags": ["vitreous", config.family],
    }
    lines = [f"{key}: {json.dumps(value)}" for key, value in fields.items() if value]
    return "\n".join(["---", *lines, "---"])


def title(config: ModelConfig) -> str:
    """Return the preset name for the architecture (e.g. ViT-B/16), or a summary if no preset has this architecture."""

    def shape(config: ModelConfig) -> dict[str, Any]:
        return {f.name: getattr(config, f.name) for f in dataclasses.fields(config) if f.name not in NOT_NAMED}

    backbone = config.backbone
    same = [
        name for name in PRESETS if type(PRESETS[name]) is type(backbone) and shape(PRESETS[name]) == shape(backbone)
    ]
    same.sort(key=lambda name: PRESETS[name].image_size != backbone.image_size)  # stable: the first name of equal ones
    return same[0] + config.summary.removeprefix(backbone.summary) if same else config.summary


def plain(value: object, length: int = 100) -> str:
    """Escape and truncate text for one line of Markdown and HTML.

    >>> plain("<b>a|b*\\n# c")
    '&lt;b&gt;a\\\\|b\\\\* \\\\# c'
    """
    return re.sub(r"([\\`*_{}\[\]#|~!])", r"\\\1", html.escape(single_spaced(str(value), length), quote=False))


def _summary(config: ModelConfig, parameters: int) -> str:
    height, width = config.image_size
    colours = {1: "greyscale", 3: "RGB"}.get(config.channels, f"{config.channels}-channel")
    output = config.output_kind.output.format(classes=config.num_classes)
    tokens = f" ({config.num_tokens:,} tokens)" if config.num_tokens else ""
    return (
        f"{plain(title(config))}: {parameters:,} parameters. "
        f"Input: {colours} images of {height} x {width} pixels{tokens}. Output: {output}."
    )


def _usage(config: ModelConfig, source: str) -> str:
    call, command = config.output_kind.python, config.output_kind.command.format(source=source)
    where = ", in this folder (elsewhere, replace the dot with the path of this folder)" if source == "." else ""
    return (
        f"## Usage\n\nRun `pip install vitreous`, then{where}:\n\n```python\nimport vitreous\n\n"
        f'model = vitreous.load("{source}")\nprint(vitreous.{call})\n```\n\n```sh\nvitreous {command}\n```'
    )


def _labels(labels: Sequence[str], num_classes: int) -> str:
    if not num_classes:
        return ""
    if not labels:
        return f"## Labels\n\nThe {num_classes:,} classes have no labels."
    return f"## Labels\n\n{len(labels):,}: {first_few([plain(label, 40) for label in labels], SHOWN_LABELS)}"


def _preprocessing(config: ModelConfig) -> str:
    how, (height, width) = config.preprocessing, config.image_size
    size, larger = f"{height} x {width} pixels", "{} x {} pixels".format(*scaled(config.image_size, how))
    fit = {
        "squash": f"to {size}, ignoring the aspect ratio",
        "squash-crop": f"to {larger}, ignoring the aspect ratio, then cropped to the central {size}",
        "pad": f"to fit {larger}, keeping the aspect ratio, then cropped or padded (mean colour) to {size}",
        "crop": f"to cover {larger}, keeping the aspect ratio, then cropped to the central {size}",
    }[how.fit]
    if config.output_kind.per_pixel:
        fit = f"to cover {size}, keeping the aspect ratio, then split into overlapping windows of that size"
    mean, std = (", ".join(f"{value:g}" for value in values) for values in (how.mean, how.std))
    deep = "" if how.value_range is None else "16-bit images: {:g} is black, {:g} is white. ".format(*how.value_range)
    return f"{deep}Resized ({how.interpolation}) {fit}; scaled to [0, 1] and normalised with mean {mean} and std {std}."


def _table(heading: str, columns: tuple[str, str], rows: object) -> str:
    if not isinstance(rows, Mapping) or not rows:
        return ""
    lines = [f"## {heading}\n", f"| {columns[0]} | {columns[1]} |", "|---|---|"]
    for key, value in rows.items():
        shown = value if isinstance(value, str) else json.dumps(value, default=str)
        shown = f"{value:.4g}" if isinstance(value, float) else shown
        lines.append(f"| {plain(key)} | {plain(shown, 300)} |")
    return "\n".join(lines)
