"""Metadata of an exported file: all that a program needs to use its inputs and outputs."""

from collections.abc import Sequence
from typing import Any

import vitreous
from vitreous.common.codec import to_dict
from vitreous.exporting.outputs import MEANINGS
from vitreous.model.base_config import ModelConfig
from vitreous.model.options import MultiLabel, Numbers
from vitreous.model.top_labels import class_names

ACTIVATIONS = {"classify": "softmax", "multilabel": "sigmoid", "segment": "softmax"}


def metadata_of(config: ModelConfig, outputs: Sequence[str], precision: str, dynamic_size: bool) -> dict[str, Any]:
    """Return the JSON object that is stored in the file under the key "vitreous"."""
    metadata: dict[str, Any] = {
        "version": vitreous.__version__,
        "task": config.task,
        "architecture": config.summary,
        "labels": list(class_names(config)),
        "channels": config.channels,
        "image_size": list(config.image_size),
        "preprocessing": to_dict(config.preprocessing),
        "precision": precision,
        "outputs": {name: MEANINGS[name] for name in outputs},
    }
    if dynamic_size:
        metadata["dynamic_size"] = {"input": "size", "multiple_of": list(config.patch_stride)}
    if config.task in ACTIVATIONS:
        metadata["activation"] = ACTIVATIONS[config.task]
    if isinstance(config.output, MultiLabel):
        metadata["thresholds"] = list(config.output.thresholds) or [0.5] * config.num_classes
    if isinstance(config.output, Numbers):
        metadata |= {"mean": list(config.output.mean), "std": list(config.output.std)}
    if config.calibration is not None:
        temperature, threshold = config.calibration.temperature, config.calibration.unknown_below
        metadata["calibration"] = {"temperature": temperature, "unknown_below": threshold}
    return metadata
