"""Vision towers of CLIP and SigLIP, compared with timm in both directions."""

from pathlib import Path
from typing import Any

import pytest
import torch

import vitreous
from optional_imports import import_timm
from parity import check_close, check_identical, noisy
from vitreous.model.options import CLIP, AttentionPool, Gelu
from vitreous.weights import UnsupportedByFormat

SIZES: dict[str, Any] = {
    "img_size": 32,
    "patch_size": 8,
    "embed_dim": 128,
    "depth": 2,
    "num_heads": 2,
    "mlp_ratio": 2.0,
}

# timm architecture, arguments, and config fields expected after loading.
TOWERS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "CLIP": (
        "vit_base_patch32_clip_quickgelu_224",
        SIZES | {"num_classes": 12},
        {"projection": 12, "num_classes": 0, "mlp": Gelu("quick"), "norm_eps": 1e-5, "truncate": False},
    ),
    "SigLIP": (
        "vit_so400m_patch14_siglip_384",
        SIZES | {"img_size": 37, "num_classes": 0},
        {"image_size": (37, 37), "truncate": True, "pool": AttentionPool(), "mlp": Gelu("erf"), "projection": None},
    ),
}


@pytest.mark.parametrize("name", TOWERS)
def test_outputs_equal_timm_in_both_directions(name: str, tmp_path: Path) -> None:
    timm = import_timm()
    architecture, arguments, expected = TOWERS[name]
    model = noisy(timm.create_model(architecture, **arguments))
    if name == "CLIP":
        torch.nn.init.zeros_(model.head.bias)  # type: ignore[union-attr,arg-type]
    timm.models.save_for_hf(model, tmp_path / "theirs", model_args=arguments)
    ours = vitreous.load(tmp_path / "theirs")
    assert {field: getattr(ours.config, field) for field in expected} == expected
    vitreous.save(ours, tmp_path / "ours", format="timm")
    check_identical(vitreous.load(tmp_path / "ours"), ours)
    written = timm.create_model(f"local-dir:{tmp_path / 'ours'}", pretrained=True).eval()
    for each in (ours, written):
        check_close(each, model, ours.config.image_size)
    # timm accepts partial patches only at the native size, and other sizes only without them.
    other = timm.create_model(architecture, dynamic_img_size=True, **arguments).eval()
    other.load_state_dict(written.state_dict())
    check_close(ours, other, (48, 40))


def test_bare_file_of_clip_is_read_with_a_warning_about_its_gelu(tmp_path: Path) -> None:
    architecture, arguments, _ = TOWERS["CLIP"]
    model = noisy(import_timm().create_model(architecture, **arguments))
    torch.save(model.state_dict(), tmp_path / "clip.pth")
    with pytest.warns(vitreous.AssumptionWarning, match=r"mlp=Gelu\(approximation='erf'\)"):
        loaded = vitreous.load(tmp_path / "clip.pth")
    assert loaded.config.num_classes == 12  # a head with a bias is a classifier
    assert loaded.config.preprocessing.mean == CLIP.mean
    check_close(vitreous.load(tmp_path / "clip.pth", overrides={"mlp": Gelu("quick")}), model, (32, 32))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_classes": 3}, "a projection as the head"),
        ({"patch_bias": True}, "patch_bias=False if pre_norm=True"),
        ({"distillation_token": True, "projection": None}, "distillation_token is not supported by timm's CLIP models"),
    ],
)
def test_models_without_a_counterpart_are_rejected(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    fields = {"depth": 1, "width": 24, "mlp_width": 8} | changes
    model = vitreous.create("CLIP-B/32", image_size=32, overrides=fields)
    with pytest.raises(UnsupportedByFormat, match=message):
        vitreous.save(model, tmp_path / "x", format="timm")
