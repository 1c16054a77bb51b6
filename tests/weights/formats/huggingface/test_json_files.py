"""transformers' config.json and preprocessor_config.json: reading, writing and invalid fields."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import vitreous
from optional_imports import import_transformers
from parity import noisy
from vitreous.model.build import build
from vitreous.model.config import ViTConfig
from vitreous.model.options import (
    IMAGENET,
    AttentionPool,
    Gelu,
    GlobalAverage,
    Learned1d,
    MlpHead,
    Preprocessing,
    ResNetStem,
    SinCos2d,
    SwiGlu,
    TanhHead,
)
from vitreous.weights.convert import UnsupportedByFormat
from vitreous.weights.io.errors import BadCheckpoint
from vitreous.weights.native import provenance_of

SMALL = ViTConfig(
    image_size=(32, 32),
    patch_size=(8, 8),
    width=64,
    depth=2,
    num_heads=2,
    mlp_width=128,
    mlp=Gelu("erf"),
    position=Learned1d(interpolation="huggingface"),
    num_classes=5,
    preprocessing=Preprocessing(fit="squash", crop_fraction=1.0),
)
DINOV2 = {"layer_scale": 0.1, "num_classes": 0}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A plain model saved as a transformers folder."""
    vitreous.save(noisy(build(SMALL)), tmp_path / "model", format="huggingface")
    return tmp_path / "model"


def change(file: Path, **fields: Any) -> None:
    document = json.loads(file.read_text())
    file.write_text(json.dumps({key: value for key, value in (document | fields).items() if value != "absent"}))


@pytest.mark.slow
def test_loading_does_not_import_torch_dynamo(folder: Path) -> None:
    """Some operations on meta tensors would import it, which takes over a second."""
    program = f"import sys, vitreous; vitreous.load({str(folder)!r}); print('torch._dynamo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


# ---- Preprocessing ---------------------------------------------------------------------------------------------------

# Model size and fields of preprocessor_config.json.
MEANS = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
PROCESSORS: dict[str, dict[str, Any]] = {
    "ViT": {"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}},
    "ViT, as of old": {"feature_extractor_type": "ViTFeatureExtractor", "size": 32, "resample": 3} | MEANS,
    "ViT, no normalisation": {"image_processor_type": "ViTImageProcessor", "size": 32, "do_normalize": False},
    "ViT, from -1 to 1": {"image_processor_type": "ViTImageProcessor", "size": 32, "rescale_factor": 1 / 127.5}
    | {"image_mean": [1.0, 1.0, 1.0], "image_std": [1.0, 1.0, 1.0]},
    "DeiT": {"image_processor_type": "DeiTImageProcessor", "size": 38, "crop_size": 32, "do_center_crop": True},
    "DINOv2": {"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 38}, "crop_size": 32} | MEANS,
    "no kind": {"size": {"shortest_edge": 36}, "crop_size": 32, "do_center_crop": True} | MEANS,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PROCESSORS if name != "no kind"])
def test_preprocessing_equals_transformers_processor(name: str, folder: Path) -> None:
    transformers = import_transformers()
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSORS[name]))
    sample_image = np.random.default_rng(0).integers(0, 256, (50, 74, 3), dtype=np.uint8)
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    reference = transformers.AutoModelForImageClassification.from_pretrained(folder).eval()
    model = vitreous.load(folder)
    with torch.no_grad():
        expected = reference(processor(sample_image, return_tensors="pt")["pixel_values"]).logits
    found = vitreous.Predictor(model, device="cpu").logits(sample_image)
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("fit", ["crop", "squash", "squash-crop"])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_written_processor_equals_preprocessing(fit: Any, interpolation: Any, tmp_path: Path) -> None:
    transformers = import_transformers()
    how = Preprocessing(IMAGENET.mean, IMAGENET.std, fit, 0.9, interpolation)
    model = noisy(build(dataclasses.replace(SMALL, preprocessing=how)))
    vitreous.save(model, tmp_path / "model", format="huggingface")
    assert vitreous.load(tmp_path / "model").config.preprocessing == how
    sample_image = np.random.default_rng(0).integers(0, 256, (56, 70, 3), dtype=np.uint8)
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "model")
    with torch.no_grad():
        found = model(processor(sample_image, return_tensors="pt")["pixel_values"])
    torch.testing.assert_close(found, vitreous.Predictor(model, device="cpu").logits(sample_image), rtol=0, atol=2e-5)


def test_unnamed_processor_follows_the_model_type(folder: Path) -> None:
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSORS["no kind"]))
    found = vitreous.load(folder).config.preprocessing
    assert found == Preprocessing(IMAGENET.mean, IMAGENET.std, "crop", 32 / 36, "bilinear", "huggingface")


