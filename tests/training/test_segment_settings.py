"""Invalid data and settings are rejected before the run folder is created."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from segment_runs import sample_images, segmenting
from vitreous.common.checks import BadValue
from vitreous.model.config import SegmenterConfig, ViTConfig
from vitreous.training import Augment, Segmenting
from vitreous.training.run import train


def _no_mask(root: Path) -> None:
    (root / "masks/train/3.png").unlink()


def _unknown_id(root: Path) -> None:
    Image.fromarray(np.full((20, 24), 9, np.uint8)).save(root / "masks/train/3.png")


def _other_size(root: Path) -> None:
    Image.fromarray(np.full((20, 23), 1, np.uint8)).save(root / "masks/train/3.png")


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (_no_mask, r"1 of 24 images has no mask: 'images/train/3.png'"),
        (_unknown_id, r"1 mask has ids that are not in classes.txt: 9 \(in 1 mask\)"),
        (_other_size, r"1 mask .*size.*mask 20 x 23, image 20 x 24"),
        (lambda root: shutil.rmtree(root / "masks"), "has images but no masks|no folder of masks|masks"),
    ],
    ids=["missing", "unknown", "size", "none"],
)
def test_invalid_masks_are_named_before_the_run_starts(spoil: Any, line: str, tmp_path: Path) -> None:
    spoil(sample_images(tmp_path / "data"))
    with pytest.raises(ValueError, match=line):
        train(segmenting(tmp_path / "run", data=str(tmp_path / "data"), batch_size=8))
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"data": "digits"}, "digits has image labels but no masks"),
        ({"model": "BiT-R50x1", "overrides": {}, "image_size": (32,)}, "--task segment"),
        ({"patch_dropout": 0.5}, "must be 0 for a segmenter"),
        ({"augment": Augment(policy="trivial")}, "masks cannot be warped"),
        ({"segmenting": Segmenting(cells=4, ignore=("sqare",))}, "did you mean 'square'"),
    ],
    ids=["no masks", "resnet", "patch dropout", "policy", "ignore"],
)
def test_unsupported_settings_are_rejected(changes: dict[str, Any], line: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=line):
        train(segmenting(tmp_path / "run", **changes))


def test_at_most_255_classes(small: ViTConfig) -> None:
    encoder = dataclasses.replace(small, num_classes=0)
    assert SegmenterConfig(encoder, num_classes=255).num_classes == 255
    with pytest.raises(BadValue, match="num_classes is 256"):
        SegmenterConfig(encoder, num_classes=256)


def test_cells_need_the_linear_decoder() -> None:
    with pytest.raises(BadValue, match="cells is 4, but must be omitted with --decoder mask"):
        Segmenting(decoder="mask", cells=4).check()
