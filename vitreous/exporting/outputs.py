"""Outputs of an exported model.

b: batch; c: channels; h, w: image height and width; gh, gw: patch grid; d: feature width.
"""

from collections.abc import Sequence
from typing import get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.common.checks import check_choice, fail
from vitreous.explanation.attention_and_logit_lens import pooling_weights
from vitreous.explanation.rollout_relevance_occlusion import fuse, unmerged
from vitreous.exporting.options import OptionalOutput
from vitreous.model.attention_layer import times
from vitreous.model.familiarity import Familiarity
from vitreous.model.options import Numbers
from vitreous.model.protocol import Model, require_attention
from vitreous.model.tokens import Features
from vitreous.model.top_labels import class_probabilities

MEANINGS = {
    "logits": "raw scores of the head, one per label",
    "probabilities": "probability of each label",
    "values": "number of each label, in the units of the training data",
    "familiarity": "low for images unlike the training images; see calibration.unknown_below",
    "pooled": "feature vector of the image",
    "patches": "feature vectors of the patches, row by row",
    "rollout": "attention rollout: weight of each patch in the pooled features, on the patch grid",
    "mask": "index of the best label for each pixel of the image",
}


def output_names(model: Model, optional: Sequence[OptionalOutput] = ()) -> tuple[str, ...]:
    """Return the outputs of an exported model, in order. `optional` adds outputs."""
    for name in optional:
        check_choice("outputs", name, get_args(OptionalOutput))
        if model.config.output_kind.per_pixel:
            fail("outputs", name, f"omitted for a {model.config.summary}")
    if "rollout" in optional:
        require_attention(model, "attention rollout")
    match model.config.task:
        case "segment":
            return ("logits", "mask")
        case "classify" | "multilabel":
            names = ["logits", "probabilities"]
        case "regress":
            names = ["logits", "values"]
        case "embed":
            names = ["pooled", "patches"]
    if model.familiarity is not None and model.config.calibration is not None:
        names.append("familiarity")
    return (*names, *(name for name in get_args(OptionalOutput) if name in optional and name not in names))


class Outputs(nn.Module):
    """Computes the named outputs of a model for preprocessed images, in float32."""

    def __init__(self, model: Model, names: tuple[str, ...], dtype: torch.dtype = torch.float32):
        super().__init__()
        self.names, self.dtype, self.model = names, dtype, model

    def forward(self, pixels: Float[Tensor, "b c h w"]) -> tuple[Tensor, ...]:
        images, config = pixels.to(self.dtype), self.model.config
        if config.output_kind.per_pixel:
            return (self.model(images).float(),)
        every = "patches" in self.names or "rollout" in self.names
        features = self.model.features(images) if every else self.model.features_to_pool(images)
        found = {"patches": features.patches, "pooled": self.model.pool_features(features).float()}
        if "rollout" in self.names:
            found["rollout"] = _rollout(self.model, images, features)
        if "familiarity" in self.names and self.model.familiarity is not None:
            found["familiarity"] = familiarity_scores(self.model.familiarity, found["pooled"])
        if config.num_classes:
            found |= self._scores(self.model.classify(features).float(), pixels)
        return tuple(found[name].float() for name in self.names)

    def _scores(self, logits: Float[Tensor, "b classes"], pixels: Float[Tensor, "b c h w"]) -> dict[str, Tensor]:
        config, output = self.model.config, self.model.config.output
        if isinstance(output, Numbers):
            mean, std = (torch.tensor(values, dtype=torch.float32) for values in (output.mean, output.std))
            return {"logits": logits, "values": logits * std + mean}
        probabilities = class_probabilities(logits, config)
        if config.calibration is not None and any(isinstance(side, torch.SymInt) for side in pixels.shape[2:]):
            # The size is known only when the file runs. As in `Model.resized`, other sizes are not calibrated.
            sides = zip(pixels.shape[2:], config.image_size, strict=True)
            same = torch.stack([torch.full((), side) == known for side, known in sides]).all()
            probabilities = torch.where(same, probabilities, class_probabilities(logits, config.uncalibrated()))
        return {"logits": logits, "probabilities": probabilities}


def familiarity_scores(known: Familiarity, pooled: Float[Tensor, "b d"]) -> Float[Tensor, "b"]:
    """Compute `Familiarity.scores` without torch.cdist, which ONNX lacks."""
    rows = (pooled - known.centre) @ known.whiten
    return -(rows[:, None] - known.means).square().sum(dim=2).amin(dim=1)


def _rollout(model: Model, images: Float[Tensor, "b c h w"], features: Features) -> Float[Tensor, "b gh gw"]:
    """Compute `rollout_map` without chunks, whose number would depend on the size of the batch."""
    row, steps = pooling_weights(model, features), list(model.attention_steps(images))
    for layer, before, _ in reversed(steps):
        row = (times(row, fuse(layer.weights(before), "mean", 0.0), layer.keys, row.shape[1]) + row) / 2
        row = unmerged(row, layer)
    return row[:, features.prefix.shape[1] :].reshape(-1, *steps[0].layer.layout.grid)
