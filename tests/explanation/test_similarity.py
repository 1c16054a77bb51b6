import dataclasses

import pytest
import torch

from single_patch_models import of_kind
from vitreous.explanation.attention_and_logit_lens import capture
from vitreous.explanation.pca_and_similarity import cosines, position_similarity, token_similarity
from vitreous.model.attention import AttentionTerms
from vitreous.model.build import build_vit
from vitreous.model.config import ViTConfig
from vitreous.model.options import Conditional, Learned1d, Learned2d, NoPosition, RelativeBias, Rotary2d, SinCos2d
from vitreous.model.position import PositionEmbedding
from vitreous.model.tokens import Layout

IMAGES = torch.randn(2, 3, 24, 32)


@pytest.mark.parametrize("kind", ["class token", "average", "registers"])
def test_similarity_is_the_cosine_of_the_features(small: ViTConfig, kind: str) -> None:
    model = of_kind(small, kind)
    similarity = token_similarity(capture(model, IMAGES), (1, 2))
    assert similarity.shape == (2, 2, 3, 4)
    torch.testing.assert_close(similarity[:, :, 1, 2], torch.ones(2, 2))
    assert similarity.abs().max() <= 1 + 1e-5
    patches = model.features(IMAGES).patches
    expected = torch.nn.functional.cosine_similarity(patches[:, 6:7], patches, dim=-1).reshape(2, 3, 4)
    torch.testing.assert_close(similarity[-1], expected.detach())


@pytest.mark.parametrize("kind", ["class token", "average", "registers"])
def test_all_tokens_are_compared_with_all(small: ViTConfig, kind: str) -> None:
    model = of_kind(small, kind)
    captured = capture(model, IMAGES)
    features = captured.features(0)
    similarity = cosines(features)
    p = model.config.num_prefix_tokens
    assert similarity.shape == (2, p + 12, p + 12)
    torch.testing.assert_close(similarity, similarity.mT)
    row = similarity[:, p + 6, p:].reshape(2, 3, 4)
    torch.testing.assert_close(row, token_similarity(captured, (1, 2), [0])[0])
    torch.testing.assert_close(cosines(features, slice(2, 5)), similarity[:, 2:5])


@pytest.mark.parametrize(
    "position", [Learned1d(), Learned2d(), SinCos2d(), Rotary2d(), RelativeBias()], ids=lambda kind: type(kind).__name__
)
@pytest.mark.parametrize("grid", [None, (2, 5)], ids=["its own", "another"])
def test_every_kind_with_positions_has_a_similarity(small: ViTConfig, position, grid) -> None:  # type: ignore[no-untyped-def]
    model = build_vit(dataclasses.replace(small, position=position, registers=2))
    found = position_similarity(model, grid)
    gh, gw = grid or (3, 4)
    assert found.values is not None
    assert found.values.shape == (gh, gw, gh, gw)
    pairs = found.values.reshape(gh * gw, gh * gw)
    if not isinstance(position, RelativeBias):  # the bias from here to there is not that from there to here
        torch.testing.assert_close(pairs, pairs.T)
        torch.testing.assert_close(pairs.diagonal(), torch.ones(gh * gw))
        assert pairs.max() <= 1 + 1e-5


def test_similarity_of_fixed_positions_falls_with_distance(small: ViTConfig) -> None:
    for position in (SinCos2d(), Rotary2d()):
        values = position_similarity(build_vit(dataclasses.replace(small, position=position))).values
        assert values is not None
        assert values[0, 0, 0, 0] > values[0, 0, 0, 1]
        torch.testing.assert_close(values[0, 0, 1, 0], values[1, 2, 2, 2])  # only the offset counts


def test_the_relative_bias_is_the_one_in_attention(small: ViTConfig) -> None:
    model = build_vit(dataclasses.replace(small, position=RelativeBias()))
    values = position_similarity(model).values
    assert values is not None
    table = model.position.table.mean(-1)  # [2 gh - 1, 2 gw - 1]
    torch.testing.assert_close(values[2, 1, 0, 3], table[2 - 0 + 2, 1 - 3 + 3].detach())


class Near(PositionEmbedding):
    """A kind that the package does not define: attention falls with the distance in the sequence."""

    def attend(self, layout: Layout, device: torch.device) -> AttentionTerms:
        place = torch.arange(layout.grid[0] * layout.grid[1], device=device)
        return AttentionTerms(bias=-(place[:, None] - place).abs().float().expand(2, -1, -1))


class Between(PositionEmbedding):
    def between(self, layer: int, tokens: torch.Tensor, layout: Layout) -> torch.Tensor:
        return tokens.roll(1, dims=1)


def test_a_new_kind_is_compared_by_its_attention_terms(small: ViTConfig) -> None:
    model = build_vit(dataclasses.replace(small, position=NoPosition()))
    model.position = Near()
    values = position_similarity(model).values
    assert values is not None
    assert values[1, 0, 0, 2] == -2  # positions 4 and 2
    model.position = Between()
    assert "Between has no position table" in position_similarity(model).text


@pytest.mark.parametrize(
    ("position", "text"), [(Conditional(), "convolution"), (NoPosition(), "no position embedding")]
)
def test_kinds_without_positions_give_a_reason(small: ViTConfig, position, text: str) -> None:  # type: ignore[no-untyped-def]
    found = position_similarity(build_vit(dataclasses.replace(small, position=position)))
    assert found.values is None
    assert text in found.text
