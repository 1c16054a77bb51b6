"""timm's `Eva` models (EVA-02, DINOv3, RoPE-ViT), in both directions."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import vitreous
from optional_imports import import_timm
from parity import check_close, check_identical, noisy
from vitreous.model.build import build
from vitreous.model.options import (
    ClassToken,
    Gelu,
    GlobalAverage,
    Learned1d,
    MixedRotary2d,
    Rotary2d,
    SwiGlu,
)
from vitreous.model.presets import preset
from vitreous.weights.io.errors import BadCheckpoint, UnsupportedByFormat

NATIVE, OTHER = (64, 64), (48, 96)
SIZES = {"img_size": 64, "patch_size": 16, "embed_dim": 64, "depth": 2, "num_heads": 2}
EVA_GRID = {"base": 10_000.0, "coordinates": "index", "reference_grid": (16, 16)}
APE = Learned1d(False, "timm")

# timm architecture, additional arguments, and config fields expected after loading.
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "DINOv3": (
        "vit_small_patch16_dinov3_qkvb",
        {},
        {"position": Rotary2d(), "key_bias": False, "qkv_bias": True, "norm_eps": 1e-5, "registers": 4}
        | {"pool": GlobalAverage(), "num_classes": 0},
    ),
    "DINOv3 without biases": ("vit_large_patch16_dinov3", {"global_pool": "token"}, {"qkv_bias": False}),
    "DINOv3, gated": ("vit_huge_plus_patch16_dinov3_qkvb", {}, {"mlp": SwiGlu(), "norm_eps": 1e-5}),
    "EVA-02, packed": (
        "eva02_small_patch14_224",
        {"num_classes": 7},
        {"position": Rotary2d(**EVA_GRID, learned=Learned1d(True, "timm")), "pool": GlobalAverage("after")}
        | {"mlp": SwiGlu(), "key_bias": False},
    ),
    "EVA-02, separate": ("eva02_base_patch14_224", {"num_classes": 7}, {"mlp": SwiGlu(norm=True)}),
    "EVA-02, separate, packed qkv": ("eva02_base_patch14_224", {"num_classes": 7, "qkv_fused": True}, {}),
    "EVA02-CLIP": (
        "eva02_large_patch14_clip_224",
        {"num_classes": 7},
        {"attention_output_norm": True, "pool": ClassToken()},
    ),
    "EVA": ("eva_giant_patch14_224", {"num_classes": 7}, {"position": Learned1d(True, "timm"), "mlp": Gelu("erf")}),
    "averaged": (
        "vit_betwixt_patch16_rope_reg4_gap_256",
        {"num_classes": 7},
        {"position": Rotary2d(**EVA_GRID), "class_token": False, "registers": 4, "layer_scale": 1e-5},
    ),
    "axial": (
        "vit_small_patch16_rope_224",
        {"num_classes": 7},
        {"position": Rotary2d(coordinates="index"), "key_bias": True, "norm_eps": 1e-6},
    ),
    "axial, norms": ("vit_small_patch16_rope_224", {"num_classes": 7, "qk_norm": True}, {"qk_norm": True}),
    "axial, APE": (
        "vit_small_patch16_rope_ape_224",
        {"num_classes": 7},
        {"position": Rotary2d(coordinates="index", learned=APE)},
    ),
    "mixed": ("vit_small_patch16_rope_mixed_224", {"num_classes": 7}, {"position": MixedRotary2d()}),
    "mixed, APE": ("vit_small_patch16_rope_mixed_ape_224", {"num_classes": 7}, {"position": MixedRotary2d(10.0, APE)}),
}


def timm_model(case: str, **more: Any) -> nn.Module:
    name, given, _ = CASES[case]
    return noisy(import_timm().create_model(name, **SIZES | given | more))


def save_folder(model: nn.Module, case: str, path: Path) -> Path:
    name, given, _ = CASES[case]
    import_timm().models.save_for_hf(model, path, model_args=SIZES | given)
    assert json.loads((path / "config.json").read_text())["architecture"] == name
    return path


@pytest.mark.parametrize("case", CASES)
def test_models_are_read_and_written_exactly(case: str, tmp_path: Path) -> None:
    theirs = timm_model(case)
    folder = save_folder(theirs, case, tmp_path / "theirs")
    ours = vitreous.load(folder)
    for field, value in CASES[case][2].items():
        assert getattr(ours.config, field) == value, field
    vitreous.save(ours, tmp_path / "m.pth", format="timm")
    if "qkv_fused" not in CASES[case][1]:  # written as in the published models
        tensors, written = theirs.state_dict(), torch.load(tmp_path / "m.pth", weights_only=True)
        assert written.keys() == tensors.keys()
        assert all(torch.equal(written[name], tensor) for name, tensor in tensors.items())
    check_close(ours, theirs, NATIVE)
    theirs.set_input_size(OTHER)
    check_close(ours, theirs, OTHER)

    vitreous.save(ours, tmp_path / "ours", format="timm")
    check_identical(vitreous.load(tmp_path / "ours"), ours)
    check_close(import_timm().create_model(f"local-dir:{tmp_path / 'ours'}", pretrained=True).eval(), ours, NATIVE)


@pytest.mark.parametrize("case", ["DINOv3", "EVA-02, separate", "averaged", "axial", "mixed"])
def test_files_without_a_name_are_read_with_a_warning(case: str, tmp_path: Path) -> None:
    theirs = timm_model(case, embed_dim=128)
    torch.save(theirs.state_dict(), tmp_path / "m.pth")
    with pytest.warns(vitreous.AssumptionWarning, match="position=.*Rotary2d"):
        ours = vitreous.load(tmp_path / "m.pth")
    check_close(ours.resized(NATIVE), theirs, NATIVE)


def test_files_named_as_their_architecture_are_read_without_a_warning(tmp_path: Path) -> None:
    theirs = noisy(import_timm().create_model("vit_small_patch16_rope_ape_224", depth=1, img_size=64, num_classes=7))
    torch.save(theirs.state_dict(), tmp_path / "vit_small_patch16_rope_ape_224.naver_in1k.pth")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        given = {"preprocessing": preset("RoPE-ViT-S/16").preprocessing}
        ours = vitreous.load(next(tmp_path.iterdir()), overrides=given)
    assert ours.config.position == Rotary2d(coordinates="index", learned=APE)
    check_close(ours, theirs, NATIVE)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        *[("rope_type", "mrope"), ("rope_rotate_half", True), ("rope_grid_indexing", "ij"), ("rope_grid_offset", 1.0)],
        *[("ref_feat_shape", [8, 8]), ("rope_temperature", "x"), ("global_pool", "max")],
    ],
)
def test_unsupported_arguments_are_rejected_by_name(argument: str, value: object, tmp_path: Path) -> None:
    folder = save_folder(timm_model("axial"), "axial", tmp_path / "m")
    document = json.loads((folder / "config.json").read_text())
    document["model_args"][argument] = value
    (folder / "config.json").write_text(json.dumps(document))
    named = "rope_grid_indexing" if argument == "ref_feat_shape" else argument
    with pytest.raises(BadCheckpoint, match=f"{named} must be"):
        vitreous.load(folder)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"untied_norms": True}, "untied_norms is not supported"),
        ({"position": Rotary2d(period_dtype="bfloat16")}, "rounded to bfloat16"),
        ({"norm_eps": 1e-3}, "LayerNorm eps is 0.001"),
    ],
)
def test_unsupported_models_are_not_written(fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    small = {"width": 64, "depth": 1, "num_heads": 2, "mlp_width": 96}
    model = vitreous.create("DINOv3-S/16", image_size=32, overrides=small | fields)
    with pytest.raises(UnsupportedByFormat, match=message):
        vitreous.save(model, tmp_path / "m", format="timm")


NAMES = {
    "DINOv3-S/16": "vit_small_patch16_dinov3_qkvb",
    "DINOv3-S+/16": "vit_small_plus_patch16_dinov3_qkvb",
    "DINOv3-7B/16": "vit_7b_patch16_dinov3",
    "EVA02-Ti/14": "eva02_tiny_patch14_224",
    "EVA02-L/14": "eva02_large_patch14_224",
    "RoPE-ViT-B/16-mixed-ape": "vit_base_patch16_rope_mixed_ape_224",
    "ViT-Md/16-rope-reg1-gap": "vit_mediumd_patch16_rope_reg1_gap_256",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_presets_have_as_many_parameters_as_timm(name: str) -> None:
    config = preset(name)
    with torch.device("meta"):
        theirs = import_timm().create_model(NAMES[name], num_classes=config.num_classes)
        ours = build(config)
    counts = [sum(parameter.numel() for parameter in model.parameters()) for model in (ours, theirs)]
    assert counts[0] == counts[1]
