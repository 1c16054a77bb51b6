"""timm's config.json: architecture, arguments, labels and preprocessing."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import vitreous
from optional_imports import import_timm
from parity import check_close, noisy
from timm_models import OTHER, PLAIN, SIZES, SMALL, timm_model
from vitreous.model.build import build
from vitreous.model.options import IMAGENET, Gelu, GlobalAverage, Preprocessing
from vitreous.weights.io.errors import BadCheckpoint


@pytest.mark.slow
@pytest.mark.parametrize("safe", [True, False, "both"], ids=["safetensors", "bin", "both"])
def test_folder_written_by_save_for_hf_is_read(safe: Any, tmp_path: Path) -> None:
    timm = import_timm()
    given = SIZES | {"img_size": (24, 48), "num_heads": 4, "act_layer": "gelu_tanh", "dynamic_img_size": True}
    model = noisy(timm.create_model(PLAIN, num_classes=3, global_pool="avg", fc_norm=False, **given))
    timm.models.save_for_hf(
        model, tmp_path / "m", {"label_names": ["a", "b", "c"]}, model_args=given, safe_serialization=safe
    )
    loaded = vitreous.load(tmp_path / "m")
    assert loaded.config.image_size == (24, 48)
    assert (loaded.config.num_heads, loaded.config.mlp) == (4, Gelu("tanh"))
    assert loaded.config.labels == ("a", "b", "c")
    assert loaded.config.pool == GlobalAverage("before")
    # timm's centre crop always resizes non-square sizes bilinearly
    assert loaded.config.preprocessing == Preprocessing(crop_fraction=0.9, interpolation="bilinear", geometry="timm")
    check_close(loaded, model, (24, 48), OTHER)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["list", "numbered", "older"])
def test_labels_and_preprocessing_are_read(form: str, tmp_path: Path) -> None:
    model = timm_model("plain")
    import_timm().models.save_for_hf(model, tmp_path / "m", model_args=SIZES)
    names: Any = {str(i): f"class {i}" for i in range(7)}
    file = tmp_path / "m" / "config.json"
    document = json.loads(file.read_text())
    document["pretrained_cfg"] |= {"mean": [0.1, 0.2, 0.3], "crop_pct": 1.0, "crop_mode": "squash"}
    if form == "older":  # all in one object
        document |= document.pop("pretrained_cfg")
    document["label_names"] = names if form == "numbered" else list(names.values())
    file.write_text(json.dumps(document))
    config = vitreous.load(tmp_path / "m").config
    assert config.labels == tuple(names.values())
    assert config.preprocessing == Preprocessing((0.1, 0.2, 0.3), (0.5,), fit="squash", geometry="timm")


def test_unsupported_preprocessing_is_assumed_with_a_warning(tmp_path: Path) -> None:
    folder = tmp_path / "foreign"
    vitreous.save(build(SMALL), folder, format="timm")
    document = json.loads((folder / "config.json").read_text())
    document["pretrained_cfg"] |= {"interpolation": "lanczos", "crop_mode": "random"}
    del document["pretrained_cfg"]["mean"], document["pretrained_cfg"]["std"]
    (folder / "config.json").write_text(json.dumps(document))
    found = vitreous.load(folder)
    assumed = " ".join(found.provenance["assumed"])
    assert "timm resizes with 'lanczos'; Vitreous uses bicubic; timm uses crop_mode 'random'" in assumed
    assert (found.config.preprocessing.mean, found.config.preprocessing.std) == (IMAGENET.mean, IMAGENET.std)


@pytest.mark.slow
def test_architecture_names_determine_heads_and_gelu() -> None:
    """Checked for all supported timm architectures."""
    from vitreous.weights.formats.base import HEADS
    from vitreous.weights.formats.timm.config import SIXTEEN_HEADS, TANH

    timm = import_timm()
    vits = timm.models.vision_transformer
    seen = 0
    for name in timm.list_models(["vit_*siglip*", "vit_giant*", "vit_*_gap_*"], module="vision_transformer"):
        with torch.device("meta"):
            model = timm.create_model(name, depth=1, num_classes=0)
        if not isinstance(model.norm_pre, nn.Identity) or not isinstance(model.blocks[0], vits.Block):
            continue
        width, seen = model.embed_dim, seen + 1
        usual = 16 if SIXTEEN_HEADS.fullmatch(name) else HEADS.get(width, width // 64)
        assert model.blocks[0].attn.num_heads == usual, name
        assert (type(model.blocks[0].mlp.act).__name__ == "GELUTanh") == bool(TANH.fullmatch(name)), name
    assert seen > 40


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit_base_patch16_rpn_224", "vit_pe_spatial_tiny_patch16_512"])
def test_architectures_with_ambiguous_tensors_are_rejected(name: str, tmp_path: Path) -> None:
    torch.save(import_timm().create_model(name, depth=1).state_dict(), tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text(json.dumps({"architecture": name}))
    with pytest.raises(BadCheckpoint, match=f"is timm's {name}, which is not supported"):
        vitreous.load(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"global_pool": "max"}, "global_pool must be one of token, avg, map, got 'max'"),
        ({"global_pool": "map"}, "global_pool must be 'token' for these tensors, got 'map'"),
        ({"model_args": {"act_layer": "silu"}}, "act_layer must be .*got 'silu'"),
        ({"model_args": {"pool_include_prefix": True}}, "pool_include_prefix"),
        ({"model_args": [3]}, "model_args in config.json must be an object"),
        ({"model_args": {"num_heads": "2"}}, "num_heads must be an integer, got '2'"),
        ({"model_args": {"img_size": "big"}}, "img_size must be .*got 'big'"),
        ({"pretrained_cfg": {"mean": None}}, "invalid number in pretrained_cfg"),
    ],
    ids=str,
)
def test_contradicting_config_is_rejected(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    timm = import_timm()
    timm.models.save_for_hf(timm_model("plain"), tmp_path / "m", model_args=SIZES)
    file = tmp_path / "m" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(BadCheckpoint, match=message):
        vitreous.load(tmp_path / "m")


@pytest.mark.parametrize(("tag", "names"), [("augreg_in21k_ft_in1k", True), ("fb_in1k", True), ("mine", False)])
def test_imagenet_classes_are_named(tag: str, names: bool, tmp_path: Path) -> None:
    timm = import_timm()
    vitreous.save(vitreous.create("ViT-Ti/16", image_size=32, overrides={"depth": 1}), tmp_path / "m", format="timm")
    document = json.loads((tmp_path / "m" / "config.json").read_text())
    document["pretrained_cfg"]["tag"] = tag
    (tmp_path / "m" / "config.json").write_text(json.dumps(document))
    labels = vitreous.load(tmp_path / "m").config.labels
    assert len(set(labels)) == (1000 if names else 0)
    info = timm.data.ImageNetInfo()
    theirs = [info.index_to_description(i).split(", ")[0] for i in range(len(labels))]
    assert all(ours.startswith(name) for ours, name in zip(labels, theirs, strict=True))
