import pytest
import torch

from single_patch_models import of_kind
from vitreous.explanation.pca_and_similarity import (
    filter_components,
    filter_images,
    foreground,
    otsu_threshold,
    pca_colours,
    principal,
)
from vitreous.model.config import ViTConfig


def test_components_do_not_depend_on_order_rotation_or_offset() -> None:
    features = torch.randn(40, 6) * torch.tensor([5.0, 3, 2, 1, 0.5, 0.1]) + torch.rand(40, 6).exp()
    scores = principal(features, 3)
    order = torch.randperm(40)
    close = {"atol": 1e-3, "rtol": 0.0}
    torch.testing.assert_close(principal(features[order], 3), scores[order], **close)
    rotation, _ = torch.linalg.qr(torch.randn(6, 6))
    torch.testing.assert_close(principal(features @ rotation, 3), scores, **close)
    torch.testing.assert_close(principal(features + 7, 3), scores, **close)
    torch.testing.assert_close(principal(-features, 3), scores, **close)
    torch.testing.assert_close(principal(2 * features, 3), 2 * scores, **close)
    colours = pca_colours(features, (5, 8))
    torch.testing.assert_close(pca_colours(3 * features @ rotation - 1, (5, 8)), colours, **close)
    assert colours.min() == 0
    assert colours.max() == 1


def test_the_foreground_is_inside_and_not_at_the_border() -> None:
    inside = torch.zeros(6, 8, dtype=torch.bool)
    inside[2:5, 3:7] = True
    for sign in (1.0, -1.0):
        features = 0.1 * torch.randn(48, 5)
        features[:, 1] += sign * 4 * inside.flatten()
        first, found = foreground(features, (6, 8))
        assert torch.equal(found, inside)
        assert first[3, 4] > 0
        colours = pca_colours(features, (6, 8), found)
        assert (colours[~inside] == 0).all()
        assert colours[inside].max() == 1


def test_too_few_patches_for_three_components() -> None:
    assert principal(torch.randn(2, 8), 3).shape == (2, 3)
    assert pca_colours(torch.randn(1, 8), (1, 1)).isfinite().all()
    first, found = foreground(torch.zeros(4, 3), (2, 2))
    assert not first.any()
    assert not found.any()


def test_otsu_threshold_lies_between_two_groups() -> None:
    values = torch.cat([torch.randn(100) * 0.1, 3 + torch.randn(20) * 0.1])
    assert 0.5 < otsu_threshold(values) < 2.8


def test_filter_components_are_orthogonal_sorted_and_have_a_fixed_sign(small: ViTConfig) -> None:
    model = of_kind(small, "class token")
    found = filter_components(model, count=6)
    assert found.patterns.shape == (6, 3, 8, 8)
    flat = found.patterns.flatten(1)
    torch.testing.assert_close(flat @ flat.T, torch.eye(6), atol=1e-5, rtol=0)
    assert (found.variance.diff() <= 0).all()
    assert (flat.gather(1, flat.abs().argmax(1, keepdim=True)) > 0).all()
    with torch.no_grad():
        model.patches.projection.weight.neg_()
    torch.testing.assert_close(filter_components(model, count=6).patterns, found.patterns, atol=1e-4, rtol=0)


def test_two_planted_patterns_are_found(small: ViTConfig) -> None:
    model = of_kind(small, "class token")
    patterns = torch.nn.functional.normalize(torch.randn(2, 192), dim=1)
    patterns[1] -= (patterns[1] @ patterns[0]) * patterns[0]
    with torch.no_grad():
        mixture = torch.randn(32, 2) * torch.tensor([3.0, 1.0])
        model.patches.projection.weight.copy_((mixture @ patterns).view(32, 3, 8, 8))
    found = filter_components(model)
    assert found.variance[:2].sum().item() == pytest.approx(1, abs=1e-5)
    plane = found.patterns[:2].flatten(1)
    torch.testing.assert_close(plane.T @ (plane @ patterns[0]), patterns[0], atol=1e-4, rtol=0)


def test_a_hybrid_shows_its_first_convolution(small: ViTConfig) -> None:
    found = filter_components(of_kind(small, "hybrid"))
    assert found.patterns.shape == (28, 3, 7, 7)
    assert "stem" in found.source


def test_filter_images_are_grey_where_a_pattern_is_zero() -> None:
    images = filter_images(torch.tensor([0.0, 2.0, -1.0, 0.0]).view(1, 1, 2, 2))
    assert images[..., 0].flatten().tolist() == [128, 255, 64, 128]
    assert images.shape == (1, 2, 2, 3)
