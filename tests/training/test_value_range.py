"""16-bit images that use few of their bits: the range is chosen, and the checkpoint keeps it for prediction."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitreous
from vitreous.common.checks import BadValue
from vitreous.data.open import open_data
from vitreous.training import TrainConfig
from vitreous.training.defaults import choose

TINY = {"depth": 1, "width": 16, "num_heads": 2, "mlp_width": 16, "channels": 1}


@pytest.fixture
def microscopy(tmp_path: Path) -> Path:
    """12-bit images in 16-bit TIFF files."""
    chance = np.random.default_rng(0)
    for label in ("cell", "dust"):
        (tmp_path / "data" / label).mkdir(parents=True)
        for i in range(4):
            values = chance.integers(0, 4096, (16, 16), np.uint16)
            Image.fromarray(values).save(tmp_path / "data" / label / f"{i}.tif")
    return tmp_path / "data"


def test_range_is_chosen_from_the_images_unless_it_is_given(microscopy: Path) -> None:
    data = open_data(str(microscopy))
    chosen = choose(TrainConfig(data=str(microscopy)), data, "cpu")
    assert chosen.config.value_range == (0, 4095)
    assert any("value_range" in note for note in chosen.notes)
    given = choose(TrainConfig(data=str(microscopy), value_range=(0, 65535)), data, "cpu")
    assert given.config.value_range == (0, 65535)
    assert not any("value_range" in note for note in given.notes)


@pytest.mark.parametrize("value", [(5, 5), (3, 1), (0, float("nan"))])
def test_invalid_range_is_rejected(value: tuple[float, float]) -> None:
    with pytest.raises(BadValue, match="value_range"):
        TrainConfig(data="x", value_range=value).check()


@pytest.mark.slow
@pytest.mark.parametrize("task", ["classify", "mae"])
def test_checkpoint_keeps_the_range(microscopy: Path, tmp_path: Path, task: str) -> None:
    run = vitreous.train(
        data=microscopy, model="ViT-Ti/16", image_size=16, overrides=TINY, steps=1, batch_size=2, workers=0, task=task,
        out=tmp_path / "run", device="cpu",
    )  # fmt: skip
    model = vitreous.load(tmp_path / "run" / "best")
    assert model.config.preprocessing.value_range == (0, 4095)
    assert run.model.config == model.config
    file = next(microscopy.rglob("*.tif"))
    predictor = vitreous.Predictor(model, device="cpu")
    inputs = [file, file.read_bytes(), Image.open(file)]
    bright = [predictor.embed([image]) for image in inputs]
    assert bright[0].equal(bright[1])
    assert bright[0].equal(bright[2])
