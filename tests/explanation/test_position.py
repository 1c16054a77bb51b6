import dataclasses

import pytest
import torch

from vitreous.explanation.position import position_similarity
from vitreous.model.attention import AttentionTerms
from vitreous.model.build import build_vit
from vitreous.model.config import ViTConfig
from vitreous.model.options import Conditional, Learned1d, Learned2d, NoPosition, RelativeBias, Rotary2d, SinCos2d
from vitreous.model.position import PositionEmbedding
from vitreous.model.tokens import Layout


@pytest.mark.parametrize(
    "position", [Learned1d(), Learned2d(), SinCos2d(), Rotary2d(), RelativeBias()], ids=lambda kind: type(kind).__name__
)
@pytest.mark.parametrize("grid", [None, (2, 5)], ids=["its own", "another"])
def test_every_kind_that_has_one(small: ViTConfig, position, grid) -> None:  # type: ignore[no-untyped-def]
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


def test_fixed_kinds_fall_off_with_distance(small: ViTConfig) -> None:
    for position in (SinCos2d(), Rotary2d()):
        values = position_similarity(build_vit(dataclasses.replace(small, position=position))).values
        assert values is not None
        assert values[0, 0, 0, 0] > values[0, 0, 0, 1]
        torch.testing.assert_close(values[0, 0, 1, 0], values[1, 2, 2, 2])  # only the difference counts


def test_the_relative_bias_is_what_attention_gets(small: ViTConfig) -> None:
    model = build_vit(dataclasses.replace(small, position=RelativeBias()))
    values = position_similarity(model).values
    assert values is not None
    table = model.position.table.mean(-1)  # [2 gh - 1, 2 gw - 1]
    torch.testing.assert_close(values[2, 1, 0, 3], table[2 - 0 + 2, 1 - 3 + 3].detach())


class Near(PositionEmbedding):
    """A kind that the package does not know: every token takes more from those that come soon after it."""

    def attend(self, layout: Layout, device: torch.device) -> AttentionTerms:
        place = torch.arange(layout.grid[0] * layout.grid[1], device=device)
        return AttentionTerms(bias=-(place[:, None] - place).abs().float().expand(2, -1, -1))


class Between(PositionEmbedding):
    def between(self, layer: int, tokens: torch.Tensor, layout: Layout) -> torch.Tensor:
        return tokens.roll(1, dims=1)


def test_a_new_kind_is_seen_by_what_it_tells_attention(small: ViTConfig) -> None:
    model = build_vit(dataclasses.replace(small, position=NoPosition()))
    model.position = Near()
    values = position_similarity(model).values
    assert values is not None
    assert values[1, 0, 0, 2] == -2  # places 4 and 2
    model.position = Between()
    assert position_similarity(model).words == "Between tells places neither by a table nor to attention"


@pytest.mark.parametrize(("position", "words"), [(Conditional(), "convolution"), (NoPosition(), "bag of patches")])
def test_kinds_without_one_say_so(small: ViTConfig, position, words: str) -> None:  # type: ignore[no-untyped-def]
    found = position_similarity(build_vit(dataclasses.replace(small, position=position)))
    assert found.values is None
    assert words in found.words
