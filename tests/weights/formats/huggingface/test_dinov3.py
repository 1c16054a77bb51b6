"""transformers' DINOv3, in both directions."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vitreous
from optional_imports import import_transformers
from parity import check_close, check_identical, noisy
from vitreous.model.options import Rotary2d, SwiGlu
from vitreous.model.vit import ViT
from vitreous.weights.io.errors import BadCheckpoint, UnsupportedByFormat

NATIVE, OTHER = (64, 64), (48, 96)
SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
SIZES |= {"num_register_tokens": 4, "image_size": 64}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "gated": {"use_gated_mlp": True, "hidden_act": "silu"},
    "no biases": {"query_bias": False, "value_bias": False},
    "key bias, no registers": {"key_bias": True, "num_register_tokens": 0},
    "base, eps, GELU": {"rope_theta": 37.0, "layer_norm_eps": 1e-3, "hidden_act": "gelu_pytorch_tanh"},
}


def reference_model(case: str) -> nn.Module:
    transformers = import_transformers()
    return noisy(transformers.DINOv3ViTModel(transformers.DINOv3ViTConfig(**SIZES | CASES[case])))


def all_tokens(model: ViT, images: Tensor) -> Tensor:
    features = model.features(images)
    return torch.cat([features.prefix, features.patches], dim=1)


@pytest.mark.parametrize("case", CASES)
def test_models_are_read_and_written_exactly(case: str, tmp_path: Path) -> None:
    theirs = reference_model(case)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = vitreous.load(tmp_path / "theirs")
    check_close(ours, lambda images: theirs(images).pooler_output, NATIVE, OTHER)
    check_close(lambda x: all_tokens(ours, x), lambda x: theirs(x).last_hidden_state, NATIVE, OTHER)
    vitreous.save(ours, tmp_path / "ours", format="huggingface")
    check_identical(vitreous.load(tmp_path / "ours"), ours)
    written = import_transformers().AutoModel.from_pretrained(tmp_path / "ours")
    assert type(written) is type(theirs)
    tensors = written.state_dict()
    assert all(torch.equal(tensors[name], x) for name, x in theirs.state_dict().items() if "mask_token" not in name)


def test_names_in_memory_are_read(tmp_path: Path) -> None:
    theirs = reference_model("gated")
    torch.save(theirs.state_dict(), tmp_path / "m.pth")
    with pytest.warns(vitreous.AssumptionWarning, match="num_heads=1"):
        vitreous.load(tmp_path / "m.pth")
    ours = vitreous.load(tmp_path / "m.pth", overrides={"num_heads": 4})
    assert ours.config.mlp == SwiGlu()
    check_close(ours, lambda images: theirs(images).pooler_output, NATIVE)


def test_activation_of_a_gate_must_be_silu(tmp_path: Path) -> None:
    transformers = import_transformers()
    config = transformers.DINOv3ViTConfig(**SIZES, use_gated_mlp=True, hidden_act="gelu")
    transformers.DINOv3ViTModel(config).save_pretrained(tmp_path)
    with pytest.raises(BadCheckpoint, match="hidden_act must be 'silu' for a gated MLP, got 'gelu'"):
        vitreous.load(tmp_path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_classes": 3}, "a classifier is not supported"),
        ({"position": Rotary2d(coordinates="index")}, "requires 'edges' coordinates"),
        ({"position": Rotary2d(period_dtype="bfloat16")}, "rounded to bfloat16"),
        ({"untied_norms": True}, "untied_norms is not supported"),
    ],
)
def test_unsupported_models_are_not_written(fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    small = {"width": 64, "depth": 1, "num_heads": 2, "mlp_width": 96}
    model = vitreous.create("DINOv3-S/16", image_size=32, overrides=small | fields)
    with pytest.raises(UnsupportedByFormat, match=message):
        vitreous.save(model, tmp_path / "m", format="huggingface")
