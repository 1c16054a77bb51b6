"""Semi-supervised runs: their data, resuming, runs of earlier teachers, and several processes."""

import io
import json
import signal
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from native_models import load_state
from recipes import cifar10_4000_labels, pets_few_labels
from recipes.few_labels import METHODS, Options, run_of, write_labelled
from train_runs import finish_in_two, skip_report, tiny
from vitreous.common.distributed import World
from vitreous.data.loader import BatchSlice, PairedLoader
from vitreous.data.open import find_data, open_data
from vitreous.data.resident import ResidentLoader
from vitreous.data.sources.base import ArraySource, Source
from vitreous.tasks.all_tasks import SEMI_SUPERVISED
from vitreous.training import Augment, Distillation, Optim, SemiSupervised, TrainConfig
from vitreous.training import run as loop
from vitreous.training.defaults import choose
from vitreous.training.run import Interrupted, train
from vitreous.training.setup import Job, set_up, task_class_of
from vitreous.weights.io.safetensors_file import read_tensors


@pytest.fixture
def few(tmp_path: Path) -> Path:
    """Folder with 40 labelled digits (and 60 for validation), and 100 digits with wrong labels."""
    source = find_data("digits").splits["all"]
    assert isinstance(source, ArraySource)
    x, y = source.images, source.labels
    np.savez(tmp_path / "few.npz", x_train=x[:40], y_train=y[:40], x_val=x[40:100], y_val=y[40:100])
    np.savez(tmp_path / "more.npz", x=x[100:200], y=np.arange(100) % 2)
    return tmp_path


def semi(few: Path, method: Any, out: str = "run", more: str = "more.npz", **changes: Any) -> TrainConfig:
    rounds = 1 if method == "noisy-student" else SemiSupervised.rounds
    options = SemiSupervised(few / more, method, unlabelled_ratio=2, threshold=0.0, rounds=rounds)
    small: dict[str, Any] = {"steps": 6, "batch_size": 8, "workers": 0, "keep_images": "memory"}
    augment = Augment(crop="padded", flip=0.5, policy="randaugment", mixup=0.2)
    return tiny(
        few / out, **{"data": few / "few.npz", **small, "semi_supervised": options, "augment": augment, **changes}
    )


def job(config: TrainConfig) -> Job:
    data = task_class_of(config).open_data(config, None)
    return set_up(choose(config, data, "cpu").config, data, World(0, 1, torch.device("cpu")))


def state(folder: Path) -> dict[str, torch.Tensor]:
    shards = [read_tensors(path) for path in (folder / "last" / "training").glob("*.safetensors")]
    return {name: tensor for shard in shards for name, tensor in shard.items()}


def same(one: Path, other: Path) -> bool:
    a, b = state(one), state(other)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_batches_depend_only_on_the_seed_and_the_step(few: Path) -> None:
    ready = job(semi(few, "consistency"))
    whole, rest = list(ready.loader.batches(0, 15)), list(ready.loader.batches(9, 15))
    for one, other in zip(whole[9:], rest, strict=True):
        assert one.unlabelled is not None
        assert other.unlabelled is not None
        assert len(one.unlabelled.labels) == 2 * len(one.labels) == 16
        assert torch.equal(one.unlabelled.indices, other.unlabelled.indices)
        for a, b in zip(ready.task.prepare(one), ready.task.prepare(other), strict=True):
            assert torch.equal(a, b)
    epoch = torch.cat([batch.unlabelled.indices for batch in whole[:6] if batch.unlabelled])
    assert len(epoch.unique()) == 96  # all but the incomplete last batch
    assert isinstance(ready.loader, PairedLoader)
    loader = ready.loader.unlabelled
    assert isinstance(loader, ResidentLoader)
    halves = [ResidentLoader(loader.kept, loader.seed, BatchSlice(16, rank, 2), 1, loader.device) for rank in (0, 1)]
    parts = [next(half.batches(3, 4)).images for half in halves]
    assert whole[3].unlabelled is not None
    assert torch.equal(torch.cat(parts), whole[3].unlabelled.images)


