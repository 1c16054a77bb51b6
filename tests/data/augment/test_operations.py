"""Image operations compared with Pillow and with slicing."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from torch import Tensor

from vitreous.data.augment import operations


def smooth(b: int, h: int, w: int) -> Tensor:
    y, x = torch.meshgrid(torch.arange(h) / h, torch.arange(w) / w, indexing="ij")
    a, c, d = torch.rand(3, b, 3, 1, 1) * 6
    return (127 + 120 * torch.sin(a * x + c * y + d)).to(torch.uint8)


def pillow_affine(image: Tensor, matrix: tuple[float, ...]) -> Tensor:
    image = Image.fromarray(image.permute(1, 2, 0).numpy())
    moved = image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR, fillcolor=(128,) * 3)
    return torch.from_numpy(np.array(moved)).permute(2, 0, 1)


def check_nearly_equal(result: Tensor, expected: Tensor) -> None:
    """Assert equality within two levels, except at the image border, which Pillow does not blend with the grey."""
    far = (result.int() - expected.int()).abs().amax(0) > 2
    assert far.float().mean() < 0.05


@pytest.mark.parametrize("amount", [-0.99, -0.3, 0.0, 0.2])
def test_shear_matches_pillow(amount: float) -> None:
    images = smooth(2, 40, 60)
    amounts = torch.tensor([amount, 0.15])
    along_x, along_y = operations.warp(images, shear_x=amounts), operations.warp(images, shear_y=amounts)
    for i, a in enumerate(amounts.tolist()):
        check_nearly_equal(along_x[i], pillow_affine(images[i], (1, a, 0, 0, 1, 0)))
        check_nearly_equal(along_y[i], pillow_affine(images[i], (1, 0, 0, a, 1, 0)))


@pytest.mark.parametrize("degrees", [-135.0, -30.0, 0.0, 7.0, 90.0])
def test_rotation_matches_pillow(degrees: float) -> None:
    images = smooth(2, 40, 40)
    result = operations.warp(images, degrees=torch.tensor([degrees, 20.0]))
    for i, angle in enumerate((degrees, 20.0)):
        image = Image.fromarray(images[i].permute(1, 2, 0).numpy())
        expected = image.rotate(angle, Image.Resampling.BILINEAR, fillcolor=(128,) * 3)
        check_nearly_equal(result[i], torch.from_numpy(np.array(expected)).permute(2, 0, 1))


def test_shifts_are_rounded_to_pixels() -> None:
    images = torch.randint(0, 256, (3, 3, 12, 16), dtype=torch.uint8)
    right = operations.warp(images, right=torch.tensor([3.0, -2.9, 40.0]))
    assert torch.equal(right[0, :, :, 3:], images[0, :, :, :-3])
    assert torch.equal(right[1, :, :, :-2], images[1, :, :, 2:])
    assert (right[0, :, :, :3] == 128).all()
    assert (right[2] == 128).all()
    down = operations.warp(images, down=torch.tensor([1.0, 0.0, -5.0]))
    assert torch.equal(down[0, :, 1:], images[0, :, :-1])
    assert torch.equal(down[1], images[1])
    assert torch.equal(down[2, :, :-5], images[2, :, 5:])


def test_flip() -> None:
    images = torch.randint(0, 256, (2, 3, 5, 6), dtype=torch.uint8)
    flipped = operations.flip(images, torch.tensor([True, False]))
    assert torch.equal(flipped[0], images[0].flip(-1))
    assert torch.equal(flipped[1], images[1])


@pytest.mark.parametrize("size", [(32, 32), (24, 40), (8, 8), (5, 7)], ids=str)
def test_padded_crop_equals_a_window_of_the_reflected_image(size: tuple[int, int]) -> None:
    images = torch.randint(0, 256, (50, 3, *size), dtype=torch.uint8)
    places = torch.rand(50, 2)
    places[0], places[1] = 0, 1 - 2**-24
    cropped = operations.padded_crop(images, places)
    pad = (size[0] // 8, size[1] // 8)
    for image, crop, (y, x) in zip(images.numpy(), cropped.numpy(), places.tolist(), strict=True):
        padded = np.pad(image, [(0, 0), (pad[0], pad[0]), (pad[1], pad[1])], mode="reflect")
        top, left = int(y * (2 * pad[0] + 1)), int(x * (2 * pad[1] + 1))
        assert np.array_equal(crop, padded[:, top : top + size[0], left : left + size[1]])


@pytest.fixture
def images() -> Tensor:
    """Noise, a ramp, an image with few values, a flat image, and one without dark or bright pixels."""
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
    "brightness": (operations.brightness, lambda image, f: ImageEnhance.Brightness(image).enhance(f), FACTORS, 1),
    "contrast": (operations.contrast, lambda image, f: ImageEnhance.Contrast(image).enhance(f), FACTORS, 1),
    "saturation": (operations.saturation, lambda image, f: ImageEnhance.Color(image).enhance(f), FACTORS, 1),
    "sharpness": (operations.sharpness, lambda image, f: ImageEnhance.Sharpness(image).enhance(f), FACTORS, 1),
    "posterize": (
        operations.posterize,
        lambda image, f: ImageOps.posterize(image, int(f)),
        torch.tensor([1.0, 2, 4, 7, 8]),
        0,
    ),
    "solarize": (
        operations.solarize,
        lambda image, f: ImageOps.solarize(image, f),  # type: ignore[arg-type]
        torch.tensor([0.0, 50.5, 128, 200, 256]),
        0,
    ),
}


@pytest.mark.parametrize("name", WITH_STRENGTH)
def test_operations_with_a_strength_match_pillow(images: Tensor, name: str) -> None:
    result, expected, strengths, tolerance = WITH_STRENGTH[name]
    for shift in range(5):  # every image gets every strength
        rolled = strengths.roll(shift)
        assert difference(result(images, rolled), pillow(images, expected, rolled)) <= tolerance


@pytest.mark.parametrize("name", ["autocontrast", "equalize"])
def test_operations_without_a_strength_match_pillow(images: Tensor, name: str) -> None:
    expected = pillow(images, lambda image, _: getattr(ImageOps, name)(image), torch.zeros(5))
    assert difference(getattr(operations, name)(images), expected) == 0


def test_solarizing_with_threshold_zero_inverts(images: Tensor) -> None:
    assert torch.equal(operations.solarize(images, torch.zeros(5)), 255 - images)


def test_blur_is_gaussian(images: Tensor) -> None:
    ndimage = pytest.importorskip("scipy.ndimage")
    sigma = torch.tensor([0.1, 0.5, 1.0, 1.5, 2.0])
    result = operations.blur(images, sigma)
    for image, blurred, s in zip(images, result, sigma.tolist(), strict=True):
        exact = ndimage.gaussian_filter(image.numpy().astype(float), (0, s, s), truncate=8)
        inner = np.abs(blurred.numpy() - exact)[:, 8:-8, 8:-8]
        assert inner.max() <= 0.51  # rounding
    expected = pillow(images, lambda image, s: image.filter(ImageFilter.GaussianBlur(s)), sigma)
    assert difference(result[..., 6:-6, 6:-6], expected[..., 6:-6, 6:-6]) <= 12  # Pillow uses three box filters
    assert torch.equal(result[3], images[3])  # a flat image stays flat up to the border


def test_jitter_applies_three_operations_in_each_order() -> None:
    images = torch.randint(0, 256, (6, 3, 12, 14), dtype=torch.uint8)
    factors = torch.rand(6, 3) + 0.8  # without clipping at white, the order would not matter
    parts = [operations.brightness, operations.contrast, operations.saturation]
    orders = [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]
    result = operations.jitter(images, factors, torch.arange(6))
    for i, order in enumerate(orders):
        expected = images[i : i + 1]
        for part in order:
            expected = parts[part](expected, factors[i : i + 1, part])
        assert difference(result[i : i + 1], expected) <= 3  # jitter rounds once, not after each operation
    assert not torch.equal(operations.jitter(images, factors, torch.zeros(6).long())[5], result[5])


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_any_number_of_channels(channels: int) -> None:
    images = torch.randint(0, 256, (4, channels, 9, 11), dtype=torch.uint8)
    strengths = torch.tensor([0.5, 0.9, 1.2, 1.5])
    for operation in (
        operations.brightness,
        operations.contrast,
        operations.saturation,
        operations.sharpness,
        operations.blur,
    ):
        assert operation(images, strengths).shape == images.shape
    assert operations.equalize(images).shape == operations.autocontrast(images).shape == images.shape
    if channels == 1:  # grey images have no saturation
        assert torch.equal(operations.saturation(images, torch.zeros(4)), images)


def test_tiny_images_are_unchanged() -> None:
    images = torch.randint(0, 256, (2, 3, 1, 2), dtype=torch.uint8)
    assert torch.equal(operations.sharpness(images, torch.tensor([0.0, 2.0])), images)
    assert torch.equal(operations.equalize(images), images)
