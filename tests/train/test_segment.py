"""Learning a class for every pixel, from the masks to the checkpoint and back."""

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitreous
from train_runs import finish
from vitreous.data.config import Augmentation
from vitreous.data.loader import Batch
from vitreous.data.masks import open_masked
from vitreous.evaluate.segment_checkpoint import evaluate_segmenter
from vitreous.evaluate.setting import Setting
from vitreous.model.build import build
from vitreous.model.checks import BadValue
from vitreous.model.config import ViTConfig
from vitreous.model.presets import configure
from vitreous.model.segment_loss import IGNORED, segmentation_loss
from vitreous.model.segmenter import LinearDecoder, MaskDecoder, Segmenter, SegmenterConfig, build_segmenter
from vitreous.train.config import Augment, Optim, Segmenting, TrainConfig
from vitreous.train.optim import decays, layer_of
from vitreous.train.run import train
from vitreous.train.segment import Segment
from vitreous.weights.convert import CannotHold
from vitreous.weights.load import load, load_encoder, save
from vitreous.weights.tensors import read_tensors

SMALL = ("patch_size=4", "width=32", "mlp_width=32", "depth=2", "num_heads=2")


def segmenting(out: Path, **changes: Any) -> TrainConfig:
    """Shapes of 16 x 16 pixels, drawn into patches of 4."""
    config = TrainConfig(
        task="segment",
        data="shapes:size=16,count=48,val=12",
        model="ViT-Lite-6/4",
        set=SMALL,
        image_size=(16,),
        out=out,
        steps=6,
        batch_size=16,
        device="cpu",
        workers=0,
        evaluate_every=1,
        optim=Optim(lr=3e-3, ema=0.9),
        augment=Augment(crop="padded", flip=0.5, colour_jitter=0.3),
        segmenting=Segmenting(cells=4),
    )
    return dataclasses.replace(config, **changes)


def checkpoint(folder: Path, **fields: Any) -> Path:
    small = {"patch_size": 4, "width": 32, "mlp_width": 32, "depth": 2, "num_heads": 2}
    save(build(configure("ViT-Lite-6/4", 3, 16, small | fields)), folder)
    return folder


def pictures(root: Path, ids: tuple[int, ...] = (1, 2, 3)) -> Path:
    """Pictures of a grey level and masks of an id in each half; classes.txt names them."""
    for index in range(24):
        part = "train" if index < 16 else "test"
        for kind in ("images", "masks"):
            (root / kind / part).mkdir(parents=True, exist_ok=True)
        left, right = ids[index % len(ids)], ids[(index + 1) % len(ids)]
        mask = np.full((20, 24), left, np.uint8)
        mask[:, 12:] = right
        Image.fromarray(np.stack([mask * 60] * 3, -1)).save(root / f"images/{part}/{index}.png")
        Image.fromarray(mask).save(root / f"masks/{part}/{index}.png")
    (root / "classes.txt").write_text("1 pet\n2 background\n3 border\n")
    return root


# ---- The task --------------------------------------------------------------------------------------------------------


def task(small: ViTConfig, dice: float = 0.0, **how: Any) -> Segment:
    encoder = dataclasses.replace(small, num_classes=0)
    return Segment(build_segmenter(SegmenterConfig(encoder, num_classes=3)), Augmentation(**how), 0, dice)


def batch(labels: list[int]) -> Batch:
    n, where = len(labels), torch.arange(len(labels))
    masks = torch.randint(0, 3, (n, 24, 32), dtype=torch.uint8)
    images = (masks[:, None] * 100).expand(-1, 3, -1, -1).contiguous()
    return Batch(images, torch.tensor(labels), where, where, 0, [], masks)


@pytest.mark.parametrize("crop", ["none", "padded"])
def test_masks_go_where_pictures_go(crop: Any, small: ViTConfig) -> None:
    learning = task(small, crop=crop, flip=0.5)
    images, masks, weights = learning.prepare(batch([0] * 16))
    scale = small.preprocessing
    first = images[:, 0] * scale.std[0] + scale.mean[0]
    assert torch.equal((first * 255 / 100).round().byte(), masks)
    assert not torch.equal(masks, batch([0] * 16).masks)
    assert weights.tolist() == [1.0] * 16


def test_the_loss_is_the_sum_over_readable_pictures(small: ViTConfig) -> None:
    learning = task(small, dice=0.5, crop="none", flip=0.0)
    images, masks, weights = learning.prepare(batch([0, -1, 0]))
    masks[0, :5] = IGNORED
    loss, right = learning.loss(learning.model, (images, masks, weights))
    scores = learning.model(images)
    each = segmentation_loss(scores, masks, dice=0.5)
    torch.testing.assert_close(loss, each[0] + each[2])
    found = scores.argmax(1) == masks
    torch.testing.assert_close(right, found[0, 5:].float().mean() + found[2].float().mean())


