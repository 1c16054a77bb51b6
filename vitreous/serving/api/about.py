"""The description of each model in `GET /v1/model`: its name, its parts and its tasks."""

from typing import Any

import vitreous
from vitreous.inference.prediction_files import clean
from vitreous.model.config import ViTConfig
from vitreous.model.options import label_of
from vitreous.model.segmenter import Segmenter
from vitreous.model.vit import ViT
from vitreous.serving.inspect.tour import prefix_names
from vitreous.serving.models import Served
from vitreous.weights.adapt import provenance_of


def about(served: Served) -> dict[str, Any]:
    model = served.model
    encoder = model.encoder if isinstance(model, Segmenter) else model
    return {
        "id": served.id,
        "name": served.name,
        "task": served.task,
        "architecture": type(model).__name__,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "image_size": list(model.config.image_size),
        **_inside(encoder.config if isinstance(encoder, ViT) else None),
        "classes": model.config.num_classes,
        "labels": list(served.labels),
        "origin": _origin(served),
        "version": vitreous.__version__,
    }


def _inside(config: ViTConfig | None) -> dict[str, Any]:
    """Of the Transformer, where there is one."""
    if config is None:
        keys = ("patch_size", "grid", "width", "depth", "heads", "tokens", "position")
        return dict.fromkeys(keys)
    patches = config.grid[0] * config.grid[1]
    return {
        "patch_size": list(config.patch_stride),
        "grid": list(config.grid),
        "width": config.width,
        "depth": config.depth,
        "heads": config.num_heads,
        "tokens": {"prefix": prefix_names(config), "patches": patches, "total": config.num_tokens},
        "position": label_of(config.position),
    }


def _origin(served: Served) -> str | None:
    """Where the weights come from, in a few words, if the checkpoint says."""
    record = provenance_of(served.model)
    if "repository" in record:
        said = f"hf-hub:{record['repository']}"
    elif "run" in record:
        said = f"{record['run']}, step {record.get('step')}"
    elif "file" in record:
        said = f"{record['file']} ({record.get('origin', 'origin unknown')})"
    else:
        return None
    return clean(said)[:200]