def test_processor_with_another_size_keeps_native_size(tmp_path: Path) -> None:
    """DINOv2 has positions for 518 pixels but a processor for 224; the model keeps its native size."""
    transformers = import_transformers()
    config = dataclasses.replace(SMALL, image_size=(64, 64), layer_scale=0.1, num_classes=0, preprocessing=IMAGENET)
    vitreous.save(noisy(build(config)), tmp_path / "model", format="huggingface")
    smaller = {"size": {"shortest_edge": 46}, "crop_size": {"height": 40, "width": 40}, "crop_fraction": "absent"}
    change(tmp_path / "model" / "preprocessor_config.json", **smaller)
    native = vitreous.load(tmp_path / "model")
    assert native.config.image_size == (64, 64)
    assert native.config.preprocessing.crop_fraction == 40 / 46
    assert any("40 x 40" in line for line in provenance_of(native)["assumed"])

    sample_image = np.random.default_rng(0).integers(0, 256, (50, 74, 3), dtype=np.uint8)
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "model")
    with torch.no_grad():
        reference = transformers.AutoModel.from_pretrained(tmp_path / "model").eval()
        expected = reference(processor(sample_image, return_tensors="pt")["pixel_values"]).pooler_output
    smaller_model = vitreous.load(tmp_path / "model", image_size=40)
    found = vitreous.Predictor(smaller_model, device="cpu").embed(sample_image)
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"resample": 1}, "Pillow filter 1"),
        ({"do_resize": False}, "does not resize"),
        ({"size": {"shortest_edge": 32}}, "does not crop"),
        ({"size": 32, "crop_size": 40, "do_center_crop": True}, "to 40 x 40"),
    ],
)
def test_provenance_lists_processor_differences(fields: dict[str, Any], message: str, folder: Path) -> None:
    change(folder / "preprocessor_config.json", **fields)
    assert any(message in line for line in provenance_of(vitreous.load(folder))["assumed"])


def test_missing_processor_defaults_to_that_of_published_vits(folder: Path) -> None:
    (folder / "preprocessor_config.json").unlink()
    model = vitreous.load(folder)
    expected = Preprocessing(fit="squash", crop_fraction=1.0, interpolation="bilinear", geometry="huggingface")
    assert model.config.preprocessing == expected
    assert any("preprocessing" in line for line in provenance_of(model)["assumed"])


# ---- Classes ---------------------------------------------------------------------------------------------------------


def test_labels_are_read_unless_placeholders(folder: Path) -> None:
    assert vitreous.load(folder).config.labels == ()  # LABEL_0, ... are placeholders
    names = ("ant", "bee", "cat", "dog", "eel")
    change(folder / "config.json", id2label={str(i): name for i, name in enumerate(names)})
    assert vitreous.load(folder).config.labels == names
    change(folder / "config.json", id2label={"0": "too few"})
    assert vitreous.load(folder).config.labels == ()


def test_classifier_on_class_token_and_mean_is_rejected(tmp_path: Path) -> None:
    transformers = import_transformers()
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32, "patch_size": 8}
    reference = noisy(transformers.Dinov2ForImageClassification(transformers.Dinov2Config(**sizes, num_labels=5)))
    reference.save_pretrained(tmp_path)
    with pytest.raises(BadCheckpoint, match=r"Dinov2ForImageClassification.*class token and the mean"):
        vitreous.load(tmp_path)
    model = vitreous.load(tmp_path, overrides={"num_classes": 0})
    assert provenance_of(model)["left_out"] == ["classifier.bias", "classifier.weight", "embeddings.mask_token"]
    images = torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(model(images), reference.dinov2(images).pooler_output, rtol=0, atol=2e-5)

    nn.init.zeros_(reference.classifier.weight[:, 64:])
    reference.save_pretrained(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(vitreous.load(tmp_path)(images), reference(images).logits, rtol=0, atol=2e-5)


# ---- Unsupported parts -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"stem": ResNetStem((), 32), "patch_size": (1, 1)}, "stem"),
        ({"patch_norm": True, "patch_method": "linear"}, "patch_norm"),
        ({"pad": True}, "pad"),
        ({"qk_norm": True}, "qk_norm"),
        ({"qk_scale": 0.1}, "qk_scale"),
        ({"class_token": False, "pool": GlobalAverage()} | DINOV2, "requires a class token"),
        ({"position": SinCos2d()}, "positions, got SinCos2d"),
        ({"position": Learned1d(prefix_entries=False)}, "a position for the class token"),
        ({"pool": GlobalAverage()}, "pooling, got GlobalAverage"),
        ({"pool": AttentionPool()}, "pooling, got AttentionPool"),
        ({"pool": GlobalAverage("after"), "layer_scale": 0.1}, "pooling, got GlobalAverage"),
        ({"head": TanhHead(64)}, "got TanhHead"),
        ({"head": MlpHead(64)}, "got MlpHead"),
        ({"head": TanhHead(64)} | DINOV2, "TanhHead"),
        ({"mlp": SwiGlu()}, "SwiGLU requires layer_scale"),
        ({"registers": 4}, "registers require layer_scale"),
        ({"registers": 1, "num_classes": 0}, "registers require layer_scale"),
        ({"registers": 1, "distillation_token": True}, "registers require layer_scale"),
        ({"distillation_token": True} | DINOV2, "distillation_token .* layer_scale"),
        ({"mlp_width": 100} | DINOV2, "mlp_width .*got 100"),
        ({"mlp_width": 100, "mlp": SwiGlu()} | DINOV2, "mlp_width .*got 100"),
    ],
)
def test_unsupported_parts_are_rejected_by_name(fields: dict[str, Any], part: str, tmp_path: Path) -> None:
    model = build(dataclasses.replace(SMALL, **fields))
    with pytest.raises(UnsupportedByFormat, match=part):
        vitreous.save(model, tmp_path / "model", format="huggingface")
    assert not (tmp_path / "model").exists()


