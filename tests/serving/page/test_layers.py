"""Attention, similarity, lens and distance: compared with the model and vitreous.explanation."""

from typing import Any

import numpy as np
import pytest
import torch

from inspect_requests import NAMES, POSITIONS, SMALL, array, as_given, get, sample_image, weights_of
from live_server import Live, in_thread
from vitreous.explanation.attention_and_logit_lens import attention_distance, capture
from vitreous.model.build import build_vit
from vitreous.model.vit import ViT
from vitreous.serving.models import serve_model


@pytest.mark.parametrize("id", [*NAMES, *POSITIONS, "bag", "bare", "grey"])
def test_attention_equals_the_models(live: Live, models: dict[str, Any], id: str) -> None:
    model: ViT = models[id]
    for layer, weights in enumerate(model.attention(as_given(model, sample_image()))):
        true = weights[0].detach().numpy()
        heads, t, _ = true.shape
        reply = get(live, id, f"attention/{layer}")
        assert (
            array(reply, skip=8 * heads * t).shape
            == (heads, t, t)
            == (4, model.config.num_tokens, model.config.num_tokens)
        )
        decoded = weights_of(reply, model.config.num_prefix_tokens)
        for keys in (slice(0, model.config.num_prefix_tokens), slice(model.config.num_prefix_tokens, t)):
            if true[..., keys].size:
                largest = true[..., keys].max(axis=-1, keepdims=True)
                assert (np.abs(decoded - true)[..., keys] <= largest * (0.5 / 255 + 1e-4) + 1e-30).all()
        np.testing.assert_allclose(decoded.sum(axis=-1), 1, atol=t * 0.5 / 255)


@pytest.mark.parametrize("id", ["class-token", "registers", "bare", "swin"])
def test_rows_of_a_query_equal_the_attention_of_the_model(live: Live, models: dict[str, Any], id: str) -> None:
    model = models[id]
    captured, prefix = capture(model, as_given(model, sample_image())), model.config.num_prefix_tokens
    width = model.config.map_grid[1]
    for query in (0, prefix + width + 1, "mean"):
        reply = get(live, id, f"rows/{query}")
        count, tokens = map(int, reply.headers["x-shape"].split(","))
        assert count == sum(shape.heads for shape in model.config.attention_shapes)
        scales = np.frombuffer(reply.body, "<f4", 2 * count).reshape(count, 2)
        fractions = np.frombuffer(reply.body, np.uint8, offset=8 * count).reshape(count, tokens)
        found = np.repeat(scales, [prefix, tokens - prefix], axis=1) * fractions / 255
        place = {"mean": "patches", 0: 0 if prefix else (0, 0)}.get(query, (1, 1))
        expected = []
        for layer in range(len(captured.layers)):
            weights = captured.attention_from(layer, place)[0]
            patches = captured.on_map(weights, layer).flatten(1)
            expected += [*torch.cat([weights[:, :prefix], patches], dim=1).numpy()]
        np.testing.assert_allclose(found, expected, atol=np.max(expected) / 500)
    last = weights_of(get(live, id, "attention/0"), prefix)[:, prefix:].mean(axis=1) if id != "swin" else None
    if last is not None:
        np.testing.assert_allclose(found[: len(last)], last, atol=1 / 100)
    wrong = get(live, id, f"rows/{prefix + 10**5}")
    assert (wrong.status, wrong.code) == (422, "bad_parameter")


def test_patches_are_distinguished_beside_a_dominant_class_token() -> None:
    model = build_vit(SMALL)
    attention = model.encoder.blocks[0].attention
    with torch.no_grad():
        attention.q.weight.zero_()
        attention.q.bias.fill_(1.0)  # every token has the same query
        attention.k.weight.zero_()
        attention.k.bias.zero_()
        attention.k.weight[:, 0] = 1.0
        model.prefix.class_token.zero_()
        model.prefix.class_token[..., 0] = 40.0
    with in_thread([serve_model(model, "greedy", "greedy", "cpu")]) as live:
        decoded = weights_of(get(live, "greedy", "attention/0"), 1)
    true = model.attention(as_given(model, sample_image()), [0])[0][0].detach().numpy()
    assert true[..., 0].min() > 0.98
    np.testing.assert_allclose(decoded[..., 1:], true[..., 1:], atol=true[..., 1:].max() / 255)
    assert len(np.unique(decoded[0, 1, 1:])) > 6  # of twelve


@pytest.mark.parametrize("id", [*NAMES, "bare"])
def test_similarity_is_the_cosine(live: Live, models: dict[str, Any], id: str) -> None:
    model: ViT = models[id]
    for layer, features in enumerate(model.intermediate(as_given(model, sample_image()))):
        tokens = torch.cat([features.prefix, features.patches], dim=1)[0].detach()
        true = torch.nn.functional.cosine_similarity(tokens[:, None], tokens[None], dim=-1).numpy()
        bytes = array(get(live, id, f"similarity/{layer}"))
        assert np.abs(bytes / 127.5 - 1 - true).max() < 0.51 / 127.5
        assert (np.diag(bytes) == 255).all()


@pytest.mark.parametrize("id", NAMES)
def test_the_lens_of_the_last_layer_equals_the_models_logits(live: Live, models: dict[str, Any], id: str) -> None:
    layers = get(live, id, "lens").json["layers"]
    assert [one["layer"] for one in layers] == [0, 1]
    shown = live.request("POST", f"/v1/images?model={id}", sample_image()).json
    assert layers[-1]["predictions"] == shown["predictions"][:3]


@pytest.mark.parametrize("id", NAMES)
def test_distance_equals_that_of_the_library(live: Live, models: dict[str, Any], id: str) -> None:
    found = get(live, id, "distance").json
    expected = attention_distance(capture(models[id], as_given(models[id], sample_image())))
    np.testing.assert_allclose(found["pixels"], expected, rtol=1e-4)
    assert found["largest"] == pytest.approx(np.hypot(16, 24), rel=1e-5)
