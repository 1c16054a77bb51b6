"""Vision towers of CLIP, SigLIP and SigLIP 2 with random parameters, compared with transformers in both directions."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vitreous
from optional_imports import import_transformers
from parity import TOLERANCE, noisy
from vitreous.model.options import CLIP, ClassToken, Gelu, GlobalAverage, Learned1d
from vitreous.weights import BadCheckpoint, UnsupportedByFormat, provenance_of

NATIVE, OTHER = (32, 32), (48, 40)  # grids of 4 x 4 and 6 x 5 patches
VISION = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
VISION |= {"image_size": 32, "patch_size": 8}
NAFLEX = {key: value for key, value in VISION.items() if key != "image_size"} | {"num_patches": 16}
TEXT = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
TEXT |= {"vocab_size": 9, "max_position_embeddings": 4, "bos_token_id": 0, "eos_token_id": 1}


def both(vision: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"vision_config": vision, "text_config": TEXT} | fields


# transformers model class, config class and config fields.
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "CLIP": ("CLIPVisionModel", "CLIPVisionConfig", VISION | {"hidden_act": "gelu", "layer_norm_eps": 1e-3}),
    "CLIP, projected": ("CLIPVisionModelWithProjection", "CLIPVisionConfig", VISION | {"projection_dim": 12}),
    "CLIP with text": ("CLIPModel", "CLIPConfig", both(VISION, projection_dim=12)),
    "SigLIP": ("SiglipVisionModel", "SiglipVisionConfig", VISION),
    "SigLIP, partial patches": ("SiglipVisionModel", "SiglipVisionConfig", VISION | {"image_size": 37}),
    "SigLIP with text": ("SiglipModel", "SiglipConfig", both(VISION)),
    "SigLIP classifier": ("SiglipForImageClassification", "SiglipConfig", both(VISION, num_labels=3)),
    "NaFlex": ("Siglip2VisionModel", "Siglip2VisionConfig", NAFLEX),
    "NaFlex with text": ("Siglip2Model", "Siglip2Config", both(NAFLEX)),
}


def reference(name: str) -> nn.Module:
    transformers = import_transformers()
    model, config, fields = MODELS[name]
    return noisy(getattr(transformers, model)(getattr(transformers, config)(**fields)))


@torch.no_grad()
def output(model: Any, images: Tensor) -> Tensor:
    """Return the logits, the image embedding or the pooled features."""
    arguments: dict[str, Any] = {"pixel_values": images, "interpolate_pos_encoding": True}
    if "Siglip2" in type(model).__name__:
        gh, gw = images.shape[2] // 8, images.shape[3] // 8
        patches = images.reshape(len(images), 3, gh, 8, gw, 8).permute(0, 2, 4, 3, 5, 1).reshape(len(images), -1, 192)
        arguments = {"pixel_values": patches, "pixel_attention_mask": torch.ones(patches.shape[:2], dtype=torch.long)}
        arguments["spatial_shapes"] = torch.tensor([[gh, gw]] * len(images))
    found = (model.get_image_features if hasattr(model, "text_model") else model)(**arguments)
    names = ("logits", "image_embeds", "pooler_output")
    return next(value for name in names if (value := found.get(name)) is not None)


@pytest.mark.parametrize("name", MODELS)
def test_outputs_equal_transformers_in_both_directions(name: str, tmp_path: Path) -> None:
    theirs = reference(name)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = vitreous.load(tmp_path / "theirs")
    vitreous.save(ours, tmp_path / "written", format="huggingface")
    (kind,) = json.loads((tmp_path / "written" / "config.json").read_text())["architectures"]
    written = getattr(import_transformers(), kind).from_pretrained(tmp_path / "written").eval()
    assert ours.config.image_size == ((37, 37) if "partial" in name else NATIVE)
    for size in (ours.config.image_size, OTHER):
        images = torch.randn(2, 3, *size)
        expected = output(theirs, images)
        assert expected.std(0).mean() > 200 * TOLERANCE  # outputs differ clearly between images
        assert (ours(images) - expected).abs().max() <= TOLERANCE
        assert (output(written, images) - expected).abs().max() <= TOLERANCE
    assert vitreous.load(tmp_path / "written").config == ours.config


def test_config_follows_the_files(tmp_path: Path) -> None:
    reference("CLIP with text").save_pretrained(tmp_path)
    processor = {
        "feature_extractor_type": "CLIPFeatureExtractor",
        "size": 32,
        "crop_size": 32,
    }  # as OpenAI published it
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(processor))
    with pytest.warns(vitreous.PartWarning, match="contains a text tower"):
        model = vitreous.load(tmp_path)
    config = model.config
    assert (config.pool, config.mlp, config.norm_eps) == (ClassToken(), Gelu("quick"), 1e-5)
    assert (config.pre_norm, config.patch_bias, config.projection, config.feature_width) == (True, False, 12, 12)
    assert config.position == Learned1d(interpolation="huggingface")
    assert (config.preprocessing.mean, config.preprocessing.std) == (CLIP.mean, CLIP.std)
    assert (config.preprocessing.fit, config.preprocessing.crop_fraction) == ("crop", 1.0)
    assert any(name.startswith("text_model.") for name in provenance_of(model)["left_out"])


def test_projection_can_be_dropped(tmp_path: Path) -> None:
    theirs = reference("CLIP, projected")
    theirs.save_pretrained(tmp_path)
    images = torch.randn(2, 3, *NATIVE)
    model = vitreous.load(tmp_path, overrides={"projection": None})
    with torch.no_grad():
        expected = theirs.vision_model(images).pooler_output  # type: ignore[operator,union-attr]
    torch.testing.assert_close(model(images), expected)


def test_unsupported_classifier_can_be_replaced(tmp_path: Path) -> None:
    transformers = import_transformers()
    config = transformers.CLIPConfig(**both(VISION, num_labels=3))
    transformers.CLIPForImageClassification(config).save_pretrained(tmp_path)
    with pytest.raises(BadCheckpoint, match=r"CLIPForImageClassification.*num_classes=0"):
        vitreous.load(tmp_path)
    assert vitreous.load(tmp_path, num_classes=4).config.num_classes == 4


@pytest.mark.parametrize(
    ("preset", "changes", "message"),
    [
        ("CLIP-B/32", {"num_classes": 3}, "a classifier is not supported by transformers' CLIP"),
        ("CLIP-B/32", {"pool": GlobalAverage()}, r"CLIP requires ClassToken\(\) pooling"),
        ("CLIP-B/32", {"patch_bias": True}, "CLIP requires patch_bias=False, got True"),
        ("SigLIP-B/16", {"num_classes": 3}, r"Siglip requires GlobalAverage\(norm='before'\) pooling"),
        ("SigLIP-B/16", {"projection": 8}, "projection is not supported by transformers' Siglip"),
        ("SigLIP-B/16", {"registers": 2}, "registers"),
    ],
)
def test_models_without_a_counterpart_are_rejected(
    preset: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    model = vitreous.create(preset, image_size=32, overrides={"depth": 1, "width": 24, "mlp_width": 8} | changes)
    with pytest.raises(UnsupportedByFormat, match=message):
        vitreous.save(model, tmp_path / "x", format="huggingface")


def test_classifier_without_a_class_token_is_written_as_siglip(tmp_path: Path) -> None:
    fields = {"depth": 1, "width": 24, "mlp_width": 8, "pool": GlobalAverage(), "num_classes": 2}
    model = vitreous.create("SigLIP-B/16", image_size=32, overrides=fields | {"labels": ("cat", "dog")}).eval()
    vitreous.save(model, tmp_path / "x", format="huggingface", lossy=True)
    again = vitreous.load(tmp_path / "x")
    assert (again.config.pool, again.config.labels) == (GlobalAverage(), ("cat", "dog"))
