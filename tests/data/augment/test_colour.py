"""Every operation against Pillow's, picture by picture, each with its own strength."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from torch import Tensor

from vitreous.data.augment import colour


@pytest.fixture
def images() -> Tensor:
    """Noise, a ramp, one with few values, one that is flat, one that lacks dark and bright."""
    noise = torch.randint(0, 256, (3, 20, 30), dtype=torch.uint8)
    ramp = (torch.arange(600).reshape(20, 30) * 255 // 599).to(torch.uint8).expand(3, -1, -1)
    few = noise // 100 * 70
    flat = torch.full_like(noise, 77)
    middle = noise // 3 + 60
    return torch.stack([noise, ramp, few, flat, middle])


def pillow(images: Tensor, operation: Callable[[Image.Image, float], Image.Image], strengths: Tensor) -> Tensor:
    results = [
        np.array(operation(Image.fromarray(image.permute(1, 2, 0).numpy()), strength))
        for image, strength in zip(images, strengths.tolist(), strict=True)
    ]
    return torch.from_numpy(np.stack(results)).permute(0, 3, 1, 2)


def difference(a: Tensor, b: Tensor) -> int:
    assert a.dtype == torch.uint8
    return int((a.int() - b.int()).abs().max())


FACTORS = torch.tensor([0.0, 0.1, 1.0, 1.45, 1.9])

WITH_STRENGTH: dict[str, tuple[Callable[..., Tensor], Callable[[Image.Image, float], Image.Image], Tensor, int]] = {
    "brightness": (colour.brightness, lambda image, f: ImageEnhance.Brightness(image).enhance(f), FACTORS, 1),
    "contrast": (colour.contrast, lambda image, f: ImageEnhance.Contrast(image).enhance(f), FACTORS, 1),
    "saturation": (colour.saturation, lambda image, f: ImageEnhance.Color(image).enhance(f), FACTORS, 1),
    "sharpness": (colour.sharpness, lambda image, f: ImageEnhance.Sharpness(image).enhance(f), FACTORS, 1),
    "posterize": (
        colour.posterize,
        lambda image, f: ImageOps.posterize(image, int(f)),
        torch.tensor([1.0, 2, 4, 7, 8]),
        0,
    ),
    "solarize": (
        colour.solarize,
        lambda image, f: ImageOps.solarize(image, f),  # type: ignore[arg-type]
        torch.tensor([0.0, 50.5, 128, 200, 256]),
        0,
    ),
}


@pytest.mark.parametrize("name", WITH_STRENGTH)
def test_operations_with_a_strength_are_pillows(images: Tensor, name: str) -> None:
    ours, theirs, strengths, tolerance = WITH_STRENGTH[name]
    for shift in range(5):  # every picture with every strength
        rolled = strengths.roll(shift)
        assert difference(ours(images, rolled), pillow(images, theirs, rolled)) <= tolerance


@pytest.mark.parametrize("name", ["autocontrast", "equalize"])
def test_operations_without_one_are_pillows(images: Tensor, name: str) -> None:
    theirs = pillow(images, lambda image, _: getattr(ImageOps, name)(image), torch.zeros(5))
    assert difference(getattr(colour, name)(images), theirs) == 0


def test_solarizing_everything_inverts(images: Tensor) -> None:
    assert torch.equal(colour.solarize(images, torch.zeros(5)), 255 - images)


def test_blur_is_gaussian(images: Tensor) -> None:
    ndimage = pytest.importorskip("scipy.ndimage")
    sigma = torch.tensor([0.1, 0.5, 1.0, 1.5, 2.0])
    ours = colour.blur(images, sigma)
    for image, blurred, s in zip(images, ours, sigma.tolist(), strict=True):
        exact = ndimage.gaussian_filter(image.numpy().astype(float), (0, s, s), truncate=8)
        inner = np.abs(blurred.numpy() - exact)[:, 8:-8, 8:-8]
        assert inner.max() <= 0.51  # rounding
    theirs = pillow(images, lambda image, s: image.filter(ImageFilter.GaussianBlur(s)), sigma)
    assert difference(ours[..., 6:-6, 6:-6], theirs[..., 6:-6, 6:-6]) <= 12  # Pillow's is three boxes
    assert torch.equal(ours[3], images[3])  # flat up to the border


def test_jitter_is_the_three_in_each_order() -> None:
    images = torch.randint(0, 256, (6, 3, 12, 14), dtype=torch.uint8)
    factors = torch.rand(6, 3) + 0.8  # without clipping at white, the order would not matter
    parts = [colour.brightness, colour.contrast, colour.saturation]
    orders = [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]
    ours = colour.jitter(images, factors, torch.arange(6))
    for i, order in enumerate(orders):
        expected = images[i : i + 1]
        for part in order:
            expected = parts[part](expected, factors[i : i + 1, part])
        assert difference(ours[i : i + 1], expected) <= 3  # we round once, not after each
    assert not torch.equal(colour.jitter(images, factors, torch.zeros(6).long())[5], ours[5])


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_any_number_of_channels(channels: int) -> None:
    images = torch.randint(0, 256, (4, channels, 9, 11), dtype=torch.uint8)
    strengths = torch.tensor([0.5, 0.9, 1.2, 1.5])
    for operation in (colour.brightness, colour.contrast, colour.saturation, colour.sharpness, colour.blur):
        assert operation(images, strengths).shape == images.shape
    assert colour.equalize(images).shape == colour.autocontrast(images).shape == images.shape
    if channels == 1:  # grey has no colour to lose
        assert torch.equal(colour.saturation(images, torch.zeros(4)), images)


def test_pictures_too_small_to_have_neighbours() -> None:
    images = torch.randint(0, 256, (2, 3, 1, 2), dtype=torch.uint8)
    assert torch.equal(colour.sharpness(images, torch.tensor([0.0, 2.0])), images)
    assert torch.equal(colour.equalize(images), images)
