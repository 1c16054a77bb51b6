"""Loading tensors from wrappers, prefixes and shards, and with a config.json."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import vitreous
from vitreous.common.checks import BadValue
from vitreous.model.build import build_vit
from vitreous.model.config import ViTConfig
from vitreous.model.options import Gelu
from vitreous.weights.io.errors import BadCheckpoint
from vitreous.weights.load import find_tensors
from vitreous.weights.native import provenance_of

CONFIG = ViTConfig(
    image_size=(16, 16), patch_size=(8, 8), width=64, depth=1, num_heads=2, mlp_width=8, mlp=Gelu("erf"), num_classes=3
)
Tensors = dict[str, Tensor]


@pytest.fixture
def tensors(tmp_path: Path) -> Tensors:
    """Return the tensors of a model under timm's names."""
    vitreous.save(build_vit(CONFIG), tmp_path / "plain.safetensors", format="timm")
    return {name: tensor.clone() for name, tensor in find_tensors(tmp_path / "plain.safetensors").tensors.items()}


def prefixed(tensors: Tensors, prefix: str) -> Tensors:
    return {f"{prefix}{name}": tensor for name, tensor in tensors.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrap", "inside"),
    [
        (lambda x: x, None),
        (lambda x: {"state_dict": prefixed(x, "module.")}, ["state_dict"]),
        (lambda x: {"state_dict": prefixed(x, "model.")}, ["state_dict"]),
        (lambda x: {"model": {"module": prefixed(x, "_orig_mod.module.")}}, ["model", "module"]),
        (lambda x: {"loss": torch.tensor(0.5), "model": x}, ["model"]),
        (lambda x: {"state_dict": {"a": torch.zeros(1)}, "state_dict_ema": x}, ["state_dict_ema"]),
        (lambda x: {"student": {"a": torch.zeros(1)}, "teacher": prefixed(x, "backbone.")}, ["teacher"]),
        (lambda x: {"n_averaged": torch.tensor(3), **prefixed(x, "module.")}, None),
    ],
    ids=["none", "DDP", "Lightning", "twice", "with a number", "averaged", "teacher", "AveragedModel"],
)
def test_wrappers_are_removed_and_recorded(
    wrap: Callable[[Tensors], Any], inside: list[str] | None, tensors: Tensors, tmp_path: Path
) -> None:
    torch.save(wrap(tensors), tmp_path / "x.pth")
    found = vitreous.load(tmp_path / "x.pth", overrides={"num_heads": 2})
    assert torch.equal(found.state_dict()["head.weight"], tensors["head.weight"])
    assert provenance_of(found).get("inside") == inside


def test_mixed_dtypes_are_converted_to_the_widest(tensors: Tensors, tmp_path: Path) -> None:
    mixed = {name: tensor.half() if "mlp" in name else tensor for name, tensor in tensors.items()}
    torch.save(mixed, tmp_path / "x.pth")
    found = vitreous.load(tmp_path / "x.pth")
    assert {tensor.dtype for tensor in found.state_dict().values()} == {torch.float32}
    assert found(torch.zeros(1, 3, 16, 16)).isfinite().all()


@pytest.mark.slow
@pytest.mark.parametrize("format", ["timm", "huggingface"])
def test_file_in_a_folder_is_read_with_its_config(format: str, tmp_path: Path) -> None:
    vitreous.save(build_vit(CONFIG), tmp_path / "foreign", format=format)
    found = vitreous.load(tmp_path / "foreign" / "model.safetensors")
    assert found.config == vitreous.load(tmp_path / "foreign").config
    assert isinstance(found.config, ViTConfig)
    assert found.config.num_heads == 2


def test_overrides_are_recorded_in_provenance(tensors: Tensors, tmp_path: Path) -> None:
    torch.save(tensors, tmp_path / "x.pth")
    found = vitreous.load(tmp_path / "x.pth", overrides={"num_heads": 2, "mlp": Gelu("tanh")})
    assert not any(line.startswith(("num_heads:", "mlp:")) for line in provenance_of(found)["assumed"])
    vitreous.save(found, tmp_path / "saved")
    given = provenance_of(vitreous.load(tmp_path / "saved"))["given"]
    assert given == {"num_heads": 2, "mlp": {"kind": "Gelu", "approximation": "tanh"}}


@pytest.mark.slow
def test_changes_accumulate_in_provenance(tensors: Tensors, tmp_path: Path) -> None:
    torch.save(tensors, tmp_path / "x.pth")
    vitreous.save(vitreous.load(tmp_path / "x.pth", image_size=24), tmp_path / "saved")
    changes = provenance_of(vitreous.load(tmp_path / "saved", image_size=32))["changes"]
    assert [(one["from"], one["to"]) for one in changes] == [([16, 16], [24, 24]), ([24, 24], [32, 32])]


@pytest.mark.parametrize(
    ("shard", "content", "message"),
    [
        ("model.safetensors.index.json", None, "weight files end in"),
        ("a\0.bin", None, "weight files end in"),
        ("..", None, "weight files end in"),
        ("sub/a.bin", None, "not in the same folder"),
        ("missing.safetensors", None, "cannot be read"),
        ("a.bin", [torch.zeros(1)], "dict of tensors, got list"),
        ("a.bin", {"b": torch.zeros(1)}, "lists tensors .* such as a"),
    ],
)
def test_invalid_index_is_rejected(shard: str, content: Any, message: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": shard}}))
    if content is not None:
        torch.save(content, tmp_path / shard)
    with pytest.raises(BadCheckpoint, match=message):
        vitreous.load(tmp_path)


def test_invalid_overrides_raise_bad_value(tensors: Tensors, tmp_path: Path) -> None:
    for given, message in (({"num_heads": 5}, "num_heads"), ({"num_head": 2}, "did you mean 'num_heads'")):
        with pytest.raises(BadValue, match=message):
            vitreous.load(tmp_path / "plain.safetensors", overrides=given)
    vitreous.save(build_vit(CONFIG), tmp_path / "saved")
    with pytest.raises(BadValue, match="num_heads"):
        vitreous.load(tmp_path / "saved", overrides={"num_heads": 5})
