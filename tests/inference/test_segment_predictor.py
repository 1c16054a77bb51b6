"""A class for every pixel of a picture's real size."""

import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from vitreous.common.checks import BadValue
from vitreous.inference.mask_images import palette
from vitreous.inference.segment_files import segment_files
from vitreous.inference.segment_predictor import LONGEST, SegmentPredictor, best_at
from vitreous.model.build import build_segmenter
from vitreous.model.config import SegmenterConfig, ViTConfig
from vitreous.model.inputs import normalise
from vitreous.model.options import LinearDecoder, MaskDecoder
from vitreous.model.segmenter import Segmenter, slide


@pytest.fixture(params=[LinearDecoder(), LinearDecoder(4), MaskDecoder(1)], ids=str)
def model(request: pytest.FixtureRequest, small: ViTConfig) -> Segmenter:
    encoder = dataclasses.replace(small, num_classes=0)
    segmenter = build_segmenter(SegmenterConfig(encoder, request.param, 3, ("background", "cat", "dog"))).eval()
    for weight in segmenter.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return segmenter


def noise(*shape: int) -> np.ndarray:
    coarse = torch.rand(1, 3, 4, 5)
    return (F.interpolate(coarse, shape, mode="bilinear")[0].permute(1, 2, 0) * 255).byte().numpy()


def test_a_picture_of_the_models_size_is_seen_as_it_is(model: Segmenter) -> None:
    picture = noise(*model.config.image_size)
    [answer] = SegmentPredictor(model, device="cpu")(picture)
    images = normalise(torch.from_numpy(picture).permute(2, 0, 1)[None].float() / 255, model.config.preprocessing)
    with torch.no_grad():
        assert torch.equal(torch.from_numpy(answer.mask), model(images).argmax(1)[0].byte())  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [(24, 90), (100, 32), (7, 11), (61, 83)], ids=str)
def test_any_other_covers_the_models_size_and_is_seen_through_windows(size: tuple[int, int], model: Segmenter) -> None:
    picture = torch.from_numpy(noise(*size)).permute(2, 0, 1)
    predictor = SegmentPredictor(model, device="cpu")
    scores = predictor.scores(picture[None])[0]
    height, width = model.config.image_size
    assert scores.shape[1] == height or scores.shape[2] == width
    assert scores.shape[1] >= height
    assert scores.shape[2] >= width
    whole = F.interpolate(scores[None], size, mode="bilinear")[0]
    [answer] = predictor(picture.permute(1, 2, 0).contiguous().numpy())
    assert answer.mask is not None
    assert answer.mask.shape == size
    assert (torch.from_numpy(answer.mask) == whole.argmax(0)).float().mean() > 0.999


def test_the_best_class_is_found_without_all_scores_at_once() -> None:
    scores = torch.randn(9, 5, 7)
    for size in ((5, 7), (23, 31), (3, 4)):
        whole = F.interpolate(scores[None], size, mode="bilinear", align_corners=False)[0]
        assert torch.equal(best_at(scores, size), whole.argmax(0).byte())


def test_an_answer_does_not_depend_on_the_other_pictures(model: Segmenter, tmp_path: Path) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8 no picture")
    same, other = noise(40, 40), noise(30, 50)
    pictures = [same, same, other, tmp_path / "broken.jpg", same, np.zeros((2, 3 * LONGEST, 3), np.uint8), other]
    answers = SegmentPredictor(model, device="cpu", batch_size=2)(pictures)
    assert [answer.error is None for answer in answers] == [True, True, True, False, True, False, True]
    assert "cannot be decoded" in answers[3].error or "not an image" in answers[3].error  # type: ignore[operator]
    assert "one side is more than" in answers[5].error  # type: ignore[operator]
    alone = SegmentPredictor(model, device="cpu")
    for picture, answer in zip(pictures, answers, strict=True):
        if answer.mask is not None:
            [by_itself] = alone(picture)
            assert (by_itself.mask == answer.mask).mean() > 0.999  # type: ignore[union-attr]


def test_windows_of_a_batch_are_those_of_each_picture(model: Segmenter) -> None:
    images = torch.randn(3, 3, 60, 70)
    torch.testing.assert_close(slide(model, images), torch.cat([slide(model, image[None]) for image in images]))


def test_an_answer_that_is_no_number_is_an_error(model: Segmenter) -> None:
    torch.nn.init.constant_(next(model.decoder.parameters()), float("nan"))
    [answer] = SegmentPredictor(model, device="cpu")(noise(24, 32))
    assert answer.error == "the model's answer is not a number"


