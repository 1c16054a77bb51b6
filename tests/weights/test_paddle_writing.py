"""Models of ours as PaddleClas's and PaddleViT's files: what Paddle would compute, and what they cannot hold."""

import dataclasses
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

import vitreous
from paddle_reference import (
    CLASSES,
    DEPTH,
    HEADS,
    IMAGE,
    LAYOUTS,
    MLP,
    NAMES,
    PATCH,
    WIDTH,
    loaded,
    reference,
    state,
)
from parity import check_close, check_identical, noisy
from vitreous.model.build import build_vit
from vitreous.model.config import ViTConfig
from vitreous.model.options import (
    IMAGENET,
    Gelu,
    GlobalAverage,
    Learned1d,
    Preprocessing,
    ResNetStem,
    SinCos2d,
    SwiGlu,
    TanhHead,
)
from vitreous.model.vit import ViT
from vitreous.weights.adapt import provenance_of
from vitreous.weights.convert import CannotHold
from vitreous.weights.formats.paddle import Paddle

PLAIN = ViTConfig(
    image_size=(IMAGE, IMAGE), patch_size=(PATCH, PATCH), width=WIDTH, depth=DEPTH, num_heads=HEADS, mlp_width=MLP,
    mlp=Gelu("erf"), num_classes=CLASSES,
)  # fmt: skip
SHOWN = {  # what is assumed of a file, which says nothing of it
    "paddle": {"position": Learned1d(True, "timm"), "preprocessing": Preprocessing(interpolation="bilinear")},
    "paddlevit": {"position": Learned1d(True, "huggingface"), "preprocessing": Preprocessing()},
}
WRITTEN: dict[str, tuple[str, dict[str, Any]]] = {
    "PaddleClas": ("paddle", {}),
    "PaddleClas, a tutorial's defaults": ("paddle", {"qkv_bias": False, "norm_eps": 1e-5}),
    "PaddleClas, distilled": ("paddle", {"distillation_token": True, "preprocessing": IMAGENET}),
    "PaddleClas, no classifier": ("paddle", {"num_classes": 0}),
    "PaddleViT": ("paddlevit", {}),
    "PaddleViT, no bias": ("paddlevit", {"qkv_bias": False}),
    "PaddleViT, distilled": ("paddlevit", {"distillation_token": True, "preprocessing": IMAGENET}),
    "PaddleViT, heads of their own width": ("paddlevit", {"head_dim": 40}),
}


def ours(case: str) -> tuple[str, ViT]:
    format, options = WRITTEN[case]
    model = noisy(build_vit(dataclasses.replace(PLAIN, **SHOWN[format] | options)))
    assert isinstance(model, ViT)
    return format, model


@pytest.mark.parametrize("case", WRITTEN)
def test_paddle_would_compute_the_same_from_our_file(case: str, tmp_path: Path) -> None:
    format, model = ours(case)
    vitreous.save(model, tmp_path / "a.pdparams", format=format)
    arrays = pickle.loads((tmp_path / "a.pdparams").read_bytes())  # as paddle.load does
    assert list(arrays.pop(NAMES)) == list(arrays)
    config = model.config
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    inner = config.num_heads * config.head_width
    options = {"bias": config.qkv_bias, "distilled": config.distillation_token, "classes": config.num_classes}
    expected = state(LAYOUTS[format], inner=inner, **options)
    assert {name: x.shape for name, x in tensors.items()} == {name: x.shape for name, x in expected.items()}
    check_close(model, lambda images: reference(tensors, LAYOUTS[format], images, config.norm_eps), (IMAGE, IMAGE))


@pytest.mark.parametrize("case", WRITTEN)
def test_a_model_comes_back_as_it_went(case: str, tmp_path: Path) -> None:
    format, model = ours(case)
    vitreous.save(model, tmp_path / "a.pdparams", format=format)
    overrides = {"num_heads": HEADS} if model.config.head_dim else None
    again = loaded(tmp_path / "a.pdparams", overrides=overrides)
    check_identical(again, model)
    assert provenance_of(again)["format"] == format


