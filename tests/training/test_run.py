"""Complete small runs of `train`."""

import dataclasses
import json
import math
import pickle
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitreous
from native_models import load_state
from train_runs import skip_report, tiny
from vitreous.common.checks import BadValue
from vitreous.common.distributed import World
from vitreous.model.options import GlobalAverage
from vitreous.report import plots
from vitreous.training import Augment, Distillation, Optim, TrainConfig, run_results
from vitreous.training import run as loop
from vitreous.training.checkpoint import read_progress
from vitreous.training.optimizer_step import rate_fraction
from vitreous.training.run import Interrupted, train
from vitreous.training.run_folder import read_config, resumed_config
from vitreous.training.setup import Job
from vitreous.weights.load import load

PLAIN = Augment(crop="none", flip=0.0, policy="none", mixup=0.0, cutmix=0.0, repeats=1)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # two would mostly wait for each other
    yield
    torch.set_num_threads(before)


@pytest.fixture
def unreported(monkeypatch: pytest.MonkeyPatch) -> None:
    skip_report(monkeypatch)


def steady(out: Path, **changes: Any) -> TrainConfig:
    """A run whose only randomness is initial weights and order, with SGD, in which small differences stay small."""
    plain = {"dropout": 0.0, "stochastic_depth": 0.0, "optim": Optim("sgd", lr=0.3), "augment": PLAIN, "steps": 11}
    return tiny(out, **(plain | changes))


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def largest_difference(one: Path, other: Path) -> float:
    ours, theirs = load_state(one), load_state(other)
    assert ours.keys() == theirs.keys()
    return max(float((ours[name] - theirs[name]).abs().max()) for name in ours)


# ---- Unreadable images ---------------------------------------------------------------------------------------------

