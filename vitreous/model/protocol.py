"""Interface of all model families: `ModelConfig` (torch-free, in base_config.py) and the `Model` that is built from it.

Serving, explanation, weights, inference, evaluation and training use only these members. Code that needs the tokens of
a Vision Transformer calls `vit.require_vit`, which raises an error for other models.

b: batch; c: channels; h, w: image height and width; d: feature dimension.
"""

import copy
from collections.abc import Iterator, Sequence
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.common.checks import Size, as_size
from vitreous.model.base_config import ModelConfig as ModelConfig
from vitreous.model.familiarity import Familiarity
from vitreous.model.heads import build_head, copy_rows
from vitreous.model.options import LinearHead
from vitreous.model.tokens import Features

M = TypeVar("M", bound="Model")


class UnsupportedModel(ValueError):
    """Raised if an operation needs a part that the model lacks."""


class Model(nn.Module):
    """Base class of all models. Each family overrides the members that it supports."""

    config: ModelConfig
    familiarity: Familiarity | None = None  # only valid if the config has a calibration

    @property
    def backbone(self) -> "Model":
        """The feature extractor: the encoder of a segmenter, otherwise this model."""
        return self

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """Transformer blocks, in order. Used for layer-wise learning rates, Muon, recomputation and FSDP."""
        return ()

    @property
    def embedding(self) -> Sequence[nn.Module]:
        """Modules before the blocks."""
        return ()

    @property
    def heads(self) -> list[nn.Module]:
        """Modules that map features to scores: two if the model has a distillation token, otherwise one."""
        found = (getattr(self, name, None) for name in HEADS)
        return [head for head in found if head is not None]

    def features(self, images: Float[Tensor, "b c h w"]) -> Features:
        """Return the prefix tokens ([b, 0, d] if there are none) and patches of the last layer."""
        raise NotImplementedError

    def pooled(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d"]:
        """Return one feature vector per image, which is the input of the head."""
        return self.pool_features(self.features(images))

    def pool_features(self, features: Features) -> Float[Tensor, "b d"]:
        """Compute `pooled` from the features of the images."""
        return features.patches.mean(dim=1)

    def classify(self, features: Features) -> Float[Tensor, "b classes"]:
        """Compute `forward` from the features of the images."""
        return self.heads[0](self.pool_features(features))

    def logits_and_pooled(
        self, images: Float[Tensor, "b c h w"]
    ) -> tuple[Float[Tensor, "b classes"], Float[Tensor, "b d"]]:
        """Return the outputs of `forward` and `pooled` from a single forward pass."""
        pooled = self.pooled(images)
        return self.heads[0](pooled), pooled

    def stage_outputs(self, images: Float[Tensor, "b c h w"]) -> Iterator[tuple[str, Tensor]]:
        """Yield the name and output of each stage, from the image to the scores. Used to compare two models."""
        if self.backbone is not self:
            yield from self.backbone.stage_outputs(images)
        else:
            features = self.features(images)
            yield "features", torch.cat([features.prefix, features.patches], dim=1)
        yield "logits" if self.config.num_classes else "pooled", self(images)

    def resized(self: M, image_size: int | Size) -> M:
        """Return a copy of the model for another image size."""
        config = self.config.resized(as_size(image_size))  # raises before copying if the size is invalid
        model = copy.deepcopy(self)
        model.config = config
        return model

    def new_head(self, num_classes: int) -> nn.Module:
        """Build a randomly initialised head with `num_classes` outputs."""
        return build_head(LinearHead(), self.config.feature_width, num_classes)

    def replace_head(self, num_classes: int, labels: tuple[str, ...] = ()) -> None:
        """Replace the head with one for new classes. Classes whose labels are in the old head keep their weights."""
        before, self.config = self.config.labels, self.config.with_classes(num_classes, labels)
        rows = {labels.index(label): row for row, label in enumerate(before) if label in labels}
        weight = next(self.parameters())
        for name in HEADS:
            if (old := getattr(self, name, None)) is not None:
                with weight.device:
                    new = self.new_head(num_classes).to(weight.dtype)
                if rows:
                    with torch.device("meta"):
                        larger = self.new_head(num_classes + 1)
                    copy_rows(old, new, larger, rows)
                setattr(self, name, new)

    def classify_distilled(self, features: Features) -> tuple[Float[Tensor, "b classes"], Float[Tensor, "b classes"]]:
        """Return the scores of the class token and of the distillation token."""
        raise UnsupportedModel("the model has no distillation token; build it with distillation_token=True")

    def recompute_blocks(self) -> None:
        """In training, recompute each block in the backward pass instead of storing its activations."""
        raise UnsupportedModel(f"recomputation needs Transformer blocks, but the model is a {self.config.summary}")

    def _layers(self, layers: Sequence[int] | None) -> list[int]:
        """Return the indices of `layers` (default: all blocks). Negative numbers count from the end."""
        depth = len(self.blocks)
        for layer in layers or ():
            if not -depth <= layer < depth:
                raise ValueError(
                    f"layer must be from 0 to {depth - 1} (or -{depth} to -1, counting from the end), got {layer}"
                )
        return [layer % depth for layer in (range(depth) if layers is None else layers)]


HEADS = ("head", "distillation_head")
