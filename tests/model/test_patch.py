import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitreous.model.patch import PatchEmbedding, cut

small = st.integers(1, 5)


@settings(max_examples=40, deadline=None)
@given(c=small, ph=small, pw=small, gh=small, gw=small, b=st.integers(1, 3), d=st.integers(1, 9))
def test_conv_equals_linear(c: int, ph: int, pw: int, gh: int, gw: int, b: int, d: int) -> None:
    conv = PatchEmbedding(c, d, (ph, pw), method="conv").double()
    linear = PatchEmbedding(c, d, (ph, pw), method="linear").double()
    linear.load_state_dict(conv.state_dict())  # the same weight
    images = torch.randn(b, c, gh * ph, gw * pw, dtype=torch.float64)
    (by_conv, grid), (by_linear, same_grid) = conv(images), linear(images)
    assert grid == same_grid == (gh, gw)
    torch.testing.assert_close(by_conv, by_linear, rtol=1e-12, atol=1e-12)


def test_patches_are_flattened_in_row_major_order() -> None:
    embedding = PatchEmbedding(2, 8, (4, 3))
    images = torch.randn(1, 2, 8, 9)
    patches = cut(images, embedding.patch_size)
    assert torch.equal(patches[0, 4], images[0, :, 4:8, 3:6].flatten())  # row-major: row 1, column 1 of a 2 x 3 grid


@pytest.mark.parametrize("method", ["conv", "linear"])
def test_padding_is_zeros_on_the_right_and_bottom(method: str) -> None:
    padded = PatchEmbedding(3, 8, (4, 4), method=method, pad=True)
    images = torch.randn(2, 3, 9, 14)
    whole = torch.zeros(2, 3, 12, 16)
    whole[:, :, :9, :14] = images
    (patches, grid), (expected, _) = padded(images), padded(whole)
    assert grid == (3, 4)
    torch.testing.assert_close(patches, expected)


@pytest.mark.parametrize("method", ["conv", "linear"])
def test_truncation_ignores_pixels_that_do_not_fill_a_patch(method: str) -> None:
    truncated = PatchEmbedding(3, 8, (4, 4), method=method, truncate=True, bias=False)
    images = torch.randn(2, 3, 9, 14)
    (patches, grid), (expected, _) = truncated(images), truncated(images[:, :, :8, :12])
    assert grid == (2, 3)
    torch.testing.assert_close(patches, expected)
    assert not truncated(torch.zeros_like(images))[0].any()  # no bias


@pytest.mark.parametrize(("method", "norm_eps"), [("conv", None), ("linear", None), ("linear", 1e-5)])
def test_subset_equals_selected_patches(method: str, norm_eps: float | None) -> None:
    embedding = PatchEmbedding(3, 8, (4, 4), method=method, pad=True, norm_eps=norm_eps)
    images, keep_indices = torch.randn(2, 3, 9, 14), torch.tensor([[11, 0], [5, 6]])
    (some, grid), (whole, same_grid) = embedding(images, keep_indices), embedding(images)
    assert grid == same_grid == (3, 4)
    torch.testing.assert_close(some, torch.stack([whole[0, keep_indices[0]], whole[1, keep_indices[1]]]))


def test_error_for_indivisible_size_names_the_nearest_sizes() -> None:
    with pytest.raises(ValueError, match=r"30 x 33 .*16 x 16 patches.*16 x 32 or 32 x 48"):
        PatchEmbedding(3, 8, (16, 16))(torch.zeros(1, 3, 30, 33))