def test_rectangular_crop_requires_lossy(tmp_path: Path) -> None:
    model = build(dataclasses.replace(SMALL, image_size=(24, 32), preprocessing=IMAGENET))
    with pytest.raises(UnsupportedByFormat, match="is resized to"):
        vitreous.save(model, tmp_path / "model", format="huggingface")
    vitreous.save(model, tmp_path / "model", format="huggingface", lossy=True)


# ---- Invalid fields --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "beit"}, r"unsupported model: a transformers 'beit' model"),
        ({"hidden_act": "silu"}, r"hidden_act must be one of gelu.*got 'silu'"),
        ({"num_attention_heads": "many"}, r"num_attention_heads must be an integer, got 'many'"),
        ({"num_attention_heads": 7}, r"num_heads is 7, but must be a divisor of width \(64\)"),
        ({"num_hidden_layers": 10**9}, r"depth is 1000000000"),
        ({"num_hidden_layers": 300}, r"too few for a depth of 300"),
        ({"num_hidden_layers": 3}, r"16 missing: encoder\.layer\.2\."),
        (
            {"hidden_size": 128, "num_attention_heads": 2},
            r"projection.weight is \[64, 3, 8, 8\], expected \[128, 3,",
        ),
        ({"image_size": [32, "x"]}, r"image_size must be .*got \[32, 'x'\]"),
        ({"layer_norm_eps": None, "hidden_dropout_prob": 2}, r"hidden_dropout_prob must be .*got 2.0"),
        ({"qkv_bias": "no"}, r"qkv_bias must be true or false, got 'no'"),
    ],
)
def test_invalid_config_fields_are_rejected(fields: dict[str, Any], message: str, folder: Path) -> None:
    change(folder / "config.json", **fields)
    with pytest.raises(BadCheckpoint, match=message) as caught:
        vitreous.load(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"size": "large"}, "size must be .*got 'large'"),
        ({"size": {"shortest_edge": 0}}, "size must be at least 1, got"),
        ({"image_mean": "grey"}, "image_mean must be .*got 'grey'"),
        ({"image_mean": [0.5, 0.6]}, "preprocessing.mean"),
        ({"image_std": [1, 0, 1]}, "image_std"),
        ({"resample": "cubic"}, "resample must be an integer, got 'cubic'"),
    ],
)
def test_invalid_processor_fields_are_rejected(fields: dict[str, Any], message: str, folder: Path) -> None:
    change(folder / "preprocessor_config.json", **fields)
    with pytest.raises(BadCheckpoint, match=message):
        vitreous.load(folder)


def test_wrong_tensors_are_rejected(folder: Path) -> None:
    file = folder / "model.safetensors"
    whole = load_file(file)

    def error_message(tensors: dict[str, torch.Tensor]) -> str:
        save_file(tensors, file, {"format": "pt"})
        with pytest.raises(BadCheckpoint) as caught:
            vitreous.load(folder)
        return str(caught.value)

    missing = {name: x for name, x in whole.items() if not name.endswith("layer.1.layernorm_after.bias")}
    assert "1 missing: encoder.layer.1.layernorm_after.bias" in error_message(missing)
    assert "1 unexpected: surprise" in error_message(whole | {"surprise": torch.zeros(1)})
    wrong = whole | {"vit.encoder.layer.0.output.dense.bias": torch.zeros(65)}
    assert "encoder.layer.0.output.dense.bias is [65], expected [64]" in error_message(wrong)
    counted = whole | {"vit.embeddings.cls_token": torch.zeros(1, 1, 64, dtype=torch.int64)}
    assert "embeddings.cls_token is int64" in error_message(counted)


def test_positions_without_class_token_are_rejected(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["vit.embeddings.position_embeddings"] = torch.zeros(1, 16, 64)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(BadCheckpoint, match=r"16 positions; the 15 .* square grid"):
        vitreous.load(folder)
