"""Segmenters over a whole source."""

import dataclasses

import numpy as np
import pytest
import torch

from vitreous.data.loader import BatchSlice, EvalLoader, Reader
from vitreous.data.sources.base import StoredImage
from vitreous.data.sources.shapes import ShapesSource
from vitreous.evaluation.segmenter import evaluate_segmenter
from vitreous.evaluation.setting import Setting
from vitreous.inference.segment_predictor import SegmentPredictor
from vitreous.model.build import build_segmenter
from vitreous.model.config import SegmenterConfig, ViTConfig
from vitreous.model.options import LinearDecoder, Preprocessing
from vitreous.model.segmenter import Segmenter
from vitreous.tasks.segment_loop import Segmented, segment_batches, segment_source


@pytest.fixture
def model(small: ViTConfig) -> Segmenter:
    whole = Preprocessing(crop_fraction=1.0)
    encoder = dataclasses.replace(small, num_classes=0, image_size=(32, 32), preprocessing=whole)
    config = SegmenterConfig(encoder, LinearDecoder(4), 7, ShapesSource(2, 32, 0, "val").mask_classes)
    segmenter = build_segmenter(config).eval()
    for weight in segmenter.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    return segmenter


def test_at_the_models_own_size_both_ways_agree(model: Segmenter) -> None:
    source, config = ShapesSource(12, 32, 0, "val"), model.config
    reader = Reader(source, (32, 32), 3, config.preprocessing, masks=True)
    cpu = torch.device("cpu")
    fitted = segment_batches(model, EvalLoader(reader, BatchSlice(5), 0), cpu, config.preprocessing, config.labels)
    whole = segment_source(SegmentPredictor(model, device="cpu"), source, config.labels)
    assert fitted.metrics() == pytest.approx(whole.metrics())
    assert torch.equal(fitted.evaluation.confusion(), whole.evaluation.confusion())


def test_figures_are_those_of_the_masks_that_predict_writes(model: Segmenter) -> None:
    source = ShapesSource(6, 45, 0, "val")
    predictor = SegmentPredictor(model, device="cpu")
    found = segment_source(predictor, source, model.config.labels)
    table = np.zeros((7, 7), np.int64)
    for index in range(6):
        [answer] = predictor(source.image(index))
        np.add.at(table, (source.mask(index).ravel(), answer.mask.ravel()), 1)  # type: ignore[union-attr]
    assert found.evaluation.confusion().tolist() == table.tolist()


def test_processes_share_the_work(model: Segmenter) -> None:
    source, predictor = ShapesSource(7, 32, 0, "val"), SegmentPredictor(model, device="cpu")
    alone = segment_source(predictor, source, model.config.labels)
    shared = [segment_source(predictor, source, model.config.labels, rank, 3) for rank in range(3)]
    assert Segmented.join(shared).metrics() == pytest.approx(alone.metrics())


class Broken(ShapesSource):
    """The second picture is no picture, the third is gone, and the fourth has a mask of another size."""

    def image(self, index: int) -> StoredImage:
        if index == 2:
            raise FileNotFoundError(2, "No such file or directory")
        return b"no picture" if index == 1 else super().image(index)

    def mask(self, index: int) -> np.ndarray:
        return super().mask(index)[:, :-1] if index == 3 else super().mask(index)


def test_what_cannot_be_read_is_named_and_counts_nowhere(model: Segmenter) -> None:
    source, predictor = Broken(6, 32, 0, "val"), SegmentPredictor(model, device="cpu")
    found = segment_source(predictor, source, model.config.labels)
    assert (found.metrics()["count"], found.metrics()["unreadable"]) == (3, 3)
    assert [problem.split(":")[0] for problem in found.problems] == [f"shapes/val[{index}]" for index in (1, 2, 3)]
    assert "its mask is 32 x 31 pixels, but the picture 32 x 32" in found.problems[2]
    good = [0, 4, 5]
    pixels = sum(source.mask(index).size for index in good)
    assert int(found.evaluation.confusion().sum()) == pixels


def test_more_processes_than_pictures(model: Segmenter) -> None:
    source, predictor = ShapesSource(2, 32, 0, "val"), SegmentPredictor(model, device="cpu")
    parts = [segment_source(predictor, source, model.config.labels, rank, 4) for rank in range(4)]
    alone = segment_source(predictor, source, model.config.labels)
    assert Segmented.join(parts).metrics() == pytest.approx(alone.metrics())


def test_answers_that_are_no_numbers_are_not_left_out_of_the_figures(model: Segmenter) -> None:
    torch.nn.init.constant_(next(model.decoder.parameters()), float("nan"))
    with pytest.raises(ValueError, match=r"shapes/val\[0\]: the model's answer is not a number"):
        segment_source(SegmentPredictor(model, device="cpu"), ShapesSource(2, 32, 0, "val"), model.config.labels)


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_of_the_module_is_given_back(training: bool, model: Segmenter) -> None:
    config = model.config
    reader = Reader(ShapesSource(2, 32, 0, "val"), (32, 32), 3, config.preprocessing, masks=True)
    batches = EvalLoader(reader, BatchSlice(2), 0)
    segment_batches(model.train(training), batches, torch.device("cpu"), config.preprocessing, config.labels)
    assert model.training == training


def test_eval_flips_if_asked(model: Segmenter) -> None:
    data = "shapes:size=32,count=12,val=6"
    plain, flipped = (evaluate_segmenter(model, data, Setting(device="cpu", flip=flip))[1] for flip in (False, True))
    source = ShapesSource(6, 32, 0, "val")
    expected = segment_source(SegmentPredictor(model, device="cpu", flip=True), source, model.config.labels)
    assert torch.equal(flipped.evaluation.confusion(), expected.evaluation.confusion())
    assert not torch.equal(flipped.evaluation.confusion(), plain.evaluation.confusion())
