import math

import pytest
import torch

from single_patch_models import KINDS, of_kind
from vitreous.explanation import attention_and_logit_lens as module
from vitreous.explanation.attention_and_logit_lens import attention_distance, capture, distances
from vitreous.model.config import ViTConfig


def uniform_mean(grid: tuple[int, int], unit: tuple[int, int]) -> float:
    """Mean distance of two patches, by brute force."""
    places = [(y * unit[0], x * unit[1]) for y in range(grid[0]) for x in range(grid[1])]
    return sum(math.dist(a, b) for a in places for b in places) / len(places) ** 2


@pytest.mark.parametrize("kind", KINDS)
def test_uniform_attention_has_the_mean_distance_of_two_patches(small: ViTConfig, kind: str) -> None:
    model = of_kind(small, kind)
    with torch.no_grad():
        for block in model.encoder.blocks:
            block.attention.q.weight.zero_()
    found = attention_distance(capture(model, torch.randn(2, 3, 24, 32)))
    torch.testing.assert_close(found, torch.full((2, 4), uniform_mean((3, 4), (8, 8))))


def test_distance_equals_brute_force(monkeypatch, small: ViTConfig) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(module, "CHUNK", 500)
    model, images = of_kind(small, "registers"), 3 * torch.randn(2, 3, 24, 32)
    apart = distances((3, 4), (8, 8))
    assert apart[0, -1].item() == pytest.approx(math.dist((0, 0), (16, 24)))
    for layer, weights in enumerate(model.attention(images)):
        total = torch.zeros(4)
        for b in range(2):
            for head in range(4):
                for i in range(12):
                    row = weights[b, head, 5 + i, 5:]
                    total[head] += (row / row.sum() * apart[i]).sum() / 24
        torch.testing.assert_close(attention_distance(capture(model, images), [layer])[0], total)
    assert (apart.diagonal() == 0).all()  # attention to oneself


def test_patches_need_not_be_square() -> None:
    assert distances((2, 3), (4, 10))[0].tolist() == pytest.approx(
        [0, 10, 20, 4, math.dist((0, 0), (4, 10)), math.dist((0, 0), (4, 20))]
    )
