"""The recipe for a CIFAR-10 record: its models are plain, and its runs and sweeps work on a few images."""

import dataclasses
import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from recipes import cifar10_record
from recipes.cifar10_record import GOALS, VARIANTS, Options, configured
from train_runs import skip_report
from vitreous.model.build import build
from vitreous.model.cost import cost
from vitreous.model.presets import configure
from vitreous.tasks.config import TrainConfig

TINY = (
    'overrides={"width": 16, "depth": 1, "num_heads": 1, "mlp_width": 16, "position": {"kind": "NoPosition"}}',
    "batch_size=16",
    "epochs=2",
)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    arrays = {
        f"x_{split}": rng.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8) for split, n in (("train", 60), ("test", 20))
    }
    np.savez(tmp_path / "noise.npz", **arrays, y_train=np.arange(60) % 4, y_test=np.arange(20) % 4)
    return tmp_path / "noise.npz"


@pytest.mark.parametrize("goal", GOALS)
def test_all_variants_are_plain(goal: str) -> None:
    """The projection of the patches, which do not overlap, is the only convolution."""
    for changes in VARIANTS.values():
        settings = configured(Options(goal=goal), **changes)  # type: ignore[arg-type]
        settings.check()
        assert not settings.flip_test
        if changes and "overrides" not in changes:
            continue
        with torch.device("meta"):
            model = build(configure(settings.model or "", 10, (32, 32), settings.overrides))
        projection = model.patch_embedding.projection
        assert [module for module in model.modules() if isinstance(module, nn.Conv2d)] == [projection]
        assert projection.kernel_size == projection.stride == (4, 4)


@pytest.mark.slow
def test_runs_are_reported_and_not_repeated(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_report(monkeypatch)
    options = Options(seeds=2, data=str(images), out=tmp_path / "runs", set=TINY, device="cpu")
    results = cifar10_record.main(options)
    assert [result.seed for result in results] == [0, 1]
    stored = json.loads((tmp_path / "runs" / "94-noise.json").read_text())["results"]
    for result, record in zip(results, stored, strict=True):
        metrics = json.loads((tmp_path / "runs" / f"94-noise-{result.seed}" / "metrics.json").read_text())
        assert record["top1"] == result.top1 == metrics["top1"]
        assert 0 < result.training_seconds < metrics["seconds"]
        assert result.images_per_second == pytest.approx(2 * 48 / result.training_seconds)
        assert result.mfu is None
    assert cifar10_record.main(options) == results
    other = Options(seeds=2, data=str(images), out=tmp_path / "runs", set=(*TINY, "lr=0.5"), device="cpu")
    with pytest.raises(ValueError, match=r"lr is 0\.5"):
        cifar10_record.main(other)


@pytest.mark.slow
def test_sweep_ranks_variants(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar10_record, "MEASURED", 2)
    options = Options(
        seeds=2,
        data=str(images),
        out=tmp_path,
        set=TINY,
        device="cpu",
        sweep=100,
        seconds=0.2,
        variants=("goal", "lr 5e-3"),
    )
    trials = cifar10_record.main(options)
    assert [(trial.variant, trial.seed) for trial in trials[:2]] == [("goal", 0), ("lr 5e-3", 0)]
    best = max(trials[:2], key=lambda trial: (trial.top1, -trial.loss)).variant
    assert [(trial.variant, trial.seed) for trial in trials[2:]] == [(best, 1)]
    assert all(trial.epochs > 0 and trial.milliseconds > 0 for trial in trials)
    assert len(json.loads((tmp_path / "sweep-94-noise.json").read_text())["results"]) == 3


def test_only_steps_of_one_image_size_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three steps per epoch, with another image size from epoch 2 and from epoch 3."""
    ranges, sizes, clock = list[tuple[int, int]](), [16, 16, 24, 32], [0]

    def batches(start: int, stop: int) -> Iterator[int]:
        ranges.append((start, stop))
        return iter(range(start, stop))

    def step(number: int) -> None:
        clock[0] += sizes[min(number // 3, 3)]

    job = SimpleNamespace(
        steps_per_epoch=3, total_steps=30, stepper=step, loader=SimpleNamespace(batches=batches),
        task=SimpleNamespace(first_epochs=[0, 2, 3]), world=SimpleNamespace(device=torch.device("cpu")),
    )  # fmt: skip
    monkeypatch.setattr(cifar10_record, "job_of", lambda _: nullcontext(job))
    monkeypatch.setattr(cifar10_record.time, "perf_counter", lambda: clock[0])
    seconds = cifar10_record.seconds_per_epoch(TrainConfig(data="x"))
    assert seconds == pytest.approx(3 * (2 * 16 + 24 + 7 * 32) / 10)
    assert ranges == [(0, 6), (6, 8), (9, 29)]


def test_operations_of_a_run() -> None:
    model = configure("ViT-Lite-7/4", 10, (32, 32))
    each = {side: 3 * cost(model.resized((side, side))).flops for side in (16, 20, 24, 28, 32)}
    settings = TrainConfig(epochs=8)
    assert cifar10_record.flops(settings, model) == each[32]
    halves = cifar10_record.flops(dataclasses.replace(settings, progressive=0.5), model)
    assert halves == pytest.approx((each[16] + each[20] + each[24] + each[28] + 4 * each[32]) / 8)
    assert cifar10_record.flops(dataclasses.replace(settings, patch_dropout=0.25), model) == 0.75 * each[32]


def test_unknown_variants_are_rejected() -> None:
    with pytest.raises(ValueError, match="got fast"):
        cifar10_record.main(Options(sweep=1.0, variants=("fast",)))


def test_results_do_not_depend_on_the_number_of_processes() -> None:
    assert sorted(cifar10_record.each_of(abs, [-1, -2, 3], 2)) == list(cifar10_record.each_of(abs, [-1, -2, 3], 1))


def test_nothing_is_started_after_the_deadline() -> None:
    assert list(cifar10_record.each_of(abs, [-1, -2], 1, deadline=0.0)) == []
