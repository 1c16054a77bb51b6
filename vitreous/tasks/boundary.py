"""Does a segmentation follow the outlines? The boundary F-score of each class in each picture.

A pixel of a predicted outline is right if the true outline of the same class passes within a tolerance, and the other
way round; F is the harmonic mean of the two shares (Csurka et al. 2013, "What is a good evaluation measure for semantic
segmentation?"). The tolerance is 0.75 % of the picture's diagonal, up to whole pixels as in DAVIS, so that in a small
picture it is not nothing.

n: pictures; k: classes; h, w: height and width.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from vitreous.common.checks import Size
from vitreous.model.options import IGNORED

TOLERANCE = 0.0075  # of the diagonal
Ids = UInt8[Tensor, "n h w"] | Int[Tensor, "n h w"]


def boundary_scores(predicted: Ids, masks: Ids, classes: int) -> Float[Tensor, "n {classes}"]:
    """F of every class in every picture, in float64; not a number where neither has an outline.

    Where the truth is ignored, the prediction is taken at its word: an outline in there is neither right nor wrong, and
    one that leaves it is judged by how far it does.
    """
    truth = torch.where(masks == IGNORED, predicted.to(masks.dtype), masks)
    ours, theirs = outlines(predicted), outlines(truth)
    radius = tolerance((masks.shape[1], masks.shape[2]))
    right, claimed = _near(ours, theirs, radius, classes)
    found, there = _near(theirs, ours, radius, classes)
    precision, recall = right / claimed.clamp(min=1), found / there.clamp(min=1)
    scores = 2 * precision * recall / (precision + recall).clamp(min=1e-12)
    return torch.where(claimed + there > 0, scores, torch.nan)


def tolerance(size: Size) -> int:
    """How many pixels an outline may be off.

    >>> tolerance((64, 64)), tolerance((160, 160)), tolerance((480, 854))
    (1, 2, 8)
    """
    return math.ceil(TOLERANCE * math.hypot(*size))


def outlines(ids: Ids) -> UInt8[Tensor, "n h w"]:
    """The class of every pixel that has another class above, below, left or right of it; IGNORED elsewhere."""
    edge = torch.zeros(ids.shape, dtype=torch.bool, device=ids.device)
    across, down = ids[:, :, 1:] != ids[:, :, :-1], ids[:, 1:] != ids[:, :-1]
    edge[:, :, 1:] |= across
    edge[:, :, :-1] |= across
    edge[:, 1:] |= down
    edge[:, :-1] |= down
    return torch.where(edge, ids, IGNORED).to(torch.uint8)


def _near(
    ours: UInt8[Tensor, "n h w"], theirs: UInt8[Tensor, "n h w"], radius: int, classes: int
) -> tuple[Float[Tensor, "n {classes}"], Float[Tensor, "n {classes}"]]:
    """How many pixels of our outlines have one of theirs, of the same class, within the radius; and of how many.

    Outlines are few pixels, so these look around themselves: every place of a disk once, whatever the number of
    classes. Growing their outlines by morphology would take a pass over all pixels for each class.
    """
    n, h, w = ours.shape
    step = w + 2 * radius
    around = F.pad(theirs, (radius,) * 4, value=IGNORED).flatten()
    picture, row, column = (ours != IGNORED).nonzero().unbind(1)
    kind = ours[picture, row, column]
    place = (picture * (h + 2 * radius) + row + radius) * step + column + radius
    near = torch.zeros_like(kind, dtype=torch.bool)
    for y in range(-radius, radius + 1):
        reach = math.isqrt(radius**2 - y**2)
        for x in range(-reach, reach + 1):
            near |= around[place + (y * step + x)] == kind
    cells = picture * classes + kind
    hits, all_ = (torch.bincount(which, minlength=n * classes).view(n, classes) for which in (cells[near], cells))
    return hits.double(), all_.double()
