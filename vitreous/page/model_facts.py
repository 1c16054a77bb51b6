"""Description of a model for the page and for `GET /v1/models`, and its names."""

import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import vitreous
from vitreous.common.text import clean
from vitreous.model.base_config import AttentionShape
from vitreous.model.protocol import Model
from vitreous.page.walk import walk_facts
from vitreous.weights.card import title
from vitreous.weights.catalog import HUB_PREFIX
from vitreous.weights.load import is_hub
from vitreous.weights.native import provenance_of


def model_facts(model: Model, id: str, name: str, labels: tuple[str, ...]) -> dict[str, Any]:
    """Return the size, tokens, classes and origin of a model, as JSON types.

    Args:
        id: Short name without spaces, for URLs.
        name: Display name.
        labels: Class names.
    """
    names = ("patch_size", "grid", "width", "depth", "heads", "layers", "tokens", "position", "position_grid", "walk")
    transformer: dict[str, Any] = dict.fromkeys(names)
    if model.config.backbone.has_attention:
        config, shapes = model.config.backbone, model.config.backbone.attention_shapes
        first, last = shapes[0], shapes[-1]
        transformer = {
            "patch_size": list(first.stride), "grid": list(first.grid),
            "width": last.width, "depth": len(shapes), "heads": max(shape.heads for shape in shapes),
            "layers": [_layer(shape, first) for shape in shapes],
            "tokens": {"prefix": list(config.prefix_names), "patches": math.prod(first.grid), "total": first.tokens},
            "position": config.position_name, "position_grid": list(config.position_grid),
            "walk": walk_facts(model.backbone),
        }  # fmt: skip
    transformer["global_attention"] = bool(model.config.backbone.num_tokens)
    return {
        "id": id,
        "name": name,
        "task": model.config.task,
        "classifies": model.config.backbone.output_kind.classes,
        "architecture": title(model.config.backbone).split()[0],  # family, with size and patch if a preset has them
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "image_size": list(model.config.image_size),
        **transformer,
        "classes": model.config.num_classes,
        "labels": list(labels),
        "origin": _origin(provenance_of(model)),
        "version": vitreous.__version__,
    }


def _layer(shape: AttentionShape, first: AttentionShape) -> dict[str, Any]:
    """Describe a layer. `scale` is the height and width of its patches in patches of the first layer."""
    scale = [side // smallest for side, smallest in zip(shape.stride, first.stride, strict=True)]
    return {
        "heads": shape.heads, "grid": list(shape.grid), "keys": shape.keys, "scale": scale, "width": shape.width,
    }  # fmt: skip


def _origin(record: dict[str, Any]) -> str | None:
    """Return a short description of the origin of the weights, or None if the origin is not recorded."""
    if "repository" in record:
        origin = f"{HUB_PREFIX}{record['repository']}"
    elif "run" in record:
        origin = f"{record['run']}, step {record.get('step')}"
    elif "file" in record:
        origin = f"{record['file']} ({record.get('origin', 'origin unknown')})"
    else:
        return None
    return clean(origin)[:200]


def unique_ids(names: Sequence[str]) -> list[str]:
    """Derive short, unique, URL-safe ids from checkpoint paths."""
    ids: list[str] = []
    for name in names:
        parts = [part for part in re.split(r"[/\\:]", os.path.normpath(name)) if part not in ("", ".", "..")]
        if len(parts) > 1 and parts[-1] in ("best", "last"):  # use the name of the run instead
            parts.pop()
        stem = re.sub(r"\.(npz|pth|pt|bin|safetensors|pdparams)$", "", parts[-1]) if parts else "model"
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-.") or "model"
        number, id = 2, plain
        while id in ids:
            id, number = f"{plain}-{number}", number + 1
        ids.append(id)
    return ids


def short_name(name: str) -> str:
    """Return the name of a checkpoint without the parent folders, whose names may be private.

    >>> short_name("/home/me/runs/pets/best"), short_name("hf-hub:timm/vit_tiny")
    ('pets/best', 'hf-hub:timm/vit_tiny')
    """
    parts = Path(os.path.abspath(name)).parts
    return name if is_hub(name) else "/".join(parts[-2:] if parts[-1] in ("best", "last") else parts[-1:])
