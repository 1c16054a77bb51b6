"""Fields missing from bare files are assumed with one warning, unless a published name determines them."""

import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

import vitreous
from benchmarks.timm_bare_files import build, outcome
from optional_imports import import_timm, import_transformers
from vitreous.model.options import ClassToken, Gelu, Preprocessing
from vitreous.serving.models import load_models
from vitreous.training import TrainConfig
from vitreous.training.run import train
from vitreous.weights.convert import convert
from vitreous.weights.formats.base import ConfigBuilder, StateDict
from vitreous.weights.formats.timm.config import ARCHITECTURE
from vitreous.weights.load import describe, load_encoder

PLAIN = "vit_tiny_patch16_224"


def saved(model: nn.Module, file: Path) -> Path:
    """Save the state dict as safetensors, which sorts the names."""
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, file)
    return file


def warned(call: Callable[[], object]) -> list[str]:
    """Return the AssumptionWarning messages of a call."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(one.message) for one in caught if one.category is vitreous.AssumptionWarning]


@pytest.fixture(scope="module")
def plain() -> nn.Module:
    import_timm()
    return build(PLAIN, img_size=32)


# ---- Comparison with timm --------------------------------------------------------------------------------------------

# Outcome under a neutral name and under its own name; benchmarks.timm_bare_files covers all models.
ARCHITECTURES = {
    "deit3_small_patch16_224": ("exact, warned", "exact"),
    "deit_tiny_distilled_patch16_224": ("exact, warned", "exact"),
    "eva_large_patch14_196": ("exact, warned", "exact"),
    "flexivit_small": ("exact, warned", "exact"),
    "test_vit": ("wrong, warned", "exact"),
    "vit_base_patch16_clip_224": ("exact, warned", "exact"),
    "vit_base_patch16_gap_224": ("wrong, warned", "exact"),
    "vit_base_patch16_reg4_gap_256": ("exact, warned", "exact"),
    "vit_base_patch16_rpn_224": ("wrong, warned", "refused"),
    "vit_base_patch16_siglip_224": ("exact, warned", "exact"),
    "vit_base_patch32_siglip_256": ("wrong, warned", "exact"),
    "vit_giant_patch14_dinov2": ("exact, warned", "exact"),
    "vit_giantopt_patch16_siglip_256": ("wrong, warned", "exact"),
    "vit_small_patch16_dinov3": ("exact, warned", "exact"),
    "vit_small_patch16_lingbot": ("wrong, warned", "exact"),
    "vit_small_patch16_rope_ape_224": ("wrong, warned", "exact"),
    "vit_small_patch16_rope_mixed_ape_224": ("exact, warned", "exact"),
    "vit_so150m_patch16_reg4_gap_256": ("exact, warned", "exact"),
    "vit_tiny_patch16_224": ("exact, warned", "exact"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_timm_models_never_differ_without_a_warning(name: str, tmp_path: Path) -> None:
    import_timm()
    model = build(name, img_size=56 if "patch14" in name else 64)
    neutral, named = ARCHITECTURES[name]
    assert outcome(model, saved(model, tmp_path / "weights.safetensors")).startswith(neutral)
    assert outcome(model, saved(model, tmp_path / f"{name}.tag.safetensors")).startswith(named)


@pytest.mark.slow
def test_post_norms_are_detected_by_tensor_order_in_a_pickle(tmp_path: Path) -> None:
    import_timm()
    model = build("vit_base_patch16_rpn_224", img_size=32)
    torch.save(model.state_dict(), tmp_path / "weights.pth")
    assert "norms after the layers" in outcome(model, tmp_path / "weights.pth")


@pytest.mark.parametrize("module", ["vision_transformer", "deit", "vision_transformer_hybrid"])
def test_timms_architecture_names_are_known(module: str) -> None:
    """Architectures that are rejected by their tensors are excluded."""
    names = set(import_timm().list_models(module=module))
    unknown = {name for name in names if not ARCHITECTURE.fullmatch(name)}
    assert {name.split("_")[0] for name in unknown} <= {"aimv2", "beit3"}


# ---- Sources of missing fields ---------------------------------------------------------------------------------------


def test_warning_names_fields_values_and_remedy(plain: nn.Module, tmp_path: Path) -> None:
    file = saved(plain, tmp_path / "weights.safetensors")
    (text,) = warned(lambda: vitreous.load(file))
    assert str(file) in text
    assert "\n" not in text
    assert len(text) - len(str(file)) < 400
    for part in ("num_heads=3", "mlp=Gelu(approximation='erf')", "pool=ClassToken()", "crop_fraction=0.9"):
        assert part in text
    assert 'overrides={"num_heads": ' in text
    assert "--set num_heads=" in text


def test_last_assumption_for_a_field_wins() -> None:
    builder = ConfigBuilder(StateDict(Path("x.pth"), {}, {}), {})
    for certain in (builder.default, lambda _, **fields: builder.set(**fields)):
        builder.assume("usual", norm_eps=1e-5)
        assert "norm_eps=1e-05" in str(builder.warning)
        certain("the format's", norm_eps=1e-6)
        assert builder.warning is None
        assert builder.fields["norm_eps"] == 1e-6


def test_overridden_fields_do_not_warn(plain: nn.Module, tmp_path: Path) -> None:
    file = saved(plain, tmp_path / "weights.safetensors")
    given: dict[str, Any] = {"num_heads": 3, "mlp": Gelu("erf"), "pool": ClassToken()}
    (text,) = warned(lambda: vitreous.load(file, overrides=given))
    assert "preprocessing=" in text
    assert "num_heads=" not in text
    assert not warned(lambda: vitreous.load(file, overrides=given | {"preprocessing": Preprocessing()}))


def uncertain(texts: list[str]) -> set[str]:
    fields = ("num_heads", "mlp", "pool", "preprocessing", "position", "image_size")
    return {field for field in fields if any(f"{field}=" in text for text in texts)}


@pytest.mark.parametrize(
    "path",
    [
        f"{PLAIN}.augreg_in21k.safetensors",
        f"{PLAIN}-0a1b2c3d.safetensors",
        f"models--timm--{PLAIN}.augreg_in21k/snapshots/0a1b2c/model.safetensors",
        f"{PLAIN}/pytorch_model.bin",
    ],
)
def test_architecture_is_read_from_the_path(path: str, plain: nn.Module, tmp_path: Path) -> None:
    file = saved(plain, tmp_path / path)
    assert uncertain(warned(lambda: vitreous.load(file))) == {"preprocessing"}


@pytest.mark.parametrize(
    "path",
    [
        "vit_base_patch16_224.safetensors",  # has another width
        f"{PLAIN}_of_mine.safetensors",
        f"{PLAIN}/other.safetensors",  # the file has its own name
    ],
)
def test_other_names_are_not_architectures(path: str, plain: nn.Module, tmp_path: Path) -> None:
    file = saved(plain, tmp_path / path)
    assert {"num_heads", "mlp", "pool"} < uncertain(warned(lambda: vitreous.load(file)))


@pytest.mark.parametrize("name", ["{}", "{}.augreg_in21k", "timm/{}.augreg_in21k", "hf-hub:timm/{}"])
def test_tag_and_owner_in_metadata_are_ignored(name: str, plain: nn.Module, tmp_path: Path) -> None:
    torch.save({"arch": name.format(PLAIN), "state_dict": plain.state_dict()}, tmp_path / "last.pth")
    assert uncertain(warned(lambda: vitreous.load(tmp_path / "last.pth"))) == {"preprocessing"}


@pytest.mark.slow
def test_architecture_is_read_from_metadata(tmp_path: Path) -> None:
    """timm's training scripts store `arch` with the weights."""
    import_timm()
    model = build("vit_base_patch16_gap_224", img_size=32)
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    torch.save({"epoch": 1, "arch": "vit_base_patch16_gap_224", "state_dict": tensors}, tmp_path / "last.pth")
    save_file(tensors, tmp_path / "last.safetensors", {"architecture": "vit_base_patch16_gap_224"})
    for file in ("last.pth", "last.safetensors"):
        assert outcome(model, tmp_path / file).startswith("exact")
        assert vitreous.load(tmp_path / file).config.num_heads == 16


