"""Geometry against Pillow and against slicing."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from vitreous.data.augment import geometry


def smooth(b: int, h: int, w: int) -> Tensor:
    y, x = torch.meshgrid(torch.arange(h) / h, torch.arange(w) / w, indexing="ij")
    a, c, d = torch.rand(3, b, 3, 1, 1) * 6
    return (127 + 120 * torch.sin(a * x + c * y + d)).to(torch.uint8)


def pillow_affine(image: Tensor, matrix: tuple[float, ...]) -> Tensor:
    picture = Image.fromarray(image.permute(1, 2, 0).numpy())
    moved = picture.transform(
        picture.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR, fillcolor=(128,) * 3
    )
    return torch.from_numpy(np.array(moved)).permute(2, 0, 1)


def mostly_equal(ours: Tensor, theirs: Tensor) -> None:
    """Within two levels, except along the moved picture's border: we blend it with the grey, Pillow does not."""
    far = (ours.int() - theirs.int()).abs().amax(0) > 2
    assert far.float().mean() < 0.05


@pytest.mark.parametrize("amount", [-0.99, -0.3, 0.0, 0.2])
def test_shears_are_autoaugments(amount: float) -> None:
    images = smooth(2, 40, 60)
    amounts = torch.tensor([amount, 0.15])
    along_x, along_y = geometry.warp(images, shear_x=amounts), geometry.warp(images, shear_y=amounts)
    for i, a in enumerate(amounts.tolist()):
        mostly_equal(along_x[i], pillow_affine(images[i], (1, a, 0, 0, 1, 0)))
        mostly_equal(along_y[i], pillow_affine(images[i], (1, 0, 0, a, 1, 0)))


@pytest.mark.parametrize("degrees", [-135.0, -30.0, 0.0, 7.0, 90.0])
def test_rotations_are_pillows(degrees: float) -> None:
    images = smooth(2, 40, 40)
    ours = geometry.warp(images, degrees=torch.tensor([degrees, 20.0]))
    for i, angle in enumerate((degrees, 20.0)):
        picture = Image.fromarray(images[i].permute(1, 2, 0).numpy())
        theirs = picture.rotate(angle, Image.Resampling.BILINEAR, fillcolor=(128,) * 3)
        mostly_equal(ours[i], torch.from_numpy(np.array(theirs)).permute(2, 0, 1))


def test_shifts_are_whole_pixels() -> None:
    images = torch.randint(0, 256, (3, 3, 12, 16), dtype=torch.uint8)
    right = geometry.warp(images, right=torch.tensor([3.0, -2.9, 40.0]))
    assert torch.equal(right[0, :, :, 3:], images[0, :, :, :-3])
    assert torch.equal(right[1, :, :, :-2], images[1, :, :, 2:])
    assert (right[0, :, :, :3] == 128).all()
    assert (right[2] == 128).all()
    down = geometry.warp(images, down=torch.tensor([1.0, 0.0, -5.0]))
    assert torch.equal(down[0, :, 1:], images[0, :, :-1])
    assert torch.equal(down[1], images[1])
    assert torch.equal(down[2, :, :-5], images[2, :, 5:])


def test_flip() -> None:
    images = torch.randint(0, 256, (2, 3, 5, 6), dtype=torch.uint8)
    flipped = geometry.flip(images, torch.tensor([True, False]))
    assert torch.equal(flipped[0], images[0].flip(-1))
    assert torch.equal(flipped[1], images[1])


@pytest.mark.parametrize("size", [(32, 32), (24, 40), (8, 8), (5, 7)], ids=str)
def test_padded_crops_are_windows_of_the_reflected_picture(size: tuple[int, int]) -> None:
    images = torch.randint(0, 256, (50, 3, *size), dtype=torch.uint8)
    places = torch.rand(50, 2)
    places[0], places[1] = 0, 1 - 2**-24
    cropped = geometry.padded_crop(images, places)
    pad = (size[0] // 8, size[1] // 8)
    for image, crop, (y, x) in zip(images.numpy(), cropped.numpy(), places.tolist(), strict=True):
        padded = np.pad(image, [(0, 0), (pad[0], pad[0]), (pad[1], pad[1])], mode="reflect")
        top, left = int(y * (2 * pad[0] + 1)), int(x * (2 * pad[1] + 1))
        assert np.array_equal(crop, padded[:, top : top + size[0], left : left + size[1]])
