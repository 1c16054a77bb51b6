"""Long-tailed data: `balance` is chosen, changes the predictions, and keeps the guarantees of a run."""

import dataclasses
import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitreous
from native_models import load_state
from train_runs import finish, finish_in_two, skip_report, tiny
from vitreous.common.checks import BadValue
from vitreous.data.open import open_data
from vitreous.data.sources.base import ArraySource, DataSet
from vitreous.tasks.classify import BALANCE, IMBALANCED
from vitreous.tasks.multilabel import MultiLabelTask
from vitreous.training import Augment, Optim, TrainConfig
from vitreous.training.defaults import choose
from vitreous.training.run import train
from vitreous.training.setup import task_class_of

CALM: dict[str, Any] = {"dropout": 0.0, "stochastic_depth": 0.0}  # each process drops its own


def counted(*counts: int) -> DataSet:
    """A data set with this many black images per class."""
    labels = np.repeat(np.arange(len(counts)), counts)
    images = np.zeros((len(labels), 8, 8, 3), np.uint8)
    source = ArraySource(images, labels, tuple("abcdef"[: len(counts)]), "images")
    return DataSet("images", source, source, None, "")


@pytest.fixture(scope="module")
def long_tail(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits with 130 to 5 training images per class, and validation images of all classes."""
    data, path = open_data("digits"), tmp_path_factory.mktemp("data") / "long_tail.npz"
    counts = np.geomspace(130, 5, 10).round().astype(int)
    kept = np.concatenate([np.flatnonzero(data.train.labels == label)[:n] for label, n in enumerate(counts)])
    arrays = {}
    for split, source, indices in (("train", data.train, kept), ("val", data.val, range(len(data.val)))):
        arrays[f"x_{split}"] = np.stack([np.asarray(source.image(int(index))) for index in indices])
        arrays[f"y_{split}"] = source.labels[list(indices)]
    np.savez(path, **arrays)
    return path


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier of digits, without its head."""
    folder = tmp_path_factory.mktemp("encoder")
    with pytest.MonkeyPatch.context() as patch:
        skip_report(patch)
        run = train(tiny(folder / "run", **CALM, steps=60, augment=Augment(crop="none", flip=0.0, policy="none")))
    model = run.model
    model.replace_head(0, ())
    vitreous.save(model, folder / "start")
    return folder / "start"


def head(out: Path, init: Path, data: Path, **changes: Any) -> TrainConfig:
    """Train only the head, on cached features."""
    plain: dict[str, Any] = {"model": None, "overrides": {}, "dropout": None, "stochastic_depth": None}
    plain |= {"train_only": "head", "augment": Augment(crop="none", flip=0.0, policy="none"), "batch_size": 64}
    return tiny(out, data=data, init=init, **(plain | {"optim": Optim(lr=3e-3), "steps": 90} | changes))


def same(one: Path, other: Path) -> bool:
    ours, theirs = load_state(one / "last"), load_state(other / "last")
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


# ---- The automatic choice --------------------------------------------------------------------------------------------


def test_balance_is_chosen_and_announced_for_imbalanced_classes() -> None:
    config = TrainConfig(data="images", out=Path("run"))
    chosen = choose(config, counted(5 * IMBALANCED, 40, 5), "cpu")
    assert chosen.config.balance == BALANCE
    assert any(note.startswith(f"balance = {BALANCE:g} (") and f"{IMBALANCED} times" in note for note in chosen.notes)
    almost = choose(config, counted(5 * IMBALANCED - 1, 40, 5), "cpu")
    assert almost.config.balance is None
    assert not any("balance" in note for note in almost.notes)


def test_classes_without_images_do_not_count_as_imbalance() -> None:
    assert choose(TrainConfig(data="images", out=Path("run")), counted(20, 20, 0), "cpu").config.balance is None


@pytest.mark.parametrize("balance", [0.0, 1.0])
def test_a_given_balance_is_kept(balance: float) -> None:
    chosen = choose(TrainConfig(data="images", out=Path("run"), balance=balance), counted(500, 5), "cpu")
    assert chosen.config.balance == balance
    assert not any("balance" in note for note in chosen.notes)


def test_balance_is_not_chosen_for_several_labels_per_image() -> None:
    assert MultiLabelTask.choose_options(TrainConfig(data="images"), counted(500, 5), None) == []


@pytest.mark.parametrize("balance", [-0.1, 1.5, float("nan")])
def test_balance_is_from_0_to_1(balance: float) -> None:
    with pytest.raises(BadValue, match="balance"):
        TrainConfig(data="images", balance=balance).check()


@pytest.mark.parametrize(
    "changes", [{"task": "segment"}, {"task": "mae"}, {"task": "multilabel"}, {"train_only": "lda", "init": "x"}]
)
def test_balance_is_rejected_where_it_has_no_effect(changes: dict[str, Any]) -> None:
    config = TrainConfig(data="images", balance=0.5, **changes)
    with pytest.raises(BadValue, match="balance"):
        task_class_of(config).check(config)


def test_discriminant_analysis_needs_no_balance(start: Path, long_tail: Path) -> None:
    config = TrainConfig(data=long_tail, init=start, train_only="lda", out=Path("run"))
    task = task_class_of(config)
    chosen = choose(task.complete(config), open_data(str(long_tail)), "cpu", task=task)
    assert not any("balance" in note for note in chosen.notes)


# ---- Runs ------------------------------------------------------------------------------------------------------------


def test_balance_raises_the_recall_of_rare_classes(
    start: Path, long_tail: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_report(monkeypatch)
    recalls, metrics = {}, {}
    for balance in (0.0, 0.5, 1.0):
        run = train(head(tmp_path / str(balance), start, long_tail, balance=balance))
        metrics[balance] = run.metrics["balanced_accuracy"]
        rows = vitreous.evaluate(run.model, long_tail, split="val", device="cpu").to_dict()["per_class"]
        recalls[balance] = np.mean([row["recall"] for row in rows[-3:]])
        assert metrics[balance] == pytest.approx(np.mean([row["recall"] for row in rows]))
    assert recalls[0.0] < recalls[0.5] < recalls[1.0]
    assert metrics[0.0] < metrics[0.5]
    assert metrics[0.0] < metrics[1.0]


def test_the_cached_head_equals_that_of_the_ordinary_path(
    start: Path, long_tail: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    skip_report(monkeypatch)
    config = head(tmp_path / "cached", start, long_tail, balance=1.0, steps=24, smoothing=0.1)
    train(config)
    assert "frozen encoder" in capsys.readouterr().out
    train(dataclasses.replace(config, out=tmp_path / "plain", cache_features=False))
    ours, theirs = load_state(tmp_path / "cached" / "last"), load_state(tmp_path / "plain" / "last")
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_without_imbalance_runs_are_bit_identical(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_report(monkeypatch)
    default, without = (train(tiny(tmp_path / name, balance=value)) for name, value in (("a", None), ("b", 0.0)))
    assert same(default.folder, without.folder)
    balanced = train(tiny(tmp_path / "c", balance=1.0))
    assert not same(balanced.folder, without.folder)


@pytest.mark.parametrize("keep", ["memory", "no"])
def test_kept_images_give_the_same_run(
    keep: str, long_tail: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_report(monkeypatch)
    fields: dict[str, Any] = {"data": long_tail, "batch_size": 64, "steps": 12}
    for name, options in (("a", {"keep_images": keep}), ("b", {"keep_images": "memory", "workers": 1})):
        train(tiny(tmp_path / name, **fields, **options))
    assert json.loads((tmp_path / "a" / "config.json").read_text())["balance"] == BALANCE
    assert same(tmp_path / "a", tmp_path / "b")


@pytest.mark.slow
def test_resume_after_kill_is_bit_identical(long_tail: Path, tmp_path: Path) -> None:
    fields: dict[str, Any] = {"data": long_tail, "batch_size": 64, "steps": 20}
    assert finish(tiny(tmp_path / "whole", **fields)) == 0
    config = tiny(tmp_path / "run", **fields, save_minutes=1e-5)
    assert finish(config, die_after=7) == -signal.SIGKILL
    assert finish(dataclasses.replace(config, resume=True)) == 0
    assert same(tmp_path / "run", tmp_path / "whole")
    assert json.loads((tmp_path / "run" / "config.json").read_text())["balance"] == BALANCE


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_have_the_losses_of_one(parallel: str, long_tail: Path, tmp_path: Path) -> None:
    fields: dict[str, Any] = {"data": long_tail, "batch_size": 64, "steps": 12, "parallel": parallel, **CALM}
    assert finish(tiny(tmp_path / "one", **fields)) == 0
    finish_in_two(tiny(tmp_path / "two", **fields))
    rows = [json.loads((tmp_path / name / "metrics.jsonl").read_text().splitlines()[-1]) for name in ("one", "two")]
    assert rows[0]["train_loss"] == pytest.approx(rows[1]["train_loss"], rel=1e-4)
    assert rows[0]["val_loss"] == pytest.approx(rows[1]["val_loss"], rel=1e-3)
