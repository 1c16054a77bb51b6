"""Models with known or random outputs, and images for a Predictor."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from vitreous.model.build import build
from vitreous.model.config import ResNetConfig, ViTConfig
from vitreous.model.options import IMAGENET, AttentionPool, GlobalAverage, NoPosition, Preprocessing
from vitreous.model.resnet import ResNet
from vitreous.model.vit import ViT

COLOURS = {"red": (255, 30, 0), "green": (10, 200, 60), "blue": (0, 90, 140)}

RANDOM: dict[str, ViTConfig | ResNetConfig] = {
    "class token": ViTConfig(
        image_size=(24, 32), patch_size=(8, 8), width=32, depth=2, num_heads=4, mlp_width=64, num_classes=7
    ),
    "bit": ResNetConfig(image_size=(32, 48), stages=(1, 1), width=32, num_classes=7, preprocessing=IMAGENET),
}
RANDOM["grey"] = dataclasses.replace(RANDOM["class token"], channels=1)
RANDOM["distilled"] = dataclasses.replace(RANDOM["class token"], distillation_token=True)
RANDOM["mean"] = dataclasses.replace(RANDOM["class token"], pool=GlobalAverage("after"), preprocessing=IMAGENET)
RANDOM["attention pool"] = dataclasses.replace(RANDOM["class token"], pool=AttentionPool(), class_token=False)


def random_model(name: str) -> ViT | ResNet:
    model = build(RANDOM[name])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model


def colour_model(channels: int = 3, preprocessing: Preprocessing | None = None) -> ViT:
    """Return a model that predicts the strongest colour.

    Patch embeddings are mean colours, the blocks are identities, and the head reads the normalised average.
    With one channel, the classes are "light" and "dark".
    """
    names = tuple(COLOURS) if channels == 3 else ("light", "dark")
    config = ViTConfig(
        image_size=(16, 24),
        channels=channels,
        patch_size=(8, 8),
        class_token=False,
        position=NoPosition(),
        width=4,
        depth=1,
        num_heads=1,
        mlp_width=4,
        pool=GlobalAverage(),
        num_classes=len(names),
        labels=names,
        preprocessing=preprocessing or Preprocessing(),
    )
    model = build(config)
    assert isinstance(model, ViT)
    with torch.no_grad():
        for parameter in (*model.encoder.parameters(), *model.patches.parameters(), *model.head.parameters()):
            parameter.zero_()
        weight = model.patches.projection.weight
        for i in range(channels):
            weight[i, i] = 1 / 64
        if channels == 1:
            weight[1, 0] = -1 / 64
        model.head.weight[:, : len(names)] = 4 * torch.eye(len(names))
    return model


def save(array: np.ndarray, path: Path) -> Path:
    Image.fromarray(array).save(path, **({"quality": 95, "subsampling": 0} if path.suffix == ".jpg" else {}))
    return path


def probabilities(results: list[Any]) -> np.ndarray:
    """Return the probabilities in class order."""
    rows = [sorted(result.predictions, key=lambda label: label.index) for result in results]
    return np.array([[label.probability for label in row] for row in rows])
