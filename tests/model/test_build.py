import dataclasses

import pytest
import torch

from vitreous.model.build import build_vit
from vitreous.model.config import ViTConfig
from vitreous.model.options import HeadConfig, LinearHead, MlpHead, TanhHead


@pytest.mark.parametrize("head", [LinearHead(), TanhHead(7), MlpHead(7)], ids=str)
def test_known_labels_keep_their_weights(head: HeadConfig, small: ViTConfig) -> None:
    config = dataclasses.replace(small, head=head, num_classes=3, labels=("cat", "dog", "owl"))
    model = build_vit(config).eval()
    for weight in model.head.parameters():
        torch.nn.init.normal_(weight)
    images = torch.randn(2, 3, *small.image_size)
    before = model(images)
    model.replace_head(3, ("owl", "cat", "yak"))
    after = model(images)
    torch.testing.assert_close(after[:, :2], before[:, [2, 0]])
    assert not torch.isclose(after[:, 2], before[:, 1]).any()


def test_unknown_labels_are_reinitialised(small: ViTConfig) -> None:
    model = build_vit(dataclasses.replace(small, num_classes=2, labels=("a", "b")))
    old = model.head
    model.replace_head(2, ("c", "d"))
    assert not torch.isclose(model.head.weight, old.weight).any()


@pytest.mark.parametrize("classes", [0, 4])
def test_new_classes_drop_the_pre_logits_layer(classes: int, small: ViTConfig) -> None:
    model = build_vit(dataclasses.replace(small, head=TanhHead(7))).eval()
    images = torch.randn(2, 3, *small.image_size)
    pooled = model.pool(model.features(images))
    model.replace_head(classes)
    assert model.config.head == LinearHead()
    expected = model.head(pooled) if classes else pooled
    torch.testing.assert_close(model(images), expected)
