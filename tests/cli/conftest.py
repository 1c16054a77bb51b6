"""Checkpoints and images for the tests of `predict` and `embed`."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torch import nn

from vitreous.model.build import build, build_segmenter
from vitreous.model.config import SegmenterConfig
from vitreous.model.presets import configure
from vitreous.weights.load import save

FIELDS = {"patch_size": 4, "width": 32, "mlp_width": 32, "depth": 1, "num_heads": 2}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    made = build(configure("ViT-Lite-6/4", 3, 8, {**FIELDS, "labels": ("ant", "bee", "cat")}))
    nn.init.normal_(made.head.weight)  # type: ignore[arg-type]
    save(made, tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def segmenter(tmp_path: Path) -> Path:
    encoder = configure("ViT-Lite-6/4", 0, 8, FIELDS)
    save(build_segmenter(SegmenterConfig(encoder, num_classes=2)), tmp_path / "segmenter")
    return tmp_path / "segmenter"


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Four images and, as 2.png, a file that is none."""
    chance = np.random.default_rng(0)
    (tmp_path / "set").mkdir()
    for i in range(5):
        Image.fromarray(chance.integers(0, 256, (9, 12, 3), dtype=np.uint8)).save(tmp_path / "set" / f"{i}.png")
    (tmp_path / "set" / "2.png").write_bytes(b"no image")
    return tmp_path / "set"
