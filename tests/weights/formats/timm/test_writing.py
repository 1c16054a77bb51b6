"""Folders written for timm, and models that timm cannot represent."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

import vitreous
from optional_imports import import_timm
from parity import check_close, check_identical, noisy
from timm_models import PLAIN, SMALL
from vitreous.model.build import build
from vitreous.model.options import (
    IMAGENET,
    AttentionPool,
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"pool": GlobalAverage("before")},
        {"mlp": Gelu("tanh"), "pool": AttentionPool(), "class_token": False},
        {"mlp": SwiGlu(), "registers": 2},
        {"channels": 1, "preprocessing": Preprocessing((0.1,), (0.2,), "squash", interpolation="bilinear")},
        {"preprocessing": dataclasses.replace(IMAGENET, fit="squash-crop", crop_fraction=0.9)},
        {"stem": ResNetStem((2, 2, 2, 2), 64, "timm"), "patch_size": (1, 2), "image_size": (32, 128)},
    ],
    ids=str,
)
def test_folder_round_trips_and_timm_reads_it(changes: dict[str, Any], tmp_path: Path) -> None:
    model = build(dataclasses.replace(SMALL, **changes))
    noisy(model)
    vitreous.save(model, tmp_path / "m", format="timm")
    check_identical(vitreous.load(tmp_path / "m"), model)
    reference = import_timm().create_model(f"local-dir:{tmp_path / 'm'}", pretrained=True).eval()
    check_close(reference, model, model.config.image_size, channels=model.config.channels)
    shown, cfg = model.config.preprocessing, reference.pretrained_cfg
    assert tuple(cfg["mean"]) == shown.mean * (model.config.channels // len(shown.mean))
    assert cfg["crop_mode"] == ("center" if shown.fit == "crop" else "squash")
    assert tuple(cfg["label_names"]) == ("a", "b", "c")
    assert tuple(cfg["input_size"][1:]) == model.config.image_size
    assert cfg["fixed_input_size"]  # true for all timm ViTs, whose positions are for one size


def test_pretrained_cfg_alone_sets_the_image_size(tmp_path: Path) -> None:
    """timm's other scripts use `pretrained_cfg` without `model_args`."""
    timm = import_timm()
    vitreous.save(build(SMALL), tmp_path / "m", format="timm")
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    sizes = {name: value for name, value in config["model_args"].items() if name != "img_size"}
    reference = timm.create_model(PLAIN, pretrained_cfg=config["pretrained_cfg"], **sizes)
    assert reference.patch_embed.img_size == SMALL.image_size


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"position": Conditional()}, "positions, got Conditional"),
        ({"patch_norm": True, "patch_method": "linear"}, "patch_norm"),
        ({"head_dim": 16}, "head_dim.*got 16"),
        ({"qk_scale": 1.0}, "qk_scale.*got 1"),
        ({"pad": True, "image_size": (25, 40)}, "pad"),
        ({"head": TanhHead(8)}, "LinearHead, got TanhHead"),
        ({"head": MlpHead(8)}, "LinearHead, got MlpHead"),
        ({"pool": AttentionPool()}, "AttentionPool"),
        ({"pool": AttentionPool(), "class_token": False, "mlp": SwiGlu()}, "AttentionPool with SwiGLU"),
        ({"distillation_token": True, "registers": 1}, "registers"),
        ({"distillation_token": True, "position": Learned1d(False, "timm")}, "a position for the class token"),
        (
            {"stem": ResNetStem((1,), 32, "timm"), "image_size": (32, 32)},
            r"stages .*got \(1,\).*width 64, got 32",
        ),
        ({"stem": ResNetStem((), 64, "timm"), "image_size": (32, 32), "mlp": SwiGlu()}, "SwiGLU"),
    ],
    ids=str,
)
def test_unsupported_parts_are_rejected_by_name(changes: dict[str, Any], part: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedByFormat, match=f"timm does not support this model: .*{part}"):
        vitreous.save(build(dataclasses.replace(SMALL, **changes)), tmp_path / "m", format="timm")
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"norm_eps": 1e-5}, "eps .* 1e-06 in timm"),
        ({"stem": ResNetStem((), 64, "google"), "image_size": (32, 32)}, "epsilons of google"),
    ],
    ids=str,
)
def test_other_numerics_require_lossy(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    model = build(dataclasses.replace(SMALL, **changes))
    with pytest.raises(UnsupportedByFormat, match=message):
        vitreous.save(model, tmp_path / "m", format="timm")
    vitreous.save(model, tmp_path / "m", format="timm", lossy=True)
    assert (tmp_path / "m" / "model.safetensors").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("format", ["timm", "huggingface"])
@pytest.mark.parametrize("fraction", [1, 1.0, 0.9], ids=repr)
@pytest.mark.parametrize("geometry", ["torchvision", "timm", "huggingface"])
def test_preprocessing_round_trips(geometry: Any, fraction: float, format: str, tmp_path: Path) -> None:
    shown = Preprocessing(crop_fraction=fraction, geometry=geometry)
    model = vitreous.create("ViT-Ti/16", overrides={"depth": 1, "image_size": (32, 32), "preprocessing": shown})
    vitreous.save(model, tmp_path / "m", format, lossy=True)
    assert vitreous.load(tmp_path / "m").config.preprocessing == shown
