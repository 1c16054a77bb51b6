"""A small checkpoint, and a server process that all tests of a file share."""

from pathlib import Path

import pytest
import torch

import vitreous


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("checkpoint") / "small"
    vitreous.save(vitreous.create("ViT-Lite-6/4", num_classes=10), path)
    return path
