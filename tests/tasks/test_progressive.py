"""Progressive resizing: small images first, the full size at the end, and exact resuming."""

import dataclasses
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from train_runs import tiny
from vitreous.common.checks import BadValue
from vitreous.common.distributed import World
from vitreous.data.open import open_data
from vitreous.model.presets import configure
from vitreous.tasks.config import Distillation, TrainConfig
from vitreous.tasks.progressive import Progressive, resize
from vitreous.training.defaults import choose
from vitreous.training.optimizer_step import Stepper
from vitreous.training.run import train
from vitreous.training.setup import Job, set_up


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


def job_of(config: TrainConfig) -> Job:
    data = open_data("digits")
    return set_up(choose(config, data, "cpu").config, data, World(0, 1, torch.device("cpu")))


def test_steps_of_all_sizes_are_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(Stepper, "rehearse", lambda self, batch: seen.append(batch.inputs[0].shape[-1]))
    job = job_of(dataclasses.replace(progressive(tmp_path), compile="graphs"))
    assert list(dict.fromkeys(seen)) == [8, 12, 16]
    sides = [batch.inputs[0].shape[-1] for batch in job.loader.batches(0, job.total_steps) if batch.inputs]
    assert len(sides) == 16
    assert list(dict.fromkeys(sides)) == [8, 12, 16]


def test_resumed_run_sees_the_same_images(tmp_path: Path) -> None:
    job = job_of(progressive(tmp_path))
    whole = list(job.loader.batches(0, job.total_steps))
    for start in (5, 7, 11):
        for batch, expected in zip(job.loader.batches(start, job.total_steps), whole[start:], strict=True):
            assert batch.inputs is not None
            assert expected.inputs is not None
            assert torch.equal(batch.inputs[0], expected.inputs[0])


@pytest.mark.parametrize(
    "config",
    [
        TrainConfig(data="digits", progressive=0.5, distillation=Distillation(teacher="teacher")),
        TrainConfig(data="digits", progressive=1.5),
        TrainConfig(data="shapes", progressive=0.5, task="segment"),
        TrainConfig(data="digits", progressive=0.5, task="mae"),
        TrainConfig(data="digits", progressive=1.0, model="ViT-Ti/4", image_size=(16,), epochs=2, device="cpu"),
        TrainConfig(data="digits", progressive=0.5, model="ViT-Ti/4", image_size=(16,), steps=2, device="cpu"),
    ],
)
def test_unsuitable_settings_are_rejected(config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadValue, match="progressive"):
        train(config)
