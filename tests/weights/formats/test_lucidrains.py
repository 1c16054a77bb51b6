"""lucidrains' vit-pytorch: reading, writing, and tensor names of earlier versions."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import vitreous
from optional_imports import import_vit_pytorch
from parity import check_close, check_identical, noisy
from vitreous.model.build import build
from vitreous.model.config import ViTConfig
from vitreous.model.options import (
    ClassToken,
    Conditional,
    Gelu,
    GlobalAverage,
    Learned1d,
    MlpHead,
    Preprocessing,
    ResNetStem,
    SinCos2d,
    SwiGlu,
)
from vitreous.weights.convert import UnsupportedByFormat
from vitreous.weights.io.errors import BadCheckpoint

SIZES = {"image_size": 32, "patch_size": 8, "dim": 128, "depth": 2, "heads": 2, "mlp_dim": 96, "num_classes": 7}
CONFIG = ViTConfig(
    image_size=(32, 32),
    patch_size=(8, 8),
    patch_method="linear",
    patch_norm=True,
    width=128,
    depth=2,
    num_heads=2,
    qkv_bias=False,
    mlp_width=96,
    mlp=Gelu("erf"),
    norm_eps=1e-5,
    num_classes=7,
    preprocessing=Preprocessing(mean=(0.0,), std=(1.0,)),
)

# vit-pytorch arguments, overrides needed for loading, and changes to CONFIG.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}, {}),
    "mean": ({"pool": "mean"}, {}, {"class_token": False, "pool": GlobalAverage("before")}),
    "heads independent of width": ({"heads": 3}, {}, {"num_heads": 3, "head_dim": 64}),
    "narrow heads": ({"heads": 4, "dim_head": 32}, {"num_heads": 4}, {"num_heads": 4}),
    "narrow heads independent of width": (
        {"heads": 4, "dim_head": 24},
        {"num_heads": 4},
        {"num_heads": 4, "head_dim": 24},
    ),
    "rectangular": ({"image_size": (24, 48)}, {"image_size": (24, 48)}, {"image_size": (24, 48)}),
    "non-square patches": (
        {"patch_size": (8, 4)},
        {"patch_size": (8, 4), "image_size": 32},
        {"patch_size": (8, 4)},
    ),
    "one channel": ({"channels": 1}, {"channels": 1}, {"channels": 1}),
    "dropout": ({"dropout": 0.1, "emb_dropout": 0.1}, {}, {}),
}


def reference_model(**given: Any) -> nn.Module:
    return noisy(import_vit_pytorch().ViT(**{**SIZES, **given}))


def old_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Convert tensor names to those before August 2023, with every norm in a wrapper."""
    changes = [
        *((f"layers.{i}.1.net.{new}.", f"layers.{i}.1.fn.net.{old}.") for i in (0, 1) for new, old in ((1, 0), (4, 3))),
        *((f"layers.{i}.1.net.0.", f"layers.{i}.1.norm.") for i in (0, 1)),
        *((f"layers.{i}.0.to_", f"layers.{i}.0.fn.to_") for i in (0, 1)),
        ("mlp_head.", "mlp_head.1."),
        ("transformer.norm.", "mlp_head.0."),
    ]
    result = {}
    for name, tensor in state.items():
        for new, old in changes:
            if new in name:
                name = name.replace(new, old)
                break
        result[name] = tensor[None] if name in ("cls_token", "pos_embedding") else tensor
    return result


# ---- Reading and writing ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_reads_and_writes_vit_pytorch_models(case: str, tmp_path: Path) -> None:
    given, overrides, changes = CASES[case]
    model = reference_model(**given)
    torch.save(model.state_dict(), tmp_path / "foreign.pth")
    loaded = vitreous.load(tmp_path / "foreign.pth", overrides=overrides)
    assert loaded.config == dataclasses.replace(CONFIG, **changes)
    check_close(loaded, model, loaded.config.image_size, channels=loaded.config.channels)
    for suffix, read in ((".pt", torch.load), (".safetensors", load_file)):
        vitreous.save(loaded, tmp_path / f"saved{suffix}", format="lucidrains")
        check_identical(vitreous.load(tmp_path / f"saved{suffix}", overrides=overrides), loaded)
        filled = reference_model(**given)
        filled.load_state_dict(read(tmp_path / f"saved{suffix}"), strict=True)
        check_close(filled, loaded, loaded.config.image_size, channels=loaded.config.channels)


def test_single_wide_head_has_no_output_projection(tmp_path: Path) -> None:
    model = reference_model(heads=1, dim_head=128)
    assert "transformer.layers.0.0.to_out.0.weight" not in model.state_dict()
    torch.save(model.state_dict(), tmp_path / "m.pth")
    loaded = vitreous.load(tmp_path / "m.pth")
    assert loaded.config.num_heads == 1
    check_close(loaded, model, (32, 32))
    with pytest.raises(UnsupportedByFormat, match="has no output projection"):
        vitreous.save(loaded, tmp_path / "saved.pth", format="lucidrains")


def test_model_without_classifier_is_read(tmp_path: Path) -> None:
    model = reference_model(num_classes=0)
    torch.save(model.state_dict(), tmp_path / "m.pth")
    loaded = vitreous.load(tmp_path / "m.pth")
    check_close(loaded, lambda images: model(images)[:, 0], (32, 32))
    vitreous.save(loaded, tmp_path / "saved.pth", format="lucidrains")
    model.load_state_dict(torch.load(tmp_path / "saved.pth"), strict=True)


