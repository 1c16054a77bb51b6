"""Tasks that do not use all parts of an encoder freeze the others, because DDP needs a gradient of each parameter."""

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
import torch

from vitreous.data import DataSet
from vitreous.data.loader import Batch
from vitreous.data.sources.base import ArraySource
from vitreous.model.build import build
from vitreous.model.config import ViTConfig
from vitreous.model.options import AttentionPool, GlobalAverage
from vitreous.model.protocol import Model
from vitreous.model.swin_config import SwinConfig, SwinV1, SwinV2
from vitreous.tasks import base
from vitreous.tasks.base import Task
from vitreous.tasks.config import Augment, Masking, Segmenting, TrainConfig
from vitreous.tasks.masked import Mae, Mpp
from vitreous.tasks.segment import Segment

VITS: dict[str, dict[str, Any]] = {
    "ViT": {},
    "CLIP": {"pre_norm": True, "projection": 16},
    "SigLIP": {"class_token": False, "pool": AttentionPool()},
    "mean": {"class_token": False, "pool": GlobalAverage("after")},
    "DeiT": {"distillation_token": True},
    "untied norms": {"registers": 2, "untied_norms": True},
}
SWINS = {"Swin": SwinV1(), "SwinV2": SwinV2()}
CONFIG = TrainConfig(augment=Augment(crop="none", flip=0.0), masking=Masking(decoder_width=32, decoder_depth=1))


def encoder(name: str, small: ViTConfig) -> Model:
    if name in VITS:
        return build(dataclasses.replace(small, num_classes=0, **VITS[name]))
    sizes: dict[str, Any] = {"width": 16, "depths": (2, 2), "stage_heads": (2, 4), "window": (4, 4)}
    return build(SwinConfig(image_size=(24, 32), version=SWINS[name], num_classes=0, **sizes))


def without_gradient(task: Task) -> list[str]:
    images = torch.randint(0, 256, (2, 3, 24, 32), dtype=torch.uint8)
    masks, where = torch.randint(0, 3, (2, 24, 32), dtype=torch.uint8), torch.arange(2)
    module = task.module().train()
    task.loss(module, task.prepare(Batch(images, torch.zeros(2).long(), where, where, 0, [], masks)))[0].backward()
    return [name for name, weight in module.named_parameters() if weight.requires_grad and weight.grad is None]


@pytest.mark.parametrize("kind", [Mae, Mpp])
@pytest.mark.parametrize("name", VITS)
def test_masked_tasks_train_every_trainable_parameter(name: str, kind: type[Task], small: ViTConfig) -> None:
    assert without_gradient(kind(CONFIG, encoder(name, small))) == []


@pytest.mark.parametrize(
    ("name", "decoder"),
    [*itertools.product(VITS, ("linear", "mask")), *itertools.product(SWINS, ("linear", "pyramid"))],
)
def test_segmentation_trains_every_trainable_parameter(
    name: str, decoder: Any, small: ViTConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ArraySource(np.zeros((1, 24, 32, 3), np.uint8), np.zeros(1), ("a",), "none")
    source.mask_classes, source.mask_ids = ("a", "b", "c"), (0, 1, 2)
    data = DataSet("none", source, source, None, "")
    config = dataclasses.replace(CONFIG, segmenting=Segmenting(decoder=decoder))
    model = encoder(name, small)
    for _ in range(2):  # first an encoder, then its segmenter
        monkeypatch.setattr(base, "build_preset", lambda *_, model=model: model)
        model = Segment.build_model(config, data, None)
        assert without_gradient(Segment(config, model)) == []
        model.requires_grad_(True).zero_grad()
