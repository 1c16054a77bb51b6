"""Augmenting several batches at once gives the same inputs as augmenting each of them alone."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import vitreous
from train_runs import tiny
from vitreous.common.distributed import World
from vitreous.data.loader import Batch
from vitreous.data.open import open_data
from vitreous.data.resident import ResidentLoader
from vitreous.training import Augment, Distillation
from vitreous.training.defaults import choose
from vitreous.training.grouped_loader import GroupedLoader, group_size
from vitreous.training.setup import Job, set_up

STRONG = Augment(
    crop="padded", flip="alternate", policy="trivial", colour_jitter=0.3, erasing=0.5, mixup=0.2, cutmix=1.0, repeats=1
)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Five steps per epoch."""
    folder = tmp_path_factory.mktemp("grouped")
    rng = np.random.default_rng(0)
    arrays = {"x_train": rng.integers(0, 256, (42, 16, 16, 3), dtype=np.uint8), "y_train": np.arange(42) % 3}
    arrays |= {"x_test": arrays["x_train"][:6], "y_test": arrays["y_train"][:6]}
    np.savez(folder / "noise.npz", **arrays)
    return job_of(folder, augment=STRONG)


def job_of(folder: Path, **changes: Any) -> Job:
    model = {"patch_size": 8, "width": 16, "mlp_width": 16, "depth": 1, "num_heads": 1}
    fields = {"data": folder / "noise.npz", "overrides": model, "image_size": (16,), "batch_size": 8, "steps": 15}
    config = tiny(**{"out": folder / "run"} | fields | changes)
    data = open_data(str(config.data))
    return set_up(choose(config, data, "cpu").config, data, World(0, 1, torch.device("cpu")))


def same(first: tuple[Tensor, ...], second: tuple[Tensor, ...]) -> bool:
    return len(first) == len(second) and all(map(torch.equal, first, second))


@pytest.mark.parametrize("group", [2, 3, 5, 8])
@pytest.mark.parametrize(("start", "stop"), [(0, 15), (4, 11), (7, 8)])
def test_inputs_are_those_of_single_batches(job: Job, group: int, start: int, stop: int) -> None:
    assert isinstance(job.loader, GroupedLoader)
    grouped = GroupedLoader(job.loader.loader, job.task.prepare, job.steps_per_epoch, group)
    alone = list(job.loader.loader.batches(start, stop))
    together = list(grouped.batches(start, stop))
    assert len(together) == stop - start
    for batch, other in zip(together, alone, strict=True):
        assert batch.epoch == other.epoch
        assert torch.equal(batch.keys, other.keys)
        assert batch.inputs is not None
        assert same(batch.inputs, job.task.prepare(other))


def test_groups_do_not_depend_on_the_first_step(job: Job) -> None:
    """On a GPU, the rounding of a group could depend on its size, and resuming is exact."""
    groups: list[tuple[int, ...]] = []

    def prepare(batch: Batch) -> tuple[Tensor, ...]:
        groups.append(tuple(batch.indices.tolist()))
        return (batch.labels,)

    assert isinstance(job.loader, GroupedLoader)
    loader = GroupedLoader(job.loader.loader, prepare, job.steps_per_epoch, 2)
    list(loader.batches(0, 15))
    whole = list(groups)
    assert [len(group) // 8 for group in whole] == [2, 2, 1] * 3
    for start in range(15):
        groups.clear()
        list(loader.batches(start, 15))
        assert groups == whole[-len(groups) :]
        assert len(groups) == 9 - (start // 5 * 3 + start % 5 // 2)


def test_teacher_sees_single_batches(job: Job, tmp_path: Path) -> None:
    """Its outputs for a group could need too much memory."""
    vitreous.save(job.state.model, tmp_path / "teacher")
    teacher = Distillation(teacher=tmp_path / "teacher")
    plain = Augment(crop="none", flip=0.0)
    folder = Path(job.config.data).parent
    distilling = job_of(folder, task="distil", distillation=teacher, augment=plain, out=tmp_path / "run")
    assert isinstance(distilling.loader, ResidentLoader)


def test_large_or_odd_batches_are_not_grouped(tmp_path: Path, job: Job) -> None:
    assert group_size(2048, (32, 32)) == 2
    assert group_size(4096, (64, 64)) == 1
    odd = dataclasses.replace(job.config, batch_size=7, out=tmp_path)
    assert not isinstance(set_up(odd, job.data, job.world).loader, GroupedLoader)
