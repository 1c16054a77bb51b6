"""The metrics of a finished run are those of `vitreous.evaluate` on its best checkpoint and the same split."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import vitreous
from segment_runs import segmenting
from train_runs import finish_in_two, skip_report, tiny
from vitreous.training import TrainConfig
from vitreous.training.run import train

CLASSIFY = ("top1", "top5", "balanced_accuracy", "loss", "ece", "ece_calibrated")
SEGMENT = ("miou", "pixel_accuracy", "boundary_f")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """The runs in other processes have one thread, and sums depend on the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def check_metrics(config: TrainConfig, keys: tuple[str, ...], **options: Any) -> None:
    assert config.out is not None
    folder, data = Path(config.out), str(config.data)
    written = json.loads((folder / "metrics.json").read_text())
    evaluated = vitreous.evaluate(folder / "best", data, device="cpu", **options).to_dict()
    for key in (*keys, "count", "unreadable", "part"):
        assert written[key] == evaluated[key], key


@pytest.mark.parametrize("changes", [{}, {"flip_test": True, "precision": "bf16"}], ids=["fp32", "flip and bf16"])
def test_a_classification_run_and_eval(
    changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_report(monkeypatch)
    config = tiny(tmp_path, steps=3, **changes)
    train(config)
    check_metrics(config, CLASSIFY, flip=config.flip_test)
    best = vitreous.load(tmp_path / "best")
    assert best.config.calibration is not None
    assert best.config.calibration.images == 359


def test_a_segmentation_run_and_eval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_report(monkeypatch)
    config = segmenting(tmp_path, steps=3)
    train(config)
    check_metrics(config, SEGMENT)


@pytest.mark.slow
def test_a_classification_run_in_two_processes_and_eval(tmp_path: Path) -> None:
    config = tiny(tmp_path, steps=3, track="tensorboard")
    finish_in_two(config)
    check_metrics(config, CLASSIFY)
    assert len(list((tmp_path / "tensorboard").iterdir())) == 1  # only the first process tracks


@pytest.mark.slow
def test_a_segmentation_run_in_two_processes_and_eval(tmp_path: Path) -> None:
    config = segmenting(tmp_path, data="shapes:size=16,count=48,val=80", steps=3)
    finish_in_two(config)
    check_metrics(config, SEGMENT)
