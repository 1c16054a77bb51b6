"""Reading and writing transformers models with random parameters, compared with transformers."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vitreous
from optional_imports import import_transformers
from parity import TOLERANCE, check_identical, noisy
from vitreous.model.build import build
from vitreous.model.config import ViTConfig
from vitreous.model.options import (
    IMAGENET,
    ClassToken,
    Dropout,
    Gelu,
    GlobalAverage,
    Learned1d,
    Preprocessing,
    SwiGlu,
    TanhHead,
)
from vitreous.model.vit import ViT
from vitreous.weights.native import provenance_of

NATIVE, OTHER = (32, 32), (48, 40)  # grids of 4 x 4 and 6 x 5 patches
SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32, "patch_size": 8}
VIT = SIZES | {"intermediate_size": 96}
DINO = SIZES | {"mlp_ratio": 2}
MAE = VIT | {"mask_ratio": 0.0, "decoder_hidden_size": 32, "decoder_num_hidden_layers": 1}
MAE |= {"decoder_num_attention_heads": 2, "decoder_intermediate_size": 64}

# transformers model class, config class and config fields.
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ViT": ("ViTForImageClassification", "ViTConfig", VIT),
    "ViT, tanh": ("ViTForImageClassification", "ViTConfig", VIT | {"hidden_act": "gelu_new", "layer_norm_eps": 1e-3}),
    "ViT, no qkv bias": ("ViTForImageClassification", "ViTConfig", VIT | {"qkv_bias": False, "num_channels": 1}),
    "ViT, narrow heads": ("ViTForImageClassification", "ViTConfig", VIT | {"head_dim": 16}),
    "ViT, base": ("ViTModel", "ViTConfig", VIT | {"pooler_output_size": 24}),
    "DeiT": ("DeiTForImageClassification", "DeiTConfig", VIT),
    "DeiT, distilled": ("DeiTForImageClassificationWithTeacher", "DeiTConfig", VIT),
    "DeiT, base": ("DeiTModel", "DeiTConfig", VIT),
    "DINOv2": ("Dinov2Model", "Dinov2Config", DINO | {"layer_norm_eps": 1e-3}),
    "DINOv2, SwiGLU": ("Dinov2Model", "Dinov2Config", DINO | {"use_swiglu_ffn": True, "layerscale_value": 0.5}),
    "DINOv2, registers": ("Dinov2WithRegistersModel", "Dinov2WithRegistersConfig", DINO | {"num_register_tokens": 3}),
    "ViTMSN": ("ViTMSNForImageClassification", "ViTMSNConfig", VIT),
    "ViTMSN, base": ("ViTMSNModel", "ViTMSNConfig", VIT | {"layer_norm_eps": 1e-3}),
    "ViTMAE": ("ViTMAEModel", "ViTMAEConfig", MAE),
    "ViTMAE, with decoder": ("ViTMAEForPreTraining", "ViTMAEConfig", MAE),
}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Small models are slow with several threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def transformers_model(name: str, **kwargs: Any) -> nn.Module:
    transformers = import_transformers()
    model, config, fields = MODELS[name]
    reference = noisy(getattr(transformers, model)(getattr(transformers, config)(num_labels=5, **fields), **kwargs))
    reference.set_attn_implementation("eager")  # written files are compared with torch's attention below
    return reference


@torch.no_grad()
def outputs(model: Any, images: Tensor, resampled: bool = False) -> dict[str, Tensor]:
    """Return the logits, pooled features and tokens that a transformers model outputs."""
    name = type(model).__name__
    if name == "ViTMAEForPreTraining":
        model, name = model.vit, "ViTMAEModel"
    arguments = {"interpolate_pos_encoding": resampled} if "Dinov2" not in name else {}
    if name == "ViTMAEModel":  # keep all patches in order
        patches = images.shape[2] * images.shape[3] // 64
        arguments["noise"] = torch.linspace(0, 1, patches).expand(len(images), -1)
    found = model(images, **arguments)
    values = {
        "logits": found.get("logits"),
        "pooled": found.get("pooler_output"),
        "tokens": found.get("last_hidden_state"),
    }
    return {key: value for key, value in values.items() if value is not None}


@torch.no_grad()
def difference(loaded: ViT, reference: Any, size: tuple[int, int]) -> float:
    images = torch.randn(2, loaded.config.channels, *size)
    expected = outputs(reference, images, resampled=size != loaded.config.image_size)
    features = loaded.features(images)
    answer = loaded.classify(features)
    found = {"logits": answer, "pooled": answer, "tokens": torch.cat([features.prefix, features.patches], dim=1)}
    return max((found[key] - value).abs().max().item() for key, value in expected.items())


# ---- Reading transformers models -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_outputs_equal_transformers(name: str, tmp_path: Path) -> None:
    reference = transformers_model(name)
    reference.save_pretrained(tmp_path / "model")
    loaded = vitreous.load(tmp_path / "model")
    for size in (NATIVE, OTHER):
        assert difference(loaded, reference, size) <= TOLERANCE
    assert provenance_of(loaded)["origin"] == "transformers"


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_tensor_names_of_version_5_are_read(name: str, tmp_path: Path) -> None:
    reference = transformers_model(name)
    reference.config.save_pretrained(tmp_path)
    torch.save(reference.state_dict(), tmp_path / "pytorch_model.bin")
    assert difference(vitreous.load(tmp_path), reference, NATIVE) <= TOLERANCE


def test_model_without_pooler_is_read(tmp_path: Path) -> None:
    reference = transformers_model("ViT, base", add_pooling_layer=False)
    reference.save_pretrained(tmp_path)
    loaded = vitreous.load(tmp_path)
    assert loaded.config.num_classes == 0
    assert not isinstance(loaded.config.head, TanhHead)
    assert difference(loaded, reference, NATIVE) <= TOLERANCE


def test_rectangular_model_is_read(tmp_path: Path) -> None:
    transformers = import_transformers()
    config = transformers.ViTConfig(**VIT | {"image_size": (24, 32), "patch_size": (8, 4)})
    reference = noisy(transformers.ViTForImageClassification(config))
    reference.save_pretrained(tmp_path)
    assert difference(vitreous.load(tmp_path), reference, (24, 32)) <= TOLERANCE


def test_sharded_weights_are_read(tmp_path: Path) -> None:
    reference = transformers_model("ViT")
    reference.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert difference(vitreous.load(tmp_path), reference, NATIVE) <= TOLERANCE


@pytest.mark.parametrize("name", ["ViT", "DeiT, distilled", "DINOv2, registers", "ViTMAE, with decoder"])
def test_bare_weights_are_read(name: str, tmp_path: Path) -> None:
    """Heads have 64 dimensions; the rest follows from the tensors and model type."""
    transformers = import_transformers()
    model, config, fields = MODELS[name]
    fields = fields | {"hidden_size": 128}
    reference = noisy(getattr(transformers, model)(getattr(transformers, config)(**fields)))
    reference.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "alone.safetensors")  # config.json does not apply to this file
    loaded = vitreous.load(tmp_path / "alone.safetensors")
    assert difference(loaded, reference, NATIVE) <= TOLERANCE
    assert (
        loaded.config.norm_eps == getattr(transformers, config)().layer_norm_eps
    )  # too small to affect the logits measurably
    assumed = " ".join(provenance_of(loaded)["assumed"])
    assert all(field in assumed for field in ("num_heads", "norm_eps", "preprocessing", "image_size"))


def test_provenance_lists_ignored_tensors(tmp_path: Path) -> None:
    transformers_model("ViTMAE, with decoder").save_pretrained(tmp_path)
    left_out = provenance_of(vitreous.load(tmp_path))["left_out"]
    assert left_out
    assert all(name.startswith("decoder.") for name in left_out)


def test_used_pooler_is_not_ignored(tmp_path: Path) -> None:
    transformers_model("ViT, base").save_pretrained(tmp_path)
    assert "left_out" not in provenance_of(vitreous.load(tmp_path))


# ---- Writing for transformers ----------------------------------------------------------------------------------------

SHOWN = Preprocessing(fit="squash", crop_fraction=1.0, interpolation="bilinear")
PLAIN = ViTConfig(
    image_size=NATIVE,
    patch_size=(8, 8),
    width=64,
    depth=2,
    num_heads=4,
    mlp_width=128,
    mlp=Gelu("erf"),
    position=Learned1d(interpolation="huggingface"),
    num_classes=5,
    preprocessing=SHOWN,
)
DINOV2 = {"layer_scale": 0.1, "preprocessing": IMAGENET}
REGISTERS = DINOV2 | {"registers": 4, "position": Learned1d(interpolation="dinov2-registers")}
HEADLESS = {"num_classes": 0}

OURS: dict[str, dict[str, Any]] = {
    "plain": {"labels": ("ant", "bee", "cat", "dog", "eel")},
    "tanh and eps": {"mlp": Gelu("tanh"), "norm_eps": 1e-3},
    "dropout": {"dropout": Dropout(0.1, 0.2, 0.1)},
    "grey, no qkv bias": {"channels": 1, "qkv_bias": False},
    "narrow heads": {"head_dim": 8},
    "rectangular": {"image_size": (24, 32), "patch_size": (8, 4)},
    "pooler": {"num_classes": 0, "head": TanhHead(24)},
    "headless": HEADLESS,
    "one register": {"registers": 1, "preprocessing": Preprocessing(fit="squash-crop", crop_fraction=0.9)},
    "one register, pooler": {"registers": 1, "num_classes": 0, "head": TanhHead(64)},
    "distilled": {"distillation_token": True},
    "distilled, headless": {"distillation_token": True, "num_classes": 0},
    "DINOv2": DINOV2 | HEADLESS | {"stochastic_depth": 0.1},
    "DINOv2, class token": DINOV2,
    "DINOv2, mean": DINOV2 | {"pool": GlobalAverage("before"), "preprocessing": Preprocessing(crop_fraction=0.9)},
    "DINOv2, SwiGLU": DINOV2 | HEADLESS | {"mlp": SwiGlu(), "mlp_width": 88},
    "registers": REGISTERS | HEADLESS,
    "registers, class token": REGISTERS | {"pool": ClassToken()},
    "registers, mean": REGISTERS | {"pool": GlobalAverage("before")},
}


def saved(name: str, folder: Path) -> ViT:
    model = noisy(build(dataclasses.replace(PLAIN, **OURS[name])))
    vitreous.save(model, folder, format="huggingface")
    return model


@pytest.mark.slow
@pytest.mark.parametrize("name", OURS)
def test_transformers_reads_written_folders(name: str, tmp_path: Path) -> None:
    transformers = import_transformers()
    loaded = saved(name, tmp_path)
    kind = "AutoModelForImageClassification" if loaded.config.num_classes else "AutoModel"
    unpooled = name in ("headless", "distilled, headless")  # otherwise transformers adds a random pooler
    arguments = {"add_pooling_layer": False} if unpooled else {}
    reference, about = getattr(transformers, kind).from_pretrained(tmp_path, output_loading_info=True, **arguments)
    assert not any(about.values())
    assert type(reference).__name__ == reference.config.architectures[0]
    if loaded.config.labels:
        assert reference.config.id2label == dict(enumerate(loaded.config.labels))
    sizes = [loaded.config.image_size, *([OTHER] if name != "rectangular" else [])]
    for size in sizes:
        assert difference(loaded, reference.eval(), size) <= TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("name", OURS)
def test_round_trip_is_bit_identical(name: str, tmp_path: Path) -> None:
    before = saved(name, tmp_path)
    check_identical(vitreous.load(tmp_path), before)


def test_single_file_is_written(tmp_path: Path) -> None:
    model = noisy(build(PLAIN))
    vitreous.save(
        model, tmp_path / "weights.safetensors", format="huggingface", lossy=True
    )  # transformers' default eps is 1e-12
    again = vitreous.load(tmp_path / "weights.safetensors", overrides={"num_heads": 4, "norm_eps": 1e-6})
    images = torch.randn(1, 3, *NATIVE)
    torch.testing.assert_close(again(images), model(images), rtol=0, atol=0)


def test_half_precision_round_trips(tmp_path: Path) -> None:
    transformers = import_transformers()
    vitreous.save(build(PLAIN).bfloat16(), tmp_path, format="huggingface")
    assert transformers.AutoModelForImageClassification.from_pretrained(tmp_path).dtype == torch.bfloat16
