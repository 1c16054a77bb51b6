"""Self-supervised pre-training on masked patches: the paper's masked patch prediction, and MAE.

b: batch; c: channels; h, w: image height and width; n = gh x gw: patches; k: visible patches; d: width.
"""

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vitreous.common.checks import check_choice, fail
from vitreous.model.attention import AttentionTerms, SelfAttention
from vitreous.model.block import Block, GeluMlp
from vitreous.model.config import ViTConfig
from vitreous.model.init import small_, xavier_
from vitreous.model.patch import cut
from vitreous.model.position import SinCos2dPosition
from vitreous.model.tokens import Features, Layout
from vitreous.model.vit import ViT

Target = Literal["colour", "colours", "pixels"]
TARGETS: tuple[Target, ...] = ("colour", "colours", "pixels")
LEVELS = 8  # 3 bits per channel


class Filled(NamedTuple):
    """Loss per image, mask of hidden patches, and predicted patches."""

    losses: Float[Tensor, "b"]
    hidden: Bool[Tensor, "b n"]
    patches: Float[Tensor, "b n p"]  # detached, and scaled like the target, for display


def check_maskable(config: ViTConfig) -> None:
    """Raise ValueError unless all tokens are whole patches of the image."""
    if config.stem is not None:
        fail("stem", config.stem, "None, because only image patches can be masked, not a feature map")
    if any(side % step for side, step in zip(config.image_size, config.patch_size, strict=True)):
        fail("image_size", config.image_size, f"a multiple of the patch size {config.patch_size}")


# ---- Masked patch prediction (appendix B.1.2) ------------------------------------------------------------------------


class MaskedPatchPrediction(nn.Module):
    """Corrupts half of the patches and predicts them.

    Of the corrupted patches, 80% are replaced by a learned token, 10% by another patch of the image, and 10% are
    unchanged. One linear layer predicts the mean colour of a patch with 3 bits per channel ("colour"), the colours of
    its 4 x 4 cells ("colours"), or all of its pixels with an L2 loss ("pixels"). The paper compared all three and chose
    the first.
    """

    def __init__(self, encoder: ViT, target: Target = "colour", rate: float = 0.5):
        super().__init__()
        check_choice("target", target, TARGETS)
        config = encoder.config
        check_maskable(config)
        if config.patch_dropout:
            fail("patch_dropout", config.patch_dropout, "0 for masked patch prediction")
        self.encoder, self.target, self.rate = encoder, target, rate
        self.mask = nn.Parameter(small_(torch.empty(1, 1, config.width)))
        pixels = config.channels * config.patch_size[0] * config.patch_size[1]
        parts = {"colour": 1, "colours": 16}
        outputs = pixels if target == "pixels" else parts[target] * LEVELS**config.channels
        self.predict = xavier_(nn.Linear(config.width, outputs))

    def forward(self, images: Float[Tensor, "b c h w"], pixels: Float[Tensor, "b c h w"], noise: Tensor) -> Filled:
        """Corrupt patches and predict them.

        pixels: Images before normalisation, in the range [0, 1].
        noise: Uniform random numbers [b, 3, n] that select the patches and how they are corrupted.
        """
        patches, grid = self.encoder.patchify(images)
        corrupted, hidden = self.corrupt(patches, noise)
        features = self.encoder.encode(*self.encoder.embed(corrupted, grid))
        target = cut(pixels, self.encoder.config.patch_size)
        losses, predicted = self._losses(self.predict(features.patches), target)
        weights = hidden.float()
        return Filled((losses * weights).sum(1) / weights.sum(1).clamp(min=1), hidden, predicted.detach())

    def corrupt(
        self, patches: Float[Tensor, "b n d"], noise: Float[Tensor, "b 3 n"]
    ) -> tuple[Float[Tensor, "b n d"], Bool[Tensor, "b n"]]:
        """Corrupt a fraction `rate` of the patches of each image. Return all patches, and a mask of corrupted ones."""
        b, n, _ = patches.shape
        order, kind, source = noise.unbind(1)
        count = max(round(n * self.rate), 1)
        hidden = torch.zeros(b, n, dtype=torch.bool, device=patches.device)
        hidden.scatter_(1, order.argsort(dim=1)[:, :count], True)
        swaps = patches.gather(1, (source * n).long()[..., None].expand_as(patches))
        masked, swapped = hidden & (kind < 0.8), hidden & (kind >= 0.8) & (kind < 0.9)
        corrupted = torch.where(masked[..., None], self.mask.to(patches.dtype), patches)
        return torch.where(swapped[..., None], swaps, corrupted), hidden

    def _losses(self, outputs: Tensor, target: Float[Tensor, "b n p"]) -> tuple[Float[Tensor, "b n"], Tensor]:
        """Return the loss and the predicted pixels of each patch."""
        channels, size = self.encoder.config.channels, self.encoder.config.patch_size
        if self.target == "pixels":
            return ((outputs.float() - target) ** 2).mean(-1), outputs.float()
        parts = 1 if self.target == "colour" else 4
        colours = F.adaptive_avg_pool2d(target.reshape(-1, channels, *size), parts)  # [b x n, c, parts, parts]
        classes = three_bits(colours).flatten(1)  # [b x n, parts x parts]
        logits = outputs.float().reshape(classes.numel(), LEVELS**channels)
        losses = F.cross_entropy(logits, classes.flatten(), reduction="none").reshape(classes.shape).mean(1)
        predicted = colour_of(logits.argmax(1), channels).reshape(-1, parts, parts, channels).permute(0, 3, 1, 2)
        pixels = F.interpolate(predicted, size, mode="nearest")
        return losses.reshape(target.shape[:2]), pixels.reshape(target.shape)


