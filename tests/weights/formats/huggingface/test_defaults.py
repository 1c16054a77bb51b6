"""transformers' defaults: GELU names, and empty and missing preprocessor_config.json."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitreous
from optional_imports import import_transformers
from parity import TOLERANCE, noisy
from vitreous.model.build import build
from vitreous.model.config import ViTConfig
from vitreous.model.options import IMAGENET, Gelu, Learned1d
from vitreous.weights.native import provenance_of

pytestmark = pytest.mark.slow

SMALL = ViTConfig(
    image_size=(224, 224),  # the size of all transformers processors
    patch_size=(56, 56),
    width=64,
    depth=2,
    num_heads=2,
    mlp_width=128,
    mlp=Gelu("erf"),
    position=Learned1d(interpolation="huggingface"),
    num_classes=5,
)
# Names in transformers' activations.py; some are the same function.
GELUS = (
    "gelu", "gelu_python", "gelu_new", "gelu_fast", "gelu_accurate", "gelu_python_tanh", "gelu_pytorch_tanh",
)  # fmt: skip
# Changes to SMALL for each transformers model type.
KINDS: dict[str, dict[str, Any]] = {
    "vit": {},
    "vit_mae": {},
    "deit": {"distillation_token": True},
    "dinov2": {"layer_scale": 0.1, "num_classes": 0},
    "dinov2_with_registers": {"layer_scale": 0.1, "num_classes": 0, "registers": 2},
}
MEANS = {"image_mean": list(IMAGENET.mean), "image_std": list(IMAGENET.std)}
HALVES = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
BIT = {"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 256}, "crop_size": 224, "resample": 3}
# The preprocessor_config.json of google/vit-base-patch16-224, facebook/vit-mae-base,
# facebook/deit-base-distilled-patch16-224 and facebook/dinov2-base.
PUBLISHED: dict[str, dict[str, Any]] = {
    "vit": {"image_processor_type": "ViTImageProcessor", "size": 224, "resample": 2} | HALVES,
    "vit_mae": {"image_processor_type": "ViTImageProcessor", "size": 224, "resample": 3} | MEANS,
    "deit": {"image_processor_type": "DeiTImageProcessor", "size": 256, "crop_size": 224, "resample": 3} | MEANS,
    "dinov2": BIT | MEANS,
    "dinov2_with_registers": BIT | MEANS,
}


def written(kind: str, folder: Path, **fields: Any) -> Path:
    """Save a transformers model of this kind, with the given fields changed in config.json."""
    vitreous.save(noisy(build(dataclasses.replace(SMALL, **KINDS[kind]))), folder, format="huggingface")
    document = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(document | {"model_type": kind} | fields))
    return folder


@pytest.mark.parametrize("name", GELUS)
def test_gelu_names_match_transformers(name: str, tmp_path: Path) -> None:
    transformers = import_transformers()
    folder = written("vit", tmp_path / "model", hidden_act=name)
    reference = transformers.AutoModelForImageClassification.from_pretrained(folder).eval()
    images = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        assert (vitreous.load(folder)(images) - reference(images).logits).abs().max() <= TOLERANCE


@pytest.mark.parametrize("document", ["says nothing", "published"])
@pytest.mark.parametrize("kind", KINDS)
def test_default_processor_fields_match_transformers(kind: str, document: str, tmp_path: Path) -> None:
    """An empty file gives the defaults of the processor for this model type."""
    transformers = import_transformers()
    folder = written(kind, tmp_path / "model")
    (folder / "preprocessor_config.json").write_text(json.dumps(PUBLISHED[kind] if document == "published" else {}))
    named = kind == "dinov2_with_registers"  # transformers has no default processor for it
    processors = transformers.BitImageProcessor if named else transformers.AutoImageProcessor
    processor, model = processors.from_pretrained(folder), vitreous.load(folder)
    sample_image = np.random.default_rng(0).integers(0, 256, (300, 400, 3), dtype=np.uint8)
    with torch.no_grad():
        expected = model(processor(sample_image, return_tensors="pt")["pixel_values"])
    predictor = vitreous.Predictor(model, device="cpu")
    found = predictor.logits(sample_image) if model.config.num_classes else predictor.embed(sample_image)
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-5)
    assert not any("its processor resizes" in line for line in provenance_of(model).get("assumed", ()))


@pytest.mark.parametrize("kind", KINDS)
def test_missing_processor_defaults_to_that_of_published_models(kind: str, tmp_path: Path) -> None:
    folder = written(kind, tmp_path / "model")
    file = folder / "preprocessor_config.json"
    file.write_text(json.dumps(PUBLISHED[kind]))
    published = vitreous.load(folder).config.preprocessing
    file.unlink()
    assert vitreous.load(folder).config.preprocessing == published
