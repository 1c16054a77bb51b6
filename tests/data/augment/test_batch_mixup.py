"""Mixup and CutMix compared with their definitions, pair by pair."""

import numpy as np
import pytest
import torch

from vitreous.common.rng import SampleRng
from vitreous.data.augment.batch import beta, box, mix
from vitreous.data.augment.config import Augmentation


def batch(b: int, classes: int = 5) -> tuple[torch.Tensor, torch.Tensor, SampleRng]:
    targets = torch.eye(classes)[torch.arange(b) % classes]
    return torch.rand(b, 3, 16, 24), targets, SampleRng(3, 1, torch.randperm(1000)[:b])


def numbers(rng: SampleRng, pair: int) -> list[float]:
    return rng.uniform("mix", 4)[2 * pair].tolist()


@pytest.mark.parametrize("a", [0.1, 0.2, 0.5, 0.8, 1.0, 2.0, 8.0, 32.0])
def test_beta_matches_the_scipy_cdf(a: float) -> None:
    uniform = (torch.arange(200_000) + 0.5) / 200_000
    samples = beta(uniform, a).double().numpy()
    assert (np.diff(samples) >= 0).all()
    stats = pytest.importorskip("scipy.stats")
    below = samples < 0.5  # the other half is symmetric, but float32 is too coarse near 1
    assert np.abs(stats.beta.cdf(samples[below], a, a) - uniform.double().numpy()[below]).max() < 1e-3
    assert np.abs(samples + samples[::-1] - 1).max() < 1e-4


def test_beta_samples_match_numpy() -> None:
    samples = beta(SampleRng(0, 0, torch.arange(50_000)).uniform("x"), 0.8).numpy()
    expected = np.random.default_rng(0).beta(0.8, 0.8, 50_000)
    edges = np.linspace(0, 1, 41)
    counts = [np.histogram(sample, edges)[0] for sample in (samples, expected)]
    assert ((counts[0] - counts[1]) ** 2 / (counts[0] + counts[1])).sum() < 80  # 40 degrees of freedom; p = 0.0002


def test_mixup_of_a_pair() -> None:
    images, targets, rng = batch(8)
    mixed, mixed_targets = mix(images, targets, rng, Augmentation(mixup=0.8))
    for pair in range(4):
        share = beta(torch.tensor([numbers(rng, pair)[1]]), 0.8)
        for i, j in ((2 * pair, 2 * pair + 1), (2 * pair + 1, 2 * pair)):
            torch.testing.assert_close(mixed[i], share * images[i] + (1 - share) * images[j])
            torch.testing.assert_close(mixed_targets[i], share * targets[i] + (1 - share) * targets[j])


def test_cutmix_of_a_pair() -> None:
    images, targets, rng = batch(64, classes=64)
    mixed, mixed_targets = mix(images, targets, rng, Augmentation(cutmix=1.0))
    cuts = 0
    for i in range(64):
        pasted = (mixed[i] == images[i ^ 1]).all(0)
        assert ((mixed[i] == images[i]).all(0) | pasted).all()
        rows, columns = pasted.any(1), pasted.any(0)
        assert torch.equal(pasted, rows[:, None] & columns[None, :])  # a rectangle
        assert mixed_targets[i, i ^ 1].item() == pytest.approx(pasted.float().mean().item(), abs=1e-6)
        assert mixed_targets[i].sum().item() == pytest.approx(1)
        assert torch.equal(pasted, (mixed[i ^ 1] == images[i]).all(0))  # the same rectangle for both images of a pair
        cuts += int(pasted.any())
    assert cuts > 40


def test_cutmix_boxes_match_the_paper() -> None:
    share, y, x = torch.rand(3, 200).unbind(0)
    inside, outside = box(share, y, x, (30, 50))
    for i in range(200):
        half_h = int(30 * (1 - share[i]).sqrt()) // 2
        half_w = int(50 * (1 - share[i]).sqrt()) // 2
        top, bottom = np.clip([int(y[i] * 30) - half_h, int(y[i] * 30) + half_h], 0, 30)
        left, right = np.clip([int(x[i] * 50) - half_w, int(x[i] * 50) + half_w], 0, 50)
        expected = torch.zeros(30, 50, dtype=torch.bool)
        expected[top:bottom, left:right] = True
        assert torch.equal(inside[i], expected)
        assert outside[i].item() == pytest.approx(1 - (bottom - top) * (right - left) / 1500)


def test_mixup_and_cutmix_each_get_half_of_the_pairs() -> None:
    images, targets, rng = batch(1000)
    mixed, _ = mix(images, targets, rng, Augmentation(mixup=0.8, cutmix=1.0))
    partner = images[torch.arange(1000) ^ 1]
    cut = ((mixed == images) | (mixed == partner)).all(dim=(1, 2, 3))
    assert torch.equal(cut[0::2], cut[1::2])
    assert 0.42 < cut.float().mean() < 0.62


def test_disabled_mixing_changes_nothing() -> None:
    images, targets, rng = batch(6)
    mixed, mixed_targets = mix(images, targets, rng, Augmentation())
    assert mixed is images
    assert mixed_targets is targets


@pytest.mark.parametrize("config", [Augmentation(mixup=1.0), Augmentation(cutmix=1.0)], ids=["mixup", "cutmix"])
def test_unreadable_images_and_an_odd_last_image_are_not_mixed(config: Augmentation) -> None:
    images, targets, rng = batch(9)
    targets[2] = 0
    targets[5] = 0
    mixed, mixed_targets = mix(images, targets, rng, config)
    for i in (2, 3, 4, 5, 8):
        assert torch.equal(mixed[i], images[i])
        assert torch.equal(mixed_targets[i], targets[i])
    assert not torch.equal(mixed[0], images[0]) or not torch.equal(mixed[6], images[6])
    one, one_target = mix(images[:1], targets[:1], SampleRng(0, 0, torch.arange(1)), config)
    assert torch.equal(one, images[:1])
    assert torch.equal(one_target, targets[:1])


def test_even_slices_are_mixed_like_the_whole_batch() -> None:
    images, targets, _ = batch(16)
    indices = torch.randperm(100)[:16]
    config = Augmentation(mixup=0.8, cutmix=1.0)
    whole = mix(images, targets, SampleRng(0, 0, indices), config)
    for part in (slice(0, 8), slice(8, 16), slice(4, 6)):
        share = mix(images[part], targets[part], SampleRng(0, 0, indices[part]), config)
        assert torch.equal(share[0], whole[0][part])
        assert torch.equal(share[1], whole[1][part])


def test_label_smoothing_and_half_precision_work() -> None:
    images, targets, rng = batch(8)
    smoothed = targets * 0.9 + 0.02
    mixed, mixed_targets = mix(images.bfloat16(), smoothed, rng, Augmentation(mixup=1.0, cutmix=1.0))
    assert (mixed.dtype, mixed_targets.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(mixed_targets.sum(1), torch.ones(8))
