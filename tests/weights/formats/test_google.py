"""Google's `.npz`, read: as timm's models compute with the same weights, and one block by flax's definition."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import vitreous
from flax_arrays import dense, saved
from google_models import CASES, HYBRIDS, NATIVE, OTHER, POSITION, arrays_of, config_of, timm_model
from parity import check_close, noisy
from vitreous.model.options import TanhHead
from vitreous.weights.io.safetensors_file import BadCheckpoint


@pytest.mark.parametrize("case", CASES)
def test_reads(tmp_path: Path, case: str) -> None:
    theirs = timm_model(case)
    ours = vitreous.load(saved(tmp_path / "theirs.npz", arrays_of(theirs)))
    assert ours.config == config_of(case)
    check_close(ours, theirs, ours.config.image_size, channels=ours.config.channels)


@pytest.mark.parametrize("case", HYBRIDS)
def test_reads_hybrids(tmp_path: Path, case: str) -> None:
    """timm's ResNets divide by deviations with other small numbers, so ours is told to do the same."""
    theirs = timm_model(case)
    path = saved(tmp_path / "theirs.npz", arrays_of(theirs))
    stem = HYBRIDS[case]["stem"]
    assert vitreous.load(path).config.stem == dataclasses.replace(stem, numerics="google")
    ours = vitreous.load(path, overrides={"stem": stem})
    assert ours.config == config_of(case)
    check_close(ours, theirs, ours.config.image_size)


def test_resamples_positions_as_vit_jax_does(tmp_path: Path) -> None:
    """By scipy's zoom, here to a grid that is not square; timm then computes with the result."""
    zoom = pytest.importorskip("scipy.ndimage", reason="scipy is not installed: `make setup` installs it").zoom
    arrays = arrays_of(timm_model("class token"))
    ours = vitreous.load(saved(tmp_path / "theirs.npz", arrays), image_size=OTHER)
    first, table = arrays[POSITION][:, :1], arrays[POSITION][0, 1:].reshape(4, 4, -1)
    places = zoom(table, (5 / 4, 3 / 4, 1), order=1).reshape(1, 15, -1)
    theirs = timm_model("class token", img_size=OTHER)
    arrays[POSITION] = np.concatenate([first, places], axis=1)
    theirs.load_pretrained(str(saved(tmp_path / "resampled.npz", arrays)))
    check_close(ours, theirs, OTHER)
    assert ours.config.image_size == OTHER


def test_a_grid_that_is_not_square(tmp_path: Path) -> None:
    theirs = timm_model("class token", img_size=OTHER)
    path = saved(tmp_path / "theirs.npz", arrays_of(theirs))
    with pytest.raises(BadCheckpoint, match=r"15 positions.*give the size it was made for, a multiple of 8 x 8"):
        vitreous.load(path)
    check_close(vitreous.load(path, overrides={"image_size": OTHER}), theirs, OTHER)


def test_pre_logits(tmp_path: Path) -> None:
    """timm has none any more, so its features go through the two layers here."""
    theirs = timm_model("no head")
    hidden, head = noisy(nn.Linear(48, 40)), noisy(nn.Linear(40, 5))
    extra = dense(hidden, "pre_logits") | dense(head, "head")
    path = saved(tmp_path / "theirs.npz", arrays_of(theirs) | extra)
    ours = vitreous.load(path)
    assert (ours.config.head, ours.config.num_classes) == (TanhHead(40), 5)
    check_close(ours, lambda images: head(hidden(theirs(images)).tanh()), NATIVE)


def test_one_block_by_flaxs_definition(tmp_path: Path) -> None:
    """A file and an encoder of one layer in plain numpy, from what flax's layers are documented to compute."""
    rng = np.random.default_rng(0)
    d, heads, head_dim, hidden = 24, 3, 8, 32
    block = "Transformer/encoderblock_0"
    attention, mlp = f"{block}/MultiHeadDotProductAttention_1", f"{block}/MlpBlock_3"
    shapes: dict[str, tuple[int, ...]] = {
        "embedding/kernel": (2, 2, 3, d), "embedding/bias": (d,), "cls": (1, 1, d), POSITION: (1, 5, d),
        f"{attention}/out/kernel": (heads, head_dim, d), f"{attention}/out/bias": (d,),
        f"{mlp}/Dense_0/kernel": (d, hidden), f"{mlp}/Dense_0/bias": (hidden,),
        f"{mlp}/Dense_1/kernel": (hidden, d), f"{mlp}/Dense_1/bias": (d,),
        "head/kernel": (d, 5), "head/bias": (5,),
    }  # fmt: skip
    for name in (f"{block}/LayerNorm_0", f"{block}/LayerNorm_2", "Transformer/encoder_norm"):
        shapes |= {f"{name}/scale": (d,), f"{name}/bias": (d,)}
    for part in ("query", "key", "value"):
        shapes |= {f"{attention}/{part}/kernel": (d, heads, head_dim), f"{attention}/{part}/bias": (heads, head_dim)}
    w = {name: rng.normal(size=shape) * 0.3 for name, shape in shapes.items()}

    def layer_norm(x: np.ndarray, name: str) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt(x.var(-1, keepdims=True) + 1e-6) * w[f"{name}/scale"] + w[f"{name}/bias"]

    def gelu(x: np.ndarray) -> np.ndarray:
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

    image = rng.normal(size=(4, 4, 3))
    patches = image.reshape(2, 2, 2, 2, 3).swapaxes(1, 2).reshape(4, 12)
    tokens = patches @ w["embedding/kernel"].reshape(12, d) + w["embedding/bias"]
    x = np.concatenate([w["cls"][0], tokens]) + w[POSITION][0]
    y = layer_norm(x, f"{block}/LayerNorm_0")
    q, k, v = (np.einsum("td,dhk->thk", y, w[f"{attention}/{part}/kernel"]) + w[f"{attention}/{part}/bias"]
               for part in ("query", "key", "value"))  # fmt: skip
    weights = np.exp(np.einsum("qhk,shk->hqs", q, k) / np.sqrt(head_dim))
    weights /= weights.sum(-1, keepdims=True)
    mixed = np.einsum("hqs,shk->qhk", weights, v)
    x = x + np.einsum("thk,hkd->td", mixed, w[f"{attention}/out/kernel"]) + w[f"{attention}/out/bias"]
    y = layer_norm(x, f"{block}/LayerNorm_2")
    y = gelu(y @ w[f"{mlp}/Dense_0/kernel"] + w[f"{mlp}/Dense_0/bias"])
    x = x + y @ w[f"{mlp}/Dense_1/kernel"] + w[f"{mlp}/Dense_1/bias"]
    expected = layer_norm(x, "Transformer/encoder_norm")[0] @ w["head/kernel"] + w["head/bias"]

    ours = vitreous.load(saved(tmp_path / "theirs.npz", w))
    with torch.no_grad():
        found = ours(torch.from_numpy(image).permute(2, 0, 1)[None])
    assert found.dtype == torch.float64
    assert np.abs(found[0].numpy() - expected).max() < 1e-12
