"""Runs on kept images: resuming and two processes give the same weights, and data that does not fit is streamed."""

import dataclasses
import json
import signal
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from images import smooth
from train_runs import SERVER, finish, skip_report, start, tiny
from vitreous.common.distributed import World
from vitreous.data.loader import StreamLoader
from vitreous.data.open import open_data
from vitreous.data.resident import KeptImages, PackedImages, ResidentLoader, WholeImages
from vitreous.training import Augment, TrainConfig, defaults, setup
from vitreous.training.defaults import choose
from vitreous.training.grouped_loader import GroupedLoader
from vitreous.training.run import train
from vitreous.training.setup import Job, set_up
from vitreous.weights.io.safetensors_file import read_tensors

CPU = torch.device("cpu")
assert SERVER  # starts while the images are drawn


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JPEG images of different sizes in two classes."""
    folder, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for i in range(48):
        path = folder / "ab"[i % 2] / f"{i}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(smooth(*rng.integers(12, 30, 2).tolist(), i)).save(path)
    return folder


def config_of(photos: Path, out: Path, keep: Any, **changes: Any) -> TrainConfig:
    augment = Augment(crop="resized", crop_scale=(0.3, 1.0), policy="none", flip=0.5, repeats=1, mixup=0.0, cutmix=0.0)
    fields = {"data": photos, "keep_images": keep, "batch_size": 16, "steps": 6, "augment": augment} | changes
    return tiny(out, **fields)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    (shard,) = (folder / "last" / "training").glob("*.safetensors")
    return read_tensors(shard)


def job_of(config: TrainConfig) -> Job:
    data = open_data(str(config.data))
    return set_up(choose(config, data, "cpu").config, data, World(0, 1, CPU))


# ---- Choice ----------------------------------------------------------------------------------------------------------


def test_images_are_kept_where_they_fit(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def kept(device: str, memory: dict[str, int], **changes: Any) -> Any:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: "cuda" in memory)
        for module in (defaults, setup):
            monkeypatch.setattr(module, "free_memory", lambda device: memory[device])
        data, config = open_data(str(photos)), config_of(photos, tmp_path / "run", None, **changes)
        found = choose(config, data, device)
        assert any(note.startswith(f"keep_images = {found.config.keep_images} (") for note in found.notes)
        return found.config.keep_images

    assert kept("cuda", {"cuda": 10**6, "cpu": 10**6}) == "gpu"
    assert kept("cuda", {"cuda": 10**4, "cpu": 10**6}) == "memory"
    assert kept("cuda", {"cuda": 10**4, "cpu": 10**4}) == "no"
    assert kept("cpu", {"cpu": 10**6}) == "memory"
    assert kept("cpu", {"cpu": 10**4}) == "no"
    assert kept("cpu", {"cpu": 10**6}, steps=3) == "no"  # a single epoch


@pytest.mark.parametrize(
    ("keep", "crop", "loader", "images"),
    [
        ("no", "resized", StreamLoader, None),
        ("memory", "resized", StreamLoader, KeptImages),
        ("gpu", "resized", ResidentLoader, PackedImages),
        ("memory", "padded", ResidentLoader, WholeImages),
        ("gpu", "none", ResidentLoader, WholeImages),
    ],
)
def test_loader_of_every_choice(
    photos: Path, tmp_path: Path, keep: str, crop: Any, loader: type, images: type | None
) -> None:
    found: Any = job_of(config_of(photos, tmp_path, keep, augment=Augment(crop=crop))).loader
    found = found.loader if isinstance(found, GroupedLoader) else found
    assert isinstance(found, loader)
    if isinstance(found, ResidentLoader):
        assert isinstance(found.kept, images or object)
    elif isinstance(found, StreamLoader):
        assert isinstance(found.reader.source, KeptImages) == (images is KeptImages)


# ---- Runs ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("keep", ["gpu", "memory"])
def test_resumed_run_is_bit_identical(photos: Path, tmp_path: Path, keep: str) -> None:
    config = config_of(photos, tmp_path / "whole", keep)
    assert finish(config) == 0
    parts = dataclasses.replace(config, out=tmp_path / "parts", save_minutes=1e-5)
    assert finish(parts, die_after=4) == -signal.SIGKILL
    assert json.loads((tmp_path / "parts" / "config.json").read_text())["keep_images"] == keep
    assert finish(dataclasses.replace(parts, resume=True, keep_images=None)) == 0
    first, second = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.slow
def test_two_processes_train_like_one(photos: Path, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"dropout": 0.0, "stochastic_depth": 0.0}
    assert finish(config_of(photos, tmp_path / "one", "gpu", **changes)) == 0
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    base = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    config = config_of(photos, tmp_path / "two", "gpu", **changes)
    ranks = [start(config, world=base | {"RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(2)]
    for process in ranks:
        process.join(120)
    assert [process.exitcode for process in ranks] == [0, 0]
    rows = [
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("one", "two")
    ]
    for first, second in zip(*rows, strict=True):
        assert first["train_loss"] == pytest.approx(second["train_loss"], abs=1e-5)
        assert first["val_loss"] == pytest.approx(second["val_loss"], abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("keep", ["gpu", "memory", "no"])
def test_unreadable_images_are_reported_and_limited(
    photos: Path, tmp_path: Path, keep: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_report(monkeypatch)
    broken = tmp_path / "photos"
    for path in photos.rglob("*.jpg"):
        copy = broken / path.relative_to(photos)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    name = open_data(str(broken)).train.name(0)
    (broken / name).write_bytes(b"not an image")
    run = train(config_of(broken, tmp_path / "run", keep))
    assert [problem.split(":")[0] for problem in run.metrics["unreadable_files"]] == [name]
    with pytest.raises(ValueError, match=rf"--max-unreadable 0\.01 allows; the first is {name}"):
        train(config_of(broken, tmp_path / "strict", keep, max_unreadable=0.01))


@pytest.mark.slow
def test_seconds_of_all_phases_add_up(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_report(monkeypatch)
    metrics = train(config_of(photos, tmp_path / "run", "memory")).metrics
    phases = metrics["seconds_by_phase"]
    assert list(phases) == ["set-up", "compile", "data", "steps", "evaluation", "checkpoints", "report"]
    assert sum(phases.values()) == pytest.approx(metrics["seconds"])
    assert phases["compile"] == 0
    assert all(seconds > 0 for phase, seconds in phases.items() if phase != "compile")
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["seconds_by_phase"] == phases
