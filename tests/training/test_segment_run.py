"""Segmentation runs: training, kill and resume, initial checkpoints."""

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from segment_runs import sample_images, segmenting
from train_runs import finish, skip_report
from vitreous.evaluation import evaluate
from vitreous.model.build import build, build_segmenter
from vitreous.model.options import MaskDecoder
from vitreous.model.presets import configure
from vitreous.model.segmenter import Segmenter
from vitreous.training import Optim, Segmenting
from vitreous.training.run import train
from vitreous.weights.io.safetensors_file import read_tensors
from vitreous.weights.load import load, save

pytestmark = pytest.mark.slow


@pytest.fixture
def unreported(monkeypatch: pytest.MonkeyPatch) -> None:
    skip_report(monkeypatch)


def checkpoint(folder: Path, **fields: Any) -> Path:
    small = {"patch_size": 4, "width": 32, "mlp_width": 32, "depth": 2, "num_heads": 2}
    save(build(configure("ViT-Lite-6/4", 3, 16, small | fields)), folder)
    return folder


def test_run_learns_and_its_metrics_equal_eval(tmp_path: Path) -> None:
    config = segmenting(tmp_path / "run", steps=240, optim=Optim(lr=1e-2), data="shapes:size=16,count=256,val=32")
    metrics = train(dataclasses.replace(config, evaluate_every=15)).metrics
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["train_loss"] < 0.6 * rows[0]["train_loss"]
    assert metrics["miou"] > rows[0].get("val_miou", 0.13)
    assert {"miou", "pixel_accuracy", "boundary_f", "images_per_second", "seconds"} <= metrics.keys()
    for name in ("curves.png", "samples.png", "segments.png", "mistakes.png", "report.html", "best", "last"):
        assert (tmp_path / "run" / name).exists(), name
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Segmentation into 7 classes" in page
    assert "boundary F" in page
    colours = re.findall(r'class="swatch" style="background: (#\w{6})"', page)
    assert len(colours) == 3 * 7  # in the table and the legends of two sections
    assert len(set(colours)) == 7
    model = load(tmp_path / "run" / "best")
    assert isinstance(model, Segmenter)
    figures = evaluate(model, config.data, device="cpu").to_dict()
    for name in ("miou", "pixel_accuracy", "boundary_f", "count"):
        assert figures[name] == pytest.approx(metrics[name]), name


def test_resume_after_kill_is_bit_identical(tmp_path: Path) -> None:
    decoder = Segmenting(decoder="mask", mask_blocks=1)
    whole, broken = (segmenting(tmp_path / name, segmenting=decoder) for name in ("whole", "broken"))
    assert finish(whole) == 0
    assert finish(broken, die_after=4) == -9
    assert finish(dataclasses.replace(broken, resume=True)) == 0
    ours, theirs = (read_tensors(config.out / "last" / "model.safetensors") for config in (whole, broken))  # type: ignore[operator]
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.usefixtures("unreported")
@pytest.mark.parametrize("decoder", [Segmenting(cells=2), Segmenting(decoder="mask")], ids=lambda how: how.decoder)
def test_frozen_encoder_is_unchanged(decoder: Segmenting, tmp_path: Path) -> None:
    start = checkpoint(tmp_path / "start", pool={"kind": "AttentionPool"}, class_token=False)
    config = segmenting(tmp_path / "run", model=None, overrides={}, image_size=(), init=start, segmenting=decoder)
    train(dataclasses.replace(config, train_only="head", optim=Optim(lr=1e-2)))
    before, after = load(start), load(tmp_path / "run" / "best")
    assert isinstance(after, Segmenter)
    weights = dict(before.named_parameters())
    assert all(torch.equal(weights[name], weight) for name, weight in after.encoder.named_parameters())
    fresh = build_segmenter(after.config)
    assert not any(torch.equal(a, b) for a, b in zip(after.decoder.parameters(), fresh.decoder.parameters(), strict=True) if a.ndim > 1)  # fmt: skip  # noqa: E501


@pytest.mark.usefixtures("unreported")
@pytest.mark.parametrize("decoder", [Segmenting(), Segmenting(cells=2), Segmenting(decoder="mask")], ids=str)
def test_init_from_a_segmenter_keeps_its_decoder(decoder: Segmenting, tmp_path: Path) -> None:
    train(segmenting(tmp_path / "first", segmenting=decoder))
    again = segmenting(
        tmp_path / "second", model=None, overrides={}, image_size=(), init=tmp_path / "first/best", steps=1
    )
    train(dataclasses.replace(again, optim=Optim(lr=1e-12), segmenting=Segmenting()))
    first, second = (load(tmp_path / name / "best") for name in ("first", "second"))
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.usefixtures("unreported")
def test_given_decoder_replaces_the_checkpoints(tmp_path: Path) -> None:
    train(segmenting(tmp_path / "first"))
    again = segmenting(
        tmp_path / "second", model=None, overrides={}, image_size=(), init=tmp_path / "first/best", steps=1
    )
    train(dataclasses.replace(again, segmenting=Segmenting(decoder="mask")))
    assert load(tmp_path / "second/best").config.decoder == MaskDecoder(2)  # type: ignore[union-attr]


@pytest.mark.usefixtures("unreported")
def test_init_from_a_checkpoint_with_patch_dropout(tmp_path: Path) -> None:
    start = checkpoint(tmp_path / "start", patch_dropout=0.25)
    train(segmenting(tmp_path / "run", model=None, overrides={}, image_size=(), init=start, steps=1))
    assert load(tmp_path / "run/best").config.encoder.patch_dropout == 0  # type: ignore[union-attr]


@pytest.mark.usefixtures("unreported")
def test_classes_can_be_ignored(tmp_path: Path) -> None:
    data = sample_images(tmp_path / "data")
    ignoring = Segmenting(cells=4, ignore=("border",))
    metrics = train(segmenting(tmp_path / "run", data=str(data), segmenting=ignoring, batch_size=8)).metrics
    model = load(tmp_path / "run" / "best")
    assert isinstance(model, Segmenter)
    assert model.config.labels == ("pet", "background")
    assert metrics["count"] == 8
    with pytest.raises(ValueError, match=r"the classes pet, background, .*; exclude .*--ignore border"):
        evaluate(model, data, device="cpu")
    figures = evaluate(model, data, device="cpu", ignore=("border",)).to_dict()
    assert figures["miou"] == pytest.approx(metrics["miou"])


def test_the_example_of_the_guide_runs_at_reduced_size(tmp_path: Path) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "en" / "segmentation.md").read_text()
    [line] = [line for line in guide.splitlines() if line.startswith("vitreous train --task segment --data shapes")]
    words = line.replace("--data shapes", "--data shapes:count=64,val=8 --steps 2").split()[1:]
    command = [sys.executable, "-m", "vitreous", *words, "--out", "run", "--device", "cpu", "--workers", "0"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "mean IoU" in done.stdout
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["count"] == 8
