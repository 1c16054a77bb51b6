import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitreous.model.attention import AttentionTerms
from vitreous.model.build import build_vit
from vitreous.model.config import ViTConfig
from vitreous.model.masked import (
    TARGETS,
    MaskedAutoencoder,
    MaskedPatchPrediction,
    Target,
    colour_of,
    three_bits,
)
from vitreous.model.patch import cut, uncut
from vitreous.model.vit import ViT


def encoder(small: ViTConfig) -> ViT:
    return build_vit(dataclasses.replace(small, num_classes=0)).eval()


@settings(max_examples=30, deadline=None)
@given(c=st.integers(1, 4), ph=st.integers(1, 5), pw=st.integers(1, 5), gh=st.integers(1, 4), gw=st.integers(1, 4))
def test_uncut_inverts_cut(c: int, ph: int, pw: int, gh: int, gw: int) -> None:
    images = torch.randn(2, c, gh * ph, gw * pw)
    patches = cut(images, (ph, pw))
    assert patches.shape == (2, gh * gw, c * ph * pw)
    assert torch.equal(patches[0, -1], images[0, :, -ph:, -pw:].flatten())
    assert torch.equal(uncut(patches, (ph, pw), (gh, gw)), images)


def test_three_bit_colours_round_trip() -> None:
    numbers = torch.arange(8**3)
    colours = colour_of(numbers, 3)
    assert torch.equal(three_bits(colours[..., None, None]).flatten(), numbers)
    assert three_bits(torch.ones(1, 3, 1, 1)).item() == 511
    assert three_bits(torch.zeros(1, 3, 1, 1)).item() == 0


