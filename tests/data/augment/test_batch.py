"""Augmentation is a pure function of the image and (seed, epoch, index), and has the given probabilities."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vitreous.common.checks import BadValue
from vitreous.common.rng import SampleRng
from vitreous.data.augment.batch import ERASED_ASPECT, augment, augment_with_masks, erase, noise
from vitreous.data.augment.config import Augmentation

EVERYTHING = [
    Augmentation(crop="padded", policy="randaugment", colour_jitter=0.4, erasing=0.5),
    Augmentation(crop="none", policy="trivial"),
    Augmentation(policy="three", colour_jitter=0.3),
    Augmentation(flip=0.0),
    Augmentation(flip="alternate"),
]


def random_images(count: int, channels: int = 3) -> Tensor:
    return torch.randint(0, 256, (count, channels, 16, 24), dtype=torch.uint8)


@pytest.mark.parametrize("config", EVERYTHING, ids=lambda config: config.policy)
@pytest.mark.parametrize("channels", [1, 3])
def test_augmentation_does_not_depend_on_the_batch(config: Augmentation, channels: int) -> None:
    images, indices = random_images(64, channels), torch.randperm(1000)[:64]
    whole = augment(images, SampleRng(7, 2, indices), config)
    shuffled = torch.randperm(64)
    again = augment(images[shuffled], SampleRng(7, 2, indices[shuffled]), config)
    assert torch.equal(again, whole[shuffled])
    for i in (0, 13, 63):
        alone = augment(images[i : i + 1], SampleRng(7, 2, indices[i : i + 1]), config)
        assert torch.equal(alone[0], whole[i])


@pytest.mark.parametrize("config", EVERYTHING[:3], ids=lambda config: config.policy)
def test_augmentation_differs_by_seed_and_epoch(config: Augmentation) -> None:
    images, indices = random_images(32), torch.arange(32)
    one = augment(images, SampleRng(0, 0, indices), config)
    for rng in (SampleRng(1, 0, indices), SampleRng(0, 1, indices), SampleRng(0, 0, indices + 32)):
        same = (augment(images, rng, config) == one).all(dim=(1, 2, 3))
        assert same.float().mean() < 0.3


@pytest.mark.parametrize("config", EVERYTHING, ids=lambda config: config.policy)
def test_output_is_in_zero_to_one_and_input_is_unchanged(config: Augmentation) -> None:
    images = random_images(64)
    before = images.clone()
    result = augment(images, SampleRng(0, 0, torch.arange(64)), config)
    assert torch.equal(images, before)
    assert result.dtype == torch.float32
    assert result.min() >= 0
    assert result.max() <= 1
    channels_last = images.contiguous(memory_format=torch.channels_last)
    last = augment(channels_last, SampleRng(0, 0, torch.arange(64)), config)
    assert last.is_contiguous()
    assert torch.equal(last, result)


def test_without_augmentation_pixels_are_divided_by_255() -> None:
    images = random_images(8)
    assert torch.equal(augment(images, SampleRng(0, 0, torch.arange(8)), Augmentation(flip=0.0)), images.float() / 255)


@pytest.mark.parametrize("probability", [0.2, 0.5, 1.0])
def test_flips_have_the_given_probability(probability: float) -> None:
    images = random_images(3000)
    result = augment(images, SampleRng(0, 0, torch.arange(3000)), Augmentation(flip=probability))
    flipped = (result == images.flip(-1).float() / 255).all(dim=(1, 2, 3))
    assert flipped.float().mean() == pytest.approx(probability, abs=0.03)
    kept = (result == images.float() / 255).all(dim=(1, 2, 3))
    assert (flipped ^ kept).all()


@given(st.integers(0, 2**62), st.integers(0, 1000))
@settings(max_examples=10)
def test_alternating_flips_show_both_versions_in_two_epochs(seed: int, epoch: int) -> None:
    images, indices, config = random_images(400), torch.randperm(5000)[:400], Augmentation(flip="alternate")
    now, following, later = (augment(images, SampleRng(seed, epoch + i, indices), config) for i in range(3))
    assert torch.equal(following, now.flip(-1))
    assert torch.equal(later, now)
    flipped = (now == images.flip(-1).float() / 255).all(dim=(1, 2, 3))
    assert flipped.float().mean() == pytest.approx(0.5, abs=0.15)


def test_jitter_is_limited_by_its_strength() -> None:
    grey = torch.full((2000, 3, 4, 4), 100, dtype=torch.uint8)  # only brightness can change a flat grey image
    result = augment(grey, SampleRng(0, 0, torch.arange(2000)), Augmentation(colour_jitter=0.3))[:, 0, 0, 0] * 255
    assert 69.5 <= result.min() < 72
    assert 128 < result.max() <= 130.5
    assert result.mean() == pytest.approx(100, abs=1.5)


# ---- Masks -----------------------------------------------------------------------------------------------------------


def painted(count: int, size: tuple[int, int], seed: int) -> tuple[Tensor, Tensor]:
    """Return masks with all ids, and images whose first channel equals them."""
    generator = torch.Generator().manual_seed(seed)
    masks = torch.randint(0, 256, (count, *size), generator=generator, dtype=torch.uint8)
    others = torch.randint(0, 256, (count, 2, *size), generator=generator, dtype=torch.uint8)
    return torch.cat([masks[:, None], others], dim=1), masks


@given(
    seed=st.integers(0, 2**40),
    size=st.tuples(st.integers(2, 40), st.integers(2, 40)),
    crop=st.sampled_from(["padded", "none", "resized"]),
    flip=st.sampled_from([0.0, 0.5, 1.0]),
)
@settings(deadline=None, max_examples=60)
def test_masks_are_cropped_and_flipped_with_their_images(
    seed: int, size: tuple[int, int], crop: str, flip: float
) -> None:
    images, masks = painted(5, size, seed % 1000)
    config = Augmentation(crop=crop, flip=flip)  # type: ignore[arg-type]
    moved, with_them = augment_with_masks(images, masks, SampleRng(seed, 1, torch.arange(5)), config)
    assert torch.equal((moved[:, 0] * 255).round().byte(), with_them)
    assert torch.equal(moved, augment(images, SampleRng(seed, 1, torch.arange(5)), config))


def test_colour_changes_and_erasing_do_not_change_masks() -> None:
    images, masks = painted(40, (16, 24), 0)
    rng = SampleRng(3, 0, torch.arange(40))
    plain = Augmentation(crop="padded")
    _, expected = augment_with_masks(images, masks, rng, plain)
    assert not torch.equal(expected, masks)
    for more in (
        Augmentation(crop="padded", colour_jitter=0.4),
        Augmentation(crop="padded", policy="three"),
        Augmentation(crop="padded", erasing=1.0),
        Augmentation(crop="padded", policy="three", colour_jitter=0.3, erasing=0.5),
    ):
        changed, augmented_masks = augment_with_masks(images, masks, rng, more)
        assert torch.equal(augmented_masks, expected)
        assert torch.equal(changed, augment(images, rng, more))
        assert not torch.equal(changed, augment(images, rng, plain))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            Augmentation(policy="trivial"),
            "policy is 'trivial', but must be 'none' or 'three' for segmentation",
        ),
        (Augmentation(policy="randaugment"), "policy is 'randaugment'.*cannot be warped"),
        (Augmentation(mixup=0.2), "mixup is 0.2, but must be 0 for segmentation"),
        (Augmentation(cutmix=1.0), "cutmix is 1.0, but must be 0"),
    ],
)
def test_augmentation_unsupported_for_masks_is_rejected(config: Augmentation, message: str) -> None:
    images, masks = painted(2, (8, 8), 0)
    with pytest.raises(BadValue, match=message):
        augment_with_masks(images, masks, SampleRng(0, 0, torch.arange(2)), config)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("config", EVERYTHING, ids=lambda config: config.policy)
def test_gpu_augments_like_the_cpu(config: Augmentation) -> None:
    images, indices = random_images(64), torch.arange(64)
    cpu = augment(images, SampleRng(0, 0, indices), config)
    for rng in (SampleRng(0, 0, indices), SampleRng(0, 0, indices.cuda())):
        gpu = augment(images.cuda(), rng, config).cpu()
        assert ((gpu - cpu).abs() > 1.5 / 255).float().mean() < 1e-3


def erased(count: int = 2000, probability: float = 0.25) -> tuple[torch.Tensor, torch.Tensor]:
    """Erase parts of black images; return the images and a mask of changed pixels."""
    images = torch.zeros(count, 3, 40, 50, dtype=torch.uint8)
    result = erase(images, SampleRng(0, 0, torch.arange(count)), probability)
    return result, (result > 0).any(1)


def test_erasing_has_the_given_probability() -> None:
    _, where = erased()
    assert 0.22 < where.any(dim=(1, 2)).float().mean() < 0.28
    assert not erased(100, 0.0)[1].any()
    assert erased(100, 1.0)[1].any(dim=(1, 2)).all()


def test_erased_rectangles_have_the_right_area_aspect_and_position() -> None:
    _, where = erased(probability=1.0)
    rows, columns = where.any(2), where.any(1)
    height, width = rows.sum(1).float(), columns.sum(1).float()
    filled = where.sum((1, 2)) / (height * width)
    assert (filled > 0.99).all()  # noise is black in all channels with probability 2^-24
    area = height * width / 2000
    assert area.min() > 0.01
    assert area.max() < 0.36
    assert area.mean().sub((0.02 + 1 / 3) / 2).abs() < 0.01
    free = (height < 40) & (width < 50)
    assert (height / width)[free].log().abs().max() < torch.tensor(ERASED_ASPECT[1]).log() + 0.3  # rounded to pixels
    assert (height / width).log().mean().abs() < 0.1
    assert where.any(0).all()  # every pixel is erased in some image


def test_noise_is_uniform_and_differs_between_images() -> None:
    bytes_ = noise(torch.tensor([1, 2, 3]), (3, 33, 35))
    for image in bytes_:
        counts = torch.bincount(image.flatten().int(), minlength=256)
        expected = image.numel() / 256
        assert ((counts - expected) ** 2 / expected).sum() < 340  # 255 degrees of freedom; p = 0.0003
    flat = bytes_.flatten(1).float()
    assert (torch.corrcoef(torch.cat([flat, flat[:1].roll(1), flat[:1].roll(35)])) - torch.eye(5)).abs().max() < 0.06


def test_pixels_outside_the_rectangle_are_unchanged() -> None:
    images = torch.randint(0, 256, (50, 1, 20, 20), dtype=torch.uint8)
    before = images.clone()
    result = erase(images, SampleRng(0, 0, torch.arange(50)), 0.5)
    assert torch.equal(images, before)
    changed = (result != images)[:, 0]
    outside = ~(changed.any(2)[:, :, None] & changed.any(1)[:, None, :])
    assert torch.equal(result[:, 0][outside], images[:, 0][outside])
