"""Resources of workers on a cluster, and the messages without Ray or without room."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vitreous
from image_containers import small_images, write_folder
from predictors import random_model
from vitreous.cluster.ray_cluster import FittedWorkers, WorkerSize
from vitreous.common.checks import BadValue

CPU_ONLY = {"CPU": 8.0}
TWO_GPUS = {"CPU": 16.0, "GPU": 2.0}


@pytest.mark.parametrize(
    ("size", "machines", "on_cpu", "expected"),
    [
        (WorkerSize(), [CPU_ONLY, {"CPU": 2.0}], False, FittedWorkers(10, 1, 0)),
        (WorkerSize(cpus=3), [CPU_ONLY, {"CPU": 2.0}], False, FittedWorkers(2, 3, 0)),
        (WorkerSize(count=4), [CPU_ONLY], False, FittedWorkers(4, 1, 0)),
        (WorkerSize(), [TWO_GPUS, CPU_ONLY], False, FittedWorkers(2, 8, 1)),  # the second machine has no GPU
        (WorkerSize(), [TWO_GPUS, {"CPU": 6.0, "GPU": 1.0}], False, FittedWorkers(3, 6, 1)),
        (WorkerSize(gpus=0.25), [TWO_GPUS], False, FittedWorkers(8, 2, 0.25)),
        (WorkerSize(gpus=0.4), [{"CPU": 16.0, "GPU": 1.0}], False, FittedWorkers(2, 6, 0.4)),  # 0.2 GPU is not used
        (WorkerSize(cpus=10, gpus=1), [TWO_GPUS], False, FittedWorkers(1, 10, 1)),  # too few cores for the second
        (WorkerSize(), [TWO_GPUS], True, FittedWorkers(16, 1, 0)),
    ],
)
def test_workers_fill_the_machines(
    size: WorkerSize, machines: list[dict[str, float]], on_cpu: bool, expected: FittedWorkers
) -> None:
    assert size.fitted(machines, on_cpu) == expected


@pytest.mark.parametrize("size", [WorkerSize(cpus=9), WorkerSize(gpus=1)])
def test_a_worker_that_fits_nowhere_is_rejected(size: WorkerSize) -> None:
    with pytest.raises(ValueError, match="fits on no machine"):
        size.fitted([CPU_ONLY, CPU_ONLY], on_cpu=False)


def test_a_worker_uses_the_gpu_that_ray_selects_or_none() -> None:
    with_gpu, without = FittedWorkers(1, 1, 0.5), FittedWorkers(1, 1, 0)
    assert [with_gpu.device(word) for word in ("auto", "cuda:3", "cpu")] == ["auto", "cuda", "cpu"]
    assert [without.device(word) for word in ("auto", None, "cpu")] == ["cpu", "cpu", "cpu"]


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "set", small_images(2))


@pytest.mark.parametrize("run", [vitreous.predict, vitreous.embed])
def test_missing_ray_is_answered_with_the_extra(run: Any, images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r'pip install "vitreous\[ray\]"'):
        run(random_model("class token"), images, engine="ray")


def test_missing_ray_is_answered_by_the_server(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r'pip install "vitreous\[ray\]"'):
        vitreous.serve(checkpoint, engine="ray")


@pytest.mark.parametrize(
    "options",
    [{"engine": "spark"}, {"workers": 2}, {"worker_gpus": 0.5}, {"engine": "ray", "workers": 0}, {"worker_gpus": 1.5}],
    ids=str,
)
def test_invalid_options_are_rejected(options: dict[str, Any], images: Path, unchecked: None) -> None:
    with pytest.raises(BadValue, match="|".join(options)):
        vitreous.predict(random_model("class token"), images, device="cpu", **options)


@pytest.mark.parametrize("options", [{"engine": "spark"}, {"max_replicas": 2}, {"min_replicas": 2}], ids=str)
def test_invalid_options_of_the_server_are_rejected(options: dict[str, Any], checkpoint: Path, unchecked: None) -> None:
    with pytest.raises(BadValue, match=next(iter(options))):
        vitreous.serve(checkpoint, **options)


def test_images_in_memory_need_the_local_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitreous.cluster.run_inference.import_ray", lambda: None)
    with pytest.raises(BadValue, match="in memory"):
        vitreous.predict(random_model("class token"), np.zeros((8, 8, 3), np.uint8), engine="ray")
