"""Masks at the full size of each image."""

import dataclasses
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from vitreous.common.checks import BadValue
from vitreous.inference.mask_images import palette
from vitreous.inference.prediction_files import MaskFolder
from vitreous.inference.predictions import Segmentation
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


def write_masks(predictor: SegmentPredictor, paths: list[Path], out: Path) -> list[Segmentation]:
    folder, results = MaskFolder(out, paths, predictor), predictor(paths)
    for result in results:
        folder.write(result)
    return results


def test_an_image_of_the_input_size_is_not_resized(model: Segmenter) -> None:
    image = noise(*model.config.image_size)
    [answer] = SegmentPredictor(model, device="cpu")(image)
    images = normalise(torch.from_numpy(image).permute(2, 0, 1)[None].float() / 255, model.config.preprocessing)
    with torch.no_grad():
        assert torch.equal(torch.from_numpy(answer.mask), model(images).argmax(1)[0].byte())  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [(24, 90), (100, 32), (7, 11), (61, 83)], ids=str)
def test_other_sizes_cover_the_input_size_and_use_windows(size: tuple[int, int], model: Segmenter) -> None:
    image = torch.from_numpy(noise(*size)).permute(2, 0, 1)
    predictor = SegmentPredictor(model, device="cpu")
    scores = predictor.scores(image[None])[0]
    height, width = model.config.image_size
    assert scores.shape[1] == height or scores.shape[2] == width
    assert scores.shape[1] >= height
    assert scores.shape[2] >= width
    whole = F.interpolate(scores[None], size, mode="bilinear")[0]
    [answer] = predictor(image.permute(1, 2, 0).contiguous().numpy())
    assert answer.mask is not None
    assert answer.mask.shape == size
    assert (torch.from_numpy(answer.mask) == whole.argmax(0)).float().mean() > 0.999


def test_best_class_equals_argmax_of_resized_scores() -> None:
    scores = torch.randn(9, 5, 7)
    for size in ((5, 7), (23, 31), (3, 4)):
        whole = F.interpolate(scores[None], size, mode="bilinear", align_corners=False)[0]
        assert torch.equal(best_at(scores, size), whole.argmax(0).byte())


def test_a_mask_does_not_depend_on_the_other_images(model: Segmenter, tmp_path: Path) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8 no image")
    same, other = noise(40, 40), noise(30, 50)
    images = [same, same, other, tmp_path / "broken.jpg", same, np.zeros((2, 3 * LONGEST, 3), np.uint8), other]
    answers = SegmentPredictor(model, device="cpu", batch_size=2)(images)
    assert [answer.error is None for answer in answers] == [True, True, True, False, True, False, True]
    assert answers[3].error
    assert "aspect ratio" in answers[5].error  # type: ignore[operator]
    alone = SegmentPredictor(model, device="cpu")
    for image, answer in zip(images, answers, strict=True):
        if answer.mask is not None:
            [by_itself] = alone(image)
            assert (by_itself.mask == answer.mask).mean() > 0.999  # type: ignore[union-attr]


def test_windows_of_a_batch_equal_those_of_each_image(model: Segmenter) -> None:
    images = torch.randn(3, 3, 60, 70)
    torch.testing.assert_close(slide(model, images), torch.cat([slide(model, image[None]) for image in images]))


def test_scores_that_are_not_finite_give_an_error(model: Segmenter) -> None:
    torch.nn.init.constant_(next(model.decoder.parameters()), float("nan"))
    [answer] = SegmentPredictor(model, device="cpu")(noise(24, 32))
    assert answer.error == "the model's output contains NaN or infinity"


def test_with_flip_a_mirrored_image_has_the_mirrored_mask(model: Segmenter) -> None:
    image, predictor = noise(24, 32), SegmentPredictor(model, device="cpu", flip=True)
    [answer], [mirrored] = predictor(image), predictor(image[:, ::-1].copy())
    assert (answer.mask[:, ::-1] == mirrored.mask).mean() > 0.99  # type: ignore[index]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"overlap": 1.0}, "less than 1"),
        ({"overlap": 2}, "from 0 to 1"),
        ({"overlap": -1.0}, "from 0 to 1"),
        ({"overlap": float("nan")}, "overlap"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 2.5}, "batch_size"),
    ],
)
def test_invalid_options_are_rejected_immediately(option: dict[str, Any], message: str, small: ViTConfig) -> None:
    model = build_segmenter(SegmenterConfig(dataclasses.replace(small, num_classes=0)))
    with pytest.raises(BadValue, match=message):
        SegmentPredictor(model, device="cpu", **option)


# ---- Files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("doubled", [True, False])
def test_masks_and_overlays_are_written(doubled: bool, model: Segmenter, tmp_path: Path) -> None:
    names = ["a/one.png", "b/one.png", "b/two.png", "b/two.jpg", "b/bad.png"] if doubled else ["a/one.png", "b/bad.png"]
    paths = [tmp_path / "in" / name for name in names]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise(50, 40)).save(path)
    paths[-1].write_bytes(b"")
    predictor = SegmentPredictor(model, device="cpu")
    results = write_masks(predictor, paths, tmp_path / "out")
    assert results[-1].error == "the file is empty"
    assert sum(results[0].fractions(3)) == pytest.approx(1)
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
        laid = np.array(image)[: answer.mask.shape[0], : answer.mask.shape[1]]  # above the legend
    bare = answer.mask == 0
    assert np.array_equal(laid[bare], answer.pixels[bare])  # type: ignore[index]


def test_a_file_name_is_rejected_as_folder_for_masks(model: Segmenter, tmp_path: Path) -> None:
    with pytest.raises(BadValue, match=r"a folder for masks"):
        MaskFolder(tmp_path / "preds.parquet", [], SegmentPredictor(model, device="cpu"))


def test_masks_of_a_data_set_are_not_replaced(model: Segmenter, tmp_path: Path) -> None:
    """Predicted masks would have the same paths as the masks of the data set."""
    (tmp_path / "data" / "masks").mkdir(parents=True)
    (tmp_path / "data" / "images").mkdir()
    for name in ("one", "two"):
        Image.fromarray(noise(30, 30)).save(tmp_path / "data" / "images" / f"{name}.png")
    truth = tmp_path / "data" / "masks" / "two.png"
    Image.fromarray(noise(30, 30)[..., 0]).save(truth)
    before, paths = truth.read_bytes(), sorted((tmp_path / "data" / "images").iterdir())
    predictor = SegmentPredictor(model, device="cpu")
    with pytest.raises(ValueError, match=r"two\.png exists and was not written by predict"):
        write_masks(predictor, paths, tmp_path / "data")
    assert truth.read_bytes() == before
    assert not (tmp_path / "data" / "masks" / "one.png").exists()
    for _ in range(2):  # files written by predict are replaced
        write_masks(predictor, paths, tmp_path / "out")


def test_grey_models_take_grey_images(small: ViTConfig, tmp_path: Path) -> None:
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
    write_masks(predictor, [tmp_path / "p.png"], tmp_path / "out")
    with Image.open(tmp_path / "out/overlays/p.png") as laid:
        assert laid.mode == "RGB"
