"""Saving and loading is bit-identical; loading can change size, head and fields."""

import dataclasses
from pathlib import Path

import pytest
import torch

from native_models import MODELS, load_state, thin
from parity import check_identical, noisy
from vitreous.model import options
from vitreous.model.build import build
from vitreous.model.presets import PRESETS
from vitreous.weights.load import describe
from vitreous.weights.native import load_folder, provenance_of, save_folder


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_round_trip_is_bit_identical(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    model = noisy(build(MODELS[name])).to(dtype)
    save_folder(model, tmp_path / "x")
    loaded = load_folder(tmp_path / "x")
    check_identical(model, loaded)
    assert not loaded.training
    images = torch.randn(1, 3, *model.config.image_size, dtype=dtype)
    assert torch.equal(model(images), loaded(images))


def test_every_preset_is_covered() -> None:
    assert {repr(thin(config)) for config in PRESETS.values()} <= {repr(config) for config in MODELS.values()}
    assert len(MODELS) < len(PRESETS)


def test_training_a_loaded_model_keeps_its_file(saved: Path) -> None:
    before = (saved / "model.safetensors").read_bytes()
    model = load_folder(saved)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model.train()(torch.randn(2, 3, 24, 32)).square().sum().backward()
    assert all(parameter.requires_grad and parameter.grad is not None for parameter in model.parameters())
    optimizer.step()
    assert not torch.equal(model.state_dict()["head.weight"], load_state(saved)["head.weight"])
    assert (saved / "model.safetensors").read_bytes() == before
    save_folder(model, saved)  # over the file from which it is mapped
    check_identical(model, load_folder(saved))


def test_files_have_default_permissions(saved: Path) -> None:
    (saved.parent / "usual").write_text("")
    modes = {path.name: path.stat().st_mode for path in saved.iterdir()}
    assert modes == dict.fromkeys(
        ["model.safetensors", "config.json", "README.md"], (saved.parent / "usual").stat().st_mode
    )


def test_path_of_a_checkpoint_file_loads_its_folder(saved: Path) -> None:
    for name in ("model.safetensors", "config.json"):
        check_identical(load_folder(saved / name), load_folder(str(saved)))


# ---- Changes ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["ViT-Ti/8", "DINOv2-g/14-reg", "R26+ViT-S/32", "BiT-R50x1", "RelativeBias", "Learned2d"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_loading_with_another_image_size(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    model = noisy(build(MODELS[name])).to(dtype)
    size = (model.config.image_size[0] * 2, model.config.image_size[1])
    save_folder(model, tmp_path / "x")
    loaded = load_folder(tmp_path / "x", image_size=size)
    check_identical(loaded, model.resized(size))
    assert all(parameter.requires_grad for parameter in loaded.parameters())
    save_folder(loaded, tmp_path / "y")
    assert describe(tmp_path / "y").provenance["changes"] == [
        {"field": "image_size", "from": list(model.config.image_size), "to": list(size)}
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["ViT-Ti/8", "TanhHead", "MlpHead", "DeiT-Ti/16-distilled", "DINOv2-S/14", "BiT-R50x1"]
)
@pytest.mark.parametrize("classes", [0, 3, 7])
def test_loading_with_a_new_head(tmp_path: Path, name: str, classes: int) -> None:
    model = noisy(build(MODELS[name])).bfloat16()
    save_folder(model, tmp_path / "x")
    loaded = load_folder(tmp_path / "x", num_classes=classes)
    linear = {"head": options.LinearHead()} if name == "TanhHead" else {}  # pre-logits are only used in pre-training
    assert loaded.config == dataclasses.replace(model.config, num_classes=classes, labels=(), **linear)
    new, old = loaded.state_dict(), model.state_dict()
    for key in old:
        if "head" in key:
            assert key not in new or not torch.equal(new[key], old[key])
        else:
            assert torch.equal(new[key], old[key])
    sample_images = torch.randn(1, 3, *model.config.image_size, dtype=torch.bfloat16)
    assert loaded(sample_images).shape[1] == (classes or loaded(sample_images).shape[1])
    save_folder(loaded, tmp_path / "y")
    check_identical(loaded, load_folder(tmp_path / "y"))
    assert {"field": "head", "to": "new"} in describe(tmp_path / "y").provenance["changes"]


def test_overrides_change_fields_that_do_not_affect_shapes(saved: Path) -> None:
    model = load_folder(saved, overrides={"num_heads": 2, "norm_eps": 1e-5, "dropout": options.Dropout(hidden=0.5)})
    assert (model.config.num_heads, model.config.norm_eps, model.config.dropout.hidden) == (2, 1e-5, 0.5)
    fields = [change["field"] for change in provenance_of(model)["changes"]]
    assert fields == ["num_heads", "norm_eps", "dropout"]
    with pytest.raises(ValueError, match=r"position.table is \[3, 4, 32\], expected \[6, 4, 32\]"):
        load_folder(saved, overrides={"image_size": (48, 32)})
    with pytest.raises(ValueError, match=r"'num_head' is not a field of ViTConfig \(did you mean 'num_heads'\?\)"):
        load_folder(saved, overrides={"num_head": 2})
