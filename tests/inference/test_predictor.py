"""Predictions are right for every type of input, in any batch."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from predictors import COLOURS, RANDOM, colour_model, probabilities, random_model, save
from vitreous.data.image import fit
from vitreous.inference import Predictor
from vitreous.model.options import Preprocessing
from vitreous.model.vit import ViT


def expected(colour: tuple[int, ...]) -> np.ndarray:
    """The colour model's probabilities for an image of one colour."""
    x = np.array([(value / 255 - 0.5) / 0.5 for value in colour] + [0.0])
    normed = (x - x.mean()) / np.sqrt(x.var() + 1e-6)
    powers = np.exp(4 * normed[: len(colour)])
    return powers / powers.sum()


# ---- The right answer ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [".jpg", ".png", ".webp", ".bmp"])
def test_predictions_equal_known_probabilities(tmp_path: Path, ending: str) -> None:
    paths = [
        save(np.full((40 + 7 * i, 90, 3), colour, dtype=np.uint8), tmp_path / f"{name}{ending}")
        for i, (name, colour) in enumerate(COLOURS.items())
    ]
    answers = Predictor(colour_model())(paths)
    assert [answer.name for answer in answers] == [str(path) for path in paths]
    assert [answer.predictions[0].label for answer in answers] == list(COLOURS)
    assert [answer.predictions[0].index for answer in answers] == [0, 1, 2]
    for answer, colour in zip(answers, COLOURS.values(), strict=True):
        ranked = [label.probability for label in answer.predictions]
        assert ranked == sorted(ranked, reverse=True)
        np.testing.assert_allclose(
            probabilities([answer])[0], expected(colour), atol=0.03 if ending in (".jpg", ".webp") else 1e-5
        )


def test_a_grey_model_converts_images_to_grey(tmp_path: Path) -> None:
    light = save(np.full((30, 20, 3), (250, 220, 240), dtype=np.uint8), tmp_path / "light.jpg")
    dark = save(np.full((30, 20), 40, dtype=np.uint8), tmp_path / "dark.png")
    answers = Predictor(colour_model(channels=1), top=1)([light, dark])
    assert [[label.label for label in answer.predictions] for answer in answers] == [["light"], ["dark"]]


def test_preprocessing_comes_from_the_config() -> None:
    """Red in the middle, broad blue edges: a crop sees red, the whole image is mostly blue."""
    image = np.zeros((16, 240, 3), dtype=np.uint8)
    image[:] = (0, 0, 255)
    image[:, 90:150] = (255, 0, 0)
    for fitting, answer in (("crop", "red"), ("squash", "blue")):
        preprocessing = Preprocessing(fit=fitting, crop_fraction=1.0)  # type: ignore[arg-type]
        [found] = Predictor(colour_model(preprocessing=preprocessing))(image)
        assert found.predictions[0].label == answer


@pytest.mark.parametrize("name", RANDOM)
def test_outputs_equal_a_manual_forward_pass(photos: list[Path], name: str) -> None:
    model = random_model(name).eval()
    config, how = model.config, model.config.preprocessing
    pixels = torch.stack([fit(p.read_bytes(), config.image_size, how, config.channels) for p in photos])
    shape = (1, -1, 1, 1)
    images = (pixels / 255 - torch.tensor(how.mean).view(shape)) / torch.tensor(how.std).view(shape)
    predictor = Predictor(model, device="cpu", top=100)
    with torch.no_grad():
        logits = model(images)
        pooled = (
            model.pool(model.features(images)) if isinstance(model, ViT) else model.feature_map(images).mean((2, 3))
        )
    torch.testing.assert_close(predictor.logits(photos), logits, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(predictor.embed(photos), pooled, atol=1e-4, rtol=1e-4)
    np.testing.assert_allclose(probabilities(predictor(photos)), logits.softmax(-1), atol=1e-5)
    assert predictor.embed(photos).shape == (len(photos), predictor.width)


# ---- Alone, together, in any order -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["class token", "grey", "bit"])
def test_results_do_not_depend_on_batch_or_order(photos: list[Path], name: str) -> None:
    model = random_model(name)
    alone = probabilities(Predictor(model, top=7, batch_size=1)(photos))
    for batch_size, order in ((3, range(7)), (3, (4, 2, 6, 0, 1, 5, 3)), (32, (1, 1, 0))):
        together = probabilities(Predictor(model, top=7, batch_size=batch_size)([photos[i] for i in order]))
        np.testing.assert_allclose(together, alone[list(order)], atol=1e-5)


def test_all_input_types_give_the_same_result(photos: list[Path]) -> None:
    predictor = Predictor(random_model("class token"))
    path = photos[0]
    array = np.array(Image.open(path))
    ways: list[Any] = [path, str(path), path.read_bytes(), array, Image.open(path), Image.fromarray(array)]
    together = predictor(ways)
    for way, answer in zip(ways, together, strict=True):
        np.testing.assert_allclose(probabilities(predictor(way)), probabilities([answer]), atol=1e-6)
        np.testing.assert_allclose(probabilities([answer]), probabilities(together[:1]), atol=1e-6)
    names = [answer.name for answer in together]
    assert names == [str(path), str(path), "image 2", "image 3", str(path), "image 5"]
    batch = np.stack([array, array[::-1]])
    assert len(predictor(batch)) == 2
    assert len(predictor(array[..., 0])) == 1
    assert predictor([]) == []
    assert predictor.embed([]).shape == (0, 32)


@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGBA", "CMYK", "1", "I;16"])
@pytest.mark.parametrize("orientation", [1, 6, 7])
def test_a_pillow_image_is_decoded_like_its_file(tmp_path: Path, mode: str, orientation: int) -> None:
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (30, 50, 4), dtype=np.uint8)
    if mode == "I;16":
        image = Image.fromarray(rng.integers(0, 65536, (30, 50), dtype=np.uint16))
    else:
        image = Image.fromarray(image).convert("RGB" if mode in ("CMYK", "P") else "RGBA").convert(mode)
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / ("x.jpg" if mode == "CMYK" else "x.png")
    image.save(path, exif=exif)
    predictor = Predictor(random_model("class token"))
    from_file, from_image = predictor([path, Image.open(path)])
    assert from_file.error is None
    np.testing.assert_allclose(
        probabilities([from_image]), probabilities([from_file]), atol=0.02 if mode == "CMYK" else 1e-6
    )
