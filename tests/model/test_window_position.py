"""Resampling of tables of relative positions. tests/weights/formats/test_swin.py compares it with timm."""

import pytest
import torch

from vitreous.model.window_position import resample_offsets


@pytest.mark.parametrize("sides", [(13, 13), (7, 13), (5, 9), (21, 15), (1, 1)])
def test_offsets_keep_their_sign_and_centre(sides: tuple[int, int]) -> None:
    table = torch.randn(13, 13, 3)
    found = resample_offsets(table, sides)
    assert found.shape == (*sides, 3)
    assert torch.allclose(found[sides[0] // 2, sides[1] // 2], table[6, 6], atol=1e-6)
    flipped = resample_offsets(table.flip(0, 1), sides)
    assert torch.allclose(flipped, found.flip(0, 1), atol=1e-5)
    assert torch.allclose(resample_offsets(torch.ones(13, 13, 1), sides), torch.ones(()))


def test_smaller_windows_crop_the_table() -> None:
    offsets = torch.arange(-6.0, 7)
    table = torch.stack(torch.meshgrid(offsets, offsets, indexing="ij"), dim=-1)
    assert torch.allclose(resample_offsets(table, (9, 9)), table[2:-2, 2:-2], atol=0.1)


def test_larger_windows_reach_the_edges_of_the_table() -> None:
    table = torch.randn(7, 7, 2)
    found = resample_offsets(table, (23, 23))
    corners = ([0, 0, -1, -1], [0, -1, 0, -1])
    assert torch.allclose(found[corners], table[corners], atol=1e-3)
