"""Segmentation losses: cross-entropy per pixel, and Dice, which weighs classes equally.

Losses are computed per image, so that splitting a batch over steps or processes changes nothing.

b: batch; k: classes; h, w: height and width.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from vitreous.common.checks import check_real
from vitreous.model.options import IGNORED

Masks = UInt8[Tensor, "b h w"] | Int[Tensor, "b h w"]


def segmentation_loss(logits: Float[Tensor, "b k h w"], masks: Masks, dice: float = 0.0) -> Float[Tensor, "b"]:
    """Mean cross-entropy over the labelled pixels of each image, plus `dice` times the Dice loss.

    An image without labelled pixels has a loss of 0.

    >>> logits = torch.tensor([[[[9.0, 0.0]], [[0.0, 9.0]]]])  # surely 0 on the left, surely 1 on the right
    >>> masks = torch.tensor([[[0, IGNORED]]], dtype=torch.uint8)
    >>> segmentation_loss(logits, masks, dice=1.0).round(decimals=3)
    tensor([0.])
    """
    check_real("dice", dice, 0, 100)
    losses = cross_entropy(logits, masks)
    return losses + dice * dice_loss(logits, masks) if dice else losses


def cross_entropy(logits: Float[Tensor, "b k h w"], masks: Masks) -> Float[Tensor, "b"]:
    """Mean over the labelled pixels of each image, in float32 also under autocast."""
    losses = F.cross_entropy(logits.float(), masks.long(), ignore_index=IGNORED, reduction="none")
    return losses.sum((1, 2)) / (masks != IGNORED).sum((1, 2)).clamp(min=1)


def dice_loss(logits: Float[Tensor, "b k h w"], masks: Masks) -> Float[Tensor, "b"]:
    """1 - the mean of 2 |A and B| / (|A| + |B|) over the classes in the image, with probabilities for A.

    Small classes count as much as large ones. Classes that are not in the image need no term: their probability lowers
    the scores of those that are.
    """
    probabilities = logits.float().softmax(1) * (masks != IGNORED)[:, None]
    classes = torch.arange(logits.shape[1], device=logits.device).view(1, -1, 1, 1)
    member = masks[:, None] == classes
    shared = (probabilities * member).sum((2, 3))
    truth = member.sum((2, 3))
    scores = 2 * shared / (probabilities.sum((2, 3)) + truth).clamp(min=1e-6)
    present = (truth > 0).float()
    missing = (1 - scores) * present
    return missing.sum(1) / present.sum(1).clamp(min=1)