def test_with_flip_a_mirrored_picture_has_the_mirrored_mask(model: Segmenter) -> None:
    picture, predictor = noise(24, 32), SegmentPredictor(model, device="cpu", flip=True)
    [answer], [mirrored] = predictor(picture), predictor(picture[:, ::-1].copy())
    assert (answer.mask[:, ::-1] == mirrored.mask).mean() > 0.99  # type: ignore[index]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"overlap": 1.0}, r"overlap is 1.0, but must be less than 1"),
        ({"overlap": 2}, r"overlap is 2, but must be a number from 0 to 1"),
        ({"overlap": -1.0}, r"overlap is -1.0, but must be a number from 0 to 1"),
        ({"overlap": float("nan")}, r"overlap is nan, but must be a number"),
        ({"batch_size": 0}, r"batch_size is 0, but must be a whole number from 1"),
        ({"batch_size": 2.5}, r"batch_size is 2.5, but must be a whole number"),
    ],
)
def test_options_that_cannot_be_are_said_at_once(option: dict[str, Any], message: str, small: ViTConfig) -> None:
    model = build_segmenter(SegmenterConfig(dataclasses.replace(small, num_classes=0)))
    with pytest.raises(BadValue, match=message):
        SegmentPredictor(model, device="cpu", **option)


# ---- Files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("doubled", [True, False])
def test_masks_and_overlays_are_written_beside_each_other(
    doubled: bool, model: Segmenter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["a/one.png", "b/one.png", "b/two.png", "b/two.jpg", "b/bad.png"] if doubled else ["a/one.png", "b/bad.png"]
    paths = [tmp_path / "in" / name for name in names]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise(50, 40)).save(path)
    paths[-1].write_bytes(b"")
    predictor = SegmentPredictor(model, device="cpu")
    segment_files(predictor, paths, True, tmp_path / "out")
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows[-1]["error"] == "the file is empty"
    assert sum(row["share"] for row in rows[0]["classes"]) == pytest.approx(1)
    written_as = {f"{name}.png" for name in names[:-1]} if doubled else {"a/one.png"}
    for kind in ("masks", "overlays"):
        folder = tmp_path / "out" / kind
        assert {str(path.relative_to(folder)) for path in folder.rglob("*.png")} == written_as
    first = "a/one.png.png" if doubled else "a/one.png"
    [answer] = predictor(paths[0])
    with Image.open(tmp_path / "out/masks" / first) as written:
        assert written.mode == "P"
        assert np.array_equal(np.array(written), answer.mask)  # type: ignore[arg-type]
        assert np.array_equal(np.array(written.convert("RGB")), palette(0)[answer.mask])
    with Image.open(tmp_path / "out/overlays" / first) as image:
        laid = np.array(image)
    bare = answer.mask == 0
    assert np.array_equal(laid[bare], answer.pixels[bare])  # type: ignore[index]


def test_a_file_is_no_place_for_masks(model: Segmenter, tmp_path: Path) -> None:
    with pytest.raises(BadValue, match=r"out is '.*preds.parquet', but must be a folder for masks"):
        segment_files(SegmentPredictor(model, device="cpu"), [], False, tmp_path / "preds.parquet")


def test_masks_of_others_are_not_replaced(model: Segmenter, tmp_path: Path) -> None:
    """A data set keeps its masks where a prediction for its pictures would be called the same."""
    (tmp_path / "data" / "masks").mkdir(parents=True)
    (tmp_path / "data" / "images").mkdir()
    for name in ("one", "two"):
        Image.fromarray(noise(30, 30)).save(tmp_path / "data" / "images" / f"{name}.png")
    truth = tmp_path / "data" / "masks" / "two.png"
    Image.fromarray(noise(30, 30)[..., 0]).save(truth)
    before, paths = truth.read_bytes(), sorted((tmp_path / "data" / "images").iterdir())
    predictor = SegmentPredictor(model, device="cpu")
    with pytest.raises(ValueError, match=r"two\.png exists and was not written by predict"):
        segment_files(predictor, paths, False, tmp_path / "data")
    assert truth.read_bytes() == before
    assert not (tmp_path / "data" / "masks" / "one.png").exists()
    for _ in range(2):  # what predict has written itself is replaced
        segment_files(predictor, paths, False, tmp_path / "out")


def test_grey_models_take_grey_pictures(small: ViTConfig, tmp_path: Path) -> None:
    encoder = dataclasses.replace(
        small,
        num_classes=0,
        channels=1,
        preprocessing=dataclasses.replace(small.preprocessing, mean=(0.5,), std=(0.5,)),
    )
    buffer = io.BytesIO()
    Image.fromarray(noise(30, 30)).save(buffer, "PNG")
    (tmp_path / "p.png").write_bytes(buffer.getvalue())
    predictor = SegmentPredictor(build_segmenter(SegmenterConfig(encoder, num_classes=2)), device="cpu")
    segment_files(predictor, [tmp_path / "p.png"], False, tmp_path / "out")
    with Image.open(tmp_path / "out/overlays/p.png") as laid:
        assert laid.mode == "RGB"
