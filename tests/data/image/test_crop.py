"""Distribution of random crops, compared with torchvision's."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vitreous.data.image.crop import crop_box
from vitreous.model.centre_crop import covering

RATIO = (3 / 4, 4 / 3)
sides = st.integers(1, 2000)


def rejection_sampled(image: tuple[int, int], scale: tuple[float, float], count: int) -> np.ndarray:
    """Sample area and log aspect ratio like torchvision, repeating until the crop fits in the image."""
    generator = np.random.default_rng(0)
    area = image[0] * image[1] * generator.uniform(*scale, count)
    aspect = generator.uniform(math.log(RATIO[0]), math.log(RATIO[1]), count)
    width, height = np.sqrt(area * np.exp(aspect)), np.sqrt(area / np.exp(aspect))
    fits = (width <= image[1]) & (height <= image[0])
    return np.stack([area / image[0] / image[1], aspect])[:, fits]


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """Return the Kolmogorov-Smirnov distance between two samples."""
    both = np.sort(np.concatenate([a, b]))
    below = [np.searchsorted(np.sort(x), both, side="right") / len(x) for x in (a, b)]
    return float(np.abs(below[0] - below[1]).max())


@pytest.mark.slow
@pytest.mark.parametrize("image", [(3000, 4000), (4000, 3000), (2000, 2000), (1000, 4000)], ids=str)
@pytest.mark.parametrize("scale", [(0.08, 1.0), (0.2, 0.5)], ids=str)
def test_area_and_aspect_distributions_match_torchvision(image: tuple[int, int], scale: tuple[float, float]) -> None:
    numbers = torch.rand(20_000, 4).tolist()
    boxes = np.array([crop_box(image, four, scale, RATIO) for four in numbers])
    _, _, height, width = boxes.T
    area, aspect = rejection_sampled(image, scale, 100_000)
    assert distance(height * width / math.prod(image), area) < 0.02
    assert distance(np.log(width / height), aspect) < 0.02
    # The joint distribution: area of the wide crops.
    assert distance((height * width / math.prod(image))[width > height], area[aspect > 0]) < 0.03


def test_crop_positions_are_uniform() -> None:
    numbers = torch.rand(20_000, 4).tolist()
    boxes = np.array([crop_box((10, 12), four, (0.3, 0.31), (1.0, 1.0)) for four in numbers])
    assert (boxes[:, 2:] == 6).all()
    counts = np.zeros((5, 7))
    np.add.at(counts, (boxes[:, 0], boxes[:, 1]), 1)
    expected = len(boxes) / 35
    assert ((counts - expected) ** 2 / expected).sum() < 70  # 34 degrees of freedom; exceeded with probability 0.0003


@given(
    st.tuples(sides, sides), st.tuples(*[st.floats(0, 1, exclude_max=True)] * 4), st.floats(0.01, 1), st.floats(0, 1)
)
def test_crop_lies_within_the_image(
    image: tuple[int, int], numbers: tuple[float, ...], low: float, part: float
) -> None:
    top, left, height, width = crop_box(image, numbers, (low, low + (1 - low) * part), RATIO)
    assert 0 <= top <= image[0] - height
    assert 0 <= left <= image[1] - width
    assert height >= 1
    assert width >= 1


@pytest.mark.parametrize(
    ("image", "expected"), [((100, 1000), (100, 133)), ((1000, 100), (133, 100)), ((1, 50), (1, 1))]
)
def test_very_long_image_gets_the_largest_crop_of_the_nearest_aspect(
    image: tuple[int, int], expected: tuple[int, int]
) -> None:
    for numbers in torch.rand(20, 4).tolist():
        assert crop_box(image, numbers, (0.5, 1.0), RATIO)[2:] == expected


def test_crop_can_be_the_whole_image() -> None:
    assert crop_box((300, 400), (0.1, 0.2, 0.3, 0.4), (1.0, 1.0), RATIO) == (0, 0, 300, 400)


@given(st.tuples(sides, sides), st.tuples(st.integers(1, 2000), st.integers(1, 2000)))
def test_covering_size_covers_and_touches_the_target(image: tuple[int, int], needed: tuple[int, int]) -> None:
    resized = covering(image, needed)
    assert all(have >= want for have, want in zip(resized, needed, strict=True))
    assert any(have == want for have, want in zip(resized, needed, strict=True))
    scales = [have / side for have, side in zip(resized, image, strict=True)]
    assert abs(scales[0] - scales[1]) <= 1 / min(image)  # the aspect ratio is kept except for rounding