@pytest.mark.parametrize("format", SHOWN)
@pytest.mark.parametrize("target", ["folder", "a.safetensors"])
def test_other_files_hold_it_too(format: str, target: str, tmp_path: Path) -> None:
    _, model = ours("PaddleClas" if format == "paddle" else "PaddleViT")
    for _ in range(2):  # the second time it replaces the first
        vitreous.save(model, tmp_path / target, format=format)
    check_identical(loaded(tmp_path / target), model)


REFUSED: dict[str, dict[str, Any]] = {
    "registers": {"registers": 2},
    "layer_scale": {"layer_scale": 0.1},
    "qk_norm": {"qk_norm": True},
    "SwiGLU": {"mlp": SwiGlu()},
    "head of two layers": {"head": TanhHead(32)},
    "pool GlobalAverage": {"pool": GlobalAverage()},
    "position SinCos2d": {"position": SinCos2d()},
    "position without an entry": {"position": Learned1d(False)},
    "patch_norm": {"patch_norm": True, "patch_method": "linear"},
    "stem": {"stem": ResNetStem(()), "patch_size": (2, 2)},
    "image_size 32 x 64": {"image_size": (32, 64)},
    "pad": {"image_size": (30, 30), "pad": True},
}


@pytest.mark.parametrize("format", SHOWN)
@pytest.mark.parametrize("part", REFUSED)
def test_what_it_cannot_hold_is_named(part: str, format: str, tmp_path: Path) -> None:
    model = build_vit(dataclasses.replace(PLAIN, **REFUSED[part]))
    with pytest.raises(CannotHold, match=f"cannot hold this model: .*{part}"):
        vitreous.save(model, tmp_path / "a.pdparams", format=format, lossy=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("format", "change", "message"),
    [
        ("paddle", {"head_dim": 40}, "head_dim 40"),
        ("paddlevit", {"qk_scale": 0.3}, r"qk_scale 0\.3"),
        ("paddlevit", {"num_classes": 0}, "no classifier"),
    ],
)
def test_what_only_one_of_them_cannot_hold(format: str, change: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(CannotHold, match=message):
        vitreous.save(build_vit(dataclasses.replace(PLAIN, **change)), tmp_path / "a.pdparams", format=format)


@pytest.mark.parametrize(
    ("format", "change", "message"),
    [
        ("paddle", {"mlp": Gelu("tanh")}, "GELU"),
        ("paddle", {"norm_eps": 1e-5}, "eps is 1e-05, and PaddleClas's is 1e-06"),
        ("paddle", {"qkv_bias": False}, "eps is 1e-06, and PaddleClas's is 1e-05"),
        ("paddle", {"qk_scale": 0.3}, r"attention is scaled by 0\.3"),
        ("paddlevit", {"mlp": Gelu("tanh")}, "GELU"),
        ("paddlevit", {"norm_eps": 1e-5}, "eps is 1e-05"),
    ],
)
def test_what_would_be_computed_otherwise_needs_a_word(format: str, change: Any, message: str, tmp_path: Path) -> None:
    model, path = build_vit(dataclasses.replace(PLAIN, **SHOWN[format] | change)), tmp_path / "a.pdparams"
    with pytest.raises(CannotHold, match=message):
        vitreous.save(model, path, format=format)
    vitreous.save(model, path, format=format, lossy=True)
    check_identical(loaded(path, overrides={"norm_eps": model.config.norm_eps} | change), model)


def test_the_scale_of_the_small_one_is_its_own() -> None:
    small = dataclasses.replace(PLAIN, width=768, depth=8, num_heads=8, mlp_width=2304, qkv_bias=False, norm_eps=1e-5)
    assert Paddle().differences(dataclasses.replace(small, qk_scale=768**-0.5)) == []
    assert "attention is scaled" in Paddle().differences(small)[0]
