"""Google's `.npz`, written: timm's own loader reads them, and so do we; and what they cannot hold."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitreous
from flax_arrays import unknown
from google_models import CASES, HYBRIDS, PLAIN, arrays_of, config_of, timm_model
from parity import check_close, check_identical, noisy
from vitreous.model.build import build
from vitreous.model.options import (
    AttentionPool,
    ClassToken,
    Gelu,
    GlobalAverage,
    Learned1d,
    MlpHead,
    NoPosition,
    ResNetStem,
    SwiGlu,
    TanhHead,
)
from vitreous.model.vit import ViT
from vitreous.weights.convert import CannotHold


@pytest.mark.parametrize("case", [*CASES, *HYBRIDS, "R50"])
def test_timm_reads_ours(tmp_path: Path, case: str) -> None:
    config = config_of(case)
    ours = noisy(build(config))
    vitreous.save(ours, tmp_path / "ours.npz", format="google", lossy=config.stem is not None)
    theirs = unknown(timm_model(case))
    theirs.load_pretrained(str(tmp_path / "ours.npz"))
    check_close(ours, theirs, config.image_size, channels=config.channels)


@pytest.mark.parametrize("case", [*CASES, *HYBRIDS])
def test_names_and_shapes_are_googles(tmp_path: Path, case: str) -> None:
    """No array is missing, and none is there that the hand-made file does not have."""
    expected = {name: array.shape for name, array in arrays_of(timm_model(case)).items()}
    vitreous.save(build(config_of(case)), tmp_path / "ours.npz", format="google", lossy=case in HYBRIDS)
    with np.load(tmp_path / "ours.npz") as file:
        assert {name: file[name].shape for name in file.files} == expected


ROUND_TRIPS: dict[str, dict[str, Any]] = {
    **{case: changes for case, (changes, _) in CASES.items()},
    "hybrid": {"stem": ResNetStem((1, 2), 32), "patch_size": (1, 1)},
    "root of a hybrid": {"stem": ResNetStem((), 32), "patch_size": (2, 2)},
    "pre-logits": {"head": TanhHead(40)},
    "pre-logits, no head": {"head": TanhHead(40), "num_classes": 0},
}


@pytest.mark.parametrize("case", ROUND_TRIPS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_comes_back_identical(tmp_path: Path, case: str, dtype: torch.dtype) -> None:
    model = noisy(build(dataclasses.replace(PLAIN, **ROUND_TRIPS[case]))).to(dtype)
    assert isinstance(model, ViT)
    vitreous.save(model, tmp_path / "model.npz", format="google")
    check_identical(vitreous.load(tmp_path / "model.npz"), model)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "position": ({"position": NoPosition()}, "position NoPosition"),
    "entry": ({"position": Learned1d(prefix_entries=False)}, "position without an entry for the class token"),
    "pool": ({"class_token": False, "pool": AttentionPool()}, r"pool AttentionPool\(\)"),
    "norm after the mean": ({"class_token": False, "pool": GlobalAverage("after")}, r"pool GlobalAverage.*after"),
    "average beside a token": ({"pool": GlobalAverage("before")}, r"pool GlobalAverage.*with a class token"),
    "registers": ({"registers": 2}, "registers"),
    "distillation": ({"distillation_token": True, "pool": ClassToken()}, "distillation_token"),
    "LayerScale": ({"layer_scale": 0.1}, "layer_scale"),
    "SwiGLU": ({"mlp": SwiGlu()}, "mlp SwiGlu"),
    "head": ({"head": MlpHead(8)}, "head MlpHead"),
    "qk_norm": ({"qk_norm": True}, "qk_norm"),
    "qkv_bias": ({"qkv_bias": False}, "qkv_bias=False"),
    "head_dim": ({"head_dim": 16}, "head_dim 16"),
    "qk_scale": ({"qk_scale": 0.5}, "qk_scale 0.5"),
    "pad": ({"pad": True}, "pad"),
    "patch_norm": ({"patch_norm": True, "patch_method": "linear"}, "patch_norm"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_says_what_it_cannot_hold(tmp_path: Path, case: str) -> None:
    changes, part = REFUSED[case]
    with pytest.raises(CannotHold, match=f"Google's vision_transformer cannot hold this model: {part}"):
        vitreous.save(build(dataclasses.replace(PLAIN, **changes)), tmp_path / "m.npz", format="google", lossy=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"norm_eps": 1e-5}, "eps is 1e-05"),
        ({"mlp": Gelu("erf")}, "GELU is computed exactly"),
        ({"stem": ResNetStem((1,), 32, "timm"), "patch_size": (2, 2)}, "timm's small numbers"),
    ],
)
def test_says_what_is_lost(tmp_path: Path, changes: dict[str, Any], part: str) -> None:
    model = build(dataclasses.replace(PLAIN, **changes))
    with pytest.raises(CannotHold, match=part):
        vitreous.save(model, tmp_path / "model.npz", format="google")
    vitreous.save(model, tmp_path / "model.npz", format="google", lossy=True)
    field = next(iter(changes))
    check_identical(vitreous.load(tmp_path / "model.npz", overrides={field: changes[field]}), model)


@pytest.mark.parametrize("name", ["model.safetensors", "model"])
def test_only_npz_is_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"must end in it|\.npz"):
        vitreous.save(build(PLAIN), tmp_path / name, format="google")
    assert not list(tmp_path.iterdir())
