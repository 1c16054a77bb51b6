import dataclasses

import pytest
import torch

from single_patch_models import KINDS, PLACE, SHOWN, of_kind, peak, planted, sample_image
from vitreous.explanation.attention_and_logit_lens import capture
from vitreous.explanation.rollout_relevance_occlusion import relevance
from vitreous.model.build import build_vit
from vitreous.model.config import ViTConfig


@pytest.mark.parametrize("kind", KINDS)
def test_the_peak_is_where_the_signal_was_planted(small: ViTConfig, kind: str) -> None:
    model = planted(small, kind)
    found = relevance(capture(model, sample_image()), SHOWN)
    assert found.shape == (1, 3, 4)
    assert peak(found[0]) == PLACE
    others = found[0].clone()
    others[PLACE] = 0
    assert found[0][PLACE] > 5 * others.max()


def test_relevance_equals_the_papers_equations(small: ViTConfig) -> None:
    """Relevance with all gradients from one backward pass and products of whole matrices."""
    model = of_kind(small, "class token")
    images = torch.randn(2, 3, 24, 32)
    tokens, layout = model.embed(*model.patchify(images))
    all_weights = []
    for layer in range(2):
        weights, tokens = model.encoder.explicit_step(layer, tokens, layout, model.position)
        weights.retain_grad()
        all_weights.append(weights)
    normed = model.norm(tokens)
    torch.testing.assert_close(model.head(normed[:, 0]), model(images))
    (model.head(normed[:, 0])[0, 3] + model.head(normed[:, 0])[1, 4]).backward()
    expected = torch.eye(13).expand(2, 13, 13)
    for weights in all_weights:
        assert weights.grad is not None
        expected = expected + (weights.grad * weights).clamp(min=0).mean(1) @ expected
    torch.testing.assert_close(relevance(capture(model, images), [3, 4]), expected[:, 0, 1:].reshape(2, 3, 4).detach())


@pytest.mark.parametrize("kind", KINDS)
def test_each_class_and_each_image_has_its_own_map(small: ViTConfig, kind: str) -> None:
    model = of_kind(small, kind)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    images = torch.randn(2, 3, 24, 32)
    top = model(images).argmax(1).tolist()
    captured = capture(model, images)
    both = relevance(captured)
    torch.testing.assert_close(both, relevance(captured, top))
    torch.testing.assert_close(both[1:], relevance(capture(model, images[1:])))
    assert not torch.allclose(relevance(captured, 0), relevance(captured, 1))


def test_an_unknown_class_is_an_error(small: ViTConfig) -> None:
    model = of_kind(small, "class token")
    with pytest.raises(ValueError, match=r"target .*from 0 to 4"):
        relevance(capture(model, sample_image()), 5)
    headless = build_vit(dataclasses.replace(small, num_classes=0))
    with pytest.raises(ValueError, match="num_classes"):
        relevance(capture(headless, sample_image()), 0)


def test_one_captured_pass_serves_many_classes(small: ViTConfig) -> None:
    model = of_kind(small, "registers")
    captured = capture(model, sample_image())
    steps: list[int] = []
    for target in range(5):
        found = relevance(captured, target, lambda: steps.append(1))
        torch.testing.assert_close(found, relevance(capture(model, sample_image()), target))
    assert len(steps) == 5 * 2  # between layers
