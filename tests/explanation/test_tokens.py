import pytest
import torch

from planted import KINDS, of_kind
from vitreous.explanation.capture import walked
from vitreous.explanation.tokens import (
    cosines,
    foreground,
    logit_lens,
    pca_colours,
    principal,
    token_similarity,
    two_groups,
)
from vitreous.model.config import ViTConfig

IMAGES = torch.randn(2, 3, 24, 32)


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_layer_says_what_the_model_says(small: ViTConfig, kind: str) -> None:
    model = of_kind(small, kind)
    lens = logit_lens(model, IMAGES)
    assert lens.shape == (2, 2, 5)
    torch.testing.assert_close(lens[-1], model(IMAGES).detach())
    torch.testing.assert_close(logit_lens(model, IMAGES, [0])[0], lens[0])
    assert not torch.allclose(lens[0], lens[1])


@pytest.mark.parametrize("kind", ["class token", "average", "registers"])
def test_a_token_is_like_itself(small: ViTConfig, kind: str) -> None:
    model = of_kind(small, kind)
    alike = token_similarity(model, IMAGES, (1, 2))
    assert alike.shape == (2, 2, 3, 4)
    torch.testing.assert_close(alike[:, :, 1, 2], torch.ones(2, 2))
    assert alike.abs().max() <= 1 + 1e-5
    patches = model.features(IMAGES).patches
    expected = torch.nn.functional.cosine_similarity(patches[:, 6:7], patches, dim=-1).reshape(2, 3, 4)
    torch.testing.assert_close(alike[-1], expected.detach())


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


def test_two_groups_are_parted_between_them() -> None:
    values = torch.cat([torch.randn(100) * 0.1, 3 + torch.randn(20) * 0.1])
    assert 0.5 < two_groups(values) < 2.8


@pytest.mark.parametrize("kind", ["class token", "average", "registers"])
def test_all_tokens_are_compared_with_all(small: ViTConfig, kind: str) -> None:
    model = of_kind(small, kind)
    features = walked(model, IMAGES).features(0)
    alike = cosines(features)
    p = model.config.num_prefix_tokens
    assert alike.shape == (2, p + 12, p + 12)
    torch.testing.assert_close(alike, alike.mT)
    torch.testing.assert_close(alike[:, p + 6, p:].reshape(2, 3, 4), token_similarity(model, IMAGES, (1, 2), [0])[0])
    torch.testing.assert_close(cosines(features, slice(2, 5)), alike[:, 2:5])
