"""Interface of all model families: `ModelConfig` (torch-free, in base_config.py) and the `Model` that is built from it.

Serving, explanation, weights, inference, evaluation and training use only these members. A family that lacks a part
keeps the default, which raises UnsupportedModel. `require_attention` checks for attention before any computation.

b: batch; c: channels; h, w: image height and width; d: feature dimension.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.common.checks import Size, as_size
from vitreous.model.attention_layer import AttentionStep
from vitreous.model.base_config import ModelConfig as ModelConfig
from vitreous.model.familiarity import Familiarity
from vitreous.model.fused_encoder import Kernels
from vitreous.model.heads import build_head, copy_rows
from vitreous.model.options import LinearHead
from vitreous.model.patch import PatchEmbedding
from vitreous.model.pooling import Pooling
from vitreous.model.position import PositionEmbedding
from vitreous.model.tokens import Features, Layout
from vitreous.model.walk_parts import WalkParts

M = TypeVar("M", bound="Model")


class UnsupportedModel(ValueError):
    """Raised if an operation needs a part that the model lacks."""


class Model(nn.Module):
    """Base class of all models. Each family overrides the members that it supports."""

    config: ModelConfig
    familiarity: Familiarity | None = None  # only valid if the config has a calibration
    pool: Pooling  # only for models with attention

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
    def lr_groups(self) -> Sequence[Sequence[nn.Module]]:
        """Groups of modules for layer-wise learning rates, from the input on: the embedding, then each block."""
        return [self.embedding, *([block] for block in self.blocks)] if self.blocks else []

    @property
    def image_filters(self) -> tuple[Float[Tensor, "k c ph pw"], str]:
        """Filters that the first layer applies to the image, and the name of this layer."""
        raise UnsupportedModel(f"the model has no image filters: it is a {self.config.summary}")

    @property
    def patch_embedding(self) -> PatchEmbedding | None:
        """Projection of the patches of the image, or None if the model has none."""
        return None

    @property
    def positions(self) -> PositionEmbedding:
        """Position embedding for a grid of size `config.position_grid`. Models without one have no positions."""
        return PositionEmbedding()

    @property
    def heads(self) -> list[nn.Module]:
        """Modules that map features to scores: two if the model has a distillation token, otherwise one."""
        found = (getattr(self, name, None) for name in HEADS)
        return [head for head in found if head is not None]

    def features(self, images: Float[Tensor, "b c h w"]) -> Features:
        """Return the prefix tokens ([b, 0, d] if there are none) and patches of the last layer."""
        raise NotImplementedError

    def features_to_pool(self, images: Float[Tensor, "b c h w"]) -> Features:
        """Return the features. An exported program may omit the patches if the pooling does not read them."""
        return self.features(images)

    def pyramid(self, images: Float[Tensor, "b c h w"]) -> list[Features]:
        """Return feature maps for dense prediction, finest first. Their widths are `config.pyramid_widths`."""
        return [self.features(images)]

    def pooled(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d"]:
        """Return one feature vector per image, which is the input of the head."""
        return self.pool_features(self.features_to_pool(images))

    def pool_features(self, features: Features) -> Float[Tensor, "b d"]:
        """Compute `pooled` from the features of the images."""
        return features.patches.mean(dim=1)

    def classify(self, features: Features) -> Float[Tensor, "b classes"]:
        """Compute `forward` from the features of the images."""
        return self.heads[0](self.pool_features(features))

    def classify_pooled(self, pooled: Float[Tensor, "b d"]) -> Float[Tensor, "b classes"]:
        """Compute `forward` from the output of `pool`, for models with one head."""
        return self.heads[0](pooled)

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

    def attention_steps(self, images: Float[Tensor, "b c h w"]) -> Iterator[AttentionStep]:
        """Run the model and yield its attention layers, each with the tokens before and after it."""
        raise UnsupportedModel(f"the model has no attention layers: it is a {self.config.summary}")

    def output_features(self, tokens: Float[Tensor, "b t d"], layout: Layout) -> Features:
        """Compute `features` from the tokens after the last attention layer: apply the final norm, split off prefix."""
        raise UnsupportedModel(f"the model has no attention layers: it is a {self.config.summary}")

    def walk_parts(self) -> WalkParts:
        """Return the parts that the walk on the page explains."""
        raise UnsupportedModel(f"the model has no attention layers: it is a {self.config.summary}")

    def patch_tensors(self, images: Float[Tensor, "b c h w"]) -> dict[str, Float[Tensor, "b n _"]]:
        """Return tensors of all patches before the first layer, for the walk on the page (see `vitreous.page.walk`)."""
        raise UnsupportedModel(f"the model has no attention layers: it is a {self.config.summary}")

    def resized(self: M, image_size: int | Size) -> M:
        """Return a copy of the model for another image size."""
        config = self.config.resized(as_size(image_size))  # raises before copying if the size is invalid
        model = copy.deepcopy(self)
        model.config = config
        return model

    def resampled(self: M, fields: Mapping[str, Any], image_size: Size) -> M:
        """Return a copy of the model with other values of `config.resampled_fields`, for another image size."""
        if fields:
            raise UnsupportedModel(f"{', '.join(fields)} cannot be changed for a {self.config.summary}")
        return self.resized(image_size)

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

    def freeze_pooling(self) -> None:
        """Freeze the modules between features and head, for tasks that do not use them.

        In distributed training, each trainable parameter must get a gradient.
        """
        self.pool.requires_grad_(False)

    def kernels(self, device: torch.device, dtype: torch.dtype) -> Kernels:
        """Return which parts fused GPU kernels compute in this precision."""
        return Kernels("none", f"none exist for a {self.config.summary}")

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


def require_attention(model: Model, purpose: str) -> Model:
    """Return the backbone of a model. If it has no attention layers, the error names `purpose` and the model."""
    if not model.config.backbone.has_attention:
        raise UnsupportedModel(f"{purpose} needs a model with attention, but the model is a {model.config.summary}")
    return model.backbone
