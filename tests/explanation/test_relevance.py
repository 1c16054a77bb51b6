import dataclasses

import pytest
import torch

from planted import KINDS, PLACE, SHOWN, of_kind, peak, picture, planted
from vitreous.explanation.capture import walked
from vitreous.explanation.relevance import relevance, relevance_of
from vitreous.model.build import build_vit
from vitreous.model.config import ViTConfig


@pytest.mark.parametrize("kind", KINDS)
def test_the_peak_is_where_the_signal_was_planted(small: ViTConfig, kind: str) -> None:
    model = planted(small, kind)
    found = relevance(model, picture(), SHOWN)
    assert found.shape == (1, 3, 4)
    assert peak(found[0]) == PLACE
    others = found[0].clone()
    others[PLACE] = 0
    assert found[0][PLACE] > 5 * others.max()


def test_it_is_what_the_paper_says(small: ViTConfig) -> None:
    """With all gradients from one backward pass, and the product of whole matrices."""
    model = of_kind(small, "class token")
    images = torch.randn(2, 3, 24, 32)
    tokens, layout = model.embed(*model.patchify(images))
    held = []
    for layer in range(2):
        weights, tokens = model.encoder.explicit_step(layer, tokens, layout, model.position)
        weights.retain_grad()
        held.append(weights)
    normed = model.norm(tokens)
    torch.testing.assert_close(model.head(normed[:, 0]), model(images))
    (model.head(normed[:, 0])[0, 3] + model.head(normed[:, 0])[1, 4]).backward()
    expected = torch.eye(13).expand(2, 13, 13)
    for weights in held:
        assert weights.grad is not None
        expected = expected + (weights.grad * weights).clamp(min=0).mean(1) @ expected
    torch.testing.assert_close(relevance(model, images, [3, 4]), expected[:, 0, 1:].reshape(2, 3, 4).detach())


@pytest.mark.parametrize("kind", KINDS)
def test_classes_have_maps_of_their_own_and_images_do_not_mix(small: ViTConfig, kind: str) -> None:
    model = of_kind(small, kind)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    images = torch.randn(2, 3, 24, 32)
    likeliest = model(images).argmax(1).tolist()
    both = relevance(model, images)
    torch.testing.assert_close(both, relevance(model, images, likeliest))
    torch.testing.assert_close(both[1:], relevance(model, images[1:]))
    assert not torch.allclose(relevance(model, images, 0), relevance(model, images, 1))


def test_what_cannot_be(small: ViTConfig) -> None:
    model = of_kind(small, "class token")
    with pytest.raises(ValueError, match="target is 5, but must be a whole number from 0 to 4"):
        relevance(model, picture(), 5)
    headless = build_vit(dataclasses.replace(small, num_classes=0))
    with pytest.raises(ValueError, match="num_classes is 0"):
        relevance(headless, picture(), 0)


def test_a_pass_that_was_kept_serves_many_classes(small: ViTConfig) -> None:
    model = of_kind(small, "registers")
    walk = walked(model, picture())
    asked = []
    for target in range(5):
        found = relevance_of(walk, target, lambda: asked.append(1))
        torch.testing.assert_close(found, relevance(model, picture(), target))
    assert len(asked) == 5 * 2  # between layers