def test_a_decoder_sits_above_all_blocks() -> None:
    assert layer_of("decoder.blocks.0.mlp.up.weight", 12) == 13
    assert layer_of("encoder.encoder.blocks.0.mlp.up.weight", 12) == 1
    assert layer_of("encoder.patches.projection.weight", 12) == 0
    assert not decays("decoder.classes", torch.zeros(1, 3, 4))
    assert decays("decoder.projection.weight", torch.zeros(3, 4))


# ---- Runs ------------------------------------------------------------------------------------------------------------


def test_a_run_learns_and_its_figures_are_those_of_eval(tmp_path: Path) -> None:
    config = segmenting(tmp_path / "run", steps=240, optim=Optim(lr=1e-2), data="shapes:size=16,count=256,val=32")
    metrics = train(dataclasses.replace(config, evaluate_every=15))
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["train_loss"] < 0.6 * rows[0]["train_loss"]
    assert metrics["miou"] > rows[0].get("val_miou", 0.13)
    assert {"miou", "pixel_accuracy", "boundary_f", "images_per_second", "seconds"} <= metrics.keys()
    for name in ("curves.png", "samples.png", "segments.png", "mistakes.png", "report.html", "best", "last"):
        assert (tmp_path / "run" / name).exists(), name
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Segmentation into 7 classes" in page
    assert "boundary F" in page
    model = load(tmp_path / "run" / "best")
    assert isinstance(model, Segmenter)
    figures, _ = evaluate_segmenter(model, config.data, Setting(device="cpu"))
    for name in ("miou", "pixel_accuracy", "boundary_f", "count"):
        assert figures[name] == pytest.approx(metrics[name]), name


def test_killed_and_resumed_a_run_ends_with_the_same_weights(tmp_path: Path) -> None:
    decoder = Segmenting(decoder="mask", mask_blocks=1)
    whole, broken = (segmenting(tmp_path / name, segmenting=decoder) for name in ("whole", "broken"))
    assert finish(whole) == 0
    assert finish(broken, die_after=4) == -9
    assert finish(dataclasses.replace(broken, resume=True)) == 0
    ours, theirs = (read_tensors(config.out / "last" / "model.safetensors") for config in (whole, broken))  # type: ignore[operator]
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("decoder", [Segmenting(cells=2), Segmenting(decoder="mask")], ids=lambda how: how.decoder)
def test_a_frozen_encoder_stays_as_it_was(decoder: Segmenting, tmp_path: Path) -> None:
    start = checkpoint(tmp_path / "start", pool={"kind": "AttentionPool"}, class_token=False)
    config = segmenting(tmp_path / "run", model=None, set=(), image_size=(), init=start, segmenting=decoder)
    train(dataclasses.replace(config, train_only="head", optim=Optim(lr=1e-2)))
    before, after = load(start), load(tmp_path / "run" / "best")
    assert isinstance(after, Segmenter)
    weights = dict(before.named_parameters())
    assert all(torch.equal(weights[name], weight) for name, weight in after.encoder.named_parameters())
    fresh = build_segmenter(after.config)
    assert not any(torch.equal(a, b) for a, b in zip(after.decoder.parameters(), fresh.decoder.parameters(), strict=True) if a.ndim > 1)  # fmt: skip  # noqa: E501


@pytest.mark.parametrize("decoder", [Segmenting(), Segmenting(cells=2), Segmenting(decoder="mask")], ids=str)
def test_a_segmenter_goes_on_where_it_was(decoder: Segmenting, tmp_path: Path) -> None:
    train(segmenting(tmp_path / "first", segmenting=decoder))
    again = segmenting(tmp_path / "second", model=None, set=(), image_size=(), init=tmp_path / "first/best", steps=1)
    train(dataclasses.replace(again, optim=Optim(lr=1e-12), segmenting=Segmenting()))
    first, second = (load(tmp_path / name / "best") for name in ("first", "second"))
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_another_decoder_takes_the_place_of_a_segmenters_own_if_asked(tmp_path: Path) -> None:
    train(segmenting(tmp_path / "first"))
    again = segmenting(tmp_path / "second", model=None, set=(), image_size=(), init=tmp_path / "first/best", steps=1)
    train(dataclasses.replace(again, segmenting=Segmenting(decoder="mask")))
    assert load(tmp_path / "second/best").config.decoder == MaskDecoder(2)  # type: ignore[union-attr]


def test_a_checkpoint_that_dropped_patches_can_be_started_from(tmp_path: Path) -> None:
    start = checkpoint(tmp_path / "start", patch_dropout=0.25)
    train(segmenting(tmp_path / "run", model=None, set=(), image_size=(), init=start, steps=1))
    assert load(tmp_path / "run/best").config.encoder.patch_dropout == 0  # type: ignore[union-attr]


