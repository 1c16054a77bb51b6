import dataclasses
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from automatic_choices import build_model
from vitreous.cli import demo
from vitreous.common.checks import BadValue
from vitreous.common.codec import parse_fields
from vitreous.data.open import open_data
from vitreous.model.config import ViTConfig
from vitreous.model.cost import cost
from vitreous.training import Augment, Optim, Segmenting, TrainConfig, defaults
from vitreous.training.defaults import choose, fitting_batch, free_folder


@pytest.fixture
def fifty(tmp_path: Path) -> Path:
    """A folder with fifty images in two classes."""
    chance = np.random.default_rng(0)
    for label in ("cat", "dog"):
        (tmp_path / "pictures" / label).mkdir(parents=True)
        for i in range(25):
            pixels = chance.integers(0, 255, (120, 160, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pictures" / label / f"{i}.jpg")
    return tmp_path / "pictures"


def test_config_is_completed_and_choices_are_noted(fifty: Path) -> None:
    chosen = choose(TrainConfig(data=str(fifty)), open_data(str(fifty)), "cpu")
    config = chosen.config
    assert config.model == "ViT-Ti/16"
    assert config.image_size == (128,)
    assert isinstance(config.batch_size, int)
    assert 2 <= config.batch_size <= 40
    assert config.epochs is not None
    assert config.optim.lr is not None
    assert config.augment.policy == "trivial"
    notes = " ".join(chosen.notes)
    assert all(
        word in notes
        for word in ("model =", "image_size =", "batch_size =", "epochs =", "lr =", "out =", "overrides =")
    )


def test_given_settings_are_kept(fifty: Path) -> None:
    given = TrainConfig(
        data=str(fifty), model="ViT-S/16", image_size=(64,), batch_size=8, epochs=3, workers=1, keep_images="no",
        out=Path("x"), overrides={"registers": 1}, optim=Optim("adamw", lr=0.1), train_only="all",
        augment=Augment(flip=0.25),
    )  # fmt: skip
    chosen = choose(given, open_data(str(fifty)), "cpu")
    assert chosen.config.augment.flip == 0.25
    assert dataclasses.replace(chosen.config, augment=given.augment) == given
    assert chosen.notes == []


def test_fifty_images_take_a_few_minutes_on_a_cpu(fifty: Path) -> None:
    chosen = choose(TrainConfig(data=str(fifty)), open_data(str(fifty)), "cpu")
    config = chosen.config
    assert isinstance(config.batch_size, int)
    assert config.epochs is not None
    steps = config.epochs * (40 // config.batch_size)
    assert 300 <= steps <= 310  # of a third of a second each
    assert config.evaluate_every is not None
    assert 10 <= config.epochs / config.evaluate_every <= 15  # and not one evaluation for every two steps
    assert "40 images" in chosen.advice
    assert not any("few to train" in note for note in chosen.notes)


def test_short_runs_are_evaluated_too(fifty: Path) -> None:
    data = open_data(str(fifty))
    assert choose(TrainConfig(data=str(fifty), epochs=3), data, "cpu").config.evaluate_every is None
    assert choose(TrainConfig(data=str(fifty), steps=80), data, "cpu").config.evaluate_every == 4  # of 40 epochs
    assert choose(TrainConfig(data=str(fifty), steps=80, evaluate_every=7), data, "cpu").config.evaluate_every == 7


def test_a_gpu_takes_more_steps_than_a_cpu(fifty: Path) -> None:
    data = open_data(str(fifty))
    cpu, gpu = (choose(TrainConfig(data=str(fifty)), data, device).config.epochs for device in ("cpu", "cuda"))
    assert cpu is not None
    assert gpu == 2 * cpu


def test_digits_are_not_mirrored_by_default(fifty: Path) -> None:
    digits = open_data("digits")
    chosen = choose(TrainConfig(data="digits"), digits, "cpu")
    assert chosen.config.augment.flip == 0
    assert "flip = 0 (a mirrored 2 is not a digit)" in chosen.notes
    assert choose(demo.config(), digits, "cpu").config.augment.flip == 0
    chosen = choose(TrainConfig(data="digits", augment=Augment(flip=0.25)), digits, "cpu")
    assert chosen.config.augment.flip == 0.25
    assert not any("flip =" in note for note in chosen.notes)
    assert choose(TrainConfig(data=str(fifty)), open_data(str(fifty)), "cpu").config.augment.flip == 0.5


def test_small_images_are_not_enlarged_much() -> None:
    assert choose(TrainConfig(data="digits"), open_data("digits"), "cpu").config.image_size == (16,)
    assert choose(TrainConfig(data="shapes"), open_data("shapes:size=28,count=8,val=4"), "cpu").config.image_size == (
        28,
    )


def test_image_size_fits_the_patches_of_the_given_model(fifty: Path) -> None:
    data = open_data(str(fifty))
    for model, pixels in (("ViT-Ti/16", 128), ("DINOv2-S/14", 126), ("ViT-B/32", 128)):
        assert choose(TrainConfig(data=str(fifty), model=model), data, "cpu").config.image_size == (pixels,)
    cut = TrainConfig(data=str(fifty), model="ViT-Ti/16", overrides={"patch_size": 24})
    assert choose(cut, data, "cpu").config.image_size == (120,)


@pytest.mark.parametrize(
    ("device", "processes", "workers"),
    [("cuda", 1, 12), ("cuda", 4, 3), ("cuda", 100, 1), ("cpu", 1, 3), ("cpu", 12, 1)],
)
def test_workers_leave_cores_for_training_on_a_cpu(
    device: str, processes: int, workers: int, fifty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(defaults, "cores", lambda: 12)
    data = open_data(str(fifty))
    config = TrainConfig(data=str(fifty), batch_size=40, steps=1)
    assert choose(config, data, device, processes).config.workers == workers
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")  # one process on each machine
    assert choose(config, data, "cuda", processes).config.workers == 12


def test_images_in_memory_need_no_workers() -> None:
    digits = open_data("digits")
    assert choose(TrainConfig(data="digits"), digits, "cuda").config.workers == 0
    cropped = TrainConfig(data="digits", augment=Augment(crop="resized"))  # by the workers, from the arrays
    assert choose(cropped, digits, "cuda").config.workers != 0


@pytest.mark.slow
@pytest.mark.parametrize("how", [Segmenting(cells=8), Segmenting(decoder="mask"), Segmenting()], ids=str)
def test_auto_batch_size_includes_the_decoder(how: Segmenting, monkeypatch: pytest.MonkeyPatch) -> None:
    data = open_data("shapes:size=64,count=4096,val=4")
    config = TrainConfig(task="segment", data="shapes", model="ViT-Lite-6/4", image_size=(64,), segmenting=how)
    each = []
    for task in ("classify", "segment"):
        monkeypatch.setattr(defaults, "fitting_batch", lambda model, memory: each.append(cost(model)) or 16)
        given = how if task == "segment" else Segmenting()
        choose(dataclasses.replace(config, task=task, segmenting=given, batch_size="auto"), data, "cpu")  # type: ignore[arg-type]
    assert each[1].activation_bytes >= each[0].activation_bytes
    assert each[1].activation_bytes > each[0].activation_bytes or how.decoder != "mask"
    model = build_model(choose(dataclasses.replace(config, batch_size=16), data, "cpu").config, data)
    assert each[1].parameters == sum(weight.numel() for weight in model.parameters())


@pytest.mark.slow
def test_auto_batch_size_fits(fifty: Path) -> None:
    config = choose(TrainConfig(data=str(fifty), batch_size="auto"), open_data(str(fifty)), "cpu").config
    assert isinstance(config.batch_size, int)
    each = cost(ViTConfig()).activation_bytes
    for memory in (each, 10 * each, 1000 * each):
        fits = fitting_batch(ViTConfig(), memory)
        assert fits == 1 or fits * each <= memory / 2
        assert 2 * fits * each > memory / 2


def test_invalid_set_flags_are_named() -> None:
    with pytest.raises(BadValue, match=r"set is 'registers', but must be field=JSON"):
        parse_fields(("registers",))
    with pytest.raises(BadValue, match=r"set is 'position=Rotary2d', but must be field=JSON"):
        parse_fields(("position=Rotary2d",))


def test_folders_are_never_reused(tmp_path: Path) -> None:
    assert free_folder(tmp_path, "x") == tmp_path / "x"
    (tmp_path / "x").mkdir()
    (tmp_path / "x-2").mkdir()
    assert free_folder(tmp_path, "x") == tmp_path / "x-3"
