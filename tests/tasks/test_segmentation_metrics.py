import dataclasses
import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import distance_transform_edt
from torch import Tensor

from vitreous.data.loader import BatchSlice, EvalLoader, Reader
from vitreous.data.sources.base import StoredImage
from vitreous.data.sources.shapes import ShapesSource
from vitreous.evaluation import evaluate
from vitreous.inference.segment_predictor import SegmentPredictor
from vitreous.model.build import build_segmenter
from vitreous.model.config import SegmenterConfig, ViTConfig
from vitreous.model.options import IGNORED, LinearDecoder, Preprocessing
from vitreous.model.segmenter import Segmenter
from vitreous.tasks.segmentation_metrics import (
    SegmentEvaluation,
    boundary_scores,
    segment_batches,
    segment_source,
    tolerance,
)

NAMES = tuple("abcdefg")


def blobs(n: int, size: tuple[int, int], classes: int, generator: torch.Generator) -> Tensor:
    """Areas of every class, with soft outlines, as a model draws them."""
    noise = torch.randn(n, classes, 5, 6, generator=generator)
    return torch.nn.functional.interpolate(noise, size, mode="bicubic").argmax(1)


def answers(
    n: int, classes: int, seed: int, size: tuple[int, int] = (19, 26), used: int | None = None
) -> tuple[Tensor, Tensor]:
    """Predictions that are often right, and masks with ignored bands and spots."""
    generator = torch.Generator().manual_seed(seed)
    masks = blobs(n, size, used or classes, generator)
    predicted = torch.where(
        blobs(n, size, 2, generator) == 0, masks.roll(1, 2), blobs(n, size, used or classes, generator)
    )
    masks[blobs(n, size, 4, generator) == 0] = IGNORED
    return predicted, masks


def evaluated(predicted: Tensor, masks: Tensor, classes: int, start: int = 0) -> SegmentEvaluation:
    labels = torch.zeros(len(masks), dtype=torch.int64)
    indices = torch.arange(start, start + len(masks))
    return SegmentEvaluation.of(predicted, masks, labels, indices, NAMES[:classes])


# ---- By loops --------------------------------------------------------------------------------------------------------


def loop_figures(predicted: Tensor, masks: Tensor, classes: int) -> tuple[float, float, list[float | None]]:
    """Mean IoU, pixel accuracy and each class's IoU, pixel by pixel."""
    both, either = [0] * classes, [0] * classes
    right = total = 0
    for guess, truth in zip(predicted.flatten().tolist(), masks.flatten().tolist(), strict=True):
        if truth == IGNORED:
            continue
        total += 1
        right += guess == truth
        for c in range(classes):
            both[c] += guess == c and truth == c
            either[c] += guess == c or truth == c
    ious = [both[c] / either[c] if either[c] else None for c in range(classes)]
    there = [iou for iou in ious if iou is not None]
    return sum(there) / len(there), right / total, ious


def has_other_neighbour(ids: np.ndarray, y: int, x: int) -> bool:
    places = [(y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)]
    return any(0 <= i < ids.shape[0] and 0 <= j < ids.shape[1] and ids[i, j] != ids[y, x] for i, j in places)


def loop_boundary(predicted: np.ndarray, mask: np.ndarray, c: int) -> float:
    """Boundary F of one class in one image, from the distances between outline pixels."""
    truth = np.where(mask == IGNORED, predicted, mask)
    edges = []
    for ids in (predicted, truth):
        edge = np.zeros(ids.shape, bool)
        for y, x in zip(*np.nonzero(ids == c), strict=True):
            edge[y, x] = has_other_neighbour(ids, y, x)
        edges.append(edge)
    counts = [int(edge.sum()) for edge in edges]
    if not any(counts):
        return math.nan
    if not all(counts):
        return 0.0
    reach = math.ceil(0.0075 * math.hypot(*mask.shape))
    shares = [
        (distance_transform_edt(~other)[edge] <= reach).mean() for edge, other in (tuple(edges), tuple(edges[::-1]))
    ]
    return 2 * shares[0] * shares[1] / sum(shares) if sum(shares) else 0.0


