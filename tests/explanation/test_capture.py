import dataclasses

import pytest
import torch

from planted import KINDS, of_kind
from vitreous.explanation import capture
from vitreous.explanation.capture import (
    attention_from,
    attention_map,
    attention_of,
    each_layer,
    layout_of,
    readout,
    token_index,
    walked,
)
from vitreous.model.build import build_vit
from vitreous.model.config import ViTConfig
from vitreous.model.options import Conditional, RelativeBias, Rotary2d
from vitreous.model.tokens import Layout
from vitreous.model.vit import ViT

IMAGES = torch.randn(2, 3, 24, 32)


@pytest.mark.parametrize("kind", KINDS)
def test_the_explicit_path_is_the_fused_one(small: ViTConfig, kind: str) -> None:
    model = of_kind(small, kind)
    tokens, layout = model.embed(*model.patchify(IMAGES))
    for layer, (before, after) in enumerate(model.encoder.walk(tokens, layout, model.position)):
        weights, explicit = model.encoder.explicit_step(layer, before, layout, model.position)
        torch.testing.assert_close(explicit, after, atol=1e-5, rtol=0)
        torch.testing.assert_close(weights, model.attention(IMAGES, [layer])[0])
    features = model.features(IMAGES)
    pooled = model.pool.with_weights(features, model.pool.weights(features))
    torch.testing.assert_close(pooled, model.pool(features), atol=1e-5, rtol=0)
    torch.testing.assert_close(readout(model, features).sum(-1), torch.ones(2))


@pytest.mark.parametrize("position", [RelativeBias(), Rotary2d(), Conditional(blocks=2)], ids=str)
def test_the_explicit_path_knows_positions(small: ViTConfig, position: object) -> None:
    model = build_vit(dataclasses.replace(small, position=position, registers=1)).eval()
    tokens, layout = model.embed(*model.patchify(IMAGES))
    for layer, (before, after) in enumerate(model.encoder.walk(tokens, layout, model.position)):
        weights, explicit = model.encoder.explicit_step(layer, before, layout, model.position)
        torch.testing.assert_close(explicit, after, atol=1e-5, rtol=0)
        some = model.encoder.attention_weights(layer, before, layout, model.position, slice(3, 5))
        torch.testing.assert_close(some, weights[:, :, 3:5])


@pytest.mark.parametrize("kind", ["class token", "average"])
def test_rows_come_in_chunks_and_are_the_models(monkeypatch, small: ViTConfig, kind: str) -> None:  # type: ignore[no-untyped-def]
    model = of_kind(small, kind)
    expected = model.attention(IMAGES)
    monkeypatch.setattr(capture, "CHUNK", 2 * 4 * 13 * 5)  # five rows of two images and four heads
    for layer in each_layer(model, IMAGES):
        chunks = list(layer.chunks())
        assert max(weights.shape[2] for _, weights in chunks) == 5
        torch.testing.assert_close(torch.cat([weights for _, weights in chunks], dim=2), expected[layer.index])
    asked = attention_from(model, IMAGES, (1, 2), [-1])
    place = token_index(layout_of(model, IMAGES), (1, 2))
    torch.testing.assert_close(asked[0], expected[1][:, :, place])
    spoken = attention_from(model, IMAGES)  # by the class token, or by all patches
    for layer, weights in enumerate(expected):
        whole = weights[:, :, 0] if kind == "class token" else weights.mean(dim=2)
        torch.testing.assert_close(spoken[layer], whole)


def test_no_layer_is_computed_beyond_those_asked_for(monkeypatch, small: ViTConfig) -> None:  # type: ignore[no-untyped-def]
    model = of_kind(small, "class token")
    ran = []
    model.encoder.blocks[1].register_forward_hook(lambda *_: ran.append(1))
    assert [layer.index for layer in each_layer(model, IMAGES, [0])] == [0]
    assert not ran


def test_it_looks_at_the_model_at_rest(small: ViTConfig) -> None:
    model: ViT = build_vit(dataclasses.replace(small, patch_dropout=0.5)).train()
    first = attention_map(model, IMAGES)
    assert model.training
    assert first.shape == (2, 3, 4)
    assert torch.equal(first, attention_map(model, IMAGES))


@pytest.mark.parametrize(
    ("query", "message"),
    [((3, 0), "query is (3, 0), but must be a row from 0 to 2"), (13, "query is 13, but must be a token from 0 to 12")],
)
def test_a_query_that_is_not_there(query, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match="query is") as caught:
        token_index(Layout(1, (3, 4)), query)
    assert message in str(caught.value)


def test_a_layer_that_is_not_there(small: ViTConfig) -> None:
    with pytest.raises(ValueError, match="layer is 2, but must be from 0 to 1"):
        attention_from(of_kind(small, "class token"), IMAGES, layers=[2])


@pytest.mark.parametrize("kind", KINDS)
def test_a_pass_that_was_kept_holds_what_the_model_says(small: ViTConfig, kind: str) -> None:
    model = of_kind(small, kind)
    walk = walked(model, IMAGES)
    weights, found = model.attention(IMAGES), model.intermediate(IMAGES)
    for layer in (0, 1, -1):
        torch.testing.assert_close(walk.layer(layer).weights(), weights[layer].detach())
        for ours, theirs in zip(walk.features(layer)[:2], found[layer][:2], strict=True):
            torch.testing.assert_close(ours, theirs.detach())
    torch.testing.assert_close(
        attention_of(walk, 0), attention_from(model, IMAGES, layers=[0])[0].mean(1)[:, -12:].view(2, 3, 4)
    )
    assert not any(state.requires_grad for state in walk.states)
    with pytest.raises(ValueError, match="layer is 2, but must be from 0 to 1"):
        walk.layer(2)


@pytest.mark.parametrize("kind", ["class token", "average", "attention pooling"])
def test_a_pass_can_be_read_in_chunks(monkeypatch, small: ViTConfig, kind: str) -> None:  # type: ignore[no-untyped-def]
    model = of_kind(small, kind)
    whole = attention_of(walked(model, IMAGES), 0)
    monkeypatch.setattr(capture, "CHUNK", 500)
    torch.testing.assert_close(attention_of(walked(model, IMAGES), 0), whole)