@pytest.mark.parametrize("batch_size", [None, "auto"])
def test_chosen_batch_needs_at_most_all_unlabelled_images(few: Path, batch_size: Any) -> None:
    options = SemiSupervised(few / "more.npz", "consistency", unlabelled_ratio=7)
    ready = job(semi(few, "consistency", semi_supervised=options, batch_size=batch_size))
    assert ready.config.batch_size == 100 // 7


@pytest.mark.parametrize(("steps", "keep"), [(9, "no"), (40, "memory")])
def test_images_are_kept_if_most_of_both_kinds_are_used_again(few: Path, steps: int, keep: str) -> None:
    """In 9 steps, the eight labelled images are used nine times, but most of the 160 unlabelled ones only once."""
    for i in range(170):
        path = few / "images" / ("few" if i < 10 else "more") / "ab"[i % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), i).save(path)
    options = SemiSupervised(few / "images" / "more", "consistency", unlabelled_ratio=2)
    how: dict[str, Any] = {"data": few / "images" / "few", "batch_size": 8, "steps": steps, "keep_images": None}
    assert job(semi(few, "consistency", semi_supervised=options, **how)).config.keep_images == keep


def test_expected_time_of_evaluations_counts_all_images_of_a_step(few: Path) -> None:
    supervised, methods = semi(few, "consistency", semi_supervised=SemiSupervised()), SEMI_SUPERVISED
    times = {method: loop.evaluation_time(job(semi(few, method))) for method in methods if method != "noisy-student"}
    alone = loop.evaluation_time(job(supervised))
    assert {method: alone / time for method, time in times.items()} == pytest.approx(
        {"consistency": 3, "meta-pseudo-labels": 5}
    )