@given(n=st.integers(1, 4), classes=st.integers(2, 7), seed=st.integers(0, 1000), spare=st.integers(0, 2))
@settings(deadline=None, max_examples=25)
def test_iou_equals_a_loop_over_pixels(n: int, classes: int, seed: int, spare: int) -> None:
    predicted, masks = answers(n, classes, seed, used=max(classes - spare, 1))  # some classes are nowhere
    if bool((masks == IGNORED).all()):
        return
    evaluation = evaluated(predicted, masks, classes)
    metrics, (miou, accuracy, ious) = evaluation.metrics(), loop_figures(predicted, masks, classes)
    assert metrics["miou"] == pytest.approx(miou)
    assert metrics["pixel_accuracy"] == pytest.approx(accuracy)
    assert [row.iou for row in evaluation.per_class()] == pytest.approx(ious)
    assert evaluation.confusion().dtype == torch.int64
    assert int(evaluation.confusion().sum()) == int((masks != IGNORED).sum())


@pytest.mark.slow
@pytest.mark.parametrize("size", [(12, 17), (19, 26), (150, 130), (300, 280)], ids=str)
def test_outlines_equal_a_distance_transform(size: tuple[int, int]) -> None:
    classes = 4
    for seed in range(8 if size[0] < 100 else 1):
        predicted, masks = answers(2, classes, seed, size)
        ours = boundary_scores(predicted, masks, classes)
        pairs = list(zip(predicted.numpy(), masks.numpy(), strict=True))
        theirs = [[loop_boundary(p, m, c) for c in range(classes)] for p, m in pairs]
        np.testing.assert_allclose(ours.numpy(), theirs, atol=1e-9)
        assert (ours < 1).any()
        assert (ours > 0).any()


def test_the_tolerance_is_a_disk() -> None:
    """Single pixels of one class, at every distance: only those within the radius match."""
    size = (201, 203)
    radius = tolerance(size)
    assert radius == 3
    for y in range(-4, 5):
        for x in range(-4, 5):
            predicted, masks = torch.zeros(2, 1, *size, dtype=torch.int64)
            predicted[0, 100, 100] = masks[0, 100 + y, 100 + x] = 1
            assert float(boundary_scores(predicted, masks, 2)[0, 1]) == float(y**2 + x**2 <= radius**2)


# ---- What counts -----------------------------------------------------------------------------------------------------


def test_a_perfect_mask_scores_one_and_ignored_pixels_do_not_matter() -> None:
    predicted, masks = answers(5, 4, seed=1)
    predicted = torch.where(masks == IGNORED, 0, masks)
    metrics = evaluated(predicted, masks, 4).metrics()
    assert metrics["miou"] == metrics["pixel_accuracy"] == 1
    other = torch.where(masks == IGNORED, 3, predicted)
    assert evaluated(other, masks, 4).confusion().equal(evaluated(predicted, masks, 4).confusion())
    whole = answers(5, 4, seed=1)[0]
    assert evaluated(whole, whole, 4).metrics()["boundary_f"] == 1


def test_an_outline_in_an_ignored_band_is_correct_and_one_beyond_is_not() -> None:
    mask = torch.zeros(1, 100, 100, dtype=torch.int64)
    mask[:, :, 40:60], mask[:, :, 60:] = IGNORED, 1

    def score(edge: int) -> float:
        predicted = (torch.arange(100) >= edge).long().expand(1, 100, 100)
        return evaluated(predicted, mask, 2).metrics()["boundary_f"]

    assert score(41) == score(50) == score(60) == 1
    assert score(61) == 1  # by a pixel, which is within the tolerance of 2
    assert score(80) < 0.01
    assert score(20) < 0.01


def test_a_class_predicted_only_in_ignored_pixels_is_excluded() -> None:
    mask = torch.zeros(1, 20, 20, dtype=torch.int64)
    mask[:, :, 10:] = 1
    mask[:, 5:9, 2:6] = IGNORED
    predicted = mask.where(mask != IGNORED, torch.tensor(2))
    evaluation = evaluated(predicted, mask, 4)
    rows = evaluation.per_class()
    assert [row.iou for row in rows] == [1, 1, None, None]
    assert [row.boundary_f for row in rows] == [1, 1, None, None]
    assert [row.accuracy for row in rows] == [1, 1, None, None]
    assert evaluation.metrics()["miou"] == 1
    wrong = evaluated(predicted.where(mask != 0, torch.tensor(3)), mask, 4).per_class()
    assert wrong[3].iou == 0
    assert wrong[3].accuracy is None
    assert wrong[3].boundary_f == 0


def test_without_outlines_boundary_f_is_one() -> None:
    flat = torch.zeros(2, 8, 8, dtype=torch.int64)
    assert evaluated(flat, flat, 2).metrics()["boundary_f"] == 1


