"""Segmentation: batches, loss, weight decay."""

import dataclasses
from typing import Any

import pytest
import torch

from vitreous.data.loader import Batch
from vitreous.model.build import build_segmenter
from vitreous.model.config import SegmenterConfig, ViTConfig
from vitreous.model.options import IGNORED
from vitreous.tasks.config import Augment, Segmenting, TrainConfig
from vitreous.tasks.segment import Segment, segmentation_loss
from vitreous.training.optimizer_step import decays


def task(small: ViTConfig, dice: float = 0.0, **how: Any) -> Segment:
    encoder = dataclasses.replace(small, num_classes=0)
    config = TrainConfig(augment=Augment(**how), segmenting=Segmenting(dice=dice))
    return Segment(config, build_segmenter(SegmenterConfig(encoder, num_classes=3)))


def batch(labels: list[int]) -> Batch:
    n, where = len(labels), torch.arange(len(labels))
    masks = torch.randint(0, 3, (n, 24, 32), dtype=torch.uint8)
    images = (masks[:, None] * 100).expand(-1, 3, -1, -1).contiguous()
    return Batch(images, torch.tensor(labels), where, where, 0, [], masks)


@pytest.mark.parametrize("crop", ["none", "padded"])
def test_masks_are_augmented_like_images(crop: Any, small: ViTConfig) -> None:
    learning = task(small, crop=crop, flip=0.5)
    images, masks, weights = learning.prepare(batch([0] * 16))
    scale = small.preprocessing
    first = images[:, 0] * scale.std[0] + scale.mean[0]
    assert torch.equal((first * 255 / 100).round().byte(), masks)
    assert not torch.equal(masks, batch([0] * 16).masks)
    assert weights.tolist() == [1.0] * 16


def test_loss_is_the_sum_over_readable_images(small: ViTConfig) -> None:
    learning = task(small, dice=0.5, crop="none", flip=0.0)
    images, masks, weights = learning.prepare(batch([0, -1, 0]))
    masks[0, :5] = IGNORED
    loss, right = learning.loss(learning.model, (images, masks, weights))
    scores = learning.model(images)
    each = segmentation_loss(scores, masks, dice=0.5)
    torch.testing.assert_close(loss, each[0] + each[2])
    found = scores.argmax(1) == masks
    torch.testing.assert_close(right, found[0, 5:].float().mean() + found[2].float().mean())


def test_class_embeddings_have_no_weight_decay() -> None:
    assert not decays("decoder.classes", torch.zeros(1, 3, 4))
    assert decays("decoder.projection.weight", torch.zeros(3, 4))
