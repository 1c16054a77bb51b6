"""Progressive resizing: small images first, the full size at the end, and exact resuming."""

import dataclasses
import signal
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from train_runs import finish, tiny
from vitreous.common.checks import BadValue
from vitreous.common.distributed import World
from vitreous.data.open import open_data
from vitreous.model.presets import configure
from vitreous.tasks.classify import Classify
from vitreous.tasks.config import Distillation, TrainConfig
from vitreous.tasks.progressive import Progressive, resize
from vitreous.training.defaults import choose
from vitreous.training.optimizer_step import Stepper
from vitreous.training.setup import set_up
from vitreous.weights.io.safetensors_file import read_tensors


@given(st.integers(1, 30), st.integers(1, 30), st.sampled_from([4, 14, 16]), st.floats(0.1, 40))
def test_sizes_grow_to_the_full_size_and_consist_of_patches(rows: int, columns: int, patch: int, epochs: float) -> None:
    model = configure("ViT-Ti/16", image_size=(rows * patch, columns * patch), overrides={"patch_size": patch})
    schedule = Progressive.of(model, epochs)
    for size in schedule.sizes:
        assert all(side <= whole for side, whole in zip(model.grid_for(size), model.grid, strict=True))
    sizes = [schedule.size(epoch) for epoch in range(50)]
    assert sizes == sorted(sizes)
    assert all((size == model.image_size) for epoch, size in enumerate(sizes) if epoch >= epochs)
    assert [sizes[epoch] for epoch in schedule.first_epochs] == list(dict.fromkeys(sizes))
    assert all(epoch == 0 or sizes[epoch] != sizes[epoch - 1] for epoch in schedule.first_epochs)


def test_every_size_is_used_for_the_same_number_of_epochs() -> None:
    schedule = Progressive.of(configure("ViT-Ti/4", image_size=32), 12)
    assert [schedule.size(epoch)[0] for epoch in range(14)] == [16] * 3 + [20] * 3 + [24] * 3 + [28] * 3 + [32] * 2


def test_resizing_keeps_the_mean_and_flat_images() -> None:
    assert torch.allclose(resize(torch.full((1, 3, 32, 32), 0.3), (16, 20)), torch.tensor(0.3))
    images = torch.rand(4, 3, 32, 32)
    assert resize(images, (32, 32)) is images
    assert resize(images, (16, 16)).mean() == pytest.approx(images.mean().item(), abs=0.01)


def progressive(out: Path) -> TrainConfig:
    """Four steps per epoch, with images of 8, 12 and 16 pixels."""
    return tiny(out, steps=16, batch_size=320, image_size=(16,), progressive=0.6)


def test_steps_of_all_sizes_are_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(Stepper, "rehearse", lambda self, batch: seen.append(batch.inputs[0].shape[-1]))
    config, data = dataclasses.replace(progressive(tmp_path), compile="graphs"), open_data("digits")
    job = set_up(choose(config, data, "cpu").config, data, World(0, 1, torch.device("cpu")))
    assert list(dict.fromkeys(seen)) == [8, 12, 16]
    sides = [batch.inputs[0].shape[-1] for batch in job.loader.batches(0, job.total_steps) if batch.inputs]
    assert len(sides) == 16
    assert list(dict.fromkeys(sides)) == [8, 12, 16]


@pytest.mark.slow
def test_resumed_run_is_bit_identical(tmp_path: Path) -> None:
    assert finish(progressive(tmp_path / "whole")) == 0
    parts = dataclasses.replace(progressive(tmp_path / "parts"), save_minutes=1e-5)
    assert finish(parts, die_after=7) == -signal.SIGKILL
    assert finish(dataclasses.replace(parts, resume=True)) == 0
    first, second = (read_tensors(tmp_path / name / "last" / "model.safetensors") for name in ("whole", "parts"))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    "config",
    [
        TrainConfig(data="digits", progressive=0.5, distillation=Distillation(teacher="teacher")),
        TrainConfig(data="digits", progressive=1.5),
    ],
)
def test_unsuitable_settings_are_rejected(config: TrainConfig) -> None:
    with pytest.raises(BadValue, match="progressive"):
        config.check()
        Classify.check(config)


def test_tasks_that_predict_pixels_reject_it() -> None:
    from vitreous.tasks.segment import Segment

    with pytest.raises(BadValue, match="progressive"):
        Segment.check(TrainConfig(data="shapes", task="segment", progressive=0.5))
