"""What `vitreous info` prints."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from vitreous.common.checks import as_size
from vitreous.common.codec import to_dict
from vitreous.common.terminal import console
from vitreous.model.config import SegmenterConfig, ViTConfig
from vitreous.model.kinds import AnyConfig
from vitreous.model.presets import PRESETS, configure


def print_presets(as_json: bool) -> None:
    if as_json:
        print(json.dumps({name: to_dict(config) for name, config in PRESETS.items()}, indent=2))
        return
    table = Table("name", "image", "patch", "width", "depth", "heads", box=None, title="presets", title_justify="left")
    for name, config in PRESETS.items():
        if isinstance(config, ViTConfig):
            stride = config.stem.stride if config.stem is not None else 1
            shape: list[object] = [config.patch_size[0] * stride, config.width, config.depth, config.num_heads]
        else:
            shape = ["-", config.width, sum(config.stages), "-"]
        table.add_row(name, *map(str, [config.image_size[0], *shape]))
    console().print(table)


def print_model(name: str, num_classes: int | None, image_size: Sequence[int] | None, as_json: bool) -> None:
    provenance: dict[str, Any] = {}
    if name not in PRESETS and (name.startswith("hf-hub:") or Path(name).exists()):
        from vitreous.weights.load import describe

        described = describe(name)
        config, provenance = described.config, described.provenance
        if image_size is not None:
            config = config.resized(as_size(image_size))
    elif Path(name).is_absolute() or Path(name).suffix:  # a path: no preset is named like that
        from vitreous.weights.io.errors import not_there

        raise not_there(Path(name))
    else:
        config = configure(name, num_classes, image_size)
    figures = measure(config)
    if as_json:
        record = {"name": name, **figures, "config": to_dict(config), "provenance": provenance}
        print(json.dumps(record, indent=2))
        return
    table = Table(box=None, show_header=False, title=name, title_justify="left")
    for label, value in [*_lines(config, figures), *((key, _said(value)) for key, value in provenance.items())]:
        table.add_row(label, value)
    console().print(table)


def measure(config: AnyConfig) -> dict[str, int]:
    """The figures of one image: what JSON holds and the table shows."""
    from vitreous.model.cost import cost

    spent = cost(config)
    encoder = config.encoder if isinstance(config, SegmenterConfig) else config
    tokens = {"tokens": encoder.num_tokens} if isinstance(encoder, ViTConfig) else {}
    return {
        "parameters": spent.parameters,
        "flops": spent.flops,
        **tokens,
        "activation_bytes": spent.activation_bytes,
    }


def _lines(config: AnyConfig, figures: dict[str, int]) -> list[tuple[str, str]]:
    memory = figures["activation_bytes"] / 2**20
    lines = [
        ("parameters", f"{figures['parameters']:,}"),
        ("operations", f"{figures['flops'] / 1e9:,.2f} GFLOPs an image, forward ({figures['flops'] / 2e9:,.2f} GMACs)"),
        ("training memory", f"{memory:,.0f} MiB of activations an image in float32, {memory / 2:,.0f} in bfloat16"),
        ("image", f"{config.image_size[0]} x {config.image_size[1]}, {config.channels} channels"),
        ("classes", str(config.num_classes or "none: returns pooled features")),
    ]
    scale = config.preprocessing
    if isinstance(config, SegmenterConfig):
        lines.append(("decoder", str(config.decoder)))
        config = config.encoder
    if isinstance(config, ViTConfig):
        (gh, gw), width = config.grid, config.width
        stem = "" if config.stem is None else f" of a ResNet's feature map, stages {config.stem.stages}"
        lines += [
            ("patches", f"{gh} x {gw} of {config.patch_size[0]} x {config.patch_size[1]}{stem}"),
            ("tokens", f"{config.num_tokens} = {config.num_prefix_tokens} prefix + {gh * gw} patches"),
            ("encoder", f"width {width}, depth {config.depth}, {config.num_heads} heads, MLP {config.mlp_width}"),
            ("parts", ", ".join(str(part) for part in (config.position, config.mlp, config.pool, config.head))),
            ("numerics", f"LayerNorm eps {config.norm_eps:g}"),
        ]
    fit = f"{scale.interpolation}, {scale.fit}, rounded as by {scale.geometry}"
    lines.append(("preprocessing", f"mean {scale.mean}, std {scale.std}, {fit}"))
    return lines


def _said(value: Any) -> str:
    """A value of JSON, for people.

    >>> _said({"top1": 0.98333333, "count": 360}), _said(["mlp: timm's, usually", "pool: timm's"])
    ('top1 0.9833, count 360', "mlp: timm's, usually; pool: timm's")
    """
    if isinstance(value, dict):
        return ", ".join(f"{key} {_said(one)}" for key, one in value.items())
    if isinstance(value, list):
        return "; ".join(map(_said, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
