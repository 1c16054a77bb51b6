"""Mask classes are matched by name; ids and their order may differ between data sets."""

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitreous
from train_runs import skip_report
from vitreous.data.masks.files import read_ids
from vitreous.inference.prediction_files import MaskFolder
from vitreous.inference.segment_predictor import SegmentPredictor
from vitreous.model.build import build
from vitreous.model.config import ViTConfig
from vitreous.model.options import Gelu, LinearDecoder, Preprocessing
from vitreous.model.segmenter import Segmenter
from vitreous.training import Augment, Optim, Segmenting, TrainConfig
from vitreous.training.run import train

SMALL = {"patch_size": 8, "width": 32, "depth": 1, "num_heads": 2, "mlp_width": 32}


def sample_images(root: Path, ids: dict[str, int]) -> Path:
    """Twelve images of 32 x 32 pixels: a pet on the left, a background, and a border between them."""
    generator = np.random.default_rng(0)
    for part, count in (("train", 8), ("val", 4)):
        for i in range(count):
            mask, edge = np.full((32, 32), ids["background"], np.uint16), int(generator.integers(8, 24))
            mask[:, :edge], mask[:, edge] = ids["pet"], ids["border"]
            pixels = generator.integers(0, 60, (32, 32, 3)) + 180 * (mask == ids["pet"])[..., None]
            for kind, array in (("images", pixels.astype(np.uint8)), ("masks", mask)):
                file = root / kind / part / f"{i}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(array).save(file)
    lines = sorted((number, name) for name, number in ids.items())
    (root / "classes.txt").write_text("".join(f"{number} {name}\n" for number, name in lines))
    return root


def config(data: Path, out: Path, lr: float = 1e-2, init: Path | None = None) -> TrainConfig:
    return TrainConfig(
        data=str(data),
        task="segment",
        model=None if init else "ViT-Lite-6/4",
        init=init,
        overrides={} if init else SMALL,
        image_size=(32,),
        steps=20,
        batch_size=8,
        device="cpu",
        workers=0,
        out=out,
        optim=Optim(lr=lr),
        augment=Augment(crop="none", flip=0.0, colour_jitter=0.0),
        segmenting=Segmenting(ignore=("border",), cells=None if init else 4),
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on ids that start at 1, as in Pets."""
    root = tmp_path_factory.mktemp("pets")
    with pytest.MonkeyPatch.context() as patch:
        skip_report(patch)
        train(config(sample_images(root / "data", {"pet": 1, "background": 2, "border": 3}), root / "run"))
    return root


def measured(model: Segmenter, data: Path) -> dict[str, float]:
    return vitreous.evaluate(model, data, device="cpu", workers=0, ignore=("border",)).to_dict()


def test_predicted_masks_evaluate_to_an_iou_of_1(run: Path, tmp_path: Path) -> None:
    model = vitreous.load(run / "run/best")
    assert isinstance(model, Segmenter)
    assert (model.config.labels, model.config.ids) == (("pet", "background"), (1, 2))
    again = shutil.copytree(run / "data", tmp_path / "again")
    for part in ("train", "val"):
        files = sorted((again / "images" / part).iterdir())
        predictor = SegmentPredictor(model, "cpu")
        folder = MaskFolder(tmp_path / part, files, predictor)
        for result in predictor.stream(files):
            folder.write(result)
        shutil.rmtree(again / "masks" / part)
        shutil.move(tmp_path / part / "masks", again / "masks" / part)
    assert set(np.unique(read_ids((again / "masks/val/0.png").read_bytes()))) == {1, 2}
    figures = measured(model, again)
    assert (figures["miou"], figures["pixel_accuracy"]) == (1.0, 1.0)


@pytest.mark.slow
def test_class_order_of_the_checkpoint_is_kept(run: Path, tmp_path: Path) -> None:
    other = sample_images(tmp_path / "data", {"background": 0, "border": 9, "pet": 300})
    model = vitreous.load(run / "run/best")
    assert isinstance(model, Segmenter)
    before = measured(model, run / "data")
    assert before["miou"] > 0.8
    assert measured(model, other)["miou"] == before["miou"]
    train(config(other, tmp_path / "run", lr=1e-12, init=run / "run/best"))  # hardly moves
    after = vitreous.load(tmp_path / "run/best")
    assert isinstance(after, Segmenter)
    assert (after.config.labels, after.config.ids) == (("pet", "background"), (300, 0))
    assert after.config.decoder == LinearDecoder(4)
    assert measured(after, other)["miou"] == before["miou"]
    torch.testing.assert_close(after.state_dict(), model.state_dict())


@pytest.mark.slow
def test_overrides_give_the_heads_of_a_foreign_encoder(run: Path, tmp_path: Path) -> None:
    """The tensors of a lucidrains file do not imply the number of heads if their width is not 64."""
    sizes = {"image_size": (32, 32), "patch_size": (8, 8), "width": 32, "depth": 1, "num_heads": 2, "mlp_width": 32}
    theirs = {"patch_method": "linear", "patch_norm": True, "qkv_bias": False, "mlp": Gelu("erf"), "norm_eps": 1e-5}
    encoder = build(ViTConfig(**sizes, **theirs, num_classes=3, preprocessing=Preprocessing(mean=(0.0,), std=(1.0,))))
    vitreous.save(encoder, tmp_path / "heads.pt", format="lucidrains")
    start = config(run / "data", tmp_path / "run", init=tmp_path / "heads.pt")
    train(dataclasses.replace(start, overrides={"num_heads": 2}, steps=1))
    model = vitreous.load(tmp_path / "run/best")
    assert isinstance(model, Segmenter)
    assert model.config.encoder.num_heads == 2