def test_unusual_pooling_of_a_named_model_warns(tmp_path: Path) -> None:
    import_timm()
    model = build(PLAIN, img_size=32, global_pool="avg")
    assert "pool" in uncertain(warned(lambda: vitreous.load(saved(model, tmp_path / f"{PLAIN}.safetensors"))))


@pytest.mark.slow
def test_folders_with_a_config_do_not_warn(plain: nn.Module, tmp_path: Path) -> None:
    small = {"hidden_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 32, "patch_size": 8}
    transformers = import_transformers()
    reference = transformers.ViTModel(transformers.ViTConfig(**small))
    reference.save_pretrained(tmp_path / "transformers")
    transformers.ViTImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(tmp_path / "transformers")
    import_timm().models.save_for_hf(plain, tmp_path / "timm", model_args={"img_size": 32, "depth": 1})
    vitreous.save(vitreous.load(tmp_path / "timm"), tmp_path / "saved")
    vitreous.save(vitreous.load(tmp_path / "timm"), tmp_path / "google.npz", format="google", lossy=True)
    for source in ("transformers", "timm", "saved", "google.npz"):
        assert not warned(lambda source=source: vitreous.load(tmp_path / source)), source  # type: ignore[misc]


def test_published_file_names_determine_the_heads(tmp_path: Path) -> None:
    model = vitreous.create("ViT-S/16", num_classes=0, overrides={"depth": 1, "layer_scale": 1e-5, "mlp": Gelu("erf")})
    vitreous.save(model, tmp_path / "other.pth", format="dinov2")
    (tmp_path / "dinov2_vits14_pretrain.pth").write_bytes((tmp_path / "other.pth").read_bytes())
    assert uncertain(warned(lambda: vitreous.load(tmp_path / "other.pth"))) == {"num_heads"}
    assert not warned(lambda: vitreous.load(tmp_path / "dinov2_vits14_pretrain.pth"))


# ---- Warnings --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_use_of_a_file_warns_once(plain: nn.Module, tmp_path: Path) -> None:
    file = saved(plain, tmp_path / "weights.safetensors")
    config = TrainConfig(data="digits", out=tmp_path / "run", init=file, steps=1, batch_size=8, device="cpu", workers=0)
    ways: dict[str, tuple[Callable[[], object], int]] = {
        "load": (lambda: vitreous.load(file), 1),
        "embed, explain, probe": (lambda: load_encoder(file), 1),
        "train": (lambda: train(config), 1),
        "serve": (lambda: load_models([file]), 1),
        "convert": (lambda: convert(file, tmp_path / "again.pth", to="timm"), 1),
        "info": (lambda: describe(file), 0),  # convert lists the assumptions itself
    }
    for way, (call, count) in ways.items():
        assert len(warned(call)) == count, way


@pytest.mark.slow
def test_command_line_prints_the_warning_in_one_line(plain: nn.Module, tmp_path: Path) -> None:
    file = saved(plain, tmp_path / "weights.safetensors")
    Image.new("RGB", (40, 30)).save(tmp_path / "x.png")
    command = [sys.executable, "-m", "vitreous", "predict", str(file), str(tmp_path / "x.png"), "--json"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [line for line in run.stderr.splitlines() if "assumed" in line]
    assert len(lines) == 1
    assert lines[0].startswith(f"vitreous: warning: {file}")
    assert "Warning:" not in run.stderr
