"""torchvision's `VisionTransformer`: reading and writing."""

import dataclasses
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import vitreous
from optional_imports import import_torchvision
from parity import check_close, check_identical, noisy
from vitreous.model.build import build
from vitreous.model.config import ViTConfig
from vitreous.model.options import (
    IMAGENET,
    Conditional,
    Gelu,
    GlobalAverage,
    Learned1d,
    MlpHead,
    Preprocessing,
    ResNetStem,
    SwiGlu,
    TanhHead,
)
from vitreous.weights.convert import UnsupportedByFormat

SHOWN = dataclasses.replace(IMAGENET, interpolation="bilinear")
CONFIG = ViTConfig(
    image_size=(32, 32),
    patch_size=(8, 8),
    width=128,
    depth=2,
    num_heads=2,
    mlp_width=96,
    mlp=Gelu("erf"),
    position=Learned1d(interpolation="torchvision"),
    num_classes=7,
    preprocessing=SHOWN,
)


def reference_model(image_size: int = 32, num_heads: int = 2, representation_size: int | None = None) -> nn.Module:
    kind = import_torchvision().models.VisionTransformer
    model = kind(image_size, 8, 2, num_heads, 128, 96, num_classes=7, representation_size=representation_size)
    return noisy(model)


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [None, 48], ids=["one layer", "two layers"])
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_reads_and_writes_torchvision_models(hidden: int | None, suffix: str, tmp_path: Path) -> None:
    model = reference_model(representation_size=hidden)
    torch.save(model.state_dict(), tmp_path / "foreign.pth")
    loaded = vitreous.load(tmp_path / "foreign.pth")
    assert loaded.config == (CONFIG if hidden is None else dataclasses.replace(CONFIG, head=TanhHead(48)))
    check_close(loaded, model, (32, 32))
    vitreous.save(loaded, tmp_path / f"saved{suffix}", format="torchvision")
    check_identical(vitreous.load(tmp_path / f"saved{suffix}"), loaded)
    read = load_file if suffix == ".safetensors" else torch.load
    filled = reference_model(representation_size=hidden)
    filled.load_state_dict(read(tmp_path / f"saved{suffix}"), strict=True)
    check_close(filled, loaded, (32, 32))


def test_unusual_head_width_requires_num_heads(tmp_path: Path) -> None:
    model = reference_model(num_heads=8)
    torch.save(model.state_dict(), tmp_path / "m.pth")
    check_close(vitreous.load(tmp_path / "m.pth", overrides={"num_heads": 8}), model, (32, 32))


@pytest.mark.slow
@pytest.mark.parametrize("size", [16, 40, 48])
def test_positions_are_resampled_as_in_torchvision(size: int, tmp_path: Path) -> None:
    model = reference_model()
    torch.save(model.state_dict(), tmp_path / "m.pth")
    resize = import_torchvision().models.vision_transformer.interpolate_embeddings
    resized = reference_model(size)
    resized.load_state_dict(resize(size, 8, model.state_dict()), strict=True)
    check_close(vitreous.load(tmp_path / "m.pth"), resized, (size, size))
    check_close(vitreous.load(tmp_path / "m.pth", image_size=size), resized, (size, size))


def test_names_before_2022_are_read(tmp_path: Path) -> None:
    model = reference_model()
    state = {name.replace("mlp.0.", "mlp.linear_1.").replace("mlp.3.", "mlp.linear_2."): tensor
             for name, tensor in model.state_dict().items()}  # fmt: skip
    assert "encoder.layers.encoder_layer_1.mlp.linear_2.bias" in state
    torch.save({"model": {f"module.{name}": tensor for name, tensor in state.items()}, "epoch": 1}, tmp_path / "m.pth")
    check_close(vitreous.load(tmp_path / "m.pth"), model, (32, 32))


def test_averaged_weights_are_preferred(tmp_path: Path) -> None:
    average = torch.optim.swa_utils.AveragedModel(reference_model())
    torch.save({"model": reference_model().state_dict(), "model_ema": average.state_dict()}, tmp_path / "m.pth")
    check_close(vitreous.load(tmp_path / "m.pth"), average.module, (32, 32))


def test_larger_models_do_not_crop(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about an empty layer
        model = import_torchvision().models.VisionTransformer(384, 128, 1, 1, 64, 32)
    torch.save(model.state_dict(), tmp_path / "m.pth")
    loaded = vitreous.load(tmp_path / "m.pth")
    assert loaded.config.image_size == (384, 384)
    assert loaded.config.preprocessing == dataclasses.replace(IMAGENET, crop_fraction=1.0)


def test_model_without_classifier_is_read(tmp_path: Path) -> None:
    model = reference_model()
    model.heads = nn.Sequential()
    torch.save(model.state_dict(), tmp_path / "m.pth")
    loaded = vitreous.load(tmp_path / "m.pth")
    assert loaded.config.num_classes == 0
    check_close(loaded, model, (32, 32))
    vitreous.save(loaded, tmp_path / "saved.pth", format="torchvision")
    model.load_state_dict(torch.load(tmp_path / "saved.pth"), strict=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"image_size": (32, 40)}, "square images, got 32 x 40"),
        ({"patch_size": (8, 4)}, "square patches, got 8 x 4"),
        ({"pad": True, "image_size": (30, 30)}, "pad"),
        ({"channels": 1, "preprocessing": Preprocessing()}, "3 channels, got 1"),
        ({"stem": ResNetStem((), 32), "patch_size": (8, 8)}, "stem"),
        ({"registers": 2}, "registers"),
        ({"distillation_token": True}, "distillation_token"),
        ({"layer_scale": 0.1}, "layer_scale"),
        ({"qk_norm": True}, "qk_norm"),
        ({"qk_scale": 0.5}, "qk_scale"),
        ({"head_dim": 16}, "head_dim"),
        ({"qkv_bias": False}, "requires qkv_bias"),
        ({"mlp": SwiGlu()}, "SwiGLU"),
        ({"patch_norm": True, "patch_method": "linear"}, "patch_norm"),
        ({"position": Conditional()}, "positions, got Conditional"),
        ({"position": Learned1d(False)}, "a position for the class token"),
        ({"pool": GlobalAverage()}, "pooling, got GlobalAverage"),
        ({"head": MlpHead(8)}, "MlpHead"),
        ({"head": TanhHead(8), "num_classes": 0}, "TanhHead without a classifier"),
    ],
    ids=str,
)
def test_unsupported_parts_are_rejected_by_name(changes: dict[str, Any], part: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedByFormat, match=f"torchvision does not support this model: .*{part}"):
        vitreous.save(build(dataclasses.replace(CONFIG, **changes)), tmp_path / "m.pth", format="torchvision")


@pytest.mark.parametrize("name", ["folder", "m.npz", "m.pdparams"])
def test_other_suffixes_are_rejected(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"end in \.pth, \.pt, \.bin, \.safetensors for torchvision"):
        vitreous.save(build(CONFIG), tmp_path / name, format="torchvision")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("changes", [{"norm_eps": 1e-5}, {"mlp": Gelu("tanh")}], ids=str)
def test_other_numerics_require_lossy(changes: dict[str, Any], tmp_path: Path) -> None:
    model = build(dataclasses.replace(CONFIG, **changes))
    with pytest.raises(UnsupportedByFormat, match="would give different outputs"):
        vitreous.save(model, tmp_path / "m.pth", format="torchvision")
    vitreous.save(model, tmp_path / "m.pth", format="torchvision", lossy=True)
