"""A model that was just read, made fit for another size or other classes, and the record of what was changed."""

from collections.abc import Sequence
from typing import Any

from vitreous.common.checks import as_size
from vitreous.common.codec import to_dict
from vitreous.model.kinds import AnyConfig, AnyModel
from vitreous.model.protocol import Model


def adapt(
    model: AnyModel,
    stored: AnyConfig,
    provenance: dict[str, Any],
    image_size: int | Sequence[int] | None = None,
    num_classes: int | None = None,
) -> AnyModel:
    """The model at another size, with a fresh head for other classes, in evaluation mode.

    `stored` is the config that the checkpoint has: every field that is now another one goes into the provenance.
    """
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
    if changes:
        provenance["changes"] = [*provenance.get("changes", []), *changes]
    vars(model)["provenance"] = provenance
    return model.eval()


def provenance_of(model: Model) -> dict[str, Any]:
    """Where a model's weights come from: what its checkpoint said, and what was changed when it was loaded."""
    return dict(vars(model).get("provenance", {}))
