"""Runs with several labels or numbers per image: learning, resuming, several processes, fine-tuning."""

import dataclasses
import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import vitreous
from native_models import load_state
from target_runs import CLASSES, targeting, write_table
from train_runs import finish, finish_in_two, skip_report
from vitreous.common.checks import BadValue
from vitreous.data.open import open_data
from vitreous.data.sources.targets import NumberTargets
from vitreous.model.options import MultiLabel, Numbers
from vitreous.training import Augment, Optim, TableTargets
from vitreous.training.run import train
from vitreous.weights.load import load

pytestmark = pytest.mark.slow
TASKS = pytest.mark.parametrize("task", ["multilabel", "regress"])
NUMBERS = TableTargets(target=("green", "red"))


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_table(tmp_path_factory.mktemp("data") / "set")


@pytest.fixture
def unreported(monkeypatch: pytest.MonkeyPatch) -> None:
    skip_report(monkeypatch)


def same(one: Path, other: Path) -> bool:
    ours, theirs = (load_state(folder / "last") for folder in (one, other))
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_multilabel_run_learns_and_its_metrics_equal_eval(table: Path, tmp_path: Path) -> None:
    config = targeting("multilabel", table, tmp_path / "run", steps=120, evaluate_every=10, optim=Optim(lr=1e-2))
    run = train(config)
    assert run.metrics["map"] > 0.9
    assert run.metrics["f1"] > 0.8
    output = run.model.config.output
    assert isinstance(output, MultiLabel)
    assert len(output.thresholds) == 3
    assert run.model.config.labels == CLASSES
    for name in ("curves.png", "samples.png", "precision_recall.png", "report.html", "best", "last"):
        assert (tmp_path / "run" / name).exists(), name
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Multi-label classification into 3 classes" in page
    metrics = vitreous.evaluate(tmp_path / "run" / "best", data=table, device="cpu")
    assert isinstance(metrics, vitreous.MultiLabelMetrics)
    for name in ("map", "f1", "f1_micro", "loss", "count"):
        assert metrics.to_dict()[name] == pytest.approx(run.metrics[name]), name
    assert [row["threshold"] for row in metrics.to_dict()["per_class"]] == pytest.approx(output.thresholds)


def test_a_regression_run_learns_and_its_metrics_equal_eval(table: Path, tmp_path: Path) -> None:
    plain: dict[str, Any] = {"augment": Augment(crop="none"), "dropout": None, "targets": NUMBERS}
    config = targeting("regress", table, tmp_path / "run", steps=200, evaluate_every=25, optim=Optim(lr=1e-2), **plain)
    run = train(config)
    assert run.metrics["r2"] > 0.8
    assert run.metrics["mae"] < 20  # the values are from 1000 to 1100
    assert run.model.config.labels == ("green", "red")
    data = open_data(str(table), targets=NumberTargets(("green", "red"))).train.targets
    assert data is not None
    output = run.model.config.output
    assert isinstance(output, Numbers)
    assert output.mean == pytest.approx(data.mean(0))
    assert output.std == pytest.approx(data.std(0))
    for name in ("curves.png", "samples.png", "predictions.png", "residuals.png", "mistakes.png", "report.html"):
        assert (tmp_path / "run" / name).exists(), name
    assert "Regression of green, red" in (tmp_path / "run" / "report.html").read_text()
    metrics = vitreous.evaluate(tmp_path / "run" / "best", data=table, device="cpu")
    assert isinstance(metrics, vitreous.RegressionMetrics)
    for name in ("mae", "rmse", "r2", "loss", "count"):
        assert metrics.to_dict()[name] == pytest.approx(run.metrics[name]), name
    assert [row["name"] for row in metrics.to_dict()["per_target"]] == ["green", "red"]
    with pytest.raises(BadValue, match="2 columns"):
        vitreous.evaluate(run.model, data=table, device="cpu", target=("red",))


@TASKS
def test_resume_after_kill_is_bit_identical(task: str, table: Path, tmp_path: Path) -> None:
    mixed: dict[str, Any] = {"targets": NUMBERS}
    if task == "multilabel":
        mixed = {"augment": Augment(crop="padded", flip=0.5, mixup=0.2)}
    whole, broken = (targeting(task, table, tmp_path / name, **mixed) for name in ("whole", "broken"))
    assert finish(whole) == 0
    assert finish(broken, die_after=6) == -signal.SIGKILL
    assert finish(dataclasses.replace(broken, resume=True)) == 0
    assert same(tmp_path / "whole", tmp_path / "broken")
    first, second = (load(tmp_path / name / "best").config for name in ("whole", "broken"))
    assert first == second


@TASKS
def test_two_processes_train_like_one(task: str, table: Path, tmp_path: Path) -> None:
    plain: dict[str, Any] = {"targets": NUMBERS if task == "regress" else TableTargets()} | {
        "dropout": None,
        "steps": 4,
        "augment": Augment(crop="padded", flip=0.5),
    }
    finish_in_two(targeting(task, table, tmp_path / "two", **plain))
    assert finish(targeting(task, table, tmp_path / "one", **plain)) == 0
    one, two = (load_state(tmp_path / name / "best") for name in ("one", "two"))
    for name, weight in one.items():
        torch.testing.assert_close(
            two[name], weight, rtol=1e-3, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
        )
    ours, theirs = (json.loads((tmp_path / name / "metrics.json").read_text()) for name in ("one", "two"))
    assert ours["count"] == theirs["count"] == 32
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-3)


