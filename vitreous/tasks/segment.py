"""Learning a class for every pixel: the task of a segmenter.

b: batch; c: channels; h, w: height and width.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from vitreous.data.augment.config import Augmentation
from vitreous.data.augment.pipeline import augment_with_masks
from vitreous.data.loader import Batch
from vitreous.data.rng import SampleRng
from vitreous.model.inputs import normalise
from vitreous.model.options import IGNORED
from vitreous.model.segmenter import Segmenter
from vitreous.tasks.base import Task
from vitreous.tasks.segment_loop import Segmented, segment_batches
from vitreous.tasks.segment_loss import segmentation_loss


class Segment(Task):
    """Cross-entropy at every pixel, and Dice if asked; pictures and masks are cut and turned together."""

    best, counted = "miou", "pixel_accuracy"
    saved_whole = True

    def __init__(self, model: Segmenter, augmentation: Augmentation, seed: int, dice: float = 0.0):
        self.model, self.augmentation, self.seed, self.dice = model, augmentation, seed, dice

    def module(self) -> nn.Module:
        return self.model

    def prepare(self, batch: Batch) -> tuple[Tensor, ...]:
        assert batch.masks is not None
        rng = SampleRng(self.seed, batch.epoch, batch.keys)
        images, masks = augment_with_masks(batch.images, batch.masks, rng, self.augmentation)
        return normalise(images, self.model.config.preprocessing), masks, (batch.labels >= 0).float()

    def loss(self, module: nn.Module, parts: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        images, masks, weights = parts
        scores = module(images)
        known = masks != IGNORED
        right = ((scores.argmax(1) == masks) & known).sum((1, 2)) / known.sum((1, 2)).clamp(min=1)
        return (segmentation_loss(scores, masks, self.dice) * weights).sum(), (right * weights).sum()

    def measure(
        self, module: nn.Module, batches: Iterable[Batch], device: torch.device, precision: torch.dtype
    ) -> Segmented:
        config = self.model.config
        return segment_batches(module, batches, device, config.preprocessing, config.labels, precision)