# ---- Joining ---------------------------------------------------------------------------------------------------------


def test_joined_batches_and_processes_count_an_image_once() -> None:
    predicted, masks = answers(11, 5, seed=3)
    whole = evaluated(predicted, masks, 5)
    parts = []
    for rank in range(3):  # as processes share images: the last may come again
        mine = torch.arange(rank, 12, 3).clamp(max=10)
        for some in mine.split(2):
            labels = torch.zeros(len(some), dtype=torch.int64)
            parts.append(SegmentEvaluation.of(predicted[some], masks[some].byte(), labels, some, NAMES[:5]))
    joined = SegmentEvaluation.join(parts)
    assert joined.indices.tolist() == list(range(11))
    assert joined.confusion().equal(whole.confusion())
    assert joined.metrics() == pytest.approx(whole.metrics())
    assert joined.worst(4) == whole.worst(4)
    assert SegmentEvaluation.join([joined, joined]).metrics() == pytest.approx(whole.metrics())
    with pytest.raises(ValueError, match="no batches"):
        SegmentEvaluation.join([])
    with pytest.raises(ValueError, match="different classes"):
        SegmentEvaluation.join([whole, evaluated(predicted, masks, 6)])


def test_the_worst_images_come_first() -> None:
    predicted, masks = answers(6, 3, seed=5)
    masks[4] = IGNORED
    rows = evaluated(predicted, masks, 3, start=100).worst(9)
    shares = {
        100 + i: float((p == m)[m != IGNORED].double().mean())
        for i, (p, m) in enumerate(zip(predicted, masks, strict=True))
        if i != 4
    }
    assert dict(rows) == pytest.approx(shares)
    assert [accuracy for _, accuracy in rows] == sorted(shares.values())


def test_unreadable_images_are_counted_and_excluded() -> None:
    predicted, masks = answers(4, 3, seed=2)
    labels = torch.tensor([0, -1, 0, -1])
    metrics = SegmentEvaluation.of(predicted, masks, labels, torch.arange(4), NAMES[:3]).metrics()
    assert (metrics["count"], metrics["unreadable"]) == (2, 2)
    some = evaluated(predicted[[0, 2]], masks[[0, 2]], 3).metrics()
    assert {**metrics, "unreadable": 0} == pytest.approx(some)
    nothing = SegmentEvaluation.of(predicted, masks, torch.full((4,), -1), torch.arange(4), NAMES[:3])
    with pytest.raises(ValueError, match="none of the 4 images has labelled pixels"):
        nothing.metrics()
    assert nothing.worst(3) == []