def test_corruption_fractions_match_the_paper(small: ViTConfig) -> None:
    model = MaskedPatchPrediction(encoder(small))
    n = 12
    patches = torch.randn(500, n, small.width)
    corrupted, hidden = model.corrupt(patches, torch.rand(500, 3, n))
    assert (hidden.sum(1) == n // 2).all()
    assert torch.equal(corrupted[~hidden], patches[~hidden])
    is_mask = (corrupted == model.mask).all(-1)
    is_kept = (corrupted == patches).all(-1)
    of_hidden = hidden.sum()
    assert (is_mask & hidden).sum() / of_hidden == pytest.approx(0.8, abs=0.03)
    # A tenth is kept, and a random replacement is the same patch with probability 1/12.
    assert (is_kept & hidden).sum() / of_hidden == pytest.approx(0.1 + 0.1 / n, abs=0.03)
    others = corrupted[hidden & ~is_mask & ~is_kept]
    assert len(others) > 0
    all_patches = patches.reshape(-1, small.width)
    assert all((all_patches == other).all(-1).any() for other in others[:20])


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_mpp_learns_each_target(target: Target, small: ViTConfig) -> None:
    torch.manual_seed(0)
    model = MaskedPatchPrediction(encoder(small), target)
    unit = (torch.randint(0, 2, (2, 3, 3, 4)) * 0.8 + 0.1).repeat_interleave(8, 2).repeat_interleave(8, 3)
    images, draws = unit * 2 - 1, torch.rand(2, 3, 12)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    first = model(images, unit, draws).losses.mean().item()
    for _ in range(60):
        loss = model(images, unit, draws).losses.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    filled = model(images, unit, draws)
    assert filled.losses.mean() < first / 5
    truth = cut(unit, small.patch_size)
    assert (filled.patches - truth)[filled.hidden].abs().mean() < 0.1  # 3-bit colours are off by at most 1/16


def test_mpp_loss_counts_only_corrupted_patches(small: ViTConfig) -> None:
    model = MaskedPatchPrediction(encoder(small), "pixels")
    unit, draws = torch.rand(1, 3, 24, 32), torch.rand(1, 3, 12)
    filled = model(unit, unit, draws)
    errors = (filled.patches - cut(unit, small.patch_size)).square().mean(-1)
    torch.testing.assert_close(filled.losses, errors[filled.hidden].mean()[None])


def test_mae_output_is_independent_of_hidden_pixels(small: ViTConfig) -> None:
    """Assert that changing hidden pixels does not change the prediction."""
    model = MaskedAutoencoder(encoder(small), width=32, depth=1, num_heads=2).eval()
    draws = torch.rand(1, 12)
    images = torch.randn(1, 3, 24, 32)
    filled = model(images, draws)
    assert filled.hidden.sum() == 9
    patches = cut(images, small.patch_size)
    patches[filled.hidden] += torch.randn(9, patches.shape[-1])
    other = uncut(patches, small.patch_size, (3, 4))
    tokens = [_predicted(model, batch, draws) for batch in (images, other)]
    torch.testing.assert_close(tokens[0], tokens[1])


def _predicted(model: MaskedAutoencoder, images: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """Return the decoder output before it is scaled by the mean and std of the patches."""
    filled, truth = model(images, draws), cut(images, model.encoder.config.patch_size)
    return (filled.patches - truth.mean(-1, keepdim=True)) / (truth.var(-1, keepdim=True) + 1e-6).sqrt()


def test_mae_loss_uses_normalised_hidden_patches(small: ViTConfig) -> None:
    model = MaskedAutoencoder(encoder(small), width=32, depth=1, num_heads=2).eval()
    images, draws = torch.randn(2, 3, 24, 32), torch.rand(2, 12)
    filled, truth = model(images, draws), cut(images, small.patch_size)
    expected = (truth - truth.mean(-1, keepdim=True)) / truth.std(-1, keepdim=True)
    errors = (_predicted(model, images, draws) - expected).square().mean(-1)
    expected = torch.stack([errors[i][filled.hidden[i]].mean() for i in range(2)])
    torch.testing.assert_close(filled.losses, expected, atol=1e-4, rtol=1e-4)


def test_mae_counts_dropped_patches_as_hidden(small: ViTConfig) -> None:
    dropping = build_vit(dataclasses.replace(small, num_classes=0, patch_dropout=0.5))
    model = MaskedAutoencoder(dropping, rate=0.5, width=32, depth=1, num_heads=2)
    filled = model.train()(torch.randn(2, 3, 24, 32), torch.rand(2, 12))
    assert (filled.hidden.sum(1) == 12 - 3).all()
    filled.losses.sum().backward()


def test_mpp_rejects_patch_dropout(small: ViTConfig) -> None:
    with pytest.raises(ValueError, match=r"patch_dropout is 0\.5, but must be 0"):
        MaskedPatchPrediction(build_vit(dataclasses.replace(small, num_classes=0, patch_dropout=0.5)))


def test_mae_decoder_equals_explicit_computation(small: ViTConfig) -> None:
    """Test a grid that is not square."""
    model = MaskedAutoencoder(encoder(small), width=32, depth=2, num_heads=2).eval()
    with torch.no_grad():
        model.mask.normal_()
    images, keep_indices = torch.randn(1, 3, 24, 32), torch.tensor([[7, 2, 11]])
    patches, grid = model.encoder.patchify(images, keep_indices)
    features = model.encoder.encode(*model.encoder.embed(patches, grid, keep_indices))
    places = model.position.table_at((3, 4), images.device).flatten(0, 1)
    row = [*model.embed(features.prefix[0])] + [model.mask[0, 0] + places[place] for place in range(12)]
    for number, place in enumerate((7, 2, 11)):
        row[len(features.prefix[0]) + place] = model.embed(features.patches[0, number]) + places[place]
    tokens = torch.stack(row)[None]
    for block in model.blocks:
        tokens = block(tokens, AttentionTerms())
    expected = model.paint(model.norm(tokens))[:, -12:]
    torch.testing.assert_close(model.decode(features, keep_indices), expected)


def test_mae_learns(small: ViTConfig) -> None:
    torch.manual_seed(0)
    model = MaskedAutoencoder(encoder(small), width=32, depth=1, num_heads=2)
    images, draws = torch.randn(2, 3, 24, 32), torch.rand(2, 12)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    first = model(images, draws).losses.mean().item()
    for _ in range(80):
        loss = model(images, draws).losses.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert model(images, draws).losses.mean() < first / 4


def test_hybrids_are_rejected() -> None:
    from vitreous import create

    hybrid = create("R26+ViT-S/32", num_classes=0, overrides={"depth": 1})
    for kind in (MaskedPatchPrediction, MaskedAutoencoder):
        with pytest.raises(ValueError, match="stem is"):
            kind(hybrid)


def test_partial_patches_are_rejected() -> None:
    from vitreous import create

    for changes in ({"truncate": True}, {"pad": True}):
        partial = create("ViT-Ti/16", num_classes=0, overrides={"depth": 1, "image_size": (40, 32)} | changes)
        for kind in (MaskedPatchPrediction, MaskedAutoencoder):
            with pytest.raises(ValueError, match=r"image_size is \(40, 32\), but must be a multiple of the patch size"):
                kind(partial)
