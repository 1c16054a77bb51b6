"""`--train-only head` on features that are computed once gives the same run as computing them in every epoch."""

import dataclasses
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitreous
from native_models import load_state
from train_runs import finish, skip_report, tiny
from vitreous.common.checks import BadValue
from vitreous.data.open import open_data
from vitreous.model.build import build
from vitreous.model.options import Dropout, Preprocessing
from vitreous.model.presets import configure
from vitreous.model.vit import ViT
from vitreous.tasks.classify import Classify
from vitreous.tasks.segment import Segment
from vitreous.training import Augment, Distillation, Optim, TrainConfig
from vitreous.training.cached_head import FeatureLoader, can_cache
from vitreous.training.defaults import choose
from vitreous.training.run import train

SMALL = {"patch_size": 4, "width": 32, "mlp_width": 32, "depth": 2, "num_heads": 2, "channels": 1}
WHOLE = Preprocessing(crop_fraction=1.0)  # the ordinary path also sees whole images if crop is none
FLIPS = Augment(crop="none", flip=0.5, policy="none")


def encoder(**fields: Any) -> ViT:
    torch.manual_seed(0)
    model = build(
        configure("ViT-Lite-6/4", 10, 8, SMALL | {"labels": tuple("0123456789"), "preprocessing": WHOLE} | fields)
    )
    assert isinstance(model, ViT)
    return model


def head(out: Path, init: Path, **changes: Any) -> TrainConfig:
    plain: dict[str, Any] = {"dropout": None, "stochastic_depth": None, "augment": FLIPS, "steps": 24}
    plain |= {"optim": Optim(lr=3e-3, ema=0.9), "model": None, "overrides": {}, "train_only": "head"}
    return tiny(out, init=init, **(plain | changes))


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder") / "start"
    vitreous.save(encoder(), folder)
    return folder


def test_the_head_equals_that_of_the_ordinary_path(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_report(monkeypatch)
    calls: list[int] = []
    forward = ViT.features
    monkeypatch.setattr(ViT, "features", lambda self, images: calls.append(len(images)) or forward(self, images))
    cached = train(head(tmp_path / "cached", start))
    once = sum(calls)
    calls.clear()
    plain = train(head(tmp_path / "plain", start, cache_features=False))
    data = open_data("digits")
    # Two views for training, and one more pass for the final evaluation and the calibration.
    assert 2 * len(data.train) + len(data.val) <= once <= 3 * (len(data.train) + len(data.val))
    assert sum(calls) > once
    ours, theirs = load_state(cached.folder / "last"), load_state(plain.folder / "last")
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert cached.metrics["loss"] == pytest.approx(plain.metrics["loss"], rel=1e-4)


@pytest.mark.slow
def test_resume_after_kill_is_bit_identical(start: Path, tmp_path: Path) -> None:
    whole, config = head(tmp_path / "whole", start), head(tmp_path / "run", start, save_minutes=1e-5)
    assert finish(whole) == 0
    assert finish(config, die_after=9) == -signal.SIGKILL
    assert finish(dataclasses.replace(config, resume=True)) == 0
    ours, theirs = load_state(tmp_path / "run" / "last"), load_state(tmp_path / "whole" / "last")
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_unreadable_images_have_no_weight(start: Path, tmp_path: Path) -> None:
    for split in ("train", "val"):
        for index in range(20):
            folder = tmp_path / "images" / split / str(index % 10)
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((8, 8), 12 * index, np.uint8)).save(folder / f"{index}.png")
    (tmp_path / "images" / "train" / "3" / "3.png").write_bytes(b"not an image")
    config = head(tmp_path / "run", start, data=tmp_path / "images", batch_size=10, steps=2, max_unreadable=0.1)
    run = train(config)
    assert len(run.metrics["unreadable_files"]) == 1
    assert (run.folder / "report.html").exists()


@pytest.mark.parametrize(
    ("changes", "fields", "expected"),
    [
        ({}, {}, True),
        ({"augment": Augment(crop="none", flip=0.0, policy="none", repeats=2)}, {}, True),
        ({"augment": Augment(crop="padded", policy="none")}, {}, False),
        ({"augment": Augment(crop="none", policy="trivial")}, {}, False),
        ({"augment": dataclasses.replace(FLIPS, mixup=0.2)}, {}, False),
        ({"train_only": "lora"}, {}, False),
        ({"parallel": "fsdp"}, {}, False),
        ({"flip_test": True}, {}, False),
        ({"distillation": Distillation(teacher="x")}, {}, False),
        ({}, {"dropout": Dropout(hidden=0.1)}, False),
        ({}, {"stochastic_depth": 0.1}, False),
        ({}, {"distillation_token": True}, False),
    ],
)
def test_features_are_kept_only_if_nothing_below_the_head_changes(
    changes: dict[str, Any], fields: dict[str, Any], expected: bool, tmp_path: Path
) -> None:
    assert can_cache(head(tmp_path, tmp_path, **changes), Classify, encoder(**fields).config) is expected


def test_other_tasks_are_not_cached(tmp_path: Path) -> None:
    assert not can_cache(head(tmp_path, tmp_path), Segment, encoder().config)


def test_the_default_augmentation_can_be_cached_and_explicit_flags_keep_the_usual_one(start: Path) -> None:
    data = open_data("digits")
    fields: dict[str, Any] = {"data": "digits", "init": start, "train_only": "head"}
    chosen = choose(TrainConfig(**fields), data, "cpu")
    assert can_cache(chosen.config, Classify, encoder().config)
    assert any("augmentation" in note and "flips" in note for note in chosen.notes)
    assert chosen.config.cache_features is True
    assert choose(TrainConfig(**fields, augment=Augment(flip=0.3)), data, "cpu").config.cache_features is True
    explicit = choose(TrainConfig(**fields, augment=Augment(erasing=0.1)), data, "cpu").config
    assert explicit.augment.policy == "trivial"
    assert not can_cache(explicit, Classify, encoder().config)
    assert explicit.cache_features is False


def test_features_are_computed_when_they_are_needed(start: Path, tmp_path: Path) -> None:
    from vitreous.common.distributed import World
    from vitreous.training.setup import set_up

    data = open_data("digits")
    job = set_up(choose(head(tmp_path, start), data, "cpu").config, data, World(0, 1, torch.device("cpu")))
    assert isinstance(job.loader, FeatureLoader)
    assert not job.loader.known
    batch = next(iter(job.loader.batches(0, 1)))
    assert batch.features is not None
    assert batch.features.shape == (128, 32)
    assert len(job.loader.known) == 2


def test_features_that_differ_between_epochs_cannot_be_cached(start: Path, tmp_path: Path) -> None:
    with pytest.raises(BadValue, match="cache_features"):
        train(head(tmp_path / "run", start, cache_features=True, augment=Augment(crop="padded")))
    with pytest.raises(BadValue, match="cache_features"):
        TrainConfig(data="digits", cache_features=True).check()
