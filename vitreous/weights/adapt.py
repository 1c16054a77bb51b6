"""Adapts a loaded model to another image size or other classes, and records the changes."""

from collections.abc import Mapping, Sequence
from typing import Any

from vitreous.common.checks import as_size
from vitreous.common.codec import to_dict
from vitreous.model.protocol import Model, ModelConfig


def adapt(
    model: Model,
    stored: ModelConfig,
    provenance: Mapping[str, Any],
    image_size: int | Sequence[int] | None = None,
    num_classes: int | None = None,
) -> Model:
    """Resize the model and replace its head if given; record fields that differ from `stored` in its provenance."""
    if num_classes is not None:
        model.replace_head(num_classes)
    if image_size is not None:
        model = model.resized(as_size(image_size))
    before, after = to_dict(stored), to_dict(model.config)
    changes: list[dict[str, Any]] = [
        {"field": field, "from": before[field], "to": after[field]}
        for field in before
        if before[field] != after[field] and field != "labels"
    ]
    if num_classes is not None:
        changes.append({"field": "head", "to": "new"})
    record = {"changes": [*provenance.get("changes", []), *changes]} if changes else {}
    vars(model)["provenance"] = {**provenance, **record}
    return model.eval()


def provenance_of(model: Model) -> dict[str, Any]:
    """Return the origin of a model's weights: the record of its checkpoint, and the changes made by loading."""
    return dict(vars(model).get("provenance", {}))
