import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from optional_imports import import_timm
from vitreous.model.position import RESAMPLINGS, resample, resample_line

TABLE = torch.randn(7, 7, 12, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("grid", [(14, 14), (5, 9), (7, 10), (1, 1)])
def test_google_resampling_equals_scipy_zoom(grid: tuple[int, int]) -> None:
    zoom = pytest.importorskip("scipy.ndimage", reason="scipy is not installed: `make setup` installs it").zoom
    expected = zoom(TABLE.numpy(), (grid[0] / 7, grid[1] / 7, 1), order=1)
    np.testing.assert_allclose(resample(TABLE, grid, "google").numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("grid", [(14, 14), (5, 9), (7, 10)])
def test_timm_resampling_equals_timm(grid: tuple[int, int]) -> None:
    resample_abs_pos_embed = import_timm().layers.resample_abs_pos_embed
    expected = resample_abs_pos_embed(TABLE.reshape(1, 49, 12), list(grid), num_prefix_tokens=0)
    torch.testing.assert_close(resample(TABLE, grid, "timm").reshape(1, -1, 12), expected)


def test_torchvision_resampling_equals_torchvision() -> None:
    import_timm()
    from torchvision.models.vision_transformer import interpolate_embeddings

    state = {"encoder.pos_embedding": torch.cat([torch.zeros(1, 1, 12), TABLE.reshape(1, 49, 12)], 1)}
    expected = interpolate_embeddings(image_size=10 * 4, patch_size=4, model_state=state)["encoder.pos_embedding"][
        :, 1:
    ]
    torch.testing.assert_close(resample(TABLE, (10, 10), "torchvision").reshape(1, -1, 12), expected)


def test_huggingface_resampling_equals_transformers() -> None:
    import_timm()  # transformers imports torchvision if it is installed
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: `make setup` installs it")
    config = transformers.ViTConfig(
        hidden_size=12, num_attention_heads=2, intermediate_size=8, num_hidden_layers=1, image_size=28, patch_size=4
    )
    peer = transformers.ViTModel(config).embeddings
    with torch.no_grad():
        peer.position_embeddings[:, 1:] = TABLE.reshape(1, 49, 12)
        expected = peer.interpolate_pos_encoding(torch.zeros(1, 1 + 5 * 9, 12), 5 * 4, 9 * 4)[:, 1:]
    torch.testing.assert_close(resample(TABLE, (5, 9), "huggingface").reshape(1, -1, 12), expected)


def test_dinov2_resampling_offsets_the_scale() -> None:
    """Compare with cubic convolution (a = -0.75) at (i + 0.5) / scale - 0.5, scale = (20 + 0.1) / 7."""
    line = TABLE[:, 0, 0].double().tolist()
    expected = []
    for i in range(20):
        place = (i + 0.5) * 7 / 20.1 - 0.5
        taps = range(math.floor(place) - 1, math.floor(place) + 3)
        expected.append(sum(cubic(place - tap) * line[min(max(tap, 0), 6)] for tap in taps))
    np.testing.assert_allclose(
        resample(TABLE[:, :1].expand(-1, 7, -1), (20, 7), "dinov2")[:, 3, 0], expected, atol=1e-5
    )


def cubic(x: float, a: float = -0.75) -> float:
    x = abs(x)
    if x <= 1:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    return a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a if x < 2 else 0.0


def test_dinov2_resampling_with_registers_is_antialiased() -> None:
    image = TABLE.permute(2, 0, 1)[None]
    expected = F.interpolate(image, size=(4, 5), mode="bicubic", antialias=True)[0].permute(1, 2, 0)
    torch.testing.assert_close(resample(TABLE, (4, 5), "dinov2-registers"), expected)


@pytest.mark.parametrize("interpolation", RESAMPLINGS)
def test_resampling_preserves_constants_dtype_and_equal_grids(interpolation: str) -> None:
    assert resample(TABLE, (7, 7), interpolation) is TABLE
    half = resample(torch.full((7, 7, 3), 0.5, dtype=torch.bfloat16), (9, 5), interpolation)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half, torch.full((9, 5, 3), 0.5, dtype=torch.bfloat16))


def test_resampling_a_line_equals_a_one_column_grid() -> None:
    line = torch.arange(5.0)[:, None]
    torch.testing.assert_close(resample_line(line, 9, "google")[:, 0], torch.arange(9.0) / 2)
