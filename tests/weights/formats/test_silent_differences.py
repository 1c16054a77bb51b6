"""Ambiguous files and lossy writing never change a model's outputs silently."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vitreous
from optional_imports import import_timm, import_torchvision, import_transformers, import_vit_pytorch
from parity import check_close, check_identical, difference, noisy
from timm_models import PLAIN, SIZES
from vitreous.model.build import build
from vitreous.model.config import ViTConfig
from vitreous.model.options import Gelu, GlobalAverage, Learned1d, Preprocessing, SwiGlu
from vitreous.weights.convert import UnsupportedByFormat, convert
from vitreous.weights.io.containers import read_file
from vitreous.weights.io.errors import BadCheckpoint

# 4 x 6 patches and a class token have as many positions as 5 x 5 patches.
LONG, SQUARE, PLACES = (32, 48), (40, 40), 25
THEIRS = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 8}
UNSURE = "25 positions; the 24 .* square grid"


def timm_model(**given: Any) -> nn.Module:
    return noisy(import_timm().create_model(PLAIN, **{**SIZES, "num_classes": 7, **given}))


def assumption_of(model: Any, field: str) -> str:
    """Return the reason for assuming a field, or an empty string."""
    return "".join(line for line in model.provenance.get("assumed", ()) if line.startswith(f"{field}: "))


# ---- Ambiguous grids -------------------------------------------------------------------------------------------------


def test_rectangular_timm_grid_follows_image_size(tmp_path: Path) -> None:
    model = timm_model(img_size=LONG)
    assert model.pos_embed.shape[1] == PLACES
    torch.save(model.state_dict(), tmp_path / "m.pth")
    for given in ({"image_size": LONG}, {"overrides": {"image_size": LONG}}):
        loaded = vitreous.load(tmp_path / "m.pth", **given)
        assert loaded.config.position == Learned1d(True, "timm")
        check_close(loaded, model, LONG)


def test_square_without_class_token_position_is_assumed(tmp_path: Path) -> None:
    model = timm_model(img_size=SQUARE, no_embed_class=True, dynamic_img_size=True)
    assert model.pos_embed.shape[1] == PLACES
    torch.save(model.state_dict(), tmp_path / "m.pth")
    loaded = vitreous.load(tmp_path / "m.pth")
    check_close(loaded, model, SQUARE)
    assert "0 of the 25 positions" in assumption_of(loaded, "image_size")
    check_close(vitreous.load(tmp_path / "m.pth", image_size=(48, 40)), model, (48, 40))


def test_timm_folder_of_another_size_is_not_read_as_square(tmp_path: Path) -> None:
    """`save_for_hf` writes the given arguments but the image size of the architecture."""
    model = timm_model(img_size=LONG)
    import_timm().models.save_for_hf(model, tmp_path / "m", model_args={"num_heads": 2})
    with pytest.raises(BadCheckpoint, match=rf"{UNSURE}.*\(224, 224\)"):
        vitreous.load(tmp_path / "m")
    check_close(vitreous.load(tmp_path / "m", image_size=LONG), model, LONG)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "args"),
    [("deit3_base_patch16_224", {}), ("vit_base_patch14_reg4_dinov2", {}), (PLAIN, {"no_embed_class": True})],
    ids=str,
)
def test_timm_folder_specifies_missing_token_positions(name: str, args: dict[str, Any], tmp_path: Path) -> None:
    timm, given = import_timm(), {**SIZES, "num_classes": 7, "img_size": SQUARE, **args}
    model = noisy(timm.create_model(name, **given))
    timm.models.save_for_hf(model, tmp_path / "m", model_args={"num_heads": 2, **args})
    loaded = vitreous.load(tmp_path / "m")
    assert not loaded.config.position.prefix_entries
    check_close(loaded, model, SQUARE)


@pytest.mark.slow
def test_architectures_without_token_positions_are_known() -> None:
    """Checked for all supported timm architectures."""
    from vitreous.weights.formats.timm.config import NO_ENTRIES

    timm, seen = import_timm(), 0
    vits = timm.models.vision_transformer
    for name in timm.list_models(["vit_*", "deit*", "flexivit*"]):
        if timm.models.model_entrypoint(name).__module__.rsplit(".", 1)[-1] not in ("vision_transformer", "deit"):
            continue
        with torch.device("meta"):
            model = timm.create_model(name, depth=1, num_classes=0)
        plain = isinstance(model.norm_pre, nn.Identity) and isinstance(model.blocks[0], vits.Block)
        if plain and model.num_prefix_tokens and model.pos_embed is not None:
            seen += 1
            assert model.no_embed_class == bool(NO_ENTRIES.fullmatch(name)), name
    assert seen > 60


def test_rectangular_vit_pytorch_grid_requires_image_size(tmp_path: Path) -> None:
    sizes = {"patch_size": 8, "dim": 128, "depth": 2, "heads": 2, "mlp_dim": 96, "num_classes": 7}
    model = noisy(import_vit_pytorch().ViT(image_size=LONG, **sizes))
    torch.save(model.state_dict(), tmp_path / "m.pth")
    with pytest.raises(BadCheckpoint, match=UNSURE):
        vitreous.load(tmp_path / "m.pth")
    check_close(vitreous.load(tmp_path / "m.pth", image_size=LONG), model, LONG)


def test_rectangular_transformers_grid_requires_image_size(tmp_path: Path) -> None:
    transformers = import_transformers()
    config = transformers.ViTConfig(**THEIRS, image_size=LONG, intermediate_size=96, num_labels=7)
    model = noisy(transformers.ViTForImageClassification(config))
    torch.save(model.state_dict(), tmp_path / "m.bin")
    with pytest.raises(BadCheckpoint, match=UNSURE):
        vitreous.load(tmp_path / "m.bin")
    check_close(vitreous.load(tmp_path / "m.bin", image_size=LONG), lambda images: model(images).logits, LONG)


@pytest.mark.slow
@pytest.mark.parametrize("format", ["torchvision", "dinov2", "paddle", "paddlevit"])
def test_class_token_position_is_unambiguous_in_other_formats(format: str, tmp_path: Path) -> None:
    """No published model has 25 positions, so the table is created here."""
    scaled = {"layer_scale": 1e-5, "num_classes": 0} if format == "dinov2" else {}
    config = dataclasses.replace(SMALL, **scaled)
    file = tmp_path / ("m.pdparams" if "paddle" in format else "m.pth")
    vitreous.save(noisy(build(config)), file, format=format)
    tensors = dict(read_file(file))
    name = next(name for name in tensors if "pos" in name and tensors[name].shape[1:] == (17, 128))
    torch.save(tensors | {name: torch.zeros(1, PLACES, 128)}, tmp_path / "long.pth")
    with pytest.raises(BadCheckpoint, match=UNSURE):
        vitreous.load(tmp_path / "long.pth", format=format)
    assert vitreous.load(tmp_path / "long.pth", format=format, image_size=LONG).config.image_size == LONG


# ---- Lossy writing ---------------------------------------------------------------------------------------------------

SMALL = ViTConfig(
    image_size=(32, 32),
    patch_size=(8, 8),
    width=128,
    depth=2,
    num_heads=2,
    mlp_width=256,
    mlp=Gelu("erf"),
    num_classes=7,
)
TANH = {"mlp": Gelu("tanh")}
BARE: list[tuple[str, dict[str, Any], str]] = [
    ("timm", TANH, "GELU .* erf in timm"),
    ("timm", {"pool": GlobalAverage("before")}, "the class token with these tensors"),
    ("huggingface", TANH | {"norm_eps": 1e-12}, "GELU .* erf in transformers' ViT"),
    ("huggingface", {}, "eps .* 1e-12 in transformers' ViT"),
    (
        "huggingface",
        {"layer_scale": 0.1, "num_classes": 0, "norm_eps": 1e-5},
        "eps .* 1e-06 in transformers' Dinov2",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".pth", ".safetensors", ".bin"])
@pytest.mark.parametrize(("format", "changes", "message"), BARE, ids=str)
def test_file_with_other_numerics_requires_lossy(
    format: str, changes: dict[str, Any], message: str, suffix: str, tmp_path: Path
) -> None:
    model = noisy(build(dataclasses.replace(SMALL, **changes)))
    with pytest.raises(
        UnsupportedByFormat, match=f"would give different outputs with these weights: .*{message}.*lossy"
    ):
        vitreous.save(model, tmp_path / f"x{suffix}", format=format)
    assert not list(tmp_path.iterdir())
    vitreous.save(model, tmp_path / f"x{suffix}", format=format, lossy=True)
    loaded = vitreous.load(tmp_path / f"x{suffix}")
    assert loaded.config != model.config


@pytest.mark.parametrize(("format", "name"), [("timm", "m.pth"), ("timm", "folder"), ("huggingface", "folder")])
def test_value_range_of_16_bit_images_requires_lossy(format: str, name: str, tmp_path: Path) -> None:
    model = build(dataclasses.replace(SMALL, preprocessing=Preprocessing(value_range=(0, 4095))))
    with pytest.raises(UnsupportedByFormat, match="16-bit"):
        vitreous.save(model, tmp_path / name, format=format)
    vitreous.save(model, tmp_path / name, format=format, lossy=True)


@pytest.mark.parametrize("format", ["timm", "huggingface"])
def test_folder_specifies_what_a_file_cannot(format: str, tmp_path: Path) -> None:
    model = noisy(build(dataclasses.replace(SMALL, **TANH, norm_eps=1e-6)))
    vitreous.save(model, tmp_path / "m", format=format)
    check_close(vitreous.load(tmp_path / "m"), model, (32, 32))


def test_timm_computes_differently_with_a_lossy_file(tmp_path: Path) -> None:
    """timm applies its default GELU to these weights."""
    model = noisy(build(dataclasses.replace(SMALL, **TANH)))
    vitreous.save(model, tmp_path / "x.pth", format="timm", lossy=True)
    filled = timm_model()
    filled.load_state_dict(torch.load(tmp_path / "x.pth"), strict=True)
    assert difference(filled, model, (32, 32)) > 1e-4


def test_convert_reports_lossy_differences(tmp_path: Path) -> None:
    vitreous.save(noisy(build(dataclasses.replace(SMALL, **TANH))), tmp_path / "saved")
    file = convert(tmp_path / "saved", tmp_path / "x.pth", to="timm", lossy=True)
    assert file.losses == ["GELU is computed with tanh in Vitreous and with erf in timm"]
    assert convert(tmp_path / "saved", tmp_path / "folder", to="timm").losses == []


# ---- Options unknown to the formats ----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Squared(Gelu):
    """A user-defined MLP option."""


@dataclasses.dataclass(frozen=True)
class Strongest(GlobalAverage):
    """A user-defined pooling option."""


FOLDERS, FILES = ("timm", "huggingface"), ("torchvision", "mae", "dinov2", "lucidrains")
TARGETS = dict.fromkeys(FOLDERS, "m") | dict.fromkeys(FILES, "m.pth")
TARGETS |= dict.fromkeys(("google", "big_vision"), "m.npz") | dict.fromkeys(("paddle", "paddlevit"), "m.pdparams")


@pytest.mark.parametrize("format", TARGETS)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mlp": Squared("erf")}, "Squared"),
        ({"pool": Strongest("after"), "class_token": False}, "Strongest"),
    ],
    ids=["mlp", "pool"],
)
def test_new_options_are_rejected_by_every_format(
    changes: dict[str, Any], message: str, format: str, tmp_path: Path
) -> None:
    model = build(dataclasses.replace(SMALL, **changes))
    with pytest.raises(UnsupportedByFormat, match=f"{message} .*not supported by any other"):
        vitreous.save(model, tmp_path / TARGETS[format], format=format, lossy=True)


# ---- Ambiguous tensors -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [{"global_pool": "avgmax"}, {"fc_norm": True}, {"global_pool": "avg"}], ids=str)
def test_pooling_with_fc_norm_is_assumed(given: dict[str, Any], tmp_path: Path) -> None:
    model = timm_model(**given)
    torch.save(model.state_dict(), tmp_path / "m.pth")
    loaded = vitreous.load(tmp_path / "m.pth")
    assert "avgmax" in assumption_of(loaded, "pool")
    assert (difference(loaded, model, (32, 32)) < 1e-4) == (given == {"global_pool": "avg"})


def test_gated_mlp_is_assumed_to_be_swiglu(tmp_path: Path) -> None:
    timm = import_timm()
    packed = {"mlp_layer": timm.layers.SwiGLUPacked, "mlp_ratio": 4.0}
    for activation in (nn.GELU, nn.SiLU):
        model = timm_model(**packed, act_layer=activation)
        torch.save(model.state_dict(), tmp_path / "m.pth")
        loaded = vitreous.load(tmp_path / "m.pth")
        assert loaded.config.mlp == SwiGlu()
        assert "gated MLPs with GELU" in assumption_of(loaded, "mlp")
        assert (difference(loaded, model, (32, 32)) < 1e-4) == (activation is nn.SiLU)


@pytest.mark.slow
@pytest.mark.parametrize("layer", ["GluMlp", "SwiGLUPacked"])
@pytest.mark.parametrize("args", [{}, {"act_layer": "gelu"}, {"act_layer": "silu"}], ids=str)
def test_gated_mlp_of_ungated_architecture_is_rejected(layer: str, args: dict[str, Any], tmp_path: Path) -> None:
    """`mlp_layer`, which is not in config.json, determines which half of the matrix is the gate."""
    timm = import_timm()
    model = timm_model(mlp_layer=getattr(timm.layers, layer), mlp_ratio=4.0, **args)
    timm.models.save_for_hf(model, tmp_path / "m", model_args={**SIZES, "img_size": 32, **args})
    with pytest.raises(BadCheckpoint, match=r"a gated MLP, but timm's vit_base_patch16_224 has none.*overrides"):
        vitreous.load(tmp_path / "m")
    loaded = vitreous.load(tmp_path / "m", overrides={"mlp": SwiGlu()})
    is_swiglu = layer == "SwiGLUPacked" and args == {"act_layer": "silu"}
    assert (difference(loaded, model, (32, 32)) < 1e-4) == is_swiglu


def test_gated_mlp_of_gated_architecture_is_read(tmp_path: Path) -> None:
    timm, args = import_timm(), {**SIZES, "img_size": 32, "mlp_ratio": 4.0}
    model = noisy(timm.create_model("vit_giant_patch14_dinov2", **args, num_classes=7))
    timm.models.save_for_hf(model, tmp_path / "m", model_args=args)
    loaded = vitreous.load(tmp_path / "m")
    assert loaded.config.mlp == SwiGlu()
    check_close(loaded, model, (32, 32))
    timm.models.save_for_hf(model, tmp_path / "m", model_args={**args, "act_layer": "gelu"})
    with pytest.raises(BadCheckpoint, match="act_layer of a gated MLP must be 'silu', got 'gelu'"):
        vitreous.load(tmp_path / "m")


# ---- Unsupported classifiers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_classes", [0, 10])
def test_unsupported_classifier_is_ignored_with_num_classes(num_classes: int, tmp_path: Path) -> None:
    transformers = import_transformers()
    config = transformers.Dinov2Config(**THEIRS, image_size=32, mlp_ratio=2, num_labels=5)
    model = noisy(transformers.Dinov2ForImageClassification(config))
    model.save_pretrained(tmp_path)
    with pytest.raises(BadCheckpoint, match=r"and the mean of the patches.*num_classes=0"):
        vitreous.load(tmp_path)
    loaded = vitreous.load(tmp_path, num_classes=num_classes)
    assert loaded.config.num_classes == num_classes
    assert {"classifier.weight", "classifier.bias"} <= set(loaded.provenance["left_out"])

    def features(images: Tensor) -> Tensor:
        return model.dinov2(images).pooler_output

    check_close(
        lambda images: loaded.pool(loaded.features(images)) if num_classes else loaded(images), features, (32, 32)
    )


def test_torchvision_head_with_two_layers_is_read(tmp_path: Path) -> None:
    vit = import_torchvision().models.vision_transformer.VisionTransformer
    model = noisy(vit(32, 8, 2, 2, 128, 256, num_classes=7, representation_size=24))
    torch.save(model.state_dict(), tmp_path / "m.pth")
    loaded = vitreous.load(tmp_path / "m.pth")
    check_close(loaded, model, (32, 32))
    vitreous.save(loaded, tmp_path / "saved.pth", format="torchvision")
    check_identical(vitreous.load(tmp_path / "saved.pth"), loaded)
