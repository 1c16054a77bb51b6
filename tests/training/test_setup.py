"""Setup of a run: trained weights, heads, sizes, loaders; and settings that are rejected before a model is built."""

import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from train_runs import tiny
from vitreous.common.checks import BadValue
from vitreous.common.distributed import World
from vitreous.data.loader import StreamLoader
from vitreous.data.open import open_data
from vitreous.data.resident import ResidentLoader
from vitreous.data.sources.base import DataSet
from vitreous.model.build import build
from vitreous.model.presets import configure
from vitreous.model.vit import ViT
from vitreous.tasks.classify import Classify
from vitreous.training import Augment, Distillation, Optim, TrainConfig
from vitreous.training.defaults import choose
from vitreous.training.grouped_loader import GroupedLoader
from vitreous.training.setup import Job, dtype_of, set_up
from vitreous.weights.load import load, save

HERE = World(0, 1, torch.device("cpu"))
SMALL = {"patch_size": 4, "width": 32, "mlp_width": 32, "depth": 2, "num_heads": 2}


@pytest.fixture(scope="module")
def digits() -> DataSet:
    return open_data("digits")


def make(folder: Path, name: str = "start", classes: int = 10, image_size: int = 8, **fields: Any) -> Path:
    """Save a checkpoint to start from, with a head that is not zero."""
    labels = tuple(map(str, range(classes)))
    config = configure("ViT-Lite-6/4", classes, image_size, SMALL | {"labels": labels, "channels": 1} | fields)
    model = build(config)
    nn.init.normal_(model.head.weight)
    save(model, folder / name)
    return folder / name


def job(config: TrainConfig, data: DataSet, world: World = HERE) -> Job:
    return set_up(choose(config, data, "cpu", world.size).config, data, world)


def learned(ready: Job) -> set[str]:
    return {name for name, weight in ready.state.model.named_parameters() if weight.requires_grad}


# ---- Weights ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_checkpoint_of_the_same_classes_keeps_its_head(tmp_path: Path, digits: DataSet) -> None:
    start = load(make(tmp_path))
    ready = job(tiny(tmp_path / "run", model=None, overrides={}, train_only="all", init=tmp_path / "start"), digits)
    assert all(torch.equal(a, b) for a, b in zip(ready.state.model.parameters(), start.parameters(), strict=True))


def test_other_classes_get_a_new_head(tmp_path: Path, digits: DataSet) -> None:
    start = load(make(tmp_path, classes=4))
    model = job(
        tiny(tmp_path / "run", model=None, overrides={}, train_only="all", init=tmp_path / "start"), digits
    ).state.model
    before = dict(start.named_parameters())
    differ = [name for name, weight in model.named_parameters() if weight.shape != before[name].shape]
    assert differ == ["head.weight", "head.bias"]
    assert model.config.labels == digits.classes
    assert all(torch.equal(w, before[name]) for name, w in model.named_parameters() if name not in differ)


@pytest.mark.slow
def test_another_image_size_resamples_the_positions(tmp_path: Path, digits: DataSet) -> None:
    start = load(make(tmp_path), image_size=16)
    ready = job(
        tiny(tmp_path / "run", model=None, overrides={}, train_only="all", init=tmp_path / "start", image_size=(16,)),
        digits,
    )
    model = ready.state.model
    assert isinstance(model, ViT)
    assert model.config.grid == (4, 4)
    torch.testing.assert_close(model.position.table, start.position.table)  # type: ignore[union-attr, arg-type]
    assert all(weight.is_contiguous() for weight in model.parameters())  # or no checkpoint could be written
    assert next(iter(ready.loader.batches(0, 1))).images.shape[2:] == (16, 16)


@pytest.mark.slow
def test_train_only_head(tmp_path: Path, digits: DataSet) -> None:
    make(tmp_path)
    config = tiny(tmp_path / "run", model=None, overrides={}, init=tmp_path / "start", train_only="head")
    assert learned(job(config, digits)) == {"head.weight", "head.bias"}
    make(tmp_path, "distilled", distillation_token=True)
    both = learned(job(dataclasses.replace(config, init=tmp_path / "distilled"), digits))
    assert both == {"head.weight", "head.bias", "distillation_head.weight", "distillation_head.bias"}


@pytest.mark.slow
def test_lora_trains_its_matrices_and_the_head(tmp_path: Path, digits: DataSet) -> None:
    start = load(make(tmp_path))
    config = tiny(
        tmp_path / "run",
        model=None,
        overrides={},
        init=tmp_path / "start",
        train_only="lora",
        lora_rank=3,
    )
    ready = job(config, digits)
    names = learned(ready)
    assert {name for name in names if "parametrizations.weight.0." not in name} == {"head.weight", "head.bias"}
    assert len(names) == 2 + 2 * 6 * 2
    images = torch.randn(2, 1, 8, 8)
    torch.testing.assert_close(ready.state.model.eval()(images), start.eval()(images))


@pytest.mark.slow
def test_blocks_are_recomputed_only_with_the_flag(tmp_path: Path, digits: DataSet) -> None:
    for wanted in (False, True):
        model = job(tiny(tmp_path / "run", checkpoint_blocks=wanted), digits).state.model
        assert isinstance(model, ViT)
        assert model.encoder.recompute is wanted


# ---- The rest --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_arrays_reside_unless_the_workers_crop_them(tmp_path: Path, digits: DataSet) -> None:
    resident = job(tiny(tmp_path / "run"), digits).loader
    assert isinstance(resident, GroupedLoader)
    assert isinstance(resident.loader, ResidentLoader)
    assert isinstance(job(tiny(tmp_path / "run", augment=Augment(crop="resized")), digits).loader, StreamLoader)


