import dataclasses
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitreous.data.open import open_data
from vitreous.model.checks import BadValue
from vitreous.model.config import ViTConfig
from vitreous.model.cost import cost
from vitreous.train.config import Augment, Optim, TrainConfig
from vitreous.train.defaults import choose, fitting_batch, free_folder, parse_fields


@pytest.fixture
def fifty(tmp_path: Path) -> Path:
    """Fifty pictures in two classes, as someone's folder has them."""
    chance = np.random.default_rng(0)
    for label in ("cat", "dog"):
        (tmp_path / "pictures" / label).mkdir(parents=True)
        for i in range(25):
            pixels = chance.integers(0, 255, (120, 160, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pictures" / label / f"{i}.jpg")
    return tmp_path / "pictures"


def test_nothing_is_left_open_and_everything_chosen_is_said(fifty: Path) -> None:
    chosen = choose(TrainConfig(data=str(fifty)), open_data(str(fifty)), "cpu")
    config = chosen.config
    assert config.model == "ViT-Ti/16"
    assert config.image_size == (128,)
    assert isinstance(config.batch_size, int)
    assert 2 <= config.batch_size <= 40
    assert config.epochs is not None
    assert config.optim.lr is not None
    assert config.augment.policy == "trivial"
    said = " ".join(chosen.notes)
    assert all(
        word in said for word in ("--model", "--image-size", "--batch-size", "--epochs", "--lr", "--out", "--set")
    )


def test_what_was_said_stays(fifty: Path) -> None:
    said = TrainConfig(
        data=str(fifty), model="ViT-S/16", image_size=(64,), batch_size=8, epochs=3, workers=1, out=Path("x"),
        set=("registers=1",), optim=Optim(lr=0.1), augment=Augment(flip=0.25),
    )  # fmt: skip
    chosen = choose(said, open_data(str(fifty)), "cpu")
    assert chosen.config.augment.flip == 0.25
    assert dataclasses.replace(chosen.config, augment=said.augment) == said
    assert chosen.notes == []


def test_auto_takes_what_fits(fifty: Path) -> None:
    config = choose(TrainConfig(data=str(fifty), batch_size="auto"), open_data(str(fifty)), "cpu").config
    assert isinstance(config.batch_size, int)
    each = cost(ViTConfig()).activation_bytes
    for memory in (each, 10 * each, 1000 * each):
        fits = fitting_batch(ViTConfig(), memory)
        assert fits == 1 or fits * each <= memory / 2
        assert 2 * fits * each > memory / 2


def test_bad_fields_are_named() -> None:
    with pytest.raises(BadValue, match=r"set is 'registers', but must be field=JSON"):
        parse_fields(("registers",))
    with pytest.raises(BadValue, match=r"set is 'position=Rotary2d', but must be field=JSON"):
        parse_fields(("position=Rotary2d",))


def test_folders_are_never_reused(tmp_path: Path) -> None:
    assert free_folder(tmp_path, "x") == tmp_path / "x"
    (tmp_path / "x").mkdir()
    (tmp_path / "x-2").mkdir()
    assert free_folder(tmp_path, "x") == tmp_path / "x-3"
