import torch

from vitreous.data.augment.erase import ASPECT, erase, noise
from vitreous.data.rng import Draws


def erased(count: int = 2000, probability: float = 0.25) -> tuple[torch.Tensor, torch.Tensor]:
    """Black pictures, and where they are not black any more in any channel."""
    images = torch.zeros(count, 3, 40, 50, dtype=torch.uint8)
    result = erase(images, Draws(0, 0, torch.arange(count)), probability)
    return result, (result > 0).any(1)


def test_as_many_pictures_as_asked_for() -> None:
    _, where = erased()
    assert 0.22 < where.any(dim=(1, 2)).float().mean() < 0.28
    assert not erased(100, 0.0)[1].any()
    assert erased(100, 1.0)[1].any(dim=(1, 2)).all()


def test_rectangles_of_the_right_area_and_aspect_anywhere() -> None:
    _, where = erased(probability=1.0)
    rows, columns = where.any(2), where.any(1)
    height, width = rows.sum(1).float(), columns.sum(1).float()
    filled = where.sum((1, 2)) / (height * width)
    assert (filled > 0.99).all()  # noise is black in all channels once in 2^24
    area = height * width / 2000
    assert area.min() > 0.01
    assert area.max() < 0.36
    assert area.mean().sub((0.02 + 1 / 3) / 2).abs() < 0.01
    free = (height < 40) & (width < 50)
    assert (height / width)[free].log().abs().max() < torch.tensor(ASPECT[1]).log() + 0.3  # rounded to pixels
    assert (height / width).log().mean().abs() < 0.1
    assert where.any(0).all()  # every pixel has its turn


def test_noise_is_uniform_and_its_own_for_every_picture() -> None:
    bytes_ = noise(torch.tensor([1, 2, 3]), (3, 33, 35))
    for picture in bytes_:
        counts = torch.bincount(picture.flatten().int(), minlength=256)
        expected = picture.numel() / 256
        assert ((counts - expected) ** 2 / expected).sum() < 340  # 255 degrees of freedom: p = 0.0003
    flat = bytes_.flatten(1).float()
    assert (torch.corrcoef(torch.cat([flat, flat[:1].roll(1), flat[:1].roll(35)])) - torch.eye(5)).abs().max() < 0.06


def test_what_is_outside_stays() -> None:
    images = torch.randint(0, 256, (50, 1, 20, 20), dtype=torch.uint8)
    before = images.clone()
    result = erase(images, Draws(0, 0, torch.arange(50)), 0.5)
    assert torch.equal(images, before)
    changed = (result != images)[:, 0]
    outside = ~(changed.any(2)[:, :, None] & changed.any(1)[:, None, :])
    assert torch.equal(result[:, 0][outside], images[:, 0][outside])
