"""Whitening the patches of training images in the patch embedding."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from train_runs import skip_report, tiny
from vitreous.common.checks import BadValue
from vitreous.common.distributed import World
from vitreous.data.loader import Batch
from vitreous.data.open import open_data
from vitreous.model.build import build
from vitreous.model.init import WHITENED, whiten_
from vitreous.model.inputs import normalise
from vitreous.model.presets import configure
from vitreous.model.protocol import UnsupportedModel
from vitreous.tasks.config import TrainConfig
from vitreous.training import setup
from vitreous.training.defaults import choose
from vitreous.training.run import train
from vitreous.training.setup import set_up, some_images
from vitreous.training.whitening import moments, whiten_patches


def correlated(count: int, pixels: int) -> Tensor:
    """Return rows with a full covariance matrix and a mean that is not 0."""
    mixing = torch.randn(pixels, pixels, dtype=torch.float64)
    return torch.randn(count, pixels, dtype=torch.float64) @ mixing + torch.randn(pixels, dtype=torch.float64)


@given(st.integers(1, 40), st.integers(1, 3), st.integers(1, 4), st.integers(0, 2**31))
@settings(max_examples=20, deadline=None)
def test_covariance_of_the_outputs(width: int, channels: int, patch: int, seed: int) -> None:
    """It is the identity for as many outputs as principal components, apart from the limit for small variances."""
    torch.manual_seed(seed)
    conv = nn.Conv2d(channels, width, patch, stride=patch).double()
    rows = correlated(500, pixels := channels * patch**2)
    whiten_(conv, *moments([rows]))
    outputs = rows @ conv.weight.flatten(1).T + conv.bias
    assert outputs.mean(0).abs().max() < 1e-8
    rank = min(width, pixels)
    largest = torch.linalg.eigvalsh(rows.T.cov(correction=0).reshape(pixels, pixels))[-rank:]
    expected = largest / (largest + WHITENED * largest.mean()) * width / rank
    found = torch.linalg.eigvalsh(outputs.T.cov(correction=0).reshape(width, width))
    torch.testing.assert_close(found[-rank:], expected.sort().values)
    assert found[:-rank].abs().max() < 1e-8 if width > rank else True
    assert (expected[len(expected) // 2 :] > 0.9 * width / rank).all()


def test_moments_of_parts_are_those_of_all_rows() -> None:
    rows = correlated(300, 7)
    mean, covariance = moments(rows.split(64))
    torch.testing.assert_close(mean, rows.mean(0))
    torch.testing.assert_close(covariance, rows.T.cov(correction=0))


@pytest.mark.parametrize(("preset", "width"), [("ViT-Ti/4", 16), ("ViT-Ti/4", 64), ("Swin-Ti/4", 16)])
def test_trained_model_starts_with_white_patches(preset: str, width: int, tmp_path: Path) -> None:
    """A patch has 48 pixels, so the covariance of 64 outputs has 48 equal eigenvalues, and the others are 0."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)
    pixels = (np.repeat(np.repeat(coarse, 4, 1), 4, 2) // 2 + rng.integers(0, 128, (40, 32, 32, 3))).astype(np.uint8)
    labels = np.arange(40) % 2
    np.savez(tmp_path / "smooth.npz", x_train=pixels, y_train=labels, x_test=pixels, y_test=labels)
    data = open_data(str(tmp_path / "smooth.npz"))
    overrides: dict[str, Any] = {"depth": 1, "width": width, "num_heads": 2, "mlp_width": 8}
    if preset.startswith("Swin"):
        overrides = {"width": 16, "depths": (1,), "stage_heads": (2,), "window": (4, 4)}
    fields = {"data": tmp_path / "smooth.npz", "model": preset, "overrides": overrides, "image_size": (32,)}
    config = tiny(tmp_path / "run", **fields, whiten=True, batch_size=8, dropout=None)
    model = set_up(choose(config, data, "cpu").config, data, World(0, 1, torch.device("cpu"))).state.model
    images = torch.cat([batch.images for batch in some_images(data.train, model.config)])
    patches, _ = model.patch_embedding(normalise(images / 255, model.config.preprocessing))
    outputs = patches.flatten(0, 1).double()
    assert outputs.mean(0).abs().max() < 1e-3
    variances = torch.linalg.eigvalsh(outputs.T.cov(correction=0))
    expected = torch.where(torch.arange(width) < width - 48, 0.0, max(width / 48, 1.0)).double()
    torch.testing.assert_close(variances, expected, atol=0.1, rtol=0)


@pytest.mark.parametrize(
    ("pixel", "label", "message"), [(0, 0, "constant"), (117, 0, "constant"), (0, -1, "can be read")]
)
def test_images_without_variance_are_rejected(pixel: int, label: int, message: str) -> None:
    model = build(configure("ViT-Ti/4", 2, image_size=(8,), overrides={"depth": 1}))
    where = torch.arange(4)
    images = torch.full((4, 3, 8, 8), pixel, dtype=torch.uint8)
    with pytest.raises(BadValue, match=f"--whiten .*{message}"):
        whiten_patches(model, [Batch(images, torch.full((4,), label), where, where, 0, [])])
    images[0, 0, 0, 0] = 255
    whiten_patches(model, [Batch(images, torch.zeros_like(where), where, where, 0, [])])
    assert model.patch_embedding.projection.weight.isfinite().all()


@pytest.mark.slow
def test_a_resumed_run_is_not_whitened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_report(monkeypatch)
    train(tiny(tmp_path / "run", whiten=True, steps=2))
    monkeypatch.setattr(setup, "whiten_patches", lambda *_: pytest.fail("the weights are in the checkpoint"))
    train(TrainConfig(out=tmp_path / "run", resume=True, device="cpu"))


def test_unsuitable_settings_are_rejected() -> None:
    with pytest.raises(BadValue, match="whiten is True, but must be False with --init"):
        TrainConfig(data="digits", init="dinov2-s", whiten=True).check()
    for preset in ("BiT-R50x1", "R50+ViT-B/16"):
        with torch.device("meta"):
            model = build(configure(preset))
        with pytest.raises(UnsupportedModel, match="does not project patches"):
            whiten_patches(model, [])
