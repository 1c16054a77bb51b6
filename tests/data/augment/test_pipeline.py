"""The whole of it: a pure function of the picture and (seed, epoch, index), in [0, 1], with the right probabilities."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vitreous.common.checks import BadValue
from vitreous.data.augment.config import Augmentation
from vitreous.data.augment.pipeline import augment, augment_with_masks
from vitreous.data.rng import Draws

EVERYTHING = [
    Augmentation(crop="padded", policy="randaugment", colour_jitter=0.4, erasing=0.5),
    Augmentation(crop="none", policy="trivial"),
    Augmentation(policy="three", colour_jitter=0.3),
    Augmentation(flip=0.0),
]


def pictures(count: int, channels: int = 3) -> Tensor:
    return torch.randint(0, 256, (count, channels, 16, 24), dtype=torch.uint8)


@pytest.mark.parametrize("config", EVERYTHING, ids=lambda config: config.policy)
@pytest.mark.parametrize("channels", [1, 3])
def test_a_picture_is_augmented_alike_in_any_batch(config: Augmentation, channels: int) -> None:
    images, indices = pictures(64, channels), torch.randperm(1000)[:64]
    whole = augment(images, Draws(7, 2, indices), config)
    shuffled = torch.randperm(64)
    again = augment(images[shuffled], Draws(7, 2, indices[shuffled]), config)
    assert torch.equal(again, whole[shuffled])
    for i in (0, 13, 63):
        alone = augment(images[i : i + 1], Draws(7, 2, indices[i : i + 1]), config)
        assert torch.equal(alone[0], whole[i])


@pytest.mark.parametrize("config", EVERYTHING[:3], ids=lambda config: config.policy)
def test_another_seed_or_epoch_is_another_picture(config: Augmentation) -> None:
    images, indices = pictures(32), torch.arange(32)
    one = augment(images, Draws(0, 0, indices), config)
    for draws in (Draws(1, 0, indices), Draws(0, 1, indices), Draws(0, 0, indices + 32)):
        same = (augment(images, draws, config) == one).all(dim=(1, 2, 3))
        assert same.float().mean() < 0.3


@pytest.mark.parametrize("config", EVERYTHING, ids=lambda config: config.policy)
def test_the_result_is_in_zero_to_one_and_the_input_is_kept(config: Augmentation) -> None:
    images = pictures(64)
    before = images.clone()
    result = augment(images, Draws(0, 0, torch.arange(64)), config)
    assert torch.equal(images, before)
    assert result.dtype == torch.float32
    assert result.min() >= 0
    assert result.max() <= 1
    channels_last = images.contiguous(memory_format=torch.channels_last)
    last = augment(channels_last, Draws(0, 0, torch.arange(64)), config)
    assert last.is_contiguous()
    assert torch.equal(last, result)


def test_without_anything_pixels_are_divided_by_255() -> None:
    images = pictures(8)
    assert torch.equal(augment(images, Draws(0, 0, torch.arange(8)), Augmentation(flip=0.0)), images.float() / 255)


@pytest.mark.parametrize("probability", [0.2, 0.5, 1.0])
def test_flips_are_as_frequent_as_asked_for(probability: float) -> None:
    images = pictures(3000)
    result = augment(images, Draws(0, 0, torch.arange(3000)), Augmentation(flip=probability))
    flipped = (result == images.flip(-1).float() / 255).all(dim=(1, 2, 3))
    assert flipped.float().mean() == pytest.approx(probability, abs=0.03)
    kept = (result == images.float() / 255).all(dim=(1, 2, 3))
    assert (flipped ^ kept).all()


def test_jitter_stays_within_its_strength() -> None:
    grey = torch.full((2000, 3, 4, 4), 100, dtype=torch.uint8)  # only brightness can change it
    result = augment(grey, Draws(0, 0, torch.arange(2000)), Augmentation(colour_jitter=0.3))[:, 0, 0, 0] * 255
    assert 69.5 <= result.min() < 72
    assert 128 < result.max() <= 130.5
    assert result.mean() == pytest.approx(100, abs=1.5)


# ---- Masks -----------------------------------------------------------------------------------------------------------


def painted(count: int, size: tuple[int, int], seed: int) -> tuple[Tensor, Tensor]:
    """Masks of all ids, and pictures whose first channel shows them."""
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
def test_a_mask_goes_where_its_picture_goes(seed: int, size: tuple[int, int], crop: str, flip: float) -> None:
    images, masks = painted(5, size, seed % 1000)
    config = Augmentation(crop=crop, flip=flip)  # type: ignore[arg-type]
    moved, with_them = augment_with_masks(images, masks, Draws(seed, 1, torch.arange(5)), config)
    assert torch.equal((moved[:, 0] * 255).round().byte(), with_them)
    assert torch.equal(moved, augment(images, Draws(seed, 1, torch.arange(5)), config))


def test_colours_and_erasing_leave_masks_alone() -> None:
    images, masks = painted(40, (16, 24), 0)
    draws = Draws(3, 0, torch.arange(40))
    plain = Augmentation(crop="padded")
    _, expected = augment_with_masks(images, masks, draws, plain)
    assert not torch.equal(expected, masks)
    for more in (
        Augmentation(crop="padded", colour_jitter=0.4),
        Augmentation(crop="padded", policy="three"),
        Augmentation(crop="padded", erasing=1.0),
        Augmentation(crop="padded", policy="three", colour_jitter=0.3, erasing=0.5),
    ):
        changed, ours = augment_with_masks(images, masks, draws, more)
        assert torch.equal(ours, expected)
        assert torch.equal(changed, augment(images, draws, more))
        assert not torch.equal(changed, augment(images, draws, plain))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            Augmentation(policy="trivial"),
            "policy is 'trivial', but must be 'none' or 'three' where pictures have masks",
        ),
        (Augmentation(policy="randaugment"), "policy is 'randaugment'.*masks would stay behind"),
        (Augmentation(mixup=0.2), "mixup is 0.2, but must be 0 where pictures have masks"),
        (Augmentation(cutmix=1.0), "cutmix is 1.0, but must be 0"),
    ],
)
def test_what_masks_cannot_follow_is_refused(config: Augmentation, message: str) -> None:
    images, masks = painted(2, (8, 8), 0)
    with pytest.raises(BadValue, match=message):
        augment_with_masks(images, masks, Draws(0, 0, torch.arange(2)), config)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("config", EVERYTHING, ids=lambda config: config.policy)
def test_a_gpu_augments_like_the_cpu(config: Augmentation) -> None:
    images, indices = pictures(64), torch.arange(64)
    cpu = augment(images, Draws(0, 0, indices), config)
    for draws in (Draws(0, 0, indices), Draws(0, 0, indices.cuda())):
        gpu = augment(images.cuda(), draws, config).cpu()
        assert ((gpu - cpu).abs() > 1.5 / 255).float().mean() < 1e-3
