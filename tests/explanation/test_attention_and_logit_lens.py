import dataclasses

import pytest
import torch

from single_patch_models import KINDS, of_kind
from vitreous.explanation import attention_and_logit_lens as module
from vitreous.explanation.attention_and_logit_lens import capture, pooling_weights, token_index
from vitreous.model.build import build_vit
from vitreous.model.config import ViTConfig
from vitreous.model.options import Conditional, RelativeBias, Rotary2d
from vitreous.model.tokens import Layout
from vitreous.model.vit import ViT

IMAGES = torch.randn(2, 3, 24, 32)


@pytest.mark.parametrize("kind", KINDS)
def test_explicit_attention_equals_the_fused_path(small: ViTConfig, kind: str) -> None:
    model = of_kind(small, kind)
    tokens, layout = model.embed(*model.patchify(IMAGES))
    for layer, (before, after) in enumerate(model.encoder.walk(tokens, layout, model.position)):
        weights, explicit = model.encoder.explicit_step(layer, before, layout, model.position)
        torch.testing.assert_close(explicit, after, atol=1e-5, rtol=0)
        torch.testing.assert_close(weights, model.attention(IMAGES, [layer])[0])
    features = model.features(IMAGES)
    pooled = model.pool.with_weights(features, model.pool.weights(features))
    torch.testing.assert_close(pooled, model.pool(features), atol=1e-5, rtol=0)
    torch.testing.assert_close(pooling_weights(model, features).sum(-1), torch.ones(2))


@pytest.mark.parametrize("position", [RelativeBias(), Rotary2d(), Conditional(blocks=2)], ids=str)
def test_explicit_attention_includes_positions(small: ViTConfig, position: object) -> None:
    model = build_vit(dataclasses.replace(small, position=position, registers=1)).eval()
    tokens, layout = model.embed(*model.patchify(IMAGES))
    for layer, (before, after) in enumerate(model.encoder.walk(tokens, layout, model.position)):
        weights, explicit = model.encoder.explicit_step(layer, before, layout, model.position)
        torch.testing.assert_close(explicit, after, atol=1e-5, rtol=0)
        some = model.encoder.attention_weights(layer, before, layout, model.position, slice(3, 5))
        torch.testing.assert_close(some, weights[:, :, 3:5])


@pytest.mark.parametrize("kind", ["class token", "average"])
def test_chunks_of_rows_equal_the_models_attention(monkeypatch, small: ViTConfig, kind: str) -> None:  # type: ignore[no-untyped-def]
    model = of_kind(small, kind)
    expected = model.attention(IMAGES)
    monkeypatch.setattr(module, "CHUNK", 2 * 4 * 13 * 5)  # five rows of two images and four heads
    captured = capture(model, IMAGES)
    for layer in range(2):
        chunks = list(captured.chunks(layer))
        assert max(weights.shape[2] for _, weights in chunks) == 5
        torch.testing.assert_close(torch.cat([weights for _, weights in chunks], dim=2), expected[layer])
    place = token_index(captured.layout, (1, 2))
    torch.testing.assert_close(captured.attention_from(-1, (1, 2)), expected[1][:, :, place])
    for layer, weights in enumerate(expected):  # of the class token, or of all patches
        whole = weights[:, :, 0] if kind == "class token" else weights.mean(dim=2)
        torch.testing.assert_close(captured.attention_from(layer), whole)


def test_capturing_uses_evaluation_mode_and_restores_training(small: ViTConfig) -> None:
    model: ViT = build_vit(dataclasses.replace(small, patch_dropout=0.5)).train()
    first = capture(model, IMAGES).attention_map()
    assert model.training
    assert first.shape == (2, 3, 4)
    assert torch.equal(first, capture(model, IMAGES).attention_map())


@pytest.mark.parametrize(
    ("query", "message"),
    [((3, 0), "rows 0 to 2"), (13, "token index from 0 to 12")],
)
def test_a_query_outside_the_grid_is_an_error(query, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match="query") as caught:
        token_index(Layout(1, (3, 4)), query)
    assert message in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_captured_pass_equals_the_models_own(small: ViTConfig, kind: str) -> None:
    model = of_kind(small, kind)
    captured = capture(model, IMAGES)
    weights, found = model.attention(IMAGES), model.intermediate(IMAGES)
    for layer in (0, 1, -1):
        torch.testing.assert_close(captured.weights(layer), weights[layer].detach())
        for ours, theirs in zip(captured.features(layer)[:2], found[layer][:2], strict=True):
            torch.testing.assert_close(ours, theirs.detach())
    torch.testing.assert_close(captured.logits(), model(IMAGES).detach())
    rows = captured.attention_from(0).mean(1)
    torch.testing.assert_close(captured.attention_map(0), rows[:, -12:].view(2, 3, 4))
    assert not any(state.requires_grad for state in captured.states)
    with pytest.raises(ValueError, match=r"layer .*from 0 to 1"):
        captured.weights(2)


@pytest.mark.parametrize("kind", ["class token", "average", "attention pooling"])
def test_attention_maps_do_not_depend_on_the_chunk_size(monkeypatch, small: ViTConfig, kind: str) -> None:  # type: ignore[no-untyped-def]
    model = of_kind(small, kind)
    captured = capture(model, IMAGES)
    whole = captured.attention_map(0)
    monkeypatch.setattr(module, "CHUNK", 500)
    torch.testing.assert_close(captured.attention_map(0), whole)


@pytest.mark.parametrize("kind", KINDS)
def test_the_lens_of_the_last_layer_equals_the_models_logits(small: ViTConfig, kind: str) -> None:
    model = of_kind(small, kind)
    captured = capture(model, IMAGES)
    lens = captured.lens()
    assert lens.shape == (2, 2, 5)
    torch.testing.assert_close(lens[-1], model(IMAGES).detach())
    torch.testing.assert_close(captured.lens([0])[0], lens[0])
    assert not torch.allclose(lens[0], lens[1])
