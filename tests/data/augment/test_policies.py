"""Frequency and strength of the augmentation operations."""

import pytest
import torch
from torch import Tensor

from vitreous.common.rng import SampleRng
from vitreous.data.augment import operations, policies


def random_images(count: int, size: int = 12) -> Tensor:
    return torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8)


def test_every_operation_has_torchvisions_strength() -> None:
    """Compare with direct calls of each operation at the strengths in torchvision's tables."""
    images = random_images(14, 20)
    space = policies.randaugment_space((20, 20))
    level, sign = torch.full((14,), 0.5), torch.tensor([1.0, -1.0]).repeat(7)
    augmented = policies.apply(images, space.operations(), policies.Choice(torch.arange(14), level, sign))

    def one(value: float) -> Tensor:
        return torch.tensor([float(value)])

    expected = [
        lambda x: x,
        lambda x: operations.warp(x, shear_x=one(-0.15)),
        lambda x: operations.warp(x, shear_y=one(0.15)),
        lambda x: operations.warp(x, right=one(-4.53)),
        lambda x: operations.warp(x, down=one(4.53)),
        lambda x: operations.warp(x, degrees=one(-15)),
        lambda x: operations.brightness(x, one(1.45)),
        lambda x: operations.contrast(x, one(0.55)),
        lambda x: operations.saturation(x, one(1.45)),
        lambda x: operations.sharpness(x, one(0.55)),
        lambda x: operations.posterize(x, one(6)),
        lambda x: operations.solarize(x, one(128)),
        operations.autocontrast,
        operations.equalize,
    ]
    for i, operation in enumerate(expected):
        assert torch.equal(augmented[i : i + 1], operation(images[i : i + 1])), i  # type: ignore[no-untyped-call]


def test_spaces_match_torchvision() -> None:
    assert policies.randaugment_space((331, 662)) == policies.Space(0.3, 300.0, 150.0, 30.0, 0.9, 4)
    assert policies.trivial_space((224, 224)) == policies.Space(0.99, 32, 32, 135.0, 0.99, 6)
    assert policies.trivial_space((8, 40)) == policies.Space(0.99, 32, 8, 135.0, 0.99, 6)


def test_operations_are_uniform_and_independent_between_layers() -> None:
    rng = SampleRng(0, 0, torch.arange(14_000))
    first, second = (policies.draw_randaugment(rng, layer, 9.0) for layer in range(2))
    trivial, three = policies.draw_trivial(rng), policies.draw_three(rng)
    for drawn, count in ((first, 14), (second, 14), (trivial, 14), (three, 3)):
        counts = torch.bincount(drawn.kind)
        assert len(counts) == count
        expected = 14_000 / count
        assert ((counts - expected) ** 2 / expected).sum() < 40  # 13 degrees of freedom; p = 0.0001
    kinds = torch.stack([first.kind, second.kind, trivial.kind]).float()
    assert torch.corrcoef(kinds).fill_diagonal_(0).abs().max() < 0.05
    assert (first.level == 0.9).all()
    assert (trivial.level * 30).round().unique().tolist() == list(range(31))
    for drawn in (first, trivial):
        assert drawn.sign.mean().abs() < 0.03
        assert drawn.sign.unique().tolist() == [-1, 1]


def test_randaugment_layers_are_applied_in_sequence() -> None:
    images, rng = random_images(100), SampleRng(0, 0, torch.arange(100))
    operations = policies.randaugment_space((12, 12)).operations()
    expected = policies.apply(images, operations, policies.draw_randaugment(rng, 0, 5.0))
    expected = policies.apply(expected, operations, policies.draw_randaugment(rng, 1, 5.0))
    assert torch.equal(policies.randaugment(images, rng, 2, 5.0), expected)


def test_three_augment_converts_to_grey_solarises_or_blurs() -> None:
    images = random_images(60)
    rng = SampleRng(0, 0, torch.arange(60))
    result = policies.three(images, rng)
    kind, level, _ = policies.draw_three(rng)
    for i, k in enumerate(kind.tolist()):
        image = images[i : i + 1]
        expected = [
            operations.luma(image.float()).round().to(torch.uint8).expand(-1, 3, -1, -1),
            operations.solarize(image, torch.tensor([128.0])),
            operations.blur(image, 0.1 + 1.9 * level[i : i + 1]),
        ][k]
        assert torch.equal(result[i : i + 1], expected)


@pytest.mark.parametrize("magnitude", [0.0, 15.0])
def test_extreme_magnitudes_work(magnitude: float) -> None:
    images = random_images(200)
    result = policies.randaugment(images, SampleRng(0, 0, torch.arange(200)), 1, magnitude)
    assert result.shape == images.shape
    if magnitude == 0:  # only operations without a strength have an effect
        kind = policies.draw_randaugment(SampleRng(0, 0, torch.arange(200)), 0, 0.0).kind
        assert torch.equal(result[kind < 12], images[kind < 12])


def test_empty_batch_works() -> None:
    rng = SampleRng(0, 0, torch.arange(0))
    assert policies.trivial(random_images(0), rng).shape == (0, 3, 12, 12)
