"""The Vision Transformer of "An Image is Worth 16x16 Words" (arXiv 2010.11929), equations 1 to 4.

b: batch; c: channels; h, w: image height and width; n: patches; p: prefix tokens; t = p + n; d: width.
"""

from collections.abc import Iterator, Sequence
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitreous.common.checks import Size
from vitreous.common.compiler import is_exporting
from vitreous.model.attention_layer import AttentionStep
from vitreous.model.block import Block, SwiGluMlp
from vitreous.model.config import ViTConfig
from vitreous.model.encoder import Encoder, EncoderLayer
from vitreous.model.fused_encoder import Kernels
from vitreous.model.heads import build_head
from vitreous.model.inputs import check_images, check_matches
from vitreous.model.options import AttentionPool, ClassToken, GlobalAverage
from vitreous.model.patch import PatchEmbedding
from vitreous.model.pooling import ClassTokenPooling, Pooling
from vitreous.model.position import PositionEmbedding
from vitreous.model.protocol import Model
from vitreous.model.tokens import Features, Layout, PrefixTokens, check_count, drop_patches
from vitreous.model.walk_parts import LayerParts, PoolKind, PositionKind, WalkParts

POOLS: dict[type, PoolKind] = {ClassToken: "class", GlobalAverage: "mean", AttentionPool: "attention"}