def test_ids_beyond_the_classes_are_an_error() -> None:
    predicted, masks = answers(2, 4, seed=2)
    with pytest.raises(ValueError, match=r"masks .* from 0 to 2, got 0 to 3"):
        evaluated(predicted.clamp(max=2), masks, 3)
    with pytest.raises(ValueError, match=r"predicted .* from 0 to 2, got 0 to 3"):
        evaluated(predicted, masks.where(masks != 3, torch.tensor(0)), 3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_metrics_on_a_gpu_equal_those_on_the_cpu() -> None:
    predicted, masks = answers(5, 4, seed=1, size=(90, 120))
    labels, indices = torch.zeros(5, dtype=torch.int64), torch.arange(5)
    there = SegmentEvaluation.of(predicted.cuda(), masks.byte(), labels, indices, NAMES[:4])
    assert there.metrics() == pytest.approx(evaluated(predicted, masks, 4).metrics())


# ---- Evaluating batches and sources ----------------------------------------------------------------------------------


@pytest.fixture
def model(small: ViTConfig) -> Segmenter:
    whole = Preprocessing(crop_fraction=1.0)
    encoder = dataclasses.replace(small, num_classes=0, image_size=(32, 32), preprocessing=whole)
    config = SegmenterConfig(encoder, LinearDecoder(4), 7, ShapesSource(2, 32, 0, "val").mask_classes)
    segmenter = build_segmenter(config).eval()
    for weight in segmenter.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    return segmenter


def test_at_the_input_size_batches_and_source_agree(model: Segmenter) -> None:
    source, config = ShapesSource(12, 32, 0, "val"), model.config
    reader = Reader(source, (32, 32), 3, config.preprocessing, masks=True)
    cpu = torch.device("cpu")
    fitted = segment_batches(model, EvalLoader(reader, BatchSlice(5), 0), cpu, config.preprocessing, config.labels)
    whole = segment_source(SegmentPredictor(model, device="cpu"), source, config.labels)
    assert fitted.metrics() == pytest.approx(whole.metrics())
    assert torch.equal(fitted.confusion(), whole.confusion())


def test_metrics_equal_those_of_predicted_masks(model: Segmenter) -> None:
    source = ShapesSource(6, 45, 0, "val")
    predictor = SegmentPredictor(model, device="cpu")
    found = segment_source(predictor, source, model.config.labels)
    table = np.zeros((7, 7), np.int64)
    for index in range(6):
        [answer] = predictor(source.image(index))
        np.add.at(table, (source.mask(index).ravel(), answer.mask.ravel()), 1)  # type: ignore[union-attr]
    assert found.confusion().tolist() == table.tolist()


def test_joined_processes_equal_one_predictor(model: Segmenter) -> None:
    source, predictor = ShapesSource(7, 32, 0, "val"), SegmentPredictor(model, device="cpu", batch_size=2)
    alone = segment_source(predictor, source, model.config.labels)
    shared = [segment_source(predictor, source, model.config.labels, rank, 3) for rank in range(3)]
    assert [part.indices.tolist() for part in shared] == [[0, 1, 6], [2, 3], [4, 5]]
    assert SegmentEvaluation.join(shared).metrics() == alone.metrics()


class Broken(ShapesSource):
    """The second image is invalid, the third is missing, and the fourth has a mask of another size."""

    def image(self, index: int) -> StoredImage:
        if index == 2:
            raise FileNotFoundError(2, "No such file or directory")
        return b"no image" if index == 1 else super().image(index)

    def mask(self, index: int) -> np.ndarray:
        return super().mask(index)[:, :-1] if index == 3 else super().mask(index)


def test_unreadable_images_and_masks_are_named_and_excluded(model: Segmenter) -> None:
    source, predictor = Broken(6, 32, 0, "val"), SegmentPredictor(model, device="cpu")
    found = segment_source(predictor, source, model.config.labels)
    assert (found.metrics()["count"], found.metrics()["unreadable"]) == (3, 3)
    assert [problem.split(":")[0] for problem in found.problems] == [f"shapes/val[{index}]" for index in (1, 2, 3)]
    assert re.search("mask .*32 x 31 .*image .*32 x 32", found.problems[2])
    good = [0, 4, 5]
    pixels = sum(source.mask(index).size for index in good)
    assert int(found.confusion().sum()) == pixels


def test_more_processes_than_images(model: Segmenter) -> None:
    source, predictor = ShapesSource(2, 32, 0, "val"), SegmentPredictor(model, device="cpu")
    parts = [segment_source(predictor, source, model.config.labels, rank, 4) for rank in range(4)]
    alone = segment_source(predictor, source, model.config.labels)
    assert SegmentEvaluation.join(parts).metrics() == pytest.approx(alone.metrics())


def test_masks_from_scores_that_are_not_finite_are_an_error(model: Segmenter) -> None:
    torch.nn.init.constant_(next(model.decoder.parameters()), float("nan"))
    with pytest.raises(ValueError, match=r"shapes/val\[0\]: the model's output contains NaN or infinity"):
        segment_source(SegmentPredictor(model, device="cpu"), ShapesSource(2, 32, 0, "val"), model.config.labels)


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_of_the_segmenter_is_restored(training: bool, model: Segmenter) -> None:
    config = model.config
    reader = Reader(ShapesSource(2, 32, 0, "val"), (32, 32), 3, config.preprocessing, masks=True)
    batches = EvalLoader(reader, BatchSlice(2), 0)
    segment_batches(model.train(training), batches, torch.device("cpu"), config.preprocessing, config.labels)
    assert model.training == training


def test_evaluate_averages_with_the_mirror_image(model: Segmenter) -> None:
    data = "shapes:size=32,count=12,val=6"
    plain, flipped = (evaluate(model, data, device="cpu", flip=flip).evaluation for flip in (False, True))  # type: ignore[union-attr]
    source = ShapesSource(6, 32, 0, "val")
    expected = segment_source(SegmentPredictor(model, device="cpu", flip=True), source, model.config.labels)
    assert torch.equal(flipped.confusion(), expected.confusion())
    assert not torch.equal(flipped.confusion(), plain.confusion())
