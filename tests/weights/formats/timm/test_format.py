"""timm weights: reading, writing, training checkpoints, and tensor names of earlier versions."""

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import nn

import vitreous
from optional_imports import import_timm
from parity import check_close, check_identical, noisy
from timm_models import CASES, NATIVE, OTHER, PLAIN, SIZES, timm_model
from vitreous.model.options import IMAGENET, GlobalAverage, TanhHead
from vitreous.model.vit import ViT
from vitreous.weights.io.errors import BadCheckpoint


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_reads_and_writes_timm_models(case: str, tmp_path: Path) -> None:
    timm, model = import_timm(), timm_model(case, dynamic_img_size=True)
    torch.save(model.state_dict(), tmp_path / "foreign.pth")
    loaded = vitreous.load(tmp_path / "foreign.pth")
    assert isinstance(loaded, ViT)
    for field, value in CASES[case][2].items():
        assert getattr(loaded.config, field) == value
    native, other = loaded.config.image_size, OTHER if loaded.config.stem is None else (96, 64)
    check_close(loaded, model, native, other, channels=loaded.config.channels)

    vitreous.save(loaded, tmp_path / "m", format="timm")
    check_identical(vitreous.load(tmp_path / "m"), loaded)
    built = timm.create_model(f"local-dir:{tmp_path / 'm'}", pretrained=True, dynamic_img_size=True).eval()
    check_close(built, loaded, native, other, channels=loaded.config.channels)

    for suffix in (".pth", ".safetensors"):
        vitreous.save(loaded, tmp_path / f"saved{suffix}", format="timm")
        check_identical(vitreous.load(tmp_path / f"saved{suffix}"), loaded)
        filled = noisy(model)
        filled.load_state_dict(timm.models.load_state_dict(str(tmp_path / f"saved{suffix}")), strict=True)
        check_close(filled, loaded, native, channels=loaded.config.channels)


@pytest.mark.slow
@pytest.mark.parametrize("wrap", ["state_dict", "model", "state_dict_ema"])
def test_keys_of_training_scripts_are_unwrapped(wrap: str, tmp_path: Path) -> None:
    model = timm_model("plain")
    state = {f"module.{name}": tensor for name, tensor in model.state_dict().items()}
    document = {"epoch": 3, "arch": PLAIN, wrap: state}
    if wrap == "state_dict_ema":  # averaged weights come first
        document["state_dict"] = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    torch.save(document, tmp_path / "last.pth")
    check_close(vitreous.load(tmp_path / "last.pth"), model, NATIVE)


@pytest.mark.slow
def test_rectangular_grid_requires_image_size(tmp_path: Path) -> None:
    model = noisy(import_timm().create_model(PLAIN, **SIZES | {"img_size": (24, 48)}, num_classes=7))
    torch.save(model.state_dict(), tmp_path / "m.pth")
    with pytest.raises(BadCheckpoint, match=r"19 positions; the 18 .* square grid"):
        vitreous.load(tmp_path / "m.pth")
    check_close(vitreous.load(tmp_path / "m.pth", image_size=(24, 48)), model, (24, 48))
    check_close(vitreous.load(tmp_path / "m.pth", overrides={"image_size": (24, 48)}), model, (24, 48))


def test_square_grid_is_preferred(tmp_path: Path) -> None:
    model = timm_model("plain", dynamic_img_size=True)
    torch.save(model.state_dict(), tmp_path / "m.pth")
    check_close(vitreous.load(tmp_path / "m.pth", image_size=(16, 64)), model, (16, 64))


def test_mean_pooling_with_final_norm_requires_override(tmp_path: Path) -> None:
    model = noisy(import_timm().create_model(PLAIN, **SIZES, num_classes=7, global_pool="avg", fc_norm=False))
    torch.save(model.state_dict(), tmp_path / "m.pth")
    assert "pool: " in " ".join(vitreous.load(tmp_path / "m.pth").provenance["assumed"])
    loaded = vitreous.load(tmp_path / "m.pth", overrides={"pool": GlobalAverage("before")})
    check_close(loaded, model, NATIVE)


def test_layer_scale_names_of_deit3_are_read(tmp_path: Path) -> None:
    given = SIZES | {"num_classes": 7}
    model = noisy(import_timm().create_model("deit3_base_patch16_224", dynamic_img_size=True, **given))
    state = {name.replace("ls1.gamma", "gamma_1").replace("ls2.gamma", "gamma_2"): tensor
             for name, tensor in model.state_dict().items()}  # fmt: skip
    assert "blocks.0.gamma_1" in state
    torch.save({"model": state}, tmp_path / "deit3.pth")
    loaded = vitreous.load(tmp_path / "deit3.pth")
    assert loaded.config.preprocessing == dataclasses.replace(IMAGENET, crop_fraction=1.0, geometry="timm")
    check_close(loaded, model, NATIVE, OTHER)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["plain", "distilled"])
def test_preprocessing_of_bare_files_matches_published_models(case: str, tmp_path: Path) -> None:
    """timm's default ViTs are AugReg's. timm crops less than DeiT for DeiT models."""
    torch.save(timm_model(case).state_dict(), tmp_path / "m.pth")
    loaded, cfg = (
        vitreous.load(tmp_path / "m.pth").config.preprocessing,
        import_timm().get_pretrained_cfg(CASES[case][0]),
    )
    assert (loaded.mean * (3 // len(loaded.mean)), loaded.std * (3 // len(loaded.std))) == (cfg.mean, cfg.std)
    assert (loaded.fit, loaded.interpolation) == ("crop", cfg.interpolation)
    assert loaded.crop_fraction == (cfg.crop_pct if case == "plain" else 224 / 256)


def test_pre_logits_layer_is_read(tmp_path: Path) -> None:
    """timm had this layer until 2022, for Google's weights."""
    model = timm_model("plain")
    old = noisy(nn.Sequential(nn.Linear(128, 96), nn.Tanh(), nn.Linear(96, 7)))
    state = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("head.")}
    state |= {"pre_logits.fc.weight": old[0].weight, "pre_logits.fc.bias": old[0].bias}
    state |= {"head.weight": old[2].weight, "head.bias": old[2].bias}
    torch.save(state, tmp_path / "m.pth")
    loaded = vitreous.load(tmp_path / "m.pth")
    assert loaded.config.head == TanhHead(96)
    check_close(loaded, lambda images: old(model.forward_features(images)[:, 0]), NATIVE)


def test_provenance_lists_assumed_fields(tmp_path: Path) -> None:
    torch.save(timm_model("plain").state_dict(), tmp_path / "m.pth")
    assumed = " ".join(vitreous.load(tmp_path / "m.pth").provenance["assumed"])
    for field in ("num_heads", "image_size", "norm_eps", "mlp", "preprocessing"):
        assert f"{field}: " in assumed
    given = vitreous.load(tmp_path / "m.pth", overrides={"num_heads": 4, "norm_eps": 1e-5})
    assert (given.config.num_heads, given.config.norm_eps) == (4, 1e-5)
    assert "num_heads" not in " ".join(given.provenance["assumed"])