class ViT(Model):
    """Vision Transformer, assembled from the modules that `build` passes in."""

    def __init__(
        self,
        config: ViTConfig,
        stem: nn.Module,
        patches: PatchEmbedding,
        prefix: PrefixTokens,
        position: PositionEmbedding,
        pre_norm: nn.Module,
        encoder: Encoder,
        norm: nn.Module,
        pool: Pooling,
        projection: nn.Module,
        head: nn.Module,
        distillation_head: nn.Module | None = None,
    ):
        super().__init__()
        self.config: ViTConfig = config
        self.stem, self.patches = stem, patches
        self.prefix, self.position, self.embedding_dropout = prefix, position, nn.Dropout(config.dropout.embedding)
        self.pre_norm, self.encoder, self.norm = pre_norm, encoder, norm
        self.pool, self.projection, self.head, self.distillation_head = pool, projection, head, distillation_head

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b classes"]:
        return self.classify(self.features_to_pool(images))

    def features(self, images: Float[Tensor, "b c h w"]) -> Features:
        """Return the tokens of the last layer after the final norm, which `GlobalAverage(norm="after")` skips here."""
        return self.encode(*self.embed(*self.patchify(images)))

    def features_to_pool(self, images: Float[Tensor, "b c h w"]) -> Features:
        if not (is_exporting() and self.pools_prefix):  # elsewhere, hooks see all tokens of all blocks
            return self.features(images)
        tokens, layout = self.embed(*self.patchify(images))
        prefix = self.norm(self.encoder.prefix(tokens, layout, self.position))
        return Features(prefix, prefix[:, :0], layout.grid, layout.keep_indices)

    @property
    def pools_prefix(self) -> bool:
        """True if the output depends on the last block only through its prefix tokens."""
        return (
            isinstance(self.pool, ClassTokenPooling)
            and type(self.encoder) is Encoder
            and isinstance(self.norm, nn.LayerNorm)
            and type(self.position).between is PositionEmbedding.between
        )

    def pool_features(self, features: Features) -> Float[Tensor, "b d"]:
        """Pool the features into y (equation 4). In CLIP, a projection of y is the image embedding."""
        return self.projection(self.pool(features))

    def logits_and_pooled(
        self, images: Float[Tensor, "b c h w"]
    ) -> tuple[Float[Tensor, "b classes"], Float[Tensor, "b d"]]:
        features = self.features_to_pool(images)
        return self.classify(features), self.pool_features(features)

    def patchify(
        self, images: Float[Tensor, "b c h w"], keep_indices: Int[Tensor, "b n"] | None = None
    ) -> tuple[Float[Tensor, "b n d"], Size]:
        """Cut the image (in a hybrid: the feature map) into patches and project them to x_p^1 E ... x_p^N E.

        `keep_indices` selects the patches to project; pass the same indices to `embed`.
        """
        check_images(images, self.config.channels)
        self.config.grid_for((images.shape[2], images.shape[3]))  # raises if the size is invalid
        try:
            return self.patches(self.stem(images), keep_indices)
        except RuntimeError:
            check_matches(images, self.patches.projection.weight)
            raise

    def embed(
        self, patches: Float[Tensor, "b n d"], grid: Size, keep_indices: Int[Tensor, "b n"] | None = None
    ) -> tuple[Float[Tensor, "b t d"], Layout]:
        """Compute z_0 = [x_class; x_p^1 E; ...; x_p^N E] + E_pos (equation 1), which CLIP normalises.

        `keep_indices` are the grid indices of a subset of patches.
        """
        layout = Layout(self.prefix.length, grid, keep_indices)
        check_count(patches.shape[1], layout)
        tokens = self.pre_norm(self.embedding_dropout(self.position(self.prefix(patches), layout)))
        if self.training and self.config.patch_dropout:
            return drop_patches(tokens, layout, self.config.patch_dropout)
        return tokens, layout

    def encode(self, tokens: Float[Tensor, "b t d"], layout: Layout) -> Features:
        """Apply the encoder (equations 2 and 3, L times) and the final norm (equation 4)."""
        return self.output_features(self.encoder(tokens, layout, self.position), layout)

    def classify(self, features: Features) -> Float[Tensor, "b classes"]:
        """Pool the features, and score each class."""
        if self.distillation_head is None:
            return self.head(self.pool_features(features))
        by_label, by_teacher = self.classify_distilled(features)
        return (by_label + by_teacher) / 2

    def classify_pooled(self, pooled: Float[Tensor, "b d"]) -> Float[Tensor, "b classes"]:
        return self.head(self.projection(pooled))

    def classify_distilled(self, features: Features) -> tuple[Float[Tensor, "b classes"], Float[Tensor, "b classes"]]:
        """Return the scores of DeiT's class token (trained on labels) and distillation token (trained on a teacher)."""
        if self.distillation_head is None:
            return super().classify_distilled(features)  # raises an error
        return self.head(features.prefix[:, 0]), self.distillation_head(features.prefix[:, 1])

    # ---- Parts ----

    @property
    def blocks(self) -> Sequence[nn.Module]:
        return list(self.encoder.blocks)

    @property
    def embedding(self) -> Sequence[nn.Module]:
        return (self.stem, self.patches, self.prefix, self.position, self.pre_norm)

    @property
    def patch_embedding(self) -> PatchEmbedding | None:
        return self.patches if self.config.stem is None else None

    @property
    def positions(self) -> PositionEmbedding:
        return self.position

    @property
    def image_filters(self) -> tuple[Float[Tensor, "k c ph pw"], str]:
        if self.config.stem is not None:
            return self.stem.get_parameter("root.weight"), "the first convolution of the stem"
        return self.patches.projection.weight, "the patch embedding"

    def new_head(self, num_classes: int) -> nn.Module:
        return build_head(self.config.head, self.config.feature_width, num_classes, self.config.norm_eps)

    def freeze_pooling(self) -> None:
        super().freeze_pooling()
        self.projection.requires_grad_(False)

    def recompute_blocks(self) -> None:
        self.encoder.recompute = True

    def kernels(self, device: torch.device, dtype: torch.dtype) -> Kernels:
        return self.encoder.kernels(self.position, device, dtype)

    # ---- Attention and intermediate features ----

    def attention_steps(self, images: Float[Tensor, "b c h w"]) -> Iterator[AttentionStep]:
        tokens, layout = self.embed(*self.patchify(images))
        for index, (before, after) in enumerate(self.encoder.walk(tokens, layout, self.position)):
            yield AttentionStep(EncoderLayer(self.encoder, index, layout, self.position), before, after)

    def output_features(self, tokens: Float[Tensor, "b t d"], layout: Layout) -> Features:
        return self._features(self.norm(tokens), layout)

    def walk_parts(self) -> WalkParts:
        config, block = self.config, cast(Block, self.blocks[0])
        terms = self.position.attend(Layout(config.num_prefix_tokens, config.grid), next(self.parameters()).device)
        kinds: dict[PositionKind, bool] = {
            "added": self.position.added is not None,
            "rotary": terms.rotation is not None,
            "bias": terms.bias is not None,
            "conditional": type(self.position).between is not PositionEmbedding.between,
        }
        return WalkParts(
            positions=tuple(kind for kind, present in kinds.items() if present),
            pool=POOLS.get(type(config.pool), "other"),
            patch=config.patch_size,
            layers=(LayerParts(block.attention.head_dim, config.mlp_width),) * config.depth,
            distilled=config.distillation_token,
            hybrid=config.stem is not None,
            gated=isinstance(block.mlp, SwiGluMlp),
            layer_scale=config.layer_scale is not None,
            pre_norm=config.pre_norm,
        )

    def patch_tensors(self, images: Float[Tensor, "b c h w"]) -> dict[str, Float[Tensor, "b n _"]]:
        projected, grid = self.patchify(images)
        tensors, prefix = {"pixels": self.patches.cut(self.stem(images)), "projected": projected}, self.prefix.length
        if self.position.added is not None:
            zeros = torch.zeros_like(self.prefix(projected))
            tensors["position"] = self.position.embed(zeros, Layout(prefix, grid))[:, prefix:]
        return tensors

    def attention(
        self, images: Float[Tensor, "b c h w"], layers: Sequence[int] | None = None
    ) -> list[Float[Tensor, "b heads t t"]]:
        """Return the attention weights of `layers` (default: all layers). Rows are queries and sum to 1."""
        tokens, layout = self.embed(*self.patchify(images))
        wanted = self._layers(layers)
        maps: dict[int, Tensor] = {}
        for layer, (before, _) in self._walk(tokens, layout, wanted):
            if layer in wanted:
                maps[layer] = self.encoder.attention_weights(layer, before, layout, self.position)
        return [maps[layer] for layer in wanted]

    def intermediate(
        self, images: Float[Tensor, "b c h w"], layers: Sequence[int] | None = None, norm: bool = True
    ) -> list[Features]:
        """Return the features after each of `layers` (default: all layers). If `norm`, apply the final norm."""
        tokens, layout = self.embed(*self.patchify(images))
        wanted = self._layers(layers)
        found: dict[int, Features] = {}
        for layer, (_, after) in self._walk(tokens, layout, wanted):
            if layer in wanted:
                found[layer] = self._features(self.norm(after) if norm else after, layout)
        return [found[layer] for layer in wanted]

    def stage_outputs(self, images: Float[Tensor, "b c h w"]) -> Iterator[tuple[str, Tensor]]:
        patches, grid = self.patchify(images)
        yield "patches", patches
        tokens, layout = self.embed(patches, grid)
        yield "tokens and positions", tokens
        for layer, (_, after) in enumerate(self.encoder.walk(tokens, layout, self.position)):
            yield f"block {layer}", after
        features = self.encode(tokens, layout)
        yield "features", torch.cat([features.prefix, features.patches], dim=1)
        yield "logits" if self.config.num_classes else "pooled", self.classify(features)

    # ---- Another image size ----

    def resized(self, image_size: int | Size) -> "ViT":
        """Return a copy of the model for another image size, with positions resampled once instead of in every call."""
        model = super().resized(image_size)
        model.position.resize(model.config.grid)
        return model

    def _walk(self, tokens: Tensor, layout: Layout, wanted: list[int]) -> Iterator[tuple[int, tuple[Tensor, Tensor]]]:
        """Iterate over the layers up to the last one in `wanted`."""
        return zip(range(max(wanted, default=-1) + 1), self.encoder.walk(tokens, layout, self.position), strict=False)

    def _features(self, tokens: Tensor, layout: Layout) -> Features:
        return Features(
            tokens[:, : layout.num_prefix_tokens],
            tokens[:, layout.num_prefix_tokens :],
            layout.grid,
            layout.keep_indices,
        )
