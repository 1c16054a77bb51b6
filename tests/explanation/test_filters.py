import pytest
import torch

from planted import of_kind
from vitreous.explanation.filters import as_pictures, filter_components
from vitreous.model.config import ViTConfig


def test_components_are_orthogonal_and_sorted_and_point_the_same_way_every_time(small: ViTConfig) -> None:
    model = of_kind(small, "class token")
    found = filter_components(model, count=6)
    assert found.patterns.shape == (6, 3, 8, 8)
    flat = found.patterns.flatten(1)
    torch.testing.assert_close(flat @ flat.T, torch.eye(6), atol=1e-5, rtol=0)
    assert (found.shares.diff() <= 0).all()
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
    assert found.shares[:2].sum().item() == pytest.approx(1, abs=1e-5)
    plane = found.patterns[:2].flatten(1)
    torch.testing.assert_close(plane.T @ (plane @ patterns[0]), patterns[0], atol=1e-4, rtol=0)


def test_a_hybrid_shows_its_first_convolution(small: ViTConfig) -> None:
    found = filter_components(of_kind(small, "hybrid"))
    assert found.patterns.shape == (28, 3, 7, 7)
    assert "stem" in found.words


def test_pictures_are_grey_where_a_pattern_is_zero() -> None:
    pictures = as_pictures(torch.tensor([0.0, 2.0, -1.0, 0.0]).view(1, 1, 2, 2))
    assert pictures.flatten().tolist() == [0.5, 1.0, 0.25, 0.5]
