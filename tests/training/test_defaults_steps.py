"""Automatic choice of batch size, augmentation, length, learning rate and workers, tested at their thresholds."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from automatic_choices import TINY, checkpoint, chosen, sample_images
from vitreous.common import device as capacity
from vitreous.data.augment.config import Augmentation
from vitreous.data.open import open_data
from vitreous.model.config import SegmenterConfig, ViTConfig
from vitreous.model.cost import cost
from vitreous.model.options import LinearDecoder
from vitreous.model.presets import configure
from vitreous.tasks.classify import Classify
from vitreous.training import Augment, Optim, TrainConfig
from vitreous.training.defaults import choose, fitting_batch, free_folder
from vitreous.weights.load import describe


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint(tmp_path_factory.mktemp("checkpoints") / "vit")


def test_every_choice_is_noted_in_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    notes = chosen(40, 120, validation=8, out=None).notes
    given = [note.split(" (")[0] for note in notes if not note.startswith("overrides")]
    assert given == [
        "model = ViT-Ti/16", "image_size = 128", "batch_size = 16", "augmentation = TrivialAugment, for 40 images",
        "epochs = 150", "evaluate_every = 13", "optimizer = muon", "lr = 7e-3", "keep_images = memory", "workers = 0",
        "out = runs/pictures",
    ]  # fmt: skip
    assert "class_token=False (better for few images" in " ".join(notes)
    assert "epochs = 300 (1 step per epoch, on cpu)" in chosen(20, 120).notes


# ---- The batch -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "device", "processes", "accumulate", "size"),
    [
        (100_000, "cpu", None, 1, 64), (100_000, "mps", 1, 1, 64), (100_000, "cuda", 1, 1, 512),
        (400, "cpu", None, 1, 50),  # an eighth
        (120, "cuda", 1, 1, 16), (144, "cuda", 1, 1, 18),  # or sixteen
        (15, "cpu", 1, 1, 14), (3, "cpu", 1, 1, 2),  # all, in pairs
        (100_000, "cuda", 3, 1, 510), (400, "cpu", 2, 4, 48), (400, "cpu", 4, 2, 48),  # even shares of pairs
        (15, "cpu", 8, 1, 16),  # too few images, so a warning follows
    ],
)  # fmt: skip
def test_batch_size_divides_into_pairs_for_every_process(
    count: int, device: str, processes: int | None, accumulate: int, size: int
) -> None:
    found = chosen(count, device=device, processes=processes, accumulate=accumulate)
    assert found.config.batch_size == size
    assert f"batch_size = {size} (for {count:,} images on {device})" in found.notes


def test_auto_batch_size_fits_half_of_the_free_memory_of_each_gpu(monkeypatch: pytest.MonkeyPatch, vit: Path) -> None:
    free = 2 * 32 * cost(describe(vit).config).activation_bytes
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (free, 100 * free))
    for processes, many, few in ((1, 32, 16), (2, 64, 16), (3, 96, 12)):
        found = chosen(100_000, device="cuda", processes=processes, init=vit, batch_size="auto")
        assert found.config.batch_size == many
        assert f"batch_size = {many} (fits in half of the free memory)" in found.notes
        assert chosen(80, device="cuda", processes=processes, init=vit, batch_size="auto").config.batch_size == few


def test_auto_batch_size_fits_half_of_the_free_memory_of_a_cpu(monkeypatch: pytest.MonkeyPatch, vit: Path) -> None:
    each = cost(describe(vit).config).activation_bytes
    known = {"SC_AVPHYS_PAGES": 8, "SC_PHYS_PAGES": 64, "SC_PAGE_SIZE": 2 * each}
    monkeypatch.setattr(os, "sysconf", lambda name: known[name])
    monkeypatch.setattr(capacity, "MEMINFO", "/nonexistent")
    assert chosen(100_000, init=vit, batch_size="auto").config.batch_size == 8


def test_processes_on_one_cpu_share_its_memory(monkeypatch: pytest.MonkeyPatch, vit: Path) -> None:
    each = cost(describe(vit).config).activation_bytes
    known = {"SC_AVPHYS_PAGES": 64, "SC_PHYS_PAGES": 64, "SC_PAGE_SIZE": 2 * each}
    monkeypatch.setattr(os, "sysconf", known.__getitem__)
    monkeypatch.setattr(capacity, "MEMINFO", "/nonexistent")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert chosen(100_000, processes=4, init=vit, batch_size="auto").config.batch_size == 64


def test_auto_batch_size_is_between_1_and_4096() -> None:
    model = configure("ViT-Ti/16", image_size=32, overrides=TINY)
    each = 2 * cost(model).activation_bytes
    found = [fitting_batch(model, memory) for memory in (0, each - 1, 2 * each - 1, 2 * each, 4096 * each, 10**15)]
    assert found == [1, 1, 1, 2, 4096, 4096]


def test_auto_batch_size_includes_the_scores_of_every_pixel() -> None:
    encoder = configure("ViT-Ti/16", num_classes=0, image_size=64, overrides=TINY)
    assert isinstance(encoder, ViTConfig)
    model = SegmenterConfig(encoder, LinearDecoder(1), 250)
    scores = 2 * 4 * 250 * 64 * 64  # and their softmax, in float32
    each = 2 * (cost(model).activation_bytes + scores)
    assert (fitting_batch(model, 8 * each), fitting_batch(model, 8 * each - 1)) == (8, 4)


# ---- Augmentation ----------------------------------------------------------------------------------------------------


LIGHT = Augmentation(crop_scale=(0.35, 1.0), policy="trivial")
STRONG = Augmentation(crop_scale=(0.2, 1.0), policy="trivial", mixup=0.2, cutmix=1.0)
WITH_MASKS = Augmentation(crop_scale=(0.35, 1.0), colour_jitter=0.3)
PLAIN = Augmentation(crop_scale=(0.2, 1.0))


@pytest.mark.parametrize(
    ("task", "count", "init", "expected", "given"),
    [
        ("classify", 4_999, False, LIGHT, "TrivialAugment, for 4,999 images"),
        ("classify", 5_000, False, STRONG, "TrivialAugment, mixup and CutMix"),
        ("classify", 5_000, True, LIGHT, "TrivialAugment, for fine-tuning"),
        ("segment", 5_000, False, WITH_MASKS, "crop, flip and colour jitter"),
        ("mae", 5_000, False, PLAIN, "crop and flip"),
        ("mpp", 100, True, PLAIN, "crop and flip"),
    ],
)
def test_augmentation_depends_on_task_and_number_of_images(
    task: Any, count: int, init: bool, expected: Augmentation, given: str, vit: Path
) -> None:
    found = chosen(count, 128, task=task, **({"init": vit} if init else {}))
    assert vars(found.config.augment) == vars(expected)
    assert any(note.startswith(f"augmentation = {given}") for note in found.notes)


@pytest.mark.parametrize(("task", "largest"), [("classify", 48), ("mae", 48), ("segment", 96)])
@pytest.mark.parametrize("count", [100, 5_000])
def test_small_images_get_a_padded_crop(task: Any, count: int, largest: int) -> None:
    """A padded crop does not change the outlines of a mask."""
    assert chosen(count, largest, task=task).config.augment.crop == "padded"
    assert chosen(count, largest + 1, task=task).config.augment.crop == "resized"


def test_given_augmentation_is_kept_and_the_rest_chosen() -> None:
    found = chosen(5_000, augment=Augment(mixup=0.5))
    assert (found.config.augment.mixup, found.config.augment.cutmix, found.config.augment.policy) == (
        0.5,
        1.0,
        "trivial",
    )
    assert not any(note.startswith("augmentation") for note in found.notes)


# ---- How long --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "init", "count", "side", "batch", "epochs"),
    [
        ("cpu", False, 640, 64, 64, 100), ("cpu", True, 1_280, 64, 64, 10),
        ("cpu", False, 1, 64, 1, 300), ("cpu", True, 5, 64, 1, 20),  # at least 300 steps; 100 for fine-tuning
        ("cpu", False, 75, 64, 1, 20), ("cpu", False, 79, 64, 1, 18),  # at most 1,500
        ("cpu", True, 100, 64, 1, 5), ("cpu", True, 501, 64, 1, 1),  # at most 500 for fine-tuning
        ("cpu", False, 1_501, 64, 1, 1),  # but all images
        ("cuda", False, 7_000, 64, 100, 100), ("cuda", True, 3_000, 64, 100, 25),
        ("mps", False, 1, 64, 1, 600), ("cuda", True, 10, 64, 1, 40),  # at least 600; 400 for fine-tuning
        ("cuda", True, 300, 64, 1, 5), ("cuda", True, 10_000, 64, 1, 3),  # at most 1,500, but three epochs
        ("cuda", False, 2_000, 64, 1, 20), ("cuda", False, 3_077, 64, 1, 12),  # at most 40,000
        ("cuda", False, 100_000, 64, 1_000, 100), ("cuda", False, 100_001, 64, 1_000, 300),  # many
        ("cuda", False, 100_001, 48, 1_000, 100), ("cuda", True, 100_001, 64, 1_000, 15),
    ],
)  # fmt: skip
def test_epochs_depend_on_the_number_of_steps_and_the_device(
    device: str, init: bool, count: int, side: int, batch: int, epochs: int, vit: Path
) -> None:
    start = {"init": vit} if init else {}
    found = chosen(count, side, device, batch_size=batch, **start)
    assert found.config.epochs == epochs
    assert chosen(count, side, device, batch_size=batch, steps=7, **start).config.epochs is None


@pytest.mark.parametrize(
    ("per_epoch", "given", "every"),
    [
        (1, {"epochs": 300}, 25), (2, {"epochs": 300}, 13), (24, {"epochs": 300}, 2), (25, {"epochs": 300}, None),
        (24, {"epochs": 19}, None), (24, {"epochs": 20}, 2), (2, {"epochs": 40}, 4), (2, {"steps": 80}, 4),
        (2, {"epochs": 300, "evaluate_every": 1}, 1),
    ],
    ids=str,
)  # fmt: skip
def test_evaluations_are_25_steps_apart_unless_that_leaves_fewer_than_ten(
    per_epoch: int, given: dict[str, Any], every: int | None
) -> None:
    found = chosen(10 * per_epoch + 9, batch_size=10, validation=1, **given)
    assert found.config.evaluate_every == every
    noted = f"evaluate_every = {every} ({per_epoch} step{'s' if per_epoch > 1 else ''} per epoch"
    assert any(note.startswith(noted) for note in found.notes) == (every not in (None, 1))


@pytest.mark.parametrize(
    ("validation", "epochs", "every"),
    [(60, 100, None), (61, 100, 2), (250, 100, 5), (250, 30, 3), (250, 19, None), (1000, 300, 17), (1000, 100, 10)],
    ids=str,
)
def test_evaluations_take_a_fiftieth_of_the_steps_unless_that_leaves_fewer_than_ten(
    validation: int, epochs: float, every: int | None
) -> None:
    found = chosen(1000, batch_size=10, validation=validation, epochs=epochs)
    assert found.config.evaluate_every == every


def test_evaluations_are_compared_with_all_images_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Classify, "step_images", classmethod(lambda cls, config: 2))
    assert chosen(1000, batch_size=10, validation=120, epochs=100).config.evaluate_every is None


# ---- The learning rate -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "init", "batch", "rate", "reason"),
    [
        ({}, False, 512, 7e-3, "for Muon"), ({"optim": Optim("muon")}, False, 128, 7e-3, "for Muon"),
        ({"optim": Optim("adamw")}, False, 128, 5e-4, "for AdamW, scaled with sqrt"),
        ({"optim": Optim("adamw")}, False, 1024, 1.4e-3, "for AdamW, scaled with sqrt"),  # two digits
        ({"optim": Optim("sgd")}, False, 512, 0.03, "for SGD"), ({"optim": Optim("sgd")}, True, 128, 0.015, "for SGD"),
        ({"train_only": "all"}, True, 256, 5.6e-4, "for fine-tuning"), ({}, True, 64, 1e-3, "for LoRA"),
        ({"train_only": "lora"}, True, 256, 2e-3, "for LoRA"),
        ({"train_only": "head"}, True, 512, 3e-3, "for training only the head"),
        ({"train_only": "head"}, True, 128, 3e-3, "for training only the head"),
    ],
    ids=str,
)  # fmt: skip
def test_learning_rate_depends_on_trained_weights_and_batch_size(
    given: dict[str, Any], init: bool, batch: int, rate: float, reason: str, vit: Path
) -> None:
    start = {"init": vit} if init else {}
    found = chosen(10_000, batch_size=batch, **start, **given)
    assert found.config.optim.lr == rate
    assert any(note.startswith("lr = ") and f"({reason}" in note for note in found.notes)


# ---- Workers and folders ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "cores", "processes", "here", "workers"),
    [
        ("cuda", 16, 1, None, 16), ("cuda", 64, 1, None, 16), ("cuda", 64, 8, None, 8), ("cuda", 3, 8, None, 1),
        ("cpu", 64, 1, None, 16), ("cpu", 3, 1, None, 1), ("cpu", 80, 1, None, 20),
        ("cuda", 12, 8, 2, 6), ("cpu", 24, 8, 2, 3), ("cuda", 12, 2, 2, 6),  # two of them on this machine
    ],
)  # fmt: skip
def test_workers_share_the_cores_of_their_machine(
    device: str, cores: int, processes: int, here: int | None, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if here is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(here))
    assert chosen(device=device, processes=processes, keep_images="no").config.workers == workers
    drawn = open_data("shapes:size=32,count=8,val=4")  # small, and not in memory
    assert (
        choose(TrainConfig(data="shapes", out=Path("run"), keep_images="no"), drawn, device, processes).config.workers
        == workers
    )


@pytest.mark.parametrize(
    ("data", "taken", "out"),
    [
        ("pictures", [], "pictures"), ("pictures", ["pictures"], "pictures-2"),
        ("some/where/cats.csv", ["cats", "cats-2"], "cats-3"), ("", [], "run"),
    ],
)  # fmt: skip
def test_run_folder_has_the_name_of_the_data_and_is_new(
    data: str, taken: list[str], out: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in taken:
        (tmp_path / "runs" / name).mkdir(parents=True)
    assert choose(TrainConfig(data="x"), sample_images(8, 32, data), "cpu").config.out == Path("runs") / out
    (tmp_path / "file").touch()  # taken as well
    assert free_folder(tmp_path, "file") == tmp_path / "file-2"
