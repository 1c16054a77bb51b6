"""Errors name invalid checkpoint folders, which are never overwritten."""

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import vitreous
from native_models import load_state
from vitreous.model.build import build
from vitreous.model.config import ViTConfig
from vitreous.weights.io.errors import BadCheckpoint
from vitreous.weights.native import is_checkpoint, load_folder, save_folder


def edit(folder: Path, change: Any) -> None:
    document = json.loads((folder / "config.json").read_text())
    change(document)
    (folder / "config.json").write_text(json.dumps(document))


def test_other_folders_are_not_replaced(tmp_path: Path, small: ViTConfig, saved: Path) -> None:
    model = build(small)
    (tmp_path / "pictures").mkdir()
    save_folder(model, tmp_path / "pictures")  # empty
    (tmp_path / "pictures" / "cat.jpg").write_bytes(b"meow")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"architectures": ["ViTForImageClassification"]}')
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"pictures contains cat.jpg, which would be deleted"):
        save_folder(model, tmp_path / "pictures")
    with pytest.raises(ValueError, match=r"other contains a config.json from another program"):
        save_folder(model, tmp_path / "other")
    with pytest.raises(OSError, match="file is not a folder"):
        save_folder(model, tmp_path / "file")
    assert (tmp_path / "pictures" / "cat.jpg").exists()
    assert not is_checkpoint(tmp_path / "other")
    assert is_checkpoint(saved)


def test_error_for_folder_without_checkpoint_suggests_one(tmp_path: Path, saved: Path) -> None:
    with pytest.raises(BadCheckpoint, match=r"checkpoint .*nowhere not found"):
        load_folder(tmp_path / "nowhere")
    with pytest.raises(BadCheckpoint, match=r"is not a checkpoint: it has no config.json$"):
        load_folder(tmp_path)
    saved.rename(tmp_path / "best")
    with pytest.raises(BadCheckpoint, match=r"checkpoint .*bset not found \(did you mean 'best'\?\)$"):
        load_folder(tmp_path / "bset")
    with pytest.raises(
        BadCheckpoint, match=r"checkpoint .*bets/last not found: '.*bets' does not exist \(did you .*'best'"
    ):
        vitreous.load(tmp_path / "bets" / "last")
    with pytest.raises(BadCheckpoint, match=r"is a run folder, .* \(did you mean '.*best'\?\)$"):
        load_folder(tmp_path)
    (tmp_path / "config.json").write_text('{"epochs": 3}')  # as in a run folder
    for format in (None, "vitreous", "timm"):
        with pytest.raises(BadCheckpoint, match=r"is a run folder, .* \(did you mean '.*best'\?\)$"):
            vitreous.load(tmp_path, format=format)


@pytest.mark.parametrize("format", [None, "vitreous", "timm"])
def test_preset_name_is_not_a_checkpoint(format: str | None) -> None:
    with pytest.raises(BadCheckpoint, match=r"^ViT-S/16 is a preset without weights.*expected .*a folder"):
        vitreous.load("ViT-S/16", format=format)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["model"].update(widht=3), r"model.widht is not a field of ViTConfig \(did you mean 'width'\?\)"),
        (lambda d: d["model"].update(width=10**9), r"width is 1000000000, but must be an integer from 1 to"),
        (lambda d: d["model"].update(width=2**16, mlp_width=2**20, depth=1024), r"about .* parameters; the maximum"),
        (lambda d: d["model"].update(depth=1024), r"41 tensors, too few for the 1024 layers"),
        (lambda d: d["model"].update(depth=3), r"16 missing: encoder.blocks.2"),
        (lambda d: d["model"].update(width="32"), r"model.width must be .*int, got '32'"),
        (lambda d: d["model"].update(kind="Vit"), r"model.kind must be one of ViTConfig.* got 'Vit'"),
        (lambda d: d["model"].update(labels=["a"]), r"labels must .*5.* got 1"),
        (lambda d: d["model"].update(norm_eps=float("nan")), r"norm_eps is nan, but must be a number"),
        (lambda d: d.pop("model"), r"model must be an object whose kind is one of .*, got None"),
        (lambda d: d.update(model=[]), r"model must be an object whose kind is one of .*, got \[\]"),
        (lambda d: d.update(format="timm"), r"must have the format 'vitreous', got 'timm'"),
        (lambda d: d.update(version=2), r"has version 2; .* reads only version 1"),
        (lambda d: d.update(provenence={}), r"unknown field 'provenence' \(did you mean 'provenance'\?\)"),
        (lambda d: d.update(provenance=1), r"provenance must be an object, got 1"),
    ],
)
def test_invalid_config_is_explained(saved: Path, change: Any, message: str) -> None:
    edit(saved, change)
    with pytest.raises(BadCheckpoint, match=message) as error:
        load_folder(saved)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"format": "vitreous", ', "[" * 100_000, "1" * 5000, "\x00"])
def test_invalid_json_is_rejected(saved: Path, text: str) -> None:
    (saved / "config.json").write_text(text)
    with pytest.raises(
        BadCheckpoint, match=r"config.json (is not valid JSON|must contain a|must have the format|is nested too deeply)"
    ):
        load_folder(saved)
    (saved / "config.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(BadCheckpoint, match=r"config.json (is not valid JSON|is nested too deeply)"):
        load_folder(saved)


def test_huge_config_is_not_read(saved: Path) -> None:
    os.truncate(saved / "config.json", 1 << 40)
    with pytest.raises(BadCheckpoint, match=r"config.json .* 67,108,864"):
        load_folder(saved)


def test_missing_and_unexpected_tensors_are_listed(saved: Path) -> None:
    state = load_state(saved)
    state["head.weight"] = torch.zeros(6, 32)
    state["head.bais"] = state.pop("head.bias")
    state["norm.bias"] = state["norm.bias"].long()
    save_file(state, saved / "model.safetensors")
    with pytest.raises(
        BadCheckpoint, match=r"1 missing: head.bias; 1 unexpected: head.bais .*; 1 with the wrong shape: head"
    ) as e:
        load_folder(saved)
    assert "norm.bias is I64" in str(e.value)


@pytest.mark.slow
def test_damaged_header_is_rejected_or_harmless(saved: Path) -> None:
    """A damaged header gives a BadCheckpoint error or a model with the right shapes."""
    whole = (saved / "model.safetensors").read_bytes()
    header = int.from_bytes(whole[:8], "little") + 8
    generator = random.Random(0)
    problems = []
    for _ in range(150):
        damaged = bytearray(whole)
        for _ in range(generator.randint(1, 3)):
            damaged[generator.randrange(header)] = generator.randrange(256)
        (saved / "model.safetensors").write_bytes(
            damaged[: generator.choice([len(damaged), header, len(damaged) // 2])]
        )
        try:
            load_folder(saved)
        except BadCheckpoint as error:
            problems.append(str(error))
    assert len(problems) > 100
    assert all("\n" not in problem for problem in problems)
