"""Training, fine-tuning and segmentation with Swin Transformers."""

import dataclasses
from pathlib import Path

import pytest
import torch

import vitreous
from segment_runs import segmenting
from train_runs import skip_report, tiny
from vitreous.model.options import PyramidDecoder
from vitreous.model.swin_config import SwinConfig
from vitreous.training import Optim, Segmenting
from vitreous.training.run import train

SHAPE = {"patch_size": 2, "width": 8, "depths": (1, 2), "stage_heads": (1, 2), "window": 2, "channels": 1}


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = vitreous.create("Swin-Ti/2", image_size=8, overrides=SHAPE)
    vitreous.save(model, path := tmp_path_factory.mktemp("swin") / "first")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("train_only", ["all", "lora"])
def test_fine_tuning_with_larger_images_and_windows(
    train_only: str, first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_report(monkeypatch)
    decay = {"layer_decay": 0.75} if train_only == "all" else {}
    config = tiny(
        tmp_path / "second",
        model=None,
        init=str(first),
        overrides={"window": 3},
        image_size=(12,),
        steps=2,
        batch_size=16,
        train_only=train_only,
        checkpoint_blocks=train_only == "all",
        optim=Optim(lr=1e-3, ema=0.9, **decay),
    )
    train(config)
    model = vitreous.load(tmp_path / "second/best")
    assert isinstance(model.config, SwinConfig)
    assert (model.config.image_size, model.config.window) == ((12, 12), (3, 3))
    before = vitreous.load(first, image_size=12, overrides={"window": 3})
    changed = {
        name.split(".")[-2]
        for name, weight in model.state_dict().items()
        if not torch.equal(weight, before.state_dict()[name])
    }
    assert {"q", "up", "head"} <= changed
    assert ("reduction" in changed) == (train_only == "all")


@pytest.mark.slow
def test_segmentation_uses_all_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_report(monkeypatch)
    shape = {**SHAPE, "channels": 3}
    config = segmenting(tmp_path / "run", model="Swin-Ti/2", overrides=shape, segmenting=Segmenting(), steps=2)
    train(dataclasses.replace(config, evaluate_every=None))
    model = vitreous.load(tmp_path / "run/best")
    assert model.config.decoder == PyramidDecoder()  # type: ignore[attr-defined]
    assert model(torch.zeros(1, 3, 20, 30)).shape == (1, 7, 20, 30)
