import math

import numpy as np
import pytest
import torch

from vitreous.data.open import open_data
from vitreous.data.sources.shapes import CLASSES, NUMBERS, ShapesSource, _signed_distance


def test_sizes_and_counts() -> None:
    data = open_data("shapes")
    assert (len(data.train), len(data.val)) == (2000, 500)
    assert data.train.image(0).shape == (64, 64, 3)  # type: ignore[union-attr]
    data = open_data("shapes:size=96,count=40,val=12", seed=3)
    assert (len(data.train), len(data.val)) == (40, 12)
    assert data.train.image(0).shape == (96, 96, 3)  # type: ignore[union-attr]
    assert "generated with seed 3" in data.note
    assert data.classes == CLASSES


def test_image_depends_only_on_seed_split_and_index() -> None:
    few, many = ShapesSource(12, 32, 0, "train"), ShapesSource(5000, 32, 0, "train")
    other, val = ShapesSource(12, 32, 1, "train"), ShapesSource(12, 32, 0, "val")
    for i in range(12):
        assert np.array_equal(few.image(i), many.image(i))
        assert np.array_equal(few.mask(i), many.mask(i))
    images = {bytes(np.asarray(s.image(i))) for s in (few, other, val) for i in range(12)}
    assert len(images) == 36


@pytest.mark.parametrize("size", [32, 64, (48, 80)])
def test_mask_matches_the_drawn_shape(size) -> None:  # type: ignore[no-untyped-def]
    source = ShapesSource(24, size, 0, "train")
    for i in range(24):
        mask, image = source.mask(i), np.asarray(source.image(i)).astype(float)
        assert mask.dtype == np.uint8
        assert mask.shape == image.shape[:2] == source.size
        assert set(np.unique(mask)) == {0, source.labels[i] + 1}
        inside = mask > 0
        assert 0.01 < inside.mean() < 0.55
        # The shape has one colour, except for noise and its soft edge; the background has another.
        colour = np.median(image[inside], axis=0)
        near = np.abs(image - colour).max(axis=-1) < 20
        assert near[inside].mean() > 0.5
        assert near[~inside].mean() < 0.3


@pytest.mark.parametrize("shape", CLASSES)
def test_shape_areas_are_exact(shape: str) -> None:
    step = 0.004
    axis = torch.arange(-1.1, 1.1, step)
    distance = _signed_distance(shape, axis[None, :].expand(len(axis), -1), axis[:, None].expand(-1, len(axis)))
    area = float((distance < 0).sum()) * step**2
    arm = math.sqrt(1 - 0.25**2)
    expected = {
        "circle": math.pi,
        "square": 2,
        "triangle": 3 * math.sqrt(3) / 4,
        "ring": math.pi * (1 - 0.25),
        "cross": 2 * (0.5 * 2 * arm) - 0.25,
        "star": 10 * 0.5 * 0.4 * math.sin(math.pi / 5),
    }
    assert area == pytest.approx(expected[shape], rel=0.01)
    r = torch.hypot(axis[None, :], axis[:, None])
    assert not ((distance < 0) & (r > 1.001)).any()  # inside the unit circle
    # Near an edge the function must be a true distance (slope 1) for correct antialiasing.
    slope = torch.hypot(*(part / step for part in torch.gradient(distance)))
    edge = distance.abs() < 0.05
    assert slope[edge].quantile(0.5) == pytest.approx(1, abs=0.02)


def test_number_of_random_values() -> None:
    assert sum(NUMBERS) == 4 + 3 * 6 + 36 + 1
