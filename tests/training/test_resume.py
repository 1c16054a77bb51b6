"""A run that is killed and resumed ends with the same bits as an uninterrupted one."""

import dataclasses
import json
import random
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from native_models import load_state
from train_runs import finish, finish_in_two, skip_report, start, tiny
from vitreous.data.loader import StreamLoader
from vitreous.model.build import build_vit
from vitreous.model.config import ViTConfig
from vitreous.model.options import Gelu
from vitreous.training import TrainConfig
from vitreous.training.checkpoint import read_progress
from vitreous.training.run import train
from vitreous.weights.io.safetensors_file import read_tensors
from vitreous.weights.load import save
from vitreous.weights.native import load_folder


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint: weights, optimizer, average, with shards joined."""
    tensors = load_state(folder / "last")
    (shard,) = (folder / "last" / "training").glob("*.safetensors")
    return tensors | read_tensors(shard)


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert finish(tiny(folder)) == 0
    return folder


@pytest.mark.slow
def test_resume_after_kill_at_random_steps_is_bit_identical(uninterrupted: Path, tmp_path: Path) -> None:
    folder, config = tmp_path / "run", tiny(tmp_path / "run", save_minutes=1e-5)  # a save after every step
    chance = random.Random(0)
    for life in range(10):
        again = dataclasses.replace(config, resume=life > 0)
        assert finish(again, die_after=chance.randint(1, 4)) == -signal.SIGKILL
    assert finish(dataclasses.replace(config, resume=True)) == 0
    assert same(weights(folder), weights(uninterrupted))
    ours, theirs = (
        [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        for path in (folder, uninterrupted)
    )
    assert [row["step"] for row in ours] == [row["step"] for row in theirs]
    assert [row["val_loss"] for row in ours] == [row["val_loss"] for row in theirs]


@pytest.mark.slow
def test_run_killed_before_the_first_save_starts_again(uninterrupted: Path, tmp_path: Path) -> None:
    config = tiny(tmp_path / "run")
    assert finish(config, die_after=2) == -signal.SIGKILL
    assert finish(dataclasses.replace(config, resume=True)) == 0
    assert same(weights(tmp_path / "run"), weights(uninterrupted))


@pytest.mark.slow
def test_a_signal_saves_and_stops_within_a_step(uninterrupted: Path, tmp_path: Path) -> None:
    config = tiny(tmp_path / "run")
    assert finish(config, stop_after=7) == 128 + signal.SIGTERM
    assert json.loads((tmp_path / "run" / "last" / "progress.json").read_text())["step"] == 7
    assert finish(dataclasses.replace(config, resume=True)) == 0
    assert same(weights(tmp_path / "run"), weights(uninterrupted))


@pytest.mark.slow
def test_killed_during_a_save_leaves_the_previous_checkpoint(tmp_path: Path) -> None:
    config = tiny(tmp_path / "run", save_minutes=1e-5, steps=2000)
    process = start(config)
    last = tmp_path / "run" / "last"
    while not last.exists():
        process.join(0.05)
    for _ in range(3):
        process.join(random.Random(1).uniform(0.05, 0.3))
    process.kill()  # mostly during a save
    process.join()
    assert load_folder(last).config.num_classes == 10
    assert json.loads((last / "progress.json").read_text())["step"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_have_the_losses_of_one(parallel: str, tmp_path: Path) -> None:
    calm = {"dropout": 0.0, "stochastic_depth": 0.0, "steps": 12, "parallel": parallel}  # each process drops its own
    assert finish(tiny(tmp_path / "one", **calm)) == 0
    finish_in_two(tiny(tmp_path / "two", **calm))
    rows = [json.loads((tmp_path / name / "metrics.jsonl").read_text().splitlines()[-1]) for name in ("one", "two")]
    assert rows[0]["train_loss"] == pytest.approx(rows[1]["train_loss"], rel=1e-4)
    assert rows[0]["val_loss"] == pytest.approx(rows[1]["val_loss"], rel=1e-3)
    assert rows[0]["val_count"] == rows[1]["val_count"] == 359


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_saved_by_two_resumed_by_one_and_by_two(parallel: str, tmp_path: Path) -> None:
    calm = {"dropout": 0.0, "stochastic_depth": 0.0, "parallel": parallel}
    for name in ("by-one", "by-two"):
        finish_in_two(tiny(tmp_path / name, steps=11, **calm))
        (tmp_path / name / "config.json").write_text(
            (tmp_path / name / "config.json").read_text().replace('"steps": 11', '"steps": 22')
        )
    last = tmp_path / "by-two" / "last"
    saved = {path.relative_to(last).as_posix() for path in last.rglob("*") if path.is_file()}
    assert saved - json.loads((last / "checksums.json").read_text()).keys() == {"checksums.json", "README.md"}
    assert finish(tiny(tmp_path / "by-one", resume=True, steps=22, **calm)) == 0
    finish_in_two(tiny(tmp_path / "by-two", resume=True, steps=22, **calm))
    losses = []
    for name in ("by-one", "by-two"):
        rows = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        assert [row["step"] for row in rows] == [11, 22]
        losses.append(rows[-1]["val_loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_run_from_a_foreign_checkpoint_is_resumed_and_parallel(parallel: str, tmp_path: Path) -> None:
    """timm packs query, key and value into one tensor, so the loaded weights are views of it."""
    vit = ViTConfig(
        image_size=(8, 8), patch_size=(4, 4), channels=1, width=32, depth=2, num_heads=2, mlp_width=32, mlp=Gelu("erf")
    )
    save(build_vit(vit), tmp_path / "timm.pth", format="timm", lossy=True)
    written = (tmp_path / "timm.pth").read_bytes()
    calm: dict[str, Any] = {"dropout": 0.0, "stochastic_depth": 0.0, "steps": 12, "parallel": parallel}
    calm |= {"model": None, "overrides": {"num_heads": 2}, "init": tmp_path / "timm.pth", "save_minutes": 1e-5}
    assert finish(tiny(tmp_path / "one", **calm)) == 0
    assert finish(tiny(tmp_path / "again", **calm), die_after=5) == -signal.SIGKILL
    assert finish(tiny(tmp_path / "again", **calm, resume=True)) == 0
    assert same(weights(tmp_path / "again"), weights(tmp_path / "one"))
    finish_in_two(tiny(tmp_path / "two", **calm))
    rows = [json.loads((tmp_path / name / "metrics.jsonl").read_text().splitlines()[-1]) for name in ("one", "two")]
    assert rows[0]["train_loss"] == pytest.approx(rows[1]["train_loss"], rel=1e-4)
    assert rows[0]["val_loss"] == pytest.approx(rows[1]["val_loss"], rel=1e-3)
    assert (tmp_path / "timm.pth").read_bytes() == written


def test_options_that_an_earlier_version_did_not_have_are_not_chosen_on_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A config.json without an option stands for the behaviour of the version that wrote it."""
    skip_report(monkeypatch)
    assert finish(tiny(tmp_path / "run", steps=6), stop_after=3) == 128 + signal.SIGTERM
    file = tmp_path / "run" / "config.json"
    document = json.loads(file.read_text())
    assert document.pop("keep_images") == "memory"
    file.write_text(json.dumps(document))
    read: list[int] = []
    batches = StreamLoader.batches
    monkeypatch.setattr(StreamLoader, "batches", lambda self, *steps: read.append(1) or batches(self, *steps))
    train(TrainConfig(out=tmp_path / "run", resume=True))
    assert read, "images were kept in memory"


@pytest.mark.slow
def test_fp16_is_resumed_with_its_loss_scale(tmp_path: Path) -> None:
    """The scale starts so high that the first steps are skipped. A run that started with it again would skip others."""
    whole, parts = (tiny(tmp_path / name, precision="fp16") for name in ("whole", "parts"))
    assert finish(whole) == 0
    assert finish(parts, stop_after=13) == 128 + signal.SIGTERM
    saved = read_progress(tmp_path / "parts" / "last")
    assert saved.loss_scale > 0
    assert saved.loss_scale_age > 0
    assert finish(dataclasses.replace(parts, resume=True)) == 0
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "parts"))
    ended = [read_progress(tmp_path / name / "last") for name in ("whole", "parts")]
    assert ended[0].loss_scale == ended[1].loss_scale
    assert ended[0].loss_scale_age == ended[1].loss_scale_age == 30