def test_labels_of_unlabelled_images_have_no_effect(few: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_report(monkeypatch)
    arrays = dict(np.load(few / "more.npz"))
    np.savez(few / "other.npz", x=arrays["x"], y=np.arange(100) % 7)
    train(semi(few, "consistency"))
    train(semi(few, "consistency", out="again", more="other.npz"))
    assert same(few / "run", few / "again")
    rows = [json.loads(line) for line in (few / "run" / "metrics.jsonl").read_text().splitlines()]
    assert all(row["train_pseudo_labelled"] == 1 for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("method", SEMI_SUPERVISED)
def test_an_interrupted_run_is_resumed_exactly(few: Path, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_report(monkeypatch)
    train(semi(few, method))
    add, seen = loop.Monitor.add, []

    def often(self: Any, result: Any, batch: Any) -> None:
        add(self, result, batch)
        seen.append(result)
        if len(seen) in (2, 9):  # steps of Noisy Student's teacher and student
            handler = signal.getsignal(signal.SIGTERM)
            assert callable(handler)
            handler(signal.SIGTERM, None)

    monkeypatch.setattr(loop.Monitor, "add", often)
    config = semi(few, method, out="again", auto_resume=True)
    for stopped in ("again/teacher", "again") if method == "noisy-student" else ("again",):
        with pytest.raises(Interrupted, match=rf" in {few / stopped}; resume .* --out {few / 'again'} --resume"):
            train(config)
    train(config)
    assert len(seen) == (12 if method == "noisy-student" else 6)  # no step was repeated
    assert same(few / "run", few / "again")
    if method == "noisy-student":
        assert same(few / "run" / "teacher", few / "again" / "teacher")
        names = [np.load(few / name / "pseudo_labels.npz")["probabilities"] for name in ("run", "again")]
        assert np.array_equal(*names)


@pytest.mark.slow
def test_a_student_without_pseudo_labels_is_trained_like_its_teacher(
    few: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_report(monkeypatch)
    options = SemiSupervised(few / "more.npz", "noisy-student", unlabelled_ratio=2, threshold=1.0, rounds=1)
    # AdamW would enlarge rounding errors of the key biases, which have no gradient.
    how: dict[str, Any] = {"dropout": 0.0, "stochastic_depth": 0.0, "optim": Optim("sgd", lr=0.1, ema=0.9)}
    train(semi(few, "noisy-student", semi_supervised=options, **how))
    student, teacher = state(few / "run"), state(few / "run" / "teacher")
    assert student.keys() == teacher.keys()
    assert all(torch.allclose(student[name], teacher[name], atol=1e-4) for name in student if name.startswith("ema."))


@pytest.mark.slow
def test_the_first_teacher_can_be_a_checkpoint(few: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_report(monkeypatch)
    train(semi(few, "consistency", out="first"))
    taught = semi(few, "noisy-student", distillation=Distillation(few / "first" / "best"))
    train(taught)
    assert (few / "run" / "pseudo_labels.npz").exists()
    assert not (few / "run" / "teacher").exists()
    with pytest.raises(ValueError, match="missing"):
        train(semi(few, "noisy-student", out="other", distillation=Distillation(few / "missing")))
    assert not (few / "other").exists()


@pytest.mark.slow
def test_pseudo_labels_survive_a_failed_setup(few: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*rest: Any) -> None:
        raise RuntimeError("out of memory")

    skip_report(monkeypatch)
    train(semi(few, "consistency", out="first"))
    with monkeypatch.context() as patch:
        patch.setattr(loop, "set_up", fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            train(semi(few, "noisy-student", distillation=Distillation(few / "first" / "best")))
    before = (few / "run" / "pseudo_labels.npz").stat().st_mtime_ns
    train(TrainConfig(out=few / "run", resume=True, device="cpu"))
    assert (few / "run" / "pseudo_labels.npz").stat().st_mtime_ns == before


@pytest.mark.slow
def test_meta_pseudo_labels_saves_the_student(few: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_report(monkeypatch)
    # With one evaluation and a decay of 0, the best weights are the last ones of the student.
    run = train(semi(few, "meta-pseudo-labels", steps=5, optim=Optim(lr=3e-3, ema=0.0)))
    stored = state(run.folder)
    assert {name.split(".")[1] for name in stored if name.startswith("weights.")} == {"student", "teacher"}
    assert any(name.startswith("optimizer.teacher.") for name in stored)
    best = run.model.state_dict()["head.weight"]
    assert torch.equal(best, stored["weights.student.head.weight"])
    assert not torch.equal(best, stored["weights.teacher.head.weight"])


@pytest.mark.parametrize("kind", ["training", "unlabelled"])
def test_unreadable_images_of_each_kind_are_limited(few: Path, kind: str) -> None:
    images = few / "images"
    for i in range(40):
        path = images / ("few" if i < 8 else "more") / "ab"[i % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), i).save(path)
    broken = sorted((images / ("few" if kind == "training" else "more")).rglob("*.png"))[:4]
    for path in broken:
        path.write_bytes(b"")
    options = SemiSupervised(images / "more", "consistency", unlabelled_ratio=1)
    how: dict[str, Any] = {"data": images / "few", "batch_size": 2, "steps": 16, "max_unreadable": 0.12}
    with pytest.raises(ValueError, match=f"of [0-9]+ {kind} images"):
        train(semi(few, "consistency", semi_supervised=options, **how))


def test_data_errors(few: Path) -> None:
    with pytest.raises(ValueError, match="has 100 images, but a batch needs 120"):
        train(semi(few, "consistency", semi_supervised=SemiSupervised(few / "more.npz", unlabelled_ratio=15)))
    options = SemiSupervised(few / "more.npz", "noisy-student", unlabelled_ratio=15)
    with pytest.raises(ValueError, match="has 100 images"):
        train(semi(few, "noisy-student", semi_supervised=options))
    with pytest.raises(ValueError, match=r"missing\.npz"):
        train(semi(few, "consistency", more="missing.npz"))
    assert not (few / "run").exists()
    (few / "run" / "teacher").mkdir(parents=True)
    (few / "run" / "teacher" / "config.json").touch()
    with pytest.raises(ValueError, match="teacher already contains a run"):
        train(semi(few, "noisy-student"))


@pytest.mark.slow
def test_changed_unlabelled_images_are_rejected(few: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_report(monkeypatch)
    train(semi(few, "consistency"))
    x = np.load(few / "more.npz")["x"]
    np.savez(few / "more.npz", x=x[:90], y=np.zeros(90, int))
    with pytest.raises(ValueError, match="has changed since the run started"):
        train(TrainConfig(out=few / "run", resume=True))


# ---- Recipes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stored", ["arrays", "files"])
def test_recipe_draws_labels_of_each_class(stored: str, tmp_path: Path) -> None:
    labels = np.arange(30) % 3
    if stored == "arrays":
        data = tmp_path / "x.npz"
        images = np.arange(30, dtype=np.uint8)[:, None, None].repeat(4, 1).repeat(4, 2)
        np.savez(data, x_train=images, y_train=labels, x_test=images[:6], y_test=labels[:6])
    else:
        data = tmp_path / "x"
        for i, label in enumerate(labels):
            folder = data / ("train" if i < 24 else "test") / str(label)
            folder.mkdir(parents=True, exist_ok=True)
            Image.new("L", (4, 4), i).save(folder / f"{i}.png")
    options = Options(data=str(data), labels=2, out=tmp_path / "runs")
    drawn = [open_data(str(write_labelled(options, seed))) for seed in (0, 0, 1)]
    assert [np.bincount(found.train.labels).tolist() for found in drawn] == [[2, 2, 2]] * 3
    assert [len(found.val) for found in drawn] == [6] * 3
    names = [[decode(found.train, i) for i in range(6)] for found in drawn]
    assert names[0] == names[1] != names[2]
    for found in drawn:
        assert all(labels[decode(found.train, i)] == found.train.labels[i] for i in range(6))


def decode(source: Source, index: int) -> int:
    """The grey level of an image, which is its number."""
    stored = source.image(index)
    return int(stored[0, 0, 0] if isinstance(stored, np.ndarray) else np.array(Image.open(io.BytesIO(stored)))[0, 0])


@pytest.mark.parametrize("recipe", [cifar10_4000_labels, pets_few_labels], ids=lambda recipe: recipe.__name__)
@pytest.mark.parametrize("method", METHODS)
def test_recipes_are_valid(recipe: Any, method: str, tmp_path: Path) -> None:
    config = run_of(recipe.config(method), method, 0, tmp_path, recipe.OPTIONS)
    config.check()
    task_class_of(config).check(config)
    assert (config.semi_supervised.unlabelled is None) == (method == "supervised")


# ---- Several processes -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "parallel"),
    [*product(SEMI_SUPERVISED, ["ddp"]), ("consistency", "fsdp"), ("noisy-student", "fsdp")],
)
def test_two_processes_train_like_one(few: Path, method: str, parallel: Any) -> None:
    # Dropout is drawn per process. AdamW would enlarge rounding errors of the key biases, which have no gradient.
    how: dict[str, Any] = {"dropout": 0.0, "stochastic_depth": 0.0, "optim": Optim("sgd", lr=0.1, ema=0.9)}
    finish_in_two(semi(few, method, out="two", parallel=parallel, **how))
    train(semi(few, method, **how))
    if parallel == "ddp":
        one, two = state(few / "run"), state(few / "two")
    else:  # the training state is sharded
        one, two = ({f"weights.{k}": w for k, w in load_state(few / run / "last").items()} for run in ("run", "two"))
    assert one.keys() == two.keys()
    for name in one:
        if name.startswith(("weights.", "ema.")):
            assert torch.allclose(one[name], two[name], atol=1e-4), name
