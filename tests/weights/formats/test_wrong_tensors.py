"""Files whose tensors do not fit the model are rejected in one line that names the problem."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, zeros

import vitreous
from vitreous.model.build import build
from vitreous.model.config import ViTConfig
from vitreous.model.options import ResNetStem
from vitreous.weights.io.errors import BadCheckpoint

pytestmark = pytest.mark.slow

PLAIN = ViTConfig(image_size=(32, 32), patch_size=(8, 8), width=128, depth=2, num_heads=2, mlp_width=256, num_classes=7)

# For each format: changes to PLAIN; then tensor name, replacement (None removes it) and error message.
CHANGES: dict[str, dict[str, Any]] = {
    "timm": {},
    "google": {"stem": ResNetStem((1,), 32), "patch_size": (2, 2)},
    "torchvision": {},
    "lucidrains": {"patch_method": "linear", "patch_norm": True, "qkv_bias": False},
    "dinov2": {"layer_scale": 1e-5, "num_classes": 0},
    "mae": {"num_classes": 0},
}
WRONG: dict[str, list[tuple[str, Tensor | None, str]]] = {
    "timm": [
        ("blocks.1.mlp.fc2.bias", None, r"1 missing: blocks\.1\.mlp\.fc2\.bias$"),
        ("norm_pre.weight", zeros(128), r"1 missing: norm_pre\.bias$"),
        ("blocks.1.attn.proj.weight", zeros(128, 64), r"blocks\.1\.attn\.proj\.weight is \[128, 64\], expected"),
        ("patch_embed.proj.weight", zeros(128, 192), r"patch_embed\.proj\.weight must have 4 .*got shape \[128, 192\]"),
        ("pos_embed", zeros(17), r"pos_embed must have 3 .*got shape \[17\]"),
        ("pos_embed", None, r"positions.*\(pos_embed\)"),
        ("head.weight", zeros(7), r"head\.weight must have 2 .*got shape \[7\]"),
        ("blocks.0.mlp.fc1.weight", zeros(()), r"fc1\.weight must have 2 .*got shape \[\]"),
        ("attn_pool.latent", zeros(1, 1, 128), "attention pooling .* class token"),
    ],
    "google": [
        ("cls", None, "does not match the model: .*posembed_input|positions"),
        ("head/bias", None, "1 missing: head/bias"),
        ("block1/unit1/conv_proj/kernel", None, "1 missing: block1/unit1/conv_proj/kernel"),
        ("head/scale", zeros(7), "1 unexpected: head/scale"),
        ("head/bias", zeros(3), r"head/bias is \[3\], expected \[7\]"),
        ("cls", zeros(1, 1, 128, dtype=torch.int32), "cls is int32"),
        ("embedding/kernel", zeros(1, 128), "embedding/kernel must have 4 "),
        ("conv_root/kernel", zeros(7, 7, 3, 5), "stem.width is 5"),
        ("Transformer/encoderblock_0/LayerNorm_0/scale", None, "depth is 0"),
    ],
    "torchvision": [
        ("encoder.ln.bias", None, r"1 missing: encoder\.ln\.bias$"),
        ("conv_proj.scale", zeros(3), r"1 unexpected: conv_proj\.scale$"),
        ("class_token", zeros(1, 2, 128), r"class_token is \[1, 2, 128\], expected \[1, 1, 128\]"),
        ("conv_proj.weight", None, "has no tensor conv_proj.weight"),
        ("encoder.pos_embedding", zeros(16, 128), "must have 3 "),
        ("encoder.pos_embedding", zeros(1, 19, 128), "19 positions; the 18 .* square grid"),
    ],
    "lucidrains": [
        ("transformer.layers.1.1.net.4.bias", None, r"1 missing: transformer\.layers\.1\.1\.net\.4\.bias$"),
        ("temperature", zeros(1), "1 unexpected: temperature$"),
        ("to_patch_embedding.3.bias", zeros(64), r"to_patch_embedding\.3\.bias is \[64\], expected \[128\]"),
        ("cls_token", None, "has no tensor cls_token"),
        ("cls_token", zeros(2, 128), r"cls_token is \[2, 128\], expected \[1, 128\]"),
        ("transformer.layers.0.0.to_qkv.weight", zeros(4), "must have 2 "),
    ],
    "dinov2": [
        ("blocks.1.ls1.gamma", None, r"1 missing: blocks\.1\.ls1\.gamma$"),
        ("head.scale", zeros(3), r"1 unexpected: head\.scale$"),
        ("register_tokens", zeros(1, 2, 64), r"register_tokens is \[1, 2, 64\], expected \[1, 2, 128\]"),
        ("register_tokens", zeros(2, 128), r"register_tokens must have 3 .*got shape \[2, 128\]"),
        ("norm.weight", zeros(128, 1), r"norm\.weight is \[128, 1\], expected \[128\]"),
    ],
    "mae": [
        ("norm.bias", None, r"1 missing: norm\.bias$"),
        ("temperature", zeros(3), r"1 unexpected: temperature$"),
        ("cls_token", zeros(1, 2, 128), r"cls_token is \[1, 2, 128\], expected \[1, 1, 128\]"),
    ],
}
CASES = [pytest.param(format, *row, id=f"{format}: {row[0]}") for format, rows in WRONG.items() for row in rows]


def valid_tensors(format: str, file: Path) -> dict[str, Tensor]:
    """Return the tensors of a valid file."""
    vitreous.save(build(dataclasses.replace(PLAIN, **CHANGES[format])), file, format=format, lossy=True)
    vitreous.load(file)
    if file.suffix == ".npz":
        with np.load(file) as arrays:
            return {name: torch.from_numpy(array) for name, array in arrays.items()}
    state = torch.load(file)
    return state["model"] | {"decoder_embed.weight": zeros(4, 128)} if format == "mae" else state


@pytest.mark.parametrize(("format", "name", "tensor", "message"), CASES)
def test_wrong_tensors_are_rejected_in_one_line(
    format: str, name: str, tensor: Tensor | None, message: str, tmp_path: Path
) -> None:
    file = tmp_path / ("bad.npz" if format == "google" else "bad.pth")
    tensors = valid_tensors(format, file)
    tensors.pop(name, None)
    if tensor is not None:
        tensors[name] = tensor
    if format == "google":
        np.savez(file, **tensors)
    else:
        torch.save(tensors, file)
    with pytest.raises(BadCheckpoint, match=message) as error:
        vitreous.load(file)
    assert file.name in str(error.value)
    assert "\n" not in str(error.value)
