"""Checkpoints of segmenters, written, read and passed to every command."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitreous
from command_line import CommandLine
from vitreous.common.checks import BadValue
from vitreous.data.open import open_masked
from vitreous.model.build import build_segmenter
from vitreous.model.config import SegmenterConfig, ViTConfig
from vitreous.model.options import LinearDecoder, MaskDecoder
from vitreous.model.segmenter import Segmenter
from vitreous.weights.convert import UnsupportedByFormat
from vitreous.weights.load import load_encoder


@pytest.mark.parametrize("decoder", [LinearDecoder(2), MaskDecoder(1)], ids=str)
def test_segmenter_round_trip(decoder: Any, small: ViTConfig, tmp_path: Path) -> None:
    encoder = dataclasses.replace(small, num_classes=0)
    model = build_segmenter(SegmenterConfig(encoder, decoder, 2, ("pet", "background"))).eval()
    vitreous.save(model, tmp_path / "a")
    again = vitreous.load(tmp_path / "a")
    assert isinstance(again, Segmenter)
    assert again.config == model.config
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    card = (tmp_path / "a" / "README.md").read_text()
    assert 'pipeline_tag: "image-segmentation"' in card
    larger = vitreous.load(tmp_path / "a", image_size=(48, 64))
    assert larger(torch.zeros(1, 3, 48, 64)).shape == (1, 2, 48, 64)
    alone = load_encoder(tmp_path / "a")
    assert alone.config == encoder
    with pytest.raises(UnsupportedByFormat, match="timm"):
        vitreous.save(model, tmp_path / "b", format="timm")
    with pytest.raises(BadValue, match="num_classes is 5, but must be omitted for a segmenter"):
        vitreous.load(tmp_path / "a", num_classes=5)


@pytest.mark.slow
def test_commands_accept_a_segmenter(
    small: ViTConfig, tmp_path: Path, command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    classes = open_masked("shapes:size=32,count=4").mask_classes
    encoder = dataclasses.replace(small, num_classes=0, image_size=(32, 32))
    vitreous.save(build_segmenter(SegmenterConfig(encoder, LinearDecoder(), 7, classes)), tmp_path / "m")
    Image.fromarray(np.zeros((40, 60, 3), np.uint8)).save(tmp_path / "p.png")

    def run(*words: str) -> str:
        done = command(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    monkeypatch.chdir(tmp_path)

    assert "LinearDecoder" in run("info", "m")
    run("predict", "m", "p.png", "--out", "masks", "--device", "cpu")
    assert (tmp_path / "masks/masks/p.png").exists()
    record = json.loads(run("eval", "m", "--data", "shapes:size=32,count=4,val=3", "--json", "--device", "cpu"))
    assert record["count"] == 3
    assert len(record["per_class"]) == 7
    run("embed", "m", "p.png", "--out", "e.jsonl", "--device", "cpu")
    assert len(json.loads((tmp_path / "e.jsonl").read_text())["embedding"]) == small.width
    run("explain", "m", "p.png", "--out", "seen", "--methods", "rollout", "--device", "cpu")
    assert (tmp_path / "seen/rollout.png").exists()