def test_classes_can_be_left_out(tmp_path: Path) -> None:
    data = pictures(tmp_path / "data")
    ignoring = Segmenting(cells=4, ignore=("border",))
    metrics = train(segmenting(tmp_path / "run", data=str(data), segmenting=ignoring, batch_size=8))
    model = load(tmp_path / "run" / "best")
    assert isinstance(model, Segmenter)
    assert model.config.labels == ("pet", "background")
    assert metrics["count"] == 8
    with pytest.raises(ValueError, match=r"knows the classes pet, background, .*; leave out with --ignore border"):
        evaluate_segmenter(model, str(data), Setting(device="cpu"))
    figures, _ = evaluate_segmenter(model, str(data), Setting(device="cpu"), ("border",))
    assert figures["miou"] == pytest.approx(metrics["miou"])


# ---- What is refused, before a folder is made ------------------------------------------------------------------------


def _no_mask(root: Path) -> None:
    (root / "masks/train/3.png").unlink()


def _unknown_id(root: Path) -> None:
    Image.fromarray(np.full((20, 24), 9, np.uint8)).save(root / "masks/train/3.png")


def _other_size(root: Path) -> None:
    Image.fromarray(np.full((20, 23), 1, np.uint8)).save(root / "masks/train/3.png")


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (_no_mask, r"1 of 24 pictures has no mask: 'images/train/3.png'"),
        (_unknown_id, r"1 mask has ids that classes.txt does not list: 9 \(in 1 mask\)"),
        (_other_size, r"1 mask of another size than the picture: .*the mask is 20 x 23, the picture 20 x 24"),
        (lambda root: shutil.rmtree(root / "masks"), "has images but no masks|no folder of masks|masks"),
    ],
    ids=["missing", "unknown", "size", "none"],
)
def test_bad_masks_are_named_before_anything_starts(spoil: Any, line: str, tmp_path: Path) -> None:
    spoil(pictures(tmp_path / "data"))
    with pytest.raises(ValueError, match=line):
        train(segmenting(tmp_path / "run", data=str(tmp_path / "data"), batch_size=8))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"data": "digits"}, "digits has labels for its pictures, but no masks"),
        ({"model": "BiT-R50x1", "set": (), "image_size": (32,)}, "a ViT for --task segment"),
        ({"patch_dropout": 0.5}, "a patch that is left out has no mask"),
        ({"augment": Augment(policy="trivial")}, "masks would stay behind"),
        ({"segmenting": Segmenting(cells=4, ignore=("sqare",))}, "did you mean 'square'"),
    ],
    ids=["no masks", "resnet", "patch dropout", "policy", "ignore"],
)
def test_what_cannot_be_is_said(changes: dict[str, Any], line: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=line):
        train(segmenting(tmp_path / "run", **changes))


def test_there_are_at_most_as_many_classes_as_masks_hold(small: ViTConfig) -> None:
    encoder = dataclasses.replace(small, num_classes=0)
    assert SegmenterConfig(encoder, num_classes=255).num_classes == 255
    with pytest.raises(BadValue, match="num_classes is 256"):
        SegmenterConfig(encoder, num_classes=256)


def test_cells_are_the_linear_decoders() -> None:
    with pytest.raises(BadValue, match="cells is 4, but must be left out with --decoder mask"):
        Segmenting(decoder="mask", cells=4)


# ---- The checkpoint --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decoder", [LinearDecoder(2), MaskDecoder(1)], ids=str)
def test_a_segmenter_is_read_as_it_was_written(decoder: Any, small: ViTConfig, tmp_path: Path) -> None:
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
    with pytest.raises(CannotHold, match="this is a Segmenter"):
        vitreous.save(model, tmp_path / "b", format="timm")
    with pytest.raises(BadValue, match="num_classes is 5, but must be left out for a segmenter"):
        vitreous.load(tmp_path / "a", num_classes=5)


def test_the_verbs_take_a_segmenter(small: ViTConfig, tmp_path: Path) -> None:
    classes = open_masked("shapes:size=32,count=4").mask_classes
    encoder = dataclasses.replace(small, num_classes=0, image_size=(32, 32))
    vitreous.save(build_segmenter(SegmenterConfig(encoder, LinearDecoder(), 7, classes)), tmp_path / "m")
    Image.fromarray(np.zeros((40, 60, 3), np.uint8)).save(tmp_path / "p.png")

    def run(*words: str) -> str:
        line = [sys.executable, "-m", "vitreous", *words]
        return subprocess.run(line, capture_output=True, text=True, check=True, cwd=tmp_path).stdout

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


def test_the_example_of_the_readme_runs_at_reduced_size(tmp_path: Path) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    [line] = [line for line in readme.splitlines() if line.startswith("vitreous train --task segment --data shapes")]
    words = line.replace("count=8000,val=500", "count=64,val=8").replace("--steps 1000", "--steps 2").split()[1:]
    command = [sys.executable, "-m", "vitreous", *words, "--out", "run", "--device", "cpu", "--workers", "0"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "mean IoU" in done.stdout
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["count"] == 8
