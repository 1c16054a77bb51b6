"""Models of timm's, through timm's own files, in both directions."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import vitreous
from parity import check_close, check_identical, noisy
from peers import import_timm
from vitreous.model.build import build
from vitreous.model.config import ViTConfig
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
from vitreous.model.vit import ViT
from vitreous.weights.convert import CannotHold
from vitreous.weights.tensors import BadCheckpoint

NATIVE, OTHER = (32, 32), (40, 24)
SIZES = {"img_size": 32, "patch_size": 8, "embed_dim": 128, "depth": 2, "num_heads": 2, "mlp_ratio": 2.0}
HYBRID = {"img_size": 64, "embed_dim": 128, "depth": 2, "num_heads": 2, "mlp_ratio": 2.0}
PLAIN = "vit_base_patch16_224"

# An architecture of timm's, what is otherwise in it, and fields of our config that tell it was understood.
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "plain": (PLAIN, {}, {"num_heads": 2, "layer_scale": None}),
    "mean, then norm": (PLAIN, {"global_pool": "avg"}, {"pool": GlobalAverage("after")}),
    "no class token": (PLAIN, {"global_pool": "avg", "class_token": False}, {"class_token": False}),
    "no class token, norm, then mean": (
        PLAIN,
        {"global_pool": "avg", "class_token": False, "fc_norm": False},
        {"pool": GlobalAverage("before")},
    ),
    "no position for the class token": (PLAIN, {"no_embed_class": True}, {"position": Learned1d(False, "timm")}),
    "registers": (PLAIN, {"reg_tokens": 3, "no_embed_class": True}, {"registers": 3}),
    "registers with positions": (PLAIN, {"reg_tokens": 3}, {"registers": 3, "position": Learned1d(True, "timm")}),
    "registers with positions, no class token": (
        PLAIN,
        {"reg_tokens": 3, "class_token": False, "global_pool": "avg"},
        {"registers": 3},
    ),
    "LayerScale": (PLAIN, {"init_values": 0.1}, {"layer_scale": 1e-5}),
    "norms on queries and keys": (PLAIN, {"qk_norm": True}, {"qk_norm": True}),
    "no bias on queries, keys and values": (PLAIN, {"qkv_bias": False}, {"qkv_bias": False}),
    "attention pooling": (PLAIN, {"global_pool": "map", "class_token": False}, {"pool": AttentionPool()}),
    "no classifier": (PLAIN, {"num_classes": 0}, {"num_classes": 0}),
    "four channels": (PLAIN, {"in_chans": 4}, {"channels": 4}),
    "distilled": ("deit_base_distilled_patch16_224", {}, {"distillation_token": True}),
    "SwiGLU": (
        "vit_giant_patch14_dinov2",
        {"mlp_ratio": 3.0, "init_values": 0.1, "num_classes": 7},
        {"mlp": SwiGlu(), "mlp_width": 192},
    ),
    "R50": ("vit_base_r50_s16_224", {}, {"stem": ResNetStem((3, 4, 9), 64, "timm"), "image_size": (64, 64)}),
    "stem alone": ("vit_tiny_r_s16_p8_224", {}, {"stem": ResNetStem((), 64, "timm"), "patch_size": (8, 8)}),
}


def theirs(case: str, **more: Any) -> nn.Module:
    name, given, _ = CASES[case]
    sizes = HYBRID if "_r" in name else SIZES
    return noisy(import_timm().create_model(name, **{**sizes, "num_classes": 7, **given}, **more))


# ---- There and back -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_a_model_of_timms_goes_there_and_back(case: str, tmp_path: Path) -> None:
    timm, model = import_timm(), theirs(case, dynamic_img_size=True)
    torch.save(model.state_dict(), tmp_path / "theirs.pth")
    ours = vitreous.load(tmp_path / "theirs.pth")
    assert isinstance(ours, ViT)
    for field, value in CASES[case][2].items():
        assert getattr(ours.config, field) == value
    native, other = ours.config.image_size, OTHER if ours.config.stem is None else (96, 64)
    check_close(ours, model, native, other, channels=ours.config.channels)

    vitreous.save(ours, tmp_path / "m", format="timm")
    check_identical(vitreous.load(tmp_path / "m"), ours)
    built = timm.create_model(f"local-dir:{tmp_path / 'm'}", pretrained=True, dynamic_img_size=True).eval()
    check_close(built, ours, native, other, channels=ours.config.channels)

    for suffix in (".pth", ".safetensors"):
        vitreous.save(ours, tmp_path / f"ours{suffix}", format="timm")
        check_identical(vitreous.load(tmp_path / f"ours{suffix}"), ours)
        filled = noisy(model)
        filled.load_state_dict(timm.models.load_state_dict(str(tmp_path / f"ours{suffix}")), strict=True)
        check_close(filled, ours, native, channels=ours.config.channels)


@pytest.mark.parametrize("safe", [True, False, "both"], ids=["safetensors", "bin", "both"])
def test_the_folder_that_timm_writes_for_the_hub_is_read(safe: Any, tmp_path: Path) -> None:
    timm = import_timm()
    given = SIZES | {"img_size": (24, 48), "num_heads": 4, "act_layer": "gelu_tanh", "dynamic_img_size": True}
    model = noisy(timm.create_model(PLAIN, num_classes=3, global_pool="avg", fc_norm=False, **given))
    timm.models.save_for_hf(
        model, tmp_path / "m", {"label_names": ["a", "b", "c"]}, model_args=given, safe_serialization=safe
    )
    ours = vitreous.load(tmp_path / "m")
    assert ours.config.image_size == (24, 48)
    assert (ours.config.num_heads, ours.config.mlp) == (4, Gelu("tanh"))
    assert ours.config.labels == ("a", "b", "c")
    assert ours.config.pool == GlobalAverage("before")
    assert ours.config.preprocessing == Preprocessing(crop_fraction=0.9)
    check_close(ours, model, (24, 48), OTHER)


@pytest.mark.parametrize("wrap", ["state_dict", "model", "state_dict_ema"])
def test_what_training_scripts_put_around_the_weights_is_taken_off(wrap: str, tmp_path: Path) -> None:
    model = theirs("plain")
    state = {f"module.{name}": tensor for name, tensor in model.state_dict().items()}
    document = {"epoch": 3, "arch": PLAIN, wrap: state}
    if wrap == "state_dict_ema":  # averaged weights come first
        document["state_dict"] = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    torch.save(document, tmp_path / "last.pth")
    check_close(vitreous.load(tmp_path / "last.pth"), model, NATIVE)


def test_a_size_that_is_not_square_has_to_be_given(tmp_path: Path) -> None:
    model = noisy(import_timm().create_model(PLAIN, **SIZES | {"img_size": (24, 48)}, num_classes=7))
    torch.save(model.state_dict(), tmp_path / "m.pth")
    with pytest.raises(BadCheckpoint, match="has 19 positions, 18 without the prefix, which is no square: give the"):
        vitreous.load(tmp_path / "m.pth")
    check_close(vitreous.load(tmp_path / "m.pth", image_size=(24, 48)), model, (24, 48))
    check_close(vitreous.load(tmp_path / "m.pth", overrides={"image_size": (24, 48)}), model, (24, 48))


def test_a_square_is_not_taken_for_a_strip_of_as_many_patches(tmp_path: Path) -> None:
    model = theirs("plain", dynamic_img_size=True)
    torch.save(model.state_dict(), tmp_path / "m.pth")
    check_close(vitreous.load(tmp_path / "m.pth", image_size=(16, 64)), model, (16, 64))


def test_a_mean_of_normed_patches_looks_like_a_class_token(tmp_path: Path) -> None:
    model = noisy(import_timm().create_model(PLAIN, **SIZES, num_classes=7, global_pool="avg", fc_norm=False))
    torch.save(model.state_dict(), tmp_path / "m.pth")
    assert "pool: " in " ".join(vitreous.load(tmp_path / "m.pth").provenance["assumed"])
    ours = vitreous.load(tmp_path / "m.pth", overrides={"pool": GlobalAverage("before")})
    check_close(ours, model, NATIVE)


@pytest.mark.parametrize("form", ["list", "numbered", "older"])
def test_labels_and_what_pictures_need(form: str, tmp_path: Path) -> None:
    model = theirs("plain")
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
    assert config.preprocessing == Preprocessing((0.1, 0.2, 0.3), (0.5,), fit="squash")


def test_deit_three_calls_its_layer_scales_otherwise(tmp_path: Path) -> None:
    given = SIZES | {"num_classes": 7}
    model = noisy(import_timm().create_model("deit3_base_patch16_224", dynamic_img_size=True, **given))
    state = {name.replace("ls1.gamma", "gamma_1").replace("ls2.gamma", "gamma_2"): tensor
             for name, tensor in model.state_dict().items()}  # fmt: skip
    assert "blocks.0.gamma_1" in state
    torch.save({"model": state}, tmp_path / "deit3.pth")
    ours = vitreous.load(tmp_path / "deit3.pth")
    assert ours.config.preprocessing == dataclasses.replace(IMAGENET, crop_fraction=1.0)
    check_close(ours, model, NATIVE, OTHER)


def test_a_hidden_layer_before_the_classifier(tmp_path: Path) -> None:
    """timm had one until 2022, for Google's weights."""
    model = theirs("plain")
    old = noisy(nn.Sequential(nn.Linear(128, 96), nn.Tanh(), nn.Linear(96, 7)))
    state = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("head.")}
    state |= {"pre_logits.fc.weight": old[0].weight, "pre_logits.fc.bias": old[0].bias}
    state |= {"head.weight": old[2].weight, "head.bias": old[2].bias}
    torch.save(state, tmp_path / "m.pth")
    ours = vitreous.load(tmp_path / "m.pth")
    assert ours.config.head == TanhHead(96)
    check_close(ours, lambda images: old(model.forward_features(images)[:, 0]), NATIVE)