BROKEN = {
    "train/a/03.jpg": ("the file is empty", lambda data: b""),
    "train/b/11.png": ("cannot be decoded", lambda data: data[: len(data) // 2]),
    "val/a/02.jpg": ("cannot be decoded", lambda data: data[: len(data) // 2]),
    "test/b/01.jpg": ("not an image in a supported format", lambda data: b"this is a note\n"),
}


def sample_images(root: Path) -> Path:
    """60 images in three splits, four of them unreadable."""
    chance = np.random.default_rng(0)
    for part, count in (("train", 20), ("val", 6), ("test", 4)):
        for label in "ab":
            (root / part / label).mkdir(parents=True)
            for i in range(count):
                path = root / part / label / f"{i:02d}.{'png' if i == 11 else 'jpg'}"
                Image.fromarray(chance.integers(0, 255, (12, 16, 3), dtype=np.uint8)).save(path)
    for name, (_, harm) in BROKEN.items():
        (root / name).write_bytes(harm((root / name).read_bytes()))
    return root


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_unreadable_images_are_named_counted_and_ignored(
    workers: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = sample_images(tmp_path / "set")
    config = steady(tmp_path / "run", data=str(data), batch_size=8, workers=workers)
    metrics = train(config).metrics
    out = capsys.readouterr().out
    assert "4 images could not be read" in out
    page = (tmp_path / "run" / "report.html").read_text()
    assert "4 files could not be read" in page
    assert "evaluated on the test split<" in page  # which did not select the best epoch
    for name, (reason, _) in BROKEN.items():
        assert f"  {name}: {reason}" in out
        assert name in page
    assert metrics == json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert len(metrics["unreadable_files"]) == 4
    assert {problem.split(":")[0] for problem in metrics["unreadable_files"]} == set(BROKEN)
    assert (metrics["part"], metrics["count"], metrics["unreadable"]) == ("test", 7, 1)
    last = rows(tmp_path / "run")[-1]
    assert (last["train_unreadable"], last["val_unreadable"], last["val_count"]) == (2, 1, 11)


def test_too_many_unreadable_images_fail_the_run(tmp_path: Path) -> None:
    config = steady(tmp_path / "run", data=str(sample_images(tmp_path / "set")), batch_size=8, max_unreadable=0.04)
    with pytest.raises(ValueError, match="2 of 40 training images") as error:
        train(config)
    line = str(error.value)
    assert "(5.0%) cannot be read, which is more than --max-unreadable 0.04 allows; the first is train/" in line
    assert any(name in line for name in BROKEN)
    assert "\n" not in line


# ---- Files of a run --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("unreported")
def test_keep_limits_the_number_of_earlier_checkpoints(tmp_path: Path) -> None:
    train(tiny(tmp_path / "run", steps=50, keep=2))  # 11 steps an epoch
    kept = sorted(path.name for path in (tmp_path / "run").glob("step-*"))
    assert kept == ["step-00000044", "step-00000050"]
    assert largest_difference(tmp_path / "run" / kept[1], tmp_path / "run" / "last") == 0
    assert largest_difference(tmp_path / "run" / kept[0], tmp_path / "run" / "last") > 0
    assert json.loads((tmp_path / "run" / kept[0] / "progress.json").read_text())["step"] == 44


def test_every_process_reports_the_signal_that_only_one_received(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(World, "max", lambda self, number: max(number, signal.SIGTERM))  # received by another process
    with pytest.raises(Interrupted) as stop:
        train(tiny(tmp_path / "run"))
    assert stop.value.signal_number == signal.SIGTERM
    copy = pickle.loads(pickle.dumps(stop.value))  # as from the process of a recipe
    assert (type(copy), vars(copy)) == (Interrupted, vars(stop.value))
    assert str(copy) == str(stop.value)
    assert f"after step 1 of 30 in {tmp_path / 'run'}; resume" in str(copy)


@pytest.mark.slow
@pytest.mark.usefixtures("unreported")
def test_patience_stops_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metrics = train(steady(tmp_path / "run", steps=1100, patience=2, optim=Optim("sgd", lr=1e-12))).metrics
    assert (metrics["epochs"], metrics["steps"]) == (3, 33)  # the first is the best; two are not better
    assert "no improvement in 2 evaluations" in capsys.readouterr().out
    assert load(tmp_path / "run" / "best").config.num_classes == 10


@pytest.mark.slow
@pytest.mark.usefixtures("unreported")
def test_tensorboard_has_every_metric_in_one_file(tmp_path: Path) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    train(steady(tmp_path / "run", steps=33, tensorboard=True))
    (file,) = (tmp_path / "run" / "tensorboard").iterdir()
    log = events.EventAccumulator(str(file)).Reload()
    for name in ("train_loss", "val_top1", "lr"):
        logged = [(event.step, event.value) for event in log.Scalars(name)]
        assert logged == [(row["step"], pytest.approx(row[name], rel=1e-6)) for row in rows(tmp_path / "run")]


# ---- Ways to train ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 11 steps, as a reference and a starting point."""
    folder = tmp_path_factory.mktemp("start") / "run"
    with pytest.MonkeyPatch.context() as patch:
        skip_report(patch)
        train(steady(folder))
    return folder


@pytest.mark.slow
@pytest.mark.usefixtures("unreported")
@pytest.mark.parametrize(
    ("changes", "far"),
    [
        ({"accumulate": 4}, 1e-6),
        ({"checkpoint_blocks": True}, 0.0),
        ({"workers": 2}, 0.0),
        ({"precision": "bf16"}, 0.02),
        ({"precision": "fp16"}, 0.002),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_memory_and_precision_options_do_not_change_the_result(
    changes: dict[str, Any], far: float, start: Path, tmp_path: Path
) -> None:
    metrics = train(steady(tmp_path / "run", **changes)).metrics
    assert largest_difference(tmp_path / "run" / "last", start / "last") <= far
    assert metrics["loss"] == pytest.approx(json.loads((start / "metrics.json").read_text())["loss"], rel=far or 1e-9)


@pytest.mark.slow
@pytest.mark.usefixtures("unreported")
@pytest.mark.parametrize(("optimizer", "schedule"), [("adamw", "rsqrt"), ("sgd", "cosine"), ("muon", "linear")])
def test_every_optimizer_and_schedule_learns(optimizer: Any, schedule: Any, tmp_path: Path) -> None:
    optim = Optim(optimizer, lr=0.3 if optimizer == "sgd" else 5e-3, schedule=schedule)
    train(steady(tmp_path / "run", steps=44, optim=optim))
    history = rows(tmp_path / "run")
    assert history[-1]["val_loss"] < history[0]["val_loss"] - 0.15
    assert [row["lr"] for row in history] == [
        pytest.approx(rate_fraction(row["step"] - 1, 44, optim) * (optim.lr or 0)) for row in history
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("unreported")
@pytest.mark.parametrize("train_only", ["head", "lora"])
def test_frozen_weights_stay_and_checkpoints_are_plain(train_only: Any, start: Path, tmp_path: Path) -> None:
    train(steady(tmp_path / "run", init=start / "last", model=None, overrides={}, train_only=train_only))
    before, after = load_state(start / "last"), load_state(tmp_path / "run" / "last")
    assert before.keys() == after.keys()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    matrices = {name for name in before if ".blocks." in name and before[name].ndim == 2}
    assert moved == {"head.weight", "head.bias"} | (matrices if train_only == "lora" else set())
    for name in matrices & moved:
        assert torch.linalg.matrix_rank(after[name] - before[name], rtol=1e-4) <= 8


@pytest.mark.slow
@pytest.mark.usefixtures("unreported")
def test_fine_tuning_at_another_size_is_resumed(start: Path, tmp_path: Path) -> None:
    config = steady(tmp_path / "run", init=start / "best", model=None, overrides={}, image_size=(16,))
    train(config)
    assert load(tmp_path / "run" / "best").config.image_size == (16, 16)
    again = train(dataclasses.replace(config, resume=True)).metrics  # already finished
    assert again["steps"] == 11


@pytest.mark.slow
@pytest.mark.usefixtures("unreported")
def test_distillation_approaches_the_teacher(start: Path, tmp_path: Path) -> None:
    """With all weight on a trained teacher, the student approaches its outputs."""
    distillation = Distillation(start / "last", "soft", distill_weight=1.0, distill_temperature=1.0)
    token = {"distillation_token": True}
    train(
        steady(
            tmp_path / "run",
            steps=44,
            optim=Optim(lr=3e-3),
            distillation=distillation,
            overrides=tiny(tmp_path).overrides | token,
        )
    )
    losses = [row["train_loss"] for row in rows(tmp_path / "run")]
    assert losses[-1] < losses[0] / 2
    student = load(tmp_path / "run" / "last")
    assert student.config.distillation_token  # type: ignore[union-attr]


# ---- Folders ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("unreported")
def test_failed_setup_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(BadValue, match="batch_size"):
        train(steady(tmp_path / "run", batch_size=5000))
    assert not (tmp_path / "run").exists()
    train(steady(tmp_path / "run", steps=1))
    assert (tmp_path / "run" / "metrics.json").exists()


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), KeyboardInterrupt()], ids=repr)
def test_only_new_runs_are_removed_on_an_error_before_the_first_checkpoint(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*rest: Any) -> None:
        raise error

    monkeypatch.setattr(loop, "train_steps", fail)
    with pytest.raises(type(error)):
        train(steady(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
    monkeypatch.setattr(loop.run_folder, "release", lambda folder: None)  # as if the run had been killed
    with pytest.raises(type(error)):
        train(steady(tmp_path / "run"))
    monkeypatch.undo()
    monkeypatch.setattr(loop, "train_steps", fail)
    with pytest.raises(type(error)):
        train(TrainConfig(out=tmp_path / "run", resume=True, device="cpu"))
    assert (tmp_path / "run" / "config.json").exists()


def test_resume_rejects_changed_settings(start: Path) -> None:
    again = dataclasses.replace(steady(start), resume=True)
    with pytest.raises(BadValue, match=r"steps is 500, but must be .*11"):
        train(dataclasses.replace(again, steps=500))
    with pytest.raises(BadValue, match=r"lr is 0\.5, but must be .*0\.3"):
        train(dataclasses.replace(again, optim=Optim("sgd", lr=0.5)))


@pytest.mark.usefixtures("unreported")
def test_only_the_folder_is_needed_to_resume(start: Path) -> None:
    before = json.loads((start / "metrics.json").read_text())
    after = train(TrainConfig(out=start, resume=True, batch_size="auto", device="cpu")).metrics
    assert {name: after[name] for name in ("top1", "loss", "steps")} == {
        name: before[name] for name in ("top1", "loss", "steps")
    }


@pytest.mark.slow
@pytest.mark.usefixtures("unreported")
def test_seconds_include_all_resumptions(start: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = rows(start)[-1]["seconds"]
    assert train(TrainConfig(out=start, resume=True, device="cpu")).metrics["seconds"] > before > 0
    assert "finished" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.usefixtures("unreported")
def test_run_that_failed_on_unreadable_images_can_be_repeated(tmp_path: Path) -> None:
    config = steady(tmp_path / "run", data=str(sample_images(tmp_path / "set")), batch_size=8, max_unreadable=0.0)
    with pytest.raises(ValueError, match="--max-unreadable 0 allows"):
        train(config)
    assert not (tmp_path / "run").exists()
    train(dataclasses.replace(config, max_unreadable=0.1))


@pytest.mark.slow
@pytest.mark.usefixtures("unreported")
def test_max_unreadable_is_kept_on_resume(tmp_path: Path) -> None:
    config = steady(
        tmp_path / "run", data=str(sample_images(tmp_path / "set")), batch_size=8, max_unreadable=0.5, steps=6
    )
    train(config)
    (tmp_path / "run" / "metrics.json").unlink()
    train(TrainConfig(out=tmp_path / "run", resume=True, device="cpu"))
    assert resumed_config(TrainConfig(out=tmp_path / "run", resume=True)).max_unreadable == 0.5
    assert resumed_config(TrainConfig(out=tmp_path / "run", resume=True, max_unreadable=0.1)).max_unreadable == 0.1


@pytest.mark.slow
@pytest.mark.usefixtures("unreported")
def test_clip_0_does_not_change_gradients(tmp_path: Path) -> None:
    """Compare no clipping with a limit above all gradients and a limit below them."""
    for name, clip in (("none", 0.0), ("far", 1e9), ("near", 1e-3)):
        train(steady(tmp_path / name, steps=3, optim=Optim("sgd", lr=0.3, clip=clip)))
    assert largest_difference(tmp_path / "none" / "last", tmp_path / "far" / "last") == 0
    assert largest_difference(tmp_path / "none" / "last", tmp_path / "near" / "last") > 0


def test_invalid_model_is_reported_before_the_data_is_opened(tmp_path: Path) -> None:
    for changes in ({"model": "ViT-X/16"}, {"overrides": {"foo": 3}}, {"image_size": (7,)}):
        with pytest.raises(BadValue):
            train(steady(tmp_path / "run", data="nowhere", **changes))
    with pytest.raises(ValueError, match=r"checkpoint .* not found"):
        train(steady(tmp_path / "run", data="nowhere", model=None, overrides={}, init=tmp_path / "x"))


@pytest.mark.slow
@pytest.mark.usefixtures("unreported")
def test_next_commands_are_quoted_and_use_the_same_split(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = sample_images(tmp_path / "a set")
    train(steady(tmp_path / "run", data=str(data / "train"), batch_size=8, seed=3, steps=1, max_unreadable=0.1))
    lines = capsys.readouterr().out.splitlines()[-3:]
    best = tmp_path / "run" / "best"
    assert lines[1] == f"  vitreous eval {best} --data '{data}/train' --seed 3"  # the same split
    sample_image = lines[0].removeprefix(f"  vitreous predict {best} ").strip("'")
    assert Path(sample_image).is_file()


# ---- The best checkpoint ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("unreported")
@pytest.mark.parametrize(
    ("losses", "best"),
    [
        ([1.0, 0.3, 0.7, 0.5], 2),
        ([1.0, 0.5, 0.7, 0.5], 4),
        ([1.0, math.nan, 0.7, math.nan], 3),
        ([1.0, math.nan, math.nan, math.nan], 4),
    ],
)
def test_best_of_equal_evaluations_has_the_smallest_loss_and_is_the_latest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, losses: list[float], best: int
) -> None:
    evaluate, top1, left = Job.evaluate, iter([0.5, 0.9, 0.9, 0.9]), iter(losses)

    def measured(*arguments: Any) -> Any:
        found = evaluate(*arguments)
        metrics = {**found.metrics(), "top1": next(top1, 0), "loss": next(left, 0)}
        monkeypatch.setattr(type(found), "metrics", lambda self: metrics)
        return found

    monkeypatch.setattr(Job, "evaluate", measured)
    train(steady(tmp_path / "run", steps=44))
    history = rows(tmp_path / "run")
    assert [row["epoch"] for row in history] == [1, 2, 3, 4]
    progress = read_progress(tmp_path / "run" / "last")
    assert progress.best_step == history[best - 1]["step"]
    marked = plots.best_row(history)
    assert marked is not None
    assert marked["epoch"] == best


# ---- The public function ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("unreported")
def test_train_takes_fields_as_keywords_and_returns_a_run(tmp_path: Path) -> None:
    small = {"patch_size": 4, "width": 32, "mlp_width": 32, "depth": 1, "num_heads": 2, "pool": GlobalAverage()}
    fields = {"data": "digits", "model": "ViT-Lite-6/4", "overrides": small, "image_size": 8, "steps": 1, "lr": 1e-3}
    run = vitreous.train(**fields, out=tmp_path / "run", batch_size=64, mixup=0.2)
    assert run.folder == tmp_path / "run"
    assert run.metrics == json.loads((run.folder / "metrics.json").read_text())
    assert run.model.config.labels == tuple("0123456789")
    stored = json.loads((run.folder / "config.json").read_text())
    assert stored["overrides"]["patch_size"] == [4, 4]
    assert stored["overrides"]["pool"] == {"kind": "GlobalAverage", "norm": "before"}
    assert (stored["optim"]["lr"], stored["augment"]["mixup"]) == (1e-3, 0.2)
    with pytest.raises(BadValue, match=r"'epoch' is not a field of TrainConfig .*did you mean 'epochs'"):
        vitreous.train(data="digits", epoch=3)


def test_overrides_of_early_versions_are_read(start: Path, tmp_path: Path) -> None:
    """Earlier versions wrote overrides as "set": ["field=JSON", ...]."""
    config = json.loads((start / "config.json").read_text())
    texts = [f"{name}={json.dumps(value)}" for name, value in config.pop("overrides").items()]
    (tmp_path / "config.json").write_text(json.dumps(config | {"set": texts}))
    assert read_config(tmp_path) == read_config(start)


def test_resume_needs_a_folder() -> None:
    with pytest.raises(BadValue, match="--resume needs --out"):
        train(TrainConfig(resume=True))


@pytest.mark.slow
def test_report_has_the_first_command_every_resume_and_the_mean_speed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[Any] = []
    monkeypatch.setattr(run_results, "write_report", lambda folder, report: reports.append(report) or folder)
    monkeypatch.setattr(run_results, "can_draw", lambda: False)
    config = steady(tmp_path / "run", steps=22)
    train(config, command="the first")
    run = train(dataclasses.replace(config, resume=True), command="the second\nline")
    assert reports[-1].commands == ["the first", "the second line"]
    speeds = [row["train_images_per_second"] for row in rows(tmp_path / "run")]
    assert len(speeds) == 2
    assert run.metrics["images_per_second"] == pytest.approx(2 / (1 / speeds[0] + 1 / speeds[1]))