@TASKS
@pytest.mark.parametrize("trained", ["all", "head", "lora"])
def test_fine_tuning_of_a_classifier(
    task: str, trained: Any, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_report(monkeypatch)
    start = vitreous.create("ViT-Lite-6/4", num_classes=7, image_size=12, overrides={"depth": 1, "width": 32, "mlp_width": 32, "patch_size": 4})  # fmt: skip  # noqa: E501
    vitreous.save(start, tmp_path / "start")
    plain: dict[str, Any] = {"model": None, "overrides": {}, "image_size": (), "dropout": None}
    plain |= {"targets": NUMBERS} if task == "regress" else {}
    config = targeting(task, table, tmp_path / "run", init=tmp_path / "start", train_only=trained, **plain)
    if trained == "head":  # features are computed once
        config = dataclasses.replace(config, augment=Augment(crop="none", flip=0.5, policy="none"))
    run = train(config)
    assert run.model.config.task == task
    before, after = start.state_dict(), run.model.state_dict()
    changed = any(not torch.equal(after[name], weight) for name, weight in before.items() if "blocks" in name)
    assert changed == (trained != "head")


@TASKS
@pytest.mark.usefixtures("unreported")
def test_cached_features_give_the_same_head(task: str, table: Path, tmp_path: Path) -> None:
    whole = {"kind": "Preprocessing", "crop_fraction": 1.0}
    small = {"depth": 1, "width": 32, "mlp_width": 32, "patch_size": 4, "preprocessing": whole}
    vitreous.save(vitreous.create("ViT-Lite-6/4", num_classes=0, image_size=12, overrides=small), tmp_path / "start")
    plain: dict[str, Any] = {"model": None, "overrides": {}, "image_size": (), "dropout": None, "train_only": "head"}
    plain |= {"init": tmp_path / "start", "augment": Augment(crop="none", flip=0.5, policy="none")}
    plain |= {"targets": NUMBERS} if task == "regress" else {}
    once = train(targeting(task, table, tmp_path / "once", **plain))
    often = train(targeting(task, table, tmp_path / "often", cache_features=False, **plain))
    for name, weight in often.model.state_dict().items():
        torch.testing.assert_close(once.model.state_dict()[name], weight, rtol=1e-4, atol=1e-5)
    assert once.metrics["loss"] == pytest.approx(often.metrics["loss"], rel=1e-4)


@pytest.mark.usefixtures("unreported")
@TASKS
def test_a_checkpoint_can_start_other_runs(task: str, table: Path, tmp_path: Path) -> None:
    targets: dict[str, Any] = {"targets": NUMBERS} if task == "regress" else {}
    first = train(targeting(task, table, tmp_path / "first", **targets)).model
    again: dict[str, Any] = {
        "model": None,
        "overrides": {},
        "image_size": (),
        "init": tmp_path / "first/best",
        "steps": 1,
    }
    frozen = {**again, **targets, "optim": Optim(lr=1e-12)}
    second = train(targeting(task, table, tmp_path / "second", **frozen)).model
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(one, other)  # the head is kept
    digits = targeting("classify", table, tmp_path / "third", **again)
    third = train(dataclasses.replace(digits, data="digits", dropout=None)).model
    assert third.config.task == "classify"


@pytest.mark.usefixtures("unreported")
def test_a_regression_checkpoint_keeps_its_scale(table: Path, tmp_path: Path) -> None:
    first = train(targeting("regress", table, tmp_path / "first", targets=NUMBERS)).model.config.output
    other = write_table(tmp_path / "other")
    other.write_text(other.read_text().replace(",1000.0,", ",900.0,"))
    again: dict[str, Any] = {
        "model": None,
        "overrides": {},
        "image_size": (),
        "init": tmp_path / "first/best",
        "steps": 1,
    }
    assert train(targeting("regress", other, tmp_path / "same", targets=NUMBERS, **again)).model.config.output == first
    one = TableTargets(target=("green",))
    assert train(targeting("regress", other, tmp_path / "new", targets=one, **again)).model.config.output != first


def test_a_constant_target_is_rejected(tmp_path: Path) -> None:
    table = write_table(tmp_path / "set")
    lines = table.read_text().splitlines()
    table.write_text("\n".join([f"{lines[0]},same", *(f"{line},7" for line in lines[1:])]))
    with pytest.raises(ValueError, match="'same' has the same value"):
        train(targeting("regress", table, tmp_path / "run", targets=TableTargets(target=("same",))))
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("unreported")
def test_changed_targets_are_not_resumed(tmp_path: Path) -> None:
    table = write_table(tmp_path / "set")
    config = targeting("multilabel", table, tmp_path / "run")
    train(config)
    table.write_text(table.read_text().replace("bright;green,", "green,"))
    with pytest.raises(ValueError, match="relabelled"):
        train(dataclasses.replace(config, resume=True))


def test_options_without_effect_are_rejected(table: Path, tmp_path: Path) -> None:
    for changes in ({"train_only": "lda", "init": "dinov2-s", "model": None}, {"augment": Augment(), "smoothing": 2.0}):
        with pytest.raises(BadValue):
            train(targeting("multilabel", table, tmp_path / "run", **changes))
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("unreported")
def test_an_unreadable_image_is_reported(tmp_path: Path) -> None:
    table = write_table(tmp_path / "set")
    for index in (3, 90):
        (table.parent / f"images/{index:03}.png").write_bytes(b"nothing")
    run = train(targeting("multilabel", table, tmp_path / "run", steps=12))
    assert (run.metrics["count"], run.metrics["unreadable"]) == (31, 1)
    assert {line.partition(":")[0] for line in run.metrics["unreadable_files"]} == {"images/003.png", "images/090.png"}