def test_what_was_taken_by_convention_is_said(tmp_path: Path) -> None:
    torch.save(theirs("plain").state_dict(), tmp_path / "m.pth")
    said = " ".join(vitreous.load(tmp_path / "m.pth").provenance["assumed"])
    for field in ("num_heads", "image_size", "norm_eps", "mlp", "preprocessing"):
        assert f"{field}: " in said
    given = vitreous.load(tmp_path / "m.pth", overrides={"num_heads": 4, "norm_eps": 1e-5})
    assert (given.config.num_heads, given.config.norm_eps) == (4, 1e-5)
    assert "num_heads" not in " ".join(given.provenance["assumed"])


def test_what_only_the_name_of_an_architecture_tells() -> None:
    """Of all of timm's that are made of the parts that we read."""
    from vitreous.weights.format import HEADS
    from vitreous.weights.timm_config import SIXTEEN_HEADS, TANH

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


@pytest.mark.parametrize("name", ["vit_base_patch16_rpn_224", "vit_small_patch16_rope_ape_224"])
def test_an_architecture_that_computes_otherwise_with_the_same_tensors_is_refused(name: str, tmp_path: Path) -> None:
    torch.save(import_timm().create_model(name, depth=1).state_dict(), tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text(json.dumps({"architecture": name}))
    with pytest.raises(BadCheckpoint, match=f"is timm's {name}, which no model of ours computes"):
        vitreous.load(tmp_path)


def test_ways_with_pictures_that_are_not_ours_are_said(tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    vitreous.save(build(SMALL), folder, format="timm")
    document = json.loads((folder / "config.json").read_text())
    document["pretrained_cfg"] |= {"interpolation": "lanczos", "crop_mode": "border"}
    del document["pretrained_cfg"]["mean"], document["pretrained_cfg"]["std"]
    (folder / "config.json").write_text(json.dumps(document))
    found = vitreous.load(folder)
    said = " ".join(found.provenance["assumed"])
    assert "timm resizes by 'lanczos', we by bicubic interpolation; timm crops by 'border'" in said
    assert (found.config.preprocessing.mean, found.config.preprocessing.std) == (IMAGENET.mean, IMAGENET.std)


# ---- To timm ---------------------------------------------------------------------------------------------------------


SMALL = ViTConfig(
    image_size=(24, 48),
    patch_size=(8, 4),
    width=96,
    depth=2,
    num_heads=3,
    mlp_width=77,
    mlp=Gelu("erf"),
    position=Learned1d(interpolation="timm"),
    num_classes=3,
    labels=("a", "b", "c"),
)


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
def test_a_folder_holds_all_of_a_model(changes: dict[str, Any], tmp_path: Path) -> None:
    model = build(dataclasses.replace(SMALL, **changes))
    noisy(model)
    vitreous.save(model, tmp_path / "m", format="timm")
    check_identical(vitreous.load(tmp_path / "m"), model)
    theirs = import_timm().create_model(f"local-dir:{tmp_path / 'm'}", pretrained=True).eval()
    check_close(theirs, model, model.config.image_size, channels=model.config.channels)
    shown, cfg = model.config.preprocessing, theirs.pretrained_cfg
    assert tuple(cfg["mean"]) == shown.mean * (model.config.channels // len(shown.mean))
    assert cfg["crop_mode"] == ("center" if shown.fit == "crop" else "squash")
    assert tuple(cfg["label_names"]) == ("a", "b", "c")


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"position": Conditional()}, "position Conditional"),
        ({"patch_norm": True, "patch_method": "linear"}, "patch_norm"),
        ({"head_dim": 16}, "head_dim 16"),
        ({"qk_scale": 1.0}, "qk_scale 1"),
        ({"pad": True, "image_size": (25, 40)}, "pad"),
        ({"head": TanhHead(8)}, "head TanhHead"),
        ({"head": MlpHead(8)}, "head MlpHead"),
        ({"pool": AttentionPool()}, "pool AttentionPool"),
        ({"pool": AttentionPool(), "class_token": False, "mlp": SwiGlu()}, "pool AttentionPool with SwiGLU"),
        ({"distillation_token": True, "registers": 1}, "registers"),
        ({"distillation_token": True, "position": Learned1d(False, "timm")}, "position without an entry"),
        ({"stem": ResNetStem((1,), 32, "timm"), "image_size": (32, 32)}, r"stem with stages \(1,\).*stem 32 wide"),
        ({"stem": ResNetStem((), 64, "timm"), "image_size": (32, 32), "mlp": SwiGlu()}, "SwiGLU"),
    ],
    ids=str,
)
def test_what_timm_has_no_place_for_is_refused(changes: dict[str, Any], part: str, tmp_path: Path) -> None:
    with pytest.raises(CannotHold, match=f"timm cannot hold this model: .*{part}"):
        vitreous.save(build(dataclasses.replace(SMALL, **changes)), tmp_path / "m", format="timm")
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"norm_eps": 1e-5}, "eps is 1e-05, and timm's is 1e-06"),
        ({"stem": ResNetStem((), 64, "google"), "image_size": (32, 32)}, "Google's small numbers"),
    ],
    ids=str,
)
def test_other_numerics_need_a_word(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    model = build(dataclasses.replace(SMALL, **changes))
    with pytest.raises(CannotHold, match=said):
        vitreous.save(model, tmp_path / "m", format="timm")
    vitreous.save(model, tmp_path / "m", format="timm", lossy=True)
    assert (tmp_path / "m" / "model.safetensors").is_file()


# ---- Files that are not whole ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"blocks.1.mlp.fc2.bias": None}, r"1 missing: blocks\.1\.mlp\.fc2\.bias$"),
        ({"norm_pre.weight": (128,)}, r"1 unexpected: norm_pre\.weight$"),
        ({"blocks.1.attn.proj.weight": (128, 64)}, r"blocks\.1\.attn\.proj\.weight is \[128, 64\], but must be"),
        ({"patch_embed.proj.weight": (128, 192)}, r"patch_embed\.proj\.weight is \[128, 192\], but must have 4 dim"),
        ({"pos_embed": (17,)}, r"pos_embed is \[17\], but must have 3 dimensions"),
        ({"pos_embed": None}, "has no tensor pos_embed"),
        ({"head.weight": (7,)}, r"head\.weight is \[7\], but must have 2 dimensions"),
        ({"blocks.0.mlp.fc1.weight": ()}, r"fc1\.weight is \[\], but must have 2 dimensions"),
        ({"attn_pool.latent": (1, 1, 128)}, "leaves the class token or registers out of attention pooling"),
    ],
    ids=str,
)
def test_a_wrong_file_is_refused_in_one_line(
    change: dict[str, tuple[int, ...] | None], said: str, tmp_path: Path
) -> None:
    state = dict(theirs("plain").state_dict())
    for name, shape in change.items():
        state.pop(name, None)
        if shape is not None:
            state[name] = torch.zeros(shape)
    torch.save(state, tmp_path / "m.pth")
    with pytest.raises(BadCheckpoint, match=said) as refusal:
        vitreous.load(tmp_path / "m.pth")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"global_pool": "max"}, "global_pool 'max', but must have one of token, avg, map"),
        ({"global_pool": "map"}, "global_pool 'map', but the tensors of ClassToken"),
        ({"model_args": {"act_layer": "quick_gelu"}}, "act_layer 'quick_gelu'"),
        ({"model_args": {"pool_include_prefix": True}}, "pools the class token with the patches"),
        ({"model_args": [3]}, "model_args of config.json is"),
        ({"model_args": {"num_heads": "2"}}, "num_heads '2'"),
        ({"model_args": {"img_size": "big"}}, "img_size 'big'"),
        ({"pretrained_cfg": {"mean": None}}, "pretrained_cfg of config.json has a wrong number"),
    ],
    ids=str,
)
def test_a_config_that_says_something_else_is_refused(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    timm = import_timm()
    timm.models.save_for_hf(theirs("plain"), tmp_path / "m", model_args=SIZES)
    file = tmp_path / "m" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(BadCheckpoint, match=said):
        vitreous.load(tmp_path / "m")
