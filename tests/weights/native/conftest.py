"""A complete checkpoint folder for tests to read, change and damage."""

import dataclasses
from pathlib import Path

import pytest

from parity import noisy
from vitreous.model.build import build
from vitreous.model.config import ViTConfig
from vitreous.weights.native import save_folder


@pytest.fixture
def saved(tmp_path: Path, small: ViTConfig) -> Path:
    config = dataclasses.replace(small, labels=("a", "b", "c", "d", "e"))
    save_folder(noisy(build(config)), tmp_path / "x", {"data": "digits", "metrics": {"top1": 0.5}})
    return tmp_path / "x"