@pytest.mark.slow
def test_steps_and_epochs(tmp_path: Path, digits: DataSet) -> None:
    ready = job(tiny(tmp_path / "run", steps=30, batch_size=100), digits)
    assert (ready.steps_per_epoch, ready.total_steps) == (14, 30)
    assert job(tiny(tmp_path / "run", steps=None, epochs=2.5, batch_size=100), digits).total_steps == 35
    assert job(tiny(tmp_path / "run", steps=None, epochs=0.01, batch_size=100), digits).total_steps == 1


@pytest.mark.parametrize(
    ("precision", "dtype"), [("auto", "float32"), ("fp32", "float32"), ("bf16", "bfloat16"), ("fp16", "float16")]
)
def test_precision_on_a_cpu(precision: Any, dtype: str) -> None:
    assert dtype_of(TrainConfig(data="digits", precision=precision), HERE) == getattr(torch, dtype)


# ---- Refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "processes", "message"),
    [
        ({"batch_size": 1439}, 1, "batch_size is 1439, but must be at most the number of training images (1438)"),
        ({"batch_size": 64, "accumulate": 5}, 1, "multiple of processes x accumulate (5), such as 60 or 65"),
        ({"batch_size": 30, "accumulate": 2}, 4, "multiple of processes x accumulate (8), such as 24 or 32"),
        ({"overrides": {"widht": 3}}, 1, "'widht' is not a field of ViTConfig (did you mean 'width'?)"),
        ({"model": "ViT-Lite-64"}, 1, "preset 'ViT-Lite-64' (did you mean 'ViT-Lite-6/4'?)"),
        ({"image_size": (10,)}, 1, "use 8 x 8 or 12 x 12"),
    ],
)
def test_invalid_settings_are_rejected(
    changes: dict[str, Any], processes: int, message: str, tmp_path: Path, digits: DataSet
) -> None:
    with pytest.raises(BadValue) as error:
        job(tiny(tmp_path / "run", **changes), digits, World(0, processes, torch.device("cpu")))
    assert message in str(error.value)


def test_a_batch_larger_than_the_data_is_rejected_before_a_model_is_built(
    tmp_path: Path, digits: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Classify, "build_model", lambda *_: pytest.fail("a model was built"))
    with pytest.raises(BadValue, match="batch_size"):
        job(tiny(tmp_path / "run", batch_size=5000), digits)


@pytest.mark.parametrize("train_only", ["head", "lora"])
def test_muon_needs_all_weights(train_only: Any, tmp_path: Path, digits: DataSet) -> None:
    config = tiny(
        tmp_path / "run",
        model=None,
        overrides={},
        init=make(tmp_path),
        train_only=train_only,
        optim=Optim("muon", lr=1e-3),
    )
    with pytest.raises(BadValue, match="optimizer is 'muon', but must be adamw or sgd"):
        job(config, digits)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"classes": 4}, "has 4 classes, but the student has 10"),
        ({"labels": tuple("abcdefghij")}, "the student has '0', '1', '2', '3', '4' and 5 more"),
        ({"channels": 3}, "has 3 input channels, but the student has 1"),
        ({"image_size": 15, "patch_size": 5}, "divided into 5 x 5 patches"),
    ],
)
def test_unsuitable_teachers_are_rejected(
    fields: dict[str, Any], message: str, tmp_path: Path, digits: DataSet
) -> None:
    teacher = make(tmp_path, "teacher", **fields)
    with pytest.raises(BadValue) as error:
        job(tiny(tmp_path / "run", distillation=Distillation(teacher=teacher)), digits)
    assert message in str(error.value)


@pytest.mark.slow
def test_files_that_a_run_starts_from_may_be_overwritten(tmp_path: Path, digits: DataSet) -> None:
    """Reading a mapped file that was truncated ends the process, so frozen weights and the teacher are copied."""
    start, teacher = make(tmp_path), make(tmp_path, "teacher")
    how: dict[str, Any] = {"model": None, "overrides": {}, "init": start, "train_only": "head"}
    ready = job(tiny(tmp_path / "run", **how, distillation=Distillation(teacher=teacher)), digits)
    assert isinstance(ready.task, Classify)
    assert ready.task.teacher is not None
    child = os.fork()
    if child == 0:
        for folder in (start, teacher):
            os.truncate(folder / "model.safetensors", 0)
        for weight in (*ready.state.model.parameters(), *ready.task.teacher.parameters()):
            weight.detach().clone()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_missing_tensorboard_is_reported_before_the_model_is_built(
    tmp_path: Path, digits: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    monkeypatch.setattr(Classify, "build_model", lambda *_: pytest.fail("a model was built"))
    with pytest.raises(ValueError, match=r"pip install \"vitreous\[track\]\""):
        job(tiny(tmp_path / "run", tensorboard=True), digits)


def test_grey_models_read_colour_images(tmp_path: Path) -> None:
    """Colour images become grey for `channels=1`, and grey digits fit a model with three channels."""
    for label in "ab":
        (tmp_path / "set" / label).mkdir(parents=True)
        for i in range(4):
            Image.fromarray(np.full((20, 20, 3), (200, 100, 50), np.uint8)).save(tmp_path / "set" / label / f"{i}.png")
    config = tiny(tmp_path / "run", data=str(tmp_path / "set"), batch_size=4)
    batch = next(iter(job(config, open_data(str(tmp_path / "set"))).loader.batches(0, 1)))
    assert batch.images.shape == (4, 1, 8, 8)
    assert (batch.images == 124).all()
