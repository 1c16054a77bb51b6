"""BiT ResNets in timm's layout. test_catalog.py compares every published model with timm."""

import json
from pathlib import Path

import pytest
import torch

import vitreous
from optional_imports import import_timm
from parity import check_close, noisy
from vitreous.model.resnet import ResNet
from vitreous.weights.io.errors import BadCheckpoint, UnsupportedByFormat


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    timm, path = import_timm(), tmp_path_factory.mktemp("bit") / "m"
    model = noisy(timm.create_model("resnetv2_50x1_bit.goog_in21k", num_classes=5))
    timm.models.save_for_hf(model, path, safe_serialization=True)
    return path


def test_folder_is_read(folder: Path) -> None:
    model = vitreous.load(folder, image_size=96, num_classes=3)
    assert isinstance(model, ResNet)
    assert (model.config.image_size, model.config.num_classes, model.config.stages) == ((96, 96), 3, (3, 4, 6, 3))
    assert model.config.preprocessing.mean == (0.5,)
    assert vitreous.load(folder).config.image_size == (224, 224)


def test_model_without_a_head_gives_timm_outputs(tmp_path: Path) -> None:
    timm = import_timm()
    theirs = noisy(timm.create_model("resnetv2_50x1_bit", num_classes=0))
    timm.models.save_for_hf(theirs, tmp_path / "m", safe_serialization=True)
    ours = vitreous.load(tmp_path / "m")
    assert ours.config.num_classes == 0
    check_close(ours, theirs, (64, 64))


@pytest.mark.parametrize(("name", "format"), [("resnetv2_50x1_bit.safetensors", None), ("x.safetensors", "bit")])
def test_bare_file_is_read_if_it_is_named_bit(name: str, format: str | None, folder: Path, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes((folder / "model.safetensors").read_bytes())
    with pytest.warns(vitreous.AssumptionWarning, match="preprocessing"):
        model = vitreous.load(tmp_path / name, format=format)
    images = torch.randn(1, 3, 64, 64)
    assert torch.equal(model.eval()(images), vitreous.load(folder)(images))


def test_bare_file_of_a_resnet_without_standardisation_is_rejected(tmp_path: Path) -> None:
    """Its tensors have the same names and shapes as BiT's, but its convolutions are plain."""
    timm = import_timm()
    parts = {"norm_layer": timm.layers.GroupNormAct, "conv_layer": timm.layers.create_conv2d}
    small = {"layers": (1, 1), "channels": (128, 256), "stem_chs": 32, "num_classes": 3}
    plain = timm.models.resnetv2.ResNetV2(**parts, **small).state_dict()
    bit = timm.models.resnetv2.ResNetV2(stem_type="fixed", **small).state_dict()
    assert {name: weight.shape for name, weight in plain.items()} == {
        name: weight.shape for name, weight in bit.items()
    }
    for state in (plain, bit):
        torch.save(state, tmp_path / "x.pth")
        with pytest.raises(BadCheckpoint, match=r"standardisation.* format='bit'.*--from bit"):
            vitreous.load(tmp_path / "x.pth")
    torch.save({"arch": "resnetv2_50_gn", "state_dict": plain}, tmp_path / "x.pth")
    with pytest.raises(BadCheckpoint, match="timm's resnetv2_50_gn, which is not supported"):
        vitreous.load(tmp_path / "x.pth")


def test_other_resnets_are_rejected(folder: Path, tmp_path: Path) -> None:
    """They have the same tensors, but plain convolutions."""
    document = json.loads((folder / "config.json").read_text()) | {"architecture": "resnetv2_50_gn"}
    (tmp_path / "config.json").write_text(json.dumps(document))
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    with pytest.raises(BadCheckpoint, match="timm's resnetv2_50_gn, which is not supported"):
        vitreous.load(tmp_path)


def test_format_is_not_written(folder: Path, tmp_path: Path) -> None:
    for model in (vitreous.load(folder), vitreous.create("ViT-Lite-6/4")):
        with pytest.raises(UnsupportedByFormat, match="'bit' can be read but not written"):
            vitreous.save(model, tmp_path / "x", format="bit")
    vitreous.save(vitreous.load(folder), tmp_path / "own")
    images = torch.randn(1, 3, 64, 64)
    assert torch.equal(vitreous.load(tmp_path / "own")(images), vitreous.load(folder)(images))
