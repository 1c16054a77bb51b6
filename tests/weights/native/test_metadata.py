"""Metadata of checkpoint folders: provenance, labels and model card."""

import dataclasses
from pathlib import Path

import numpy as np
import torch

from vitreous.model.build import build
from vitreous.model.config import ViTConfig
from vitreous.weights.load import describe
from vitreous.weights.native import load_folder, provenance_of, save_folder


def test_provenance_is_kept_and_extended(saved: Path) -> None:
    model = load_folder(saved)
    assert provenance_of(model)["data"] == "digits"
    save_folder(model, saved, {"seed": 3})
    provenance = describe(saved).provenance
    assert (provenance["data"], provenance["seed"]) == ("digits", 3)
    assert provenance_of(build(model.config)) == {}


def test_provenance_is_converted_to_json_types(tmp_path: Path, small: ViTConfig) -> None:
    odd = {
        "nan": float("nan"),
        "inf": [np.float32("inf"), torch.tensor(2.0)],
        "count": np.int64(3),
        "path": Path("a/b"),
        "pair": (1, 2),
        5: {"flag": True, "none": None},
    }
    save_folder(build(small), tmp_path / "x", odd)  # type: ignore[arg-type]
    provenance = describe(tmp_path / "x").provenance
    del provenance["vitreous"]
    assert provenance == {
        "nan": None,
        "inf": [None, 2.0],
        "count": 3,
        "path": "a/b",
        "pair": [1, 2],
        "5": {"flag": True, "none": None},
    }


def test_labels_in_any_script_and_invalid_text_are_kept(tmp_path: Path, small: ViTConfig) -> None:
    labels = (
        "猫",
        'a "b" \\',
        "caf\udce9",
        "\n",
        "",
    )  # the third is how Python decodes a folder name that is not UTF-8
    save_folder(build(dataclasses.replace(small, labels=labels)), tmp_path / "x")
    assert load_folder(tmp_path / "x").config.labels == labels
    save_folder(build(dataclasses.replace(small, labels=("猫",) * 5)), tmp_path / "x")
    assert "猫" in (tmp_path / "x" / "config.json").read_text(encoding="utf-8")


def test_describe_returns_config_and_provenance(saved: Path) -> None:
    model = load_folder(saved)
    assert describe(saved).config == model.config
    assert describe(saved).provenance == provenance_of(model)


def test_card_describes_the_model(saved: Path) -> None:
    card = (saved / "README.md").read_text()
    assert "\n# x\n" in card
    assert f"{sum(p.numel() for p in load_folder(saved).parameters()):,} parameters" in card
    assert "| top1 | 0.5 |" in card