# ---- Earlier versions ------------------------------------------------------------------------------------------------


def test_names_of_2023_are_read(tmp_path: Path) -> None:
    model = reference_model()
    torch.save(old_names(model.state_dict()), tmp_path / "m.pth")
    loaded = vitreous.load(tmp_path / "m.pth")
    assert loaded.config == CONFIG
    check_close(loaded, model, (32, 32))


@pytest.mark.parametrize("residual", [False, True], ids=["2022", "early 2021"])
def test_models_without_patch_norms_are_read(residual: bool, tmp_path: Path) -> None:
    model = reference_model()
    model.to_patch_embedding = nn.Sequential(model.to_patch_embedding[0], model.to_patch_embedding[2])
    state = old_names(model.state_dict())
    if residual:  # one more wrapper for the residual
        state = {name.replace(".fn.", ".fn.fn.").replace(".norm.", ".fn.norm."): x for name, x in state.items()}
        assert "transformer.layers.1.0.fn.fn.to_qkv.weight" in state
    torch.save(state, tmp_path / "m.pth")
    loaded = vitreous.load(tmp_path / "m.pth")
    assert not loaded.config.patch_norm
    check_close(loaded, model, (32, 32))
    with pytest.raises(UnsupportedByFormat, match="requires patch_norm"):
        vitreous.save(loaded, tmp_path / "saved.pth", format="lucidrains")


def test_mean_including_the_class_token_is_rejected(tmp_path: Path) -> None:
    torch.save(reference_model().state_dict(), tmp_path / "m.pth")
    for pool in (GlobalAverage(), {"kind": "GlobalAverage"}):
        with pytest.raises(BadCheckpoint, match=r"ClassToken.*GlobalAverage"):
            vitreous.load(tmp_path / "m.pth", overrides={"pool": pool})
    assert vitreous.load(tmp_path / "m.pth", overrides={"pool": ClassToken()}).config == CONFIG


@pytest.mark.slow
@pytest.mark.parametrize("size", [(32, 32), (24, 40)], ids=str)
def test_simple_vit_is_read(size: tuple[int, int], tmp_path: Path) -> None:
    model = noisy(import_vit_pytorch().SimpleViT(**SIZES | {"image_size": size}))
    torch.save(model.state_dict(), tmp_path / "m.pth")
    loaded = vitreous.load(tmp_path / "m.pth", image_size=size)
    assert loaded.config.position == SinCos2d("big_vision")
    check_close(loaded, model, size)
    assert vitreous.load(tmp_path / "m.pth").config.image_size == (224, 224)
    with pytest.raises(UnsupportedByFormat, match="positions, got SinCos2d"):
        vitreous.save(loaded, tmp_path / "saved.pth", format="lucidrains")


# ---- Unsupported models ----------------------------------------------------------------------------------------------


def test_plain_vit_is_rejected(small: ViTConfig, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedByFormat, match=r"vit-pytorch does not support this model: .*patch_norm.*; qkv_bias"):
        vitreous.save(build(small), tmp_path / "m.pth", format="lucidrains")


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"stem": ResNetStem((), 32)}, "stem"),
        ({"registers": 1}, "registers"),
        ({"distillation_token": True}, "distillation_token"),
        ({"qk_norm": True}, "qk_norm"),
        ({"qk_scale": 0.5}, "qk_scale"),
        ({"layer_scale": 0.1}, "layer_scale"),
        ({"mlp": SwiGlu()}, "SwiGLU"),
        ({"head": MlpHead(8)}, "head of two layers"),
        ({"pad": True, "image_size": (30, 32)}, "pad"),
        ({"position": Conditional()}, "positions, got Conditional"),
        ({"position": Learned1d(False)}, "a position for the class token"),
        ({"pool": GlobalAverage()}, "with a class token"),
        ({"pool": GlobalAverage("after"), "class_token": False}, "without a class token"),
    ],
    ids=str,
)
def test_unsupported_parts_are_rejected_by_name(changes: dict[str, Any], part: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedByFormat, match=f"vit-pytorch does not support this model: .*{part}"):
        vitreous.save(build(dataclasses.replace(CONFIG, **changes)), tmp_path / "m.pth", format="lucidrains")


@pytest.mark.parametrize("changes", [{"norm_eps": 1e-6}, {"mlp": Gelu("tanh")}], ids=str)
def test_other_numerics_require_lossy(changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UnsupportedByFormat, match="would give different outputs"):
        vitreous.save(build(dataclasses.replace(CONFIG, **changes)), tmp_path / "m.pth", format="lucidrains")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"channels": 1}, r"patches of 64 values, .* 3 channels; pass overrides="),
        ({"heads": 4, "dim_head": 24}, r"heads.*\(96\) is not a multiple of 64.*pass overrides="),
        ({"image_size": (24, 48)}, "19 positions; the 18 .* square grid.*Pass"),
    ],
    ids=str,
)
def test_ambiguous_shapes_require_overrides(given: dict[str, Any], message: str, tmp_path: Path) -> None:
    torch.save(reference_model(**given).state_dict(), tmp_path / "m.pth")
    with pytest.raises(BadCheckpoint, match=message):
        vitreous.load(tmp_path / "m.pth")
