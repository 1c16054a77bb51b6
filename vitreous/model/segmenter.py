"""Semantic segmentation: an encoder without a head, and a decoder that scores the classes of each patch (Segmenter).

b: batch; c: channels; h, w: image height and width; n = gh x gw: patches; k: classes; d: width.
"""

import copy
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.common.checks import Size, as_size
from vitreous.model.attention import AttentionTerms, SelfAttention
from vitreous.model.block import Block, GeluMlp
from vitreous.model.config import SegmenterConfig
from vitreous.model.init import small_, xavier_
from vitreous.model.inputs import check_images
from vitreous.model.options import LinearDecoder, PyramidDecoder
from vitreous.model.protocol import Model
from vitreous.model.tokens import Features


class Segmenter(Model):
    """Scores every class at every pixel, for images of any size.

    >>> from vitreous.model.build import build
    >>> from vitreous.model.presets import configure
    >>> encoder = configure("ViT-Ti/16", num_classes=0, image_size=64, overrides={"depth": 1})
    >>> build(SegmenterConfig(encoder, num_classes=3))(torch.zeros(1, 3, 50, 70)).shape
    torch.Size([1, 3, 50, 70])
    """

    def __init__(self, config: SegmenterConfig, encoder: Model, decoder: nn.Module):
        super().__init__()
        self.config: SegmenterConfig = config
        self.encoder, self.decoder = encoder, decoder

    @property
    def backbone(self) -> Model:
        return self.encoder

    @property
    def heads(self) -> list[nn.Module]:
        return [self.decoder]

    def features(self, images: Float[Tensor, "b c h w"]) -> Features:
        return self.encoder.features(images)

    def pooled(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d"]:
        return self.encoder.pooled(images)

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b k h w"]:
        """Return scores per pixel. Images are zero-padded at the right and bottom to a multiple of the patch stride."""
        check_images(images, self.config.channels)
        h, w = images.shape[2:]
        bottom, right = (-side % step for side, step in zip((h, w), self.config.patch_stride, strict=True))
        padded = F.pad(images, (0, right, 0, bottom)) if bottom or right else images
        scores = self.scores(padded)
        return F.interpolate(scores, padded.shape[2:], mode="bilinear", align_corners=False)[:, :, :h, :w]

    def scores(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b k sh sw"]:
        """Return class scores at the decoder's resolution: per cell for a linear decoder, otherwise per patch."""
        if isinstance(self.config.decoder, PyramidDecoder):
            return self.decoder(self.encoder.pyramid(images))
        features = self.encoder.features(images)
        scores = self.decoder(features.patches).transpose(1, 2).unflatten(2, features.grid)
        cells = self.config.decoder.cells if isinstance(self.config.decoder, LinearDecoder) else 1
        return F.pixel_shuffle(scores, cells)

    def resized(self, image_size: int | Size) -> "Segmenter":
        """Return a copy of the model for another image size, with resampled positions."""
        config = self.config.resized(as_size(image_size))
        return Segmenter(config, self.encoder.resized(image_size), copy.deepcopy(self.decoder))

    def resampled(self, fields: Mapping[str, Any], image_size: Size) -> "Segmenter":
        """Return a copy of the model with other fields of the encoder, for another image size."""
        encoder = self.encoder.resampled(fields, image_size)
        config = dataclasses.replace(self.config, encoder=encoder.config)  # type: ignore[arg-type]
        return Segmenter(config, encoder, copy.deepcopy(self.decoder))


class MaskTransformer(nn.Module):
    """Transformer blocks over patch and class tokens. Scores are normalised cosine similarities between the two."""

    def __init__(
        self,
        width: int,
        num_heads: int,
        head_dim: int | None,
        mlp_width: int,
        norm_eps: float,
        num_classes: int,
        depth: int,
    ):
        super().__init__()
        self.projection = xavier_(nn.Linear(width, width))
        self.classes = nn.Parameter(small_(torch.empty(1, num_classes, width)))
        self.blocks = nn.ModuleList(
            Block(
                SelfAttention(width, num_heads, head_dim=head_dim),
                GeluMlp(width, mlp_width, "erf"),
                width,
                norm_eps,
            )
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width, norm_eps)
        self.to_patch = nn.Linear(width, width, bias=False)
        self.to_class = nn.Linear(width, width, bias=False)
        self.mask_norm = nn.LayerNorm(num_classes, norm_eps)

    def forward(self, patches: Float[Tensor, "b n d"]) -> Float[Tensor, "b n k"]:
        tokens = torch.cat([self.projection(patches), self.classes.expand(patches.shape[0], -1, -1)], dim=1)
        for block in self.blocks:
            tokens = block(tokens, AttentionTerms())
        patches, classes = self.norm(tokens).split([patches.shape[1], self.classes.shape[1]], dim=1)
        patches, classes = (F.normalize(x, dim=-1) for x in (self.to_patch(patches), self.to_class(classes)))
        return self.mask_norm(patches @ classes.transpose(1, 2))


class PyramidFusion(nn.Module):
    """Combines feature maps of several stages at the resolution of the first one."""

    def __init__(self, widths: Sequence[int], width: int, num_classes: int, norm_eps: float):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(inputs, norm_eps) for inputs in widths)
        self.projections = nn.ModuleList(xavier_(nn.Linear(inputs, width)) for inputs in widths)
        self.fusion = xavier_(nn.Linear(len(widths) * width, width))
        self.classifier = xavier_(nn.Linear(width, num_classes))

    def forward(self, maps: Sequence[Features]) -> Float[Tensor, "b k gh gw"]:
        grid, parts = maps[0].grid, []
        for features, norm, projection in zip(maps, self.norms, self.projections, strict=True):
            x = projection(norm(features.patches)).transpose(1, 2).unflatten(2, features.grid)
            parts.append(F.interpolate(x, grid, mode="bilinear", align_corners=False))
        fused = F.gelu(self.fusion(torch.cat(parts, dim=1).permute(0, 2, 3, 1)))
        return self.classifier(fused).permute(0, 3, 1, 2)


# ---- Sliding window --------------------------------------------------------------------------------------------------

WINDOWS = 16  # per batch


@torch.no_grad()
def slide(model: Segmenter, images: Float[Tensor, "b c h w"], overlap: float = 0.5) -> Float[Tensor, "b k h w"]:
    """Score overlapping windows of images of any size. Average the scores where windows overlap."""
    check_images(images, model.config.channels)
    size = model.config.image_size
    b, _, h, w = images.shape
    total = torch.zeros(b, model.config.num_classes, h, w, device=images.device)
    count = torch.zeros(h, w, device=images.device)
    corners = list(itertools.product(_starts(h, size[0], overlap), _starts(w, size[1], overlap)))
    places = [(..., slice(top, top + size[0]), slice(left, left + size[1])) for top, left in corners]
    for start in range(0, len(places), WINDOWS):
        batch = places[start : start + WINDOWS]  # all windows have the same shape
        scores = model(torch.cat([images[place] for place in batch])).float()
        for place, part in zip(batch, scores.split(b), strict=True):
            total[place] += part
            count[place[1:]] += 1
    return total / count


def _starts(side: int, window: int, overlap: float) -> list[int]:
    """Return the start of each window along one image side. The last window ends at the image edge."""
    if side <= window:
        return [0]
    step = max(round(window * (1 - overlap)), 1)
    return [*range(0, side - window, step), side - window]
