"""`vitreous.check_data` with a model: planted label errors, near duplicates and outliers, and the page of images."""

import base64
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitreous
from vitreous.common.checks import BadValue
from vitreous.data.doctor import DataReport
from vitreous.evaluation.check_data import open_whole_image_encoder

COLOURS = {"<b>lue": (40, 60, 200), "green": (40, 190, 60), "red": (200, 50, 40)}


def photo(colour: tuple[int, int, int], seed: int, size: tuple[int, int] = (60, 48)) -> Image.Image:
    """Return random details in one main colour."""
    noise = np.random.default_rng(seed).normal(0, 35, (8, 10, 1)) + np.array(colour)
    return Image.fromarray(noise.clip(0, 255).astype(np.uint8)).resize(size, Image.Resampling.BICUBIC)


@pytest.fixture(scope="module")
def model() -> vitreous.ViT:
    torch.manual_seed(0)
    tiny = {"depth": 1, "width": 32, "num_heads": 2, "mlp_width": 64}
    return vitreous.create("ViT-Lite-6/4", num_classes=0, image_size=16, overrides=tiny).eval()  # type: ignore[return-value]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data") / "colours"
    for number, (name, colour) in enumerate(COLOURS.items()):
        for index in range(20):
            path = root / ("val" if index < 4 else "train") / name / f"{index}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            photo(colour, 100 * number + index).save(path)
    photo(COLOURS["red"], 900).save(root / "train/green/wrong.png")
    photo(COLOURS["red"], 210).crop((4, 3, 58, 46)).resize((80, 64)).save(root / "val/red/leak.jpg", quality=60)
    photo(COLOURS["green"], 111).resize((120, 96)).save(root / "train/green/large.png")
    (root / "train/red/identical.png").write_bytes((root / "train/red/12.png").read_bytes())
    (root / "train/red/broken.png").write_bytes(b"not an image")
    return root


@pytest.fixture(scope="module")
def checked(folder: Path, model: vitreous.ViT) -> tuple[DataReport, Path]:
    page = folder.parent / "new" / "page.html"
    return vitreous.check_data(folder, model, device="cpu", out=page), page


def test_planted_label_error_is_ranked_first(checked: tuple[DataReport, Path]) -> None:
    suspicions = checked[0].suspicions
    assert suspicions is not None
    assert suspicions.accuracy is not None
    first = suspicions.label_errors[0]
    assert (first.name, first.label, first.suggested) == ("train/green/wrong.png", "green", "red")
    assert first.confidence < first.probability
    assert suspicions.accuracy > 0.9
    assert len(suspicions.label_errors) <= 3


def test_planted_near_duplicates_are_found_and_those_across_splits_are_problems(
    checked: tuple[DataReport, Path],
) -> None:
    report = checked[0]
    assert report.suspicions is not None
    names = [{sample.name for sample in group.samples} for group in report.suspicions.near_leaks]
    assert names == [{"train/red/10.png", "val/red/leak.jpg"}]
    within = [{sample.name for sample in group.samples} for group in report.suspicions.near_duplicates]
    assert within == [{"train/green/11.png", "train/green/large.png"}]  # identical files are listed elsewhere
    assert len(report.duplicates) == 1
    assert report.problems == 2  # the leak and the unreadable file
    text = str(report)
    assert "near duplicate" in text
    assert "wrong.png" in text


def test_json_has_all_findings(checked: tuple[DataReport, Path]) -> None:
    record = json.loads(json.dumps(checked[0].to_dict()))["suspicions"]
    assert record["label_errors"][0].keys() >= {"split", "label", "name", "suggested", "confidence", "probability"}
    assert record["near_leaks"][0].keys() == {"samples", "correlation"}
    assert {"outliers", "accuracy", "checkpoint", "image_size", "page"} <= record.keys()


def test_page_has_the_images_and_their_labels(checked: tuple[DataReport, Path]) -> None:
    text = checked[1].read_text()
    pictures = re.findall(r'src="data:image/(?:jpeg|png);base64,([^"]+)"', text)
    findings = checked[0].suspicions
    assert findings is not None
    groups = [*findings.near_leaks, *findings.near_duplicates]
    count = len(findings.label_errors) + len(findings.outliers) + sum(len(group.samples) for group in groups)
    assert len(pictures) == count
    for picture in pictures:
        Image.open(io.BytesIO(base64.b64decode(picture))).verify()
    assert "train/green/wrong.png" in text
    assert "<b>lue" not in text
    assert "http://" not in text.replace("http://www.w3.org", "")


def test_image_unlike_all_others_is_an_outlier(tmp_path: Path, model: vitreous.ViT) -> None:
    for index in range(40):
        path = tmp_path / ("ab"[index % 2]) / f"{index}.png"
        path.parent.mkdir(exist_ok=True)
        photo(COLOURS["green"], index).save(path)
    stripes = np.zeros((48, 60, 3), np.uint8)
    stripes[:, ::6] = 255
    Image.fromarray(stripes).save(tmp_path / "a" / "stripes.png")
    suspicions = vitreous.check_data(tmp_path, model, device="cpu").suspicions
    assert suspicions is not None
    assert suspicions.outliers[0].name == "a/stripes.png"


def test_dark_16_bit_images_are_distinguished(tmp_path: Path, model: vitreous.ViT) -> None:
    """Without their value range, all these images would be nearly black, and equal to the model."""
    for index in range(30):
        path = tmp_path / "data" / ("ab"[index % 2]) / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        grey = np.asarray(photo((110, 110, 110), index).convert("L")).astype(np.uint16)
        Image.fromarray((600 if index % 2 else 0) + grey).save(path)
    report = vitreous.check_data(tmp_path / "data", model, device="cpu")
    assert report.value_range == (0, 1023)
    assert report.suspicions is not None
    assert report.suspicions.accuracy == 1
    assert not report.suspicions.near_duplicates
    assert model.config.preprocessing.value_range is None


def test_data_without_a_model_has_no_model_findings(folder: Path) -> None:
    report = vitreous.check_data(str(folder))
    assert report.suspicions is None
    assert report.problems == 1
    with pytest.raises(BadValue, match="checkpoint"):
        vitreous.check_data(folder, out=folder.parent / "page.html")


def test_encoder_sees_the_whole_image_at_a_moderate_size(make: Callable[[int], vitreous.ViT]) -> None:
    large = make(448)
    encoder = open_whole_image_encoder(large)
    assert encoder.config.image_size == (224, 224)
    assert open_whole_image_encoder(large, 448).config.image_size == (448, 448)
    assert open_whole_image_encoder(make(64)).config.image_size == (64, 64)
    assert encoder.config.preprocessing.crop_fraction == 1
    assert large.config.preprocessing.crop_fraction < 1  # the model itself is unchanged


@pytest.fixture
def make() -> Callable[[int], vitreous.ViT]:
    tiny = {"depth": 1, "width": 16, "num_heads": 2, "mlp_width": 16}
    return lambda side: vitreous.create("ViT-Ti/16", image_size=side, overrides=tiny)  # type: ignore[return-value]