def three_bits(colours: Float[Tensor, "m c y x"]) -> Int[Tensor, "m y x"]:
    """Quantise each colour in [0, 1] to one of 8^c classes. The first channel is the most significant.

    >>> three_bits(torch.tensor([0.0, 0.5, 1.0]).reshape(1, 3, 1, 1)).item()  # 0, 4 and 7 of 8
    39
    """
    levels = (colours * LEVELS).long().clamp(0, LEVELS - 1)
    number = torch.zeros_like(levels[:, 0])
    for channel in levels.unbind(1):
        number = number * LEVELS + channel
    return number


def colour_of(numbers: Int[Tensor, "m"], channels: int) -> Float[Tensor, "m c"]:
    """Return the centre colour of each class of `three_bits`."""
    powers = LEVELS ** torch.arange(channels - 1, -1, -1, device=numbers.device)
    return ((numbers[:, None] // powers) % LEVELS + 0.5) / LEVELS


# ---- MAE (arXiv 2111.06377) ------------------------------------------------------------------------------------------


class MaskedAutoencoder(nn.Module):
    """Encodes a quarter of the patches and reconstructs the others with a lightweight decoder.

    The targets are the pixels of each patch, normalised to mean 0 and std 1.
    """

    def __init__(self, encoder: ViT, rate: float = 0.75, width: int = 512, depth: int = 8, num_heads: int = 16):
        super().__init__()
        config = encoder.config
        check_maskable(config)
        self.encoder, self.rate = encoder, rate
        self.embed = xavier_(nn.Linear(config.width, width))
        self.mask = nn.Parameter(small_(torch.empty(1, 1, width)))
        self.position = SinCos2dPosition(width, "mae", 10_000.0)
        self.blocks = nn.ModuleList(
            Block(SelfAttention(width, num_heads), GeluMlp(width, 4 * width, "erf"), width, 1e-6) for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width, 1e-6)
        pixels = config.channels * config.patch_size[0] * config.patch_size[1]
        self.paint = xavier_(nn.Linear(width, pixels))

    def forward(self, images: Float[Tensor, "b c h w"], noise: Float[Tensor, "b n"]) -> Filled:
        """Mask and reconstruct patches. The patches with the smallest random numbers in `noise` stay visible."""
        n = noise.shape[1]
        visible = max(min(round(n * (1 - self.rate)), n - 1), 1)  # at least one visible and one hidden patch
        keep_indices = noise.argsort(dim=1)[:, :visible].sort(dim=1).values
        patches, grid = self.encoder.patchify(images, keep_indices)
        features = self.encoder.encode(*self.encoder.embed(patches, grid, keep_indices))
        assert features.keep_indices is not None
        predicted = self.decode(features, features.keep_indices).float()
        target = cut(images, self.encoder.config.patch_size).float()
        mean, std = target.mean(-1, keepdim=True), (target.var(-1, keepdim=True) + 1e-6).sqrt()
        hidden = torch.ones(noise.shape, dtype=torch.bool, device=images.device).scatter_(
            1, features.keep_indices, False
        )
        errors = ((predicted - (target - mean) / std) ** 2).mean(-1)
        losses = (errors * hidden).sum(1) / hidden.sum(1).clamp(min=1)
        return Filled(losses, hidden, predicted.detach() * std + mean)

    def decode(self, features: Features, keep_indices: Int[Tensor, "b k"]) -> Float[Tensor, "b n p"]:
        """Predict all patches from the features of the visible ones."""
        prefix, visible = self.embed(features.prefix), self.embed(features.patches)
        (b, _, width), layout = visible.shape, Layout(prefix.shape[1], features.grid)
        patches = self.mask.to(visible.dtype).expand(b, layout.grid[0] * layout.grid[1], -1)
        patches = patches.scatter(1, keep_indices[..., None].expand(-1, -1, width), visible)
        tokens = self.position(torch.cat([prefix, patches], dim=1), layout)
        for block in self.blocks:
            tokens = block(tokens, AttentionTerms())
        return self.paint(self.norm(tokens)[:, layout.num_prefix_tokens :])
