import io

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from vitreous.evaluation import features
from vitreous.evaluation.near_duplicates import (
    CORRELATION,
    candidate_pairs,
    correlations,
    groups,
    neighbours,
    whitened,
)

CPU = torch.device("cpu")


def photo(seed: int, size: tuple[int, int] = (120, 90)) -> Image.Image:
    """Return smooth random shapes, like a photo without fine noise."""
    noise = np.random.default_rng(seed).integers(0, 256, (9, 12, 3), np.uint8)
    return Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC)


def encoded(image: Image.Image, quality: int = 92) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=quality)
    return stream.getvalue()


def compare(*images: bytes) -> list[float]:
    """Return the correlation of the first image with each of the others."""
    pairs = torch.tensor([(0, other) for other in range(1, len(images))])
    return correlations(pairs, lambda index: images[index], CPU).tolist()


CHANGES = {
    "smaller": lambda image: encoded(image.resize((60, 45))),
    "larger": lambda image: encoded(image.resize((240, 180))),
    "recompressed": lambda image: encoded(image, quality=30),
    "squashed": lambda image: encoded(image.resize((64, 64))),
    "cropped": lambda image: encoded(image.crop((15, 5, 117, 80))),  # 71 % of the area
    "cropped on one side": lambda image: encoded(image.crop((30, 0, 120, 90))),
    "mirrored": lambda image: encoded(image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_altered_copies_are_recognised(change: str) -> None:
    for seed in range(5):
        original, copy = photo(seed), CHANGES[change](photo(seed))
        assert min(compare(encoded(original), copy)) >= CORRELATION
        assert min(compare(copy, encoded(original))) >= CORRELATION


def test_different_plain_and_unreadable_images_are_not_copies() -> None:
    others = [encoded(photo(seed)) for seed in range(1, 30)]
    plain = encoded(Image.new("RGB", (50, 50), "red"))
    assert max(compare(encoded(photo(0)), *others, plain)) < CORRELATION
    assert compare(plain, encoded(Image.new("RGB", (50, 50), "blue")))[0] < CORRELATION
    assert compare(plain, b"not an image") == [-1]


@pytest.mark.parametrize("budget", [1 << 14, 1 << 20])
def test_blocks_give_the_same_neighbours_as_all_pairs_at_once(budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = torch.randn(150, 8, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(features, "BUDGET", budget)
    found = neighbours(vectors, 4, CPU)
    unit = F.normalize(vectors, dim=1)
    similarity = (unit @ unit.T).fill_diagonal_(-2)
    expected = similarity.topk(4, dim=1)
    assert torch.equal(found.indices, expected.indices)
    assert torch.allclose(found.similarity, expected.values, atol=1e-6)
    everything = whitened(vectors)
    monkeypatch.setattr(features, "BUDGET", 1 << 28)
    assert torch.allclose(everything, whitened(vectors), atol=1e-5)


def test_an_image_is_not_its_own_neighbour_even_among_copies() -> None:
    vectors = torch.ones(9, 3)
    found = neighbours(vectors, 3, CPU)
    assert not (found.indices == torch.arange(9)[:, None]).any()


def test_whitening_separates_copies_from_images_of_the_same_kind() -> None:
    """Classes dominate the features; each image also has a small component of its own, which its copy shares."""
    generator = torch.Generator().manual_seed(0)
    kinds = 10 * torch.randn(3, 64, generator=generator)
    own = torch.randn(60, 64, generator=generator)
    images = kinds[torch.arange(60) % 3] + own
    vectors = torch.cat([images, images + 0.3 * torch.randn(60, 64, generator=generator)])
    pairs = set(map(tuple, candidate_pairs(vectors, CPU).tolist()))
    assert {(row, row + 60) for row in range(60)} <= pairs
    assert torch.allclose(whitened(vectors).mean(dim=0), torch.zeros(64), atol=1e-4)


def test_pairs_that_share_an_image_form_one_group() -> None:
    assert groups([(5, 7), (1, 2), (2, 9), (7, 8)]) == [[1, 2, 9], [5, 7, 8]]
    assert groups([]) == []
