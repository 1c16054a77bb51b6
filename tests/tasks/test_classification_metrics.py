import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import (
    balanced_accuracy_score,
    confusion_matrix,
    log_loss,
    precision_recall_fscore_support,
    top_k_accuracy_score,
)
from torch import Tensor, nn

from predictors import random_model
from vitreous import create
from vitreous.data.loader import Batch, BatchSlice, EvalLoader, Reader
from vitreous.data.sources.base import ArraySource, StoredImage
from vitreous.inference import Predictor
from vitreous.model.config import ViTConfig
from vitreous.model.inputs import normalise
from vitreous.model.options import Preprocessing
from vitreous.tasks import classification_metrics
from vitreous.tasks.classification_metrics import (
    MOST_OUTPUTS,
    Evaluation,
    calibration_images,
    classify_batches,
    classify_source,
    fit_familiarity,
)

NAMES = tuple("abcdefg")


def scores(n: int, classes: int, seed: int = 0, ties: bool = False) -> tuple[Tensor, Tensor]:
    """Scores that are often right, rounded so that many are equal."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (n,), generator=generator)
    logits = torch.randn(n, classes, generator=generator)
    logits[torch.arange(n), labels] += 1
    return (logits.mul(2).round() if ties else logits), labels


@given(
    n=st.integers(1, 60),
    classes=st.integers(3, 12),
    seed=st.integers(0, 1000),
    ties=st.booleans(),
    hidden=st.integers(0, 9),
)
@settings(deadline=None, max_examples=40)
def test_metrics_equal_those_of_scikit_learn(n: int, classes: int, seed: int, ties: bool, hidden: int) -> None:
    logits, labels = scores(n + hidden, classes, seed, ties)
    labels[:hidden] = -1
    logits[:hidden] = torch.nan  # scores of unreadable images do not matter
    metrics = Evaluation.of(logits, labels).metrics()
    seen, known, all_classes = logits[hidden:].double(), labels[hidden:], range(classes)
    # Of equal scores scikit-learn takes the higher class and we the lower, so it gets the classes in reverse.
    mirror = {"y_true": classes - 1 - known, "y_score": seen.flip(1), "labels": all_classes}
    assert metrics["top1"] == pytest.approx(top_k_accuracy_score(**mirror, k=1))
    if classes > 5:
        assert metrics["top5"] == pytest.approx(top_k_accuracy_score(**mirror, k=5))
    guesses = Evaluation.of(logits, labels).predicted[hidden:]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some classes that are predicted have no images
        assert metrics["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(known, guesses))
    assert metrics["loss"] == pytest.approx(log_loss(known, seen.softmax(1), labels=all_classes), abs=1e-5)
    assert (metrics["count"], metrics["unreadable"]) == (n, hidden)


@pytest.mark.parametrize("ties", [False, True])
def test_classes_and_confusion_equal_those_of_scikit_learn(ties: bool) -> None:
    logits, labels = scores(200, 7, ties=ties)
    labels[labels == 3] = 2  # no image of class 3
    logits[:, 5] = -100  # class 5 is never predicted
    logits[:, 3] -= 0.5
    labels[labels == 6] = 0
    logits[:, 6] = -100  # class 6 neither exists nor is predicted
    evaluation = Evaluation.of(logits, labels, NAMES)
    predicted = logits.argmax(1)
    assert torch.equal(evaluation.confusion(), torch.tensor(confusion_matrix(labels, predicted, labels=range(7))))
    rows = evaluation.per_class()
    peer = precision_recall_fscore_support(labels, predicted, labels=range(7), zero_division=np.nan)
    ours = np.array([[math.nan if x is None else x for x in (r.precision, r.recall, r.f1, r.count)] for r in rows]).T
    np.testing.assert_allclose(ours, np.stack(peer), equal_nan=True)
    assert rows[3].recall is None
    assert rows[3].precision == 0
    assert rows[5].precision is None
    assert rows[5].recall == rows[5].f1 == 0
    assert rows[6].f1 is None
    assert [row.name for row in rows] == list(NAMES)


@given(n=st.integers(1, 80), classes=st.integers(1, 8), seed=st.integers(0, 1000), sharp=st.sampled_from([0, 1, 30]))
@settings(deadline=None, max_examples=40)
def test_calibration_equals_a_loop_over_bins(n: int, classes: int, seed: int, sharp: float) -> None:
    logits, labels = scores(n, classes, seed)
    logits = logits * sharp  # from complete ignorance to complete certainty
    evaluation = Evaluation.of(logits, labels)
    confidence, predicted = logits.softmax(1).max(1)
    right, error, bins = (predicted == labels).numpy(), 0.0, evaluation.calibration()
    sure = evaluation.confidence.double().numpy()
    np.testing.assert_allclose(sure, confidence, rtol=1e-5)
    for b in range(15):
        inside = (sure > np.linspace(0, 1, 16)[b]) & (sure <= np.linspace(0, 1, 16)[b + 1])
        assert int(bins.counts[b]) == inside.sum()
        if inside.any():
            assert float(bins.accuracy[b]) == pytest.approx(right[inside].mean())
            assert float(bins.confidence[b]) == pytest.approx(sure[inside].mean())
            error += inside.mean() * abs(right[inside].mean() - sure[inside].mean())
    assert int(bins.counts.sum()) == n
    assert evaluation.metrics()["ece"] == pytest.approx(error, abs=1e-9) == bins.ece


def test_a_confidence_on_an_edge_falls_into_the_lower_bin() -> None:
    counts = Evaluation.of(torch.zeros(3, 2), torch.tensor([0, 1, 1])).calibration(bins=4).counts
    assert counts.tolist() == [0, 3, 0, 0]  # one half


def test_a_perfectly_calibrated_guess_has_no_error() -> None:
    logits = torch.zeros(40, 4)
    evaluation = Evaluation.of(logits, torch.arange(40) % 4)
    assert evaluation.metrics() == pytest.approx(
        {"top1": 0.25, "top5": 1, "balanced_accuracy": 0.25, "loss": math.log(4), "ece": 0}
        | {"count": 40, "unreadable": 0},
        abs=1e-6,
    )
    assert set(evaluation.predicted.tolist()) == {0}


def test_ties_go_to_the_lower_class_also_among_the_best_five() -> None:
    logits = torch.tensor([[0.0, 1, 1, 0, 0, 0, 1, 0]])
    assert Evaluation.of(logits, torch.tensor([0])).best.tolist() == [[1, 2, 6, 0, 3]]


def test_the_most_confused_pairs_by_counting() -> None:
    true = [0] * 10 + [1] * 4 + [2] * 8 + [-1] * 5
    guess = [0] * 7 + [1] * 3 + [2] * 3 + [1] + [0] * 3 + [2] * 5 + [0] * 5
    evaluation = Evaluation.of(torch.eye(3)[guess], torch.tensor(true))
    found = [(pair.true, pair.predicted, pair.count, pair.fraction) for pair in evaluation.most_confused(10)]
    assert found == [(1, 2, 3, 3 / 4), (2, 0, 3, 3 / 8), (0, 1, 3, 3 / 10)]
    assert evaluation.most_confused(1) == evaluation.most_confused(10)[:1]


def test_the_worst_mistakes_have_the_highest_confidence() -> None:
    logits, labels = scores(100, 5)
    labels[::7] = -1
    evaluation = Evaluation.of(logits, labels)
    worst = evaluation.worst(6)
    sure, predicted = logits.softmax(1).max(1)
    expected = sorted(
        (i for i in range(100) if labels[i] >= 0 and predicted[i] != labels[i]), key=lambda i: -float(sure[i])
    )
    assert [wrong.index for wrong in worst] == expected[:6]
    for wrong in worst:
        assert wrong.true == labels[wrong.index]
        assert wrong.predicted == predicted[wrong.index]
        assert wrong.probability == pytest.approx(float(sure[wrong.index]))
    assert len(evaluation.worst(1000)) == len(expected)
    assert Evaluation.of(torch.eye(3), torch.arange(3)).worst(5) == []


def test_joined_batches_equal_the_whole() -> None:
    logits, labels = scores(50, 9)
    labels[4] = -1
    names = [f"class {i}" for i in range(9)]
    whole = Evaluation.of(logits, labels, names)
    parts = zip(logits.split(16), labels.split(16), torch.arange(50).split(16), strict=True)
    joined = Evaluation.join([Evaluation.of(*part[:2], names, part[2]) for part in parts])
    assert joined.metrics() == whole.metrics()
    assert joined.worst(5) == whole.worst(5)
    assert joined.names == tuple(names)


def test_memory_does_not_grow_with_the_number_of_classes() -> None:
    def kept(classes: int) -> int:
        evaluation = Evaluation.of(*scores(10, classes))
        tensors = (evaluation.labels, evaluation.best, evaluation.confidence, evaluation.losses, evaluation.indices)
        return sum(tensor.untyped_storage().nbytes() for tensor in tensors)

    assert kept(21_841) == kept(5) == 64 * 10


def test_half_precision_scores_are_evaluated_in_float32() -> None:
    logits, labels = scores(64, 6)
    assert Evaluation.of(logits.half(), labels).metrics() == Evaluation.of(logits.half().float(), labels).metrics()


@pytest.mark.parametrize(
    ("logits", "labels", "names", "message"),
    [
        (torch.zeros(2, 3), torch.tensor([0, 3]), None, "labels must be from 0 to 2"),
        (torch.zeros(2, 3), torch.tensor([0, -2]), None, "or -1 for an unreadable"),
        (torch.zeros(2, 3), torch.tensor([0, 1]), ("a", "b"), r"names .* class \(3\), got 2"),
        (torch.tensor([[0, torch.inf], [0, 0]]), torch.tensor([0, 1]), None, "logits of 1 of 2 images"),
        (torch.tensor([[0, torch.nan], [0, 0]]), torch.tensor([0, 1]), None, "infinite or NaN"),
    ],
)
def test_invalid_scores_and_labels_are_rejected(
    logits: Tensor, labels: Tensor, names: tuple[str, ...] | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Evaluation.of(logits, labels, names)


def test_without_readable_images_there_are_no_metrics() -> None:
    evaluation = Evaluation.of(torch.zeros(3, 2), torch.full((3,), -1))
    with pytest.raises(ValueError, match="none of the 3 images"):
        evaluation.metrics()
    assert evaluation.worst(3) == evaluation.most_confused(3) == []
    assert [row.f1 for row in evaluation.per_class()] == [None, None]
    with pytest.raises(ValueError, match="no batch"):
        Evaluation.join([])
    with pytest.raises(ValueError, match="different classes"):
        Evaluation.join([evaluation, Evaluation.of(torch.zeros(1, 3), torch.tensor([0]))])


# ---- Evaluating batches and sources ----------------------------------------------------------------------------------

CLASSES = ("left", "right", "neither")
PLAIN = Preprocessing(crop_fraction=1.0)


class Sides(nn.Module):
    """Scores the brightness of either half, as normalised; records the mode of each call."""

    def __init__(self) -> None:
        super().__init__()
        self.modes: list[bool] = []

    def forward(self, images: Tensor) -> Tensor:
        self.modes.append(self.training)
        half = images.shape[3] // 2
        sides = [images[..., :half].mean((1, 2, 3)), images[..., half:].mean((1, 2, 3))]
        return torch.stack([*sides, torch.zeros_like(sides[0])], dim=1)


def batches(count: int, rank: int = 0, ranks: int = 1) -> EvalLoader:
    images = np.random.default_rng(0).integers(0, 256, (count, 4, 6, 3), dtype=np.uint8)
    source = ArraySource(images, np.arange(count) % 3, CLASSES, "set")
    return EvalLoader(Reader(source, (4, 6), 3, PLAIN), BatchSlice(4 * ranks, rank, ranks), workers=0)


def evaluated(loader: EvalLoader, module: nn.Module | None = None, flip: bool = False) -> Evaluation:
    return classify_batches(module or Sides(), loader, torch.device("cpu"), PLAIN, CLASSES, flip=flip)


def side_scores(loader: EvalLoader) -> Tensor:
    """Return the scores of each image once; the last one may be repeated to fill a batch."""
    images = torch.cat([batch.images for batch in loader])[: len(loader.reader.source)]
    return Sides()(normalise(images.float() / 255, PLAIN))


def test_every_image_is_evaluated_in_order() -> None:
    found = evaluated(batches(10))
    assert found.indices.tolist() == list(range(10))
    assert torch.equal(found.predicted, side_scores(batches(10)).argmax(1))
    losses = nn.functional.cross_entropy(side_scores(batches(10)), torch.arange(10) % 3, reduction="none")
    torch.testing.assert_close(found.losses, losses)


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_of_the_classifier_is_restored(training: bool) -> None:
    module = Sides().train(training)
    evaluated(batches(10), module)
    assert module.modes == [False] * 3
    assert module.training is training


def test_flip_averages_probabilities_with_the_mirror_image() -> None:
    plain = side_scores(batches(10))
    mirrored = plain[:, [1, 0, 2]]  # left becomes right
    expected = (plain.softmax(1) + mirrored.softmax(1)) / 2
    found = evaluated(batches(10), flip=True)
    torch.testing.assert_close(found.confidence, expected.max(1).values)
    torch.testing.assert_close(found.losses, -expected.log()[torch.arange(10), torch.arange(10) % 3])


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_joined_processes_equal_one_process(ranks: int) -> None:
    """An image that is repeated to fill the last process counts once."""
    alone = evaluated(batches(10))
    together = Evaluation.join([evaluated(batches(10, rank, ranks)) for rank in range(ranks)])
    assert torch.equal(together.indices, alone.indices)
    assert together.metrics() == pytest.approx(alone.metrics())
    for field in ("labels", "best", "confidence", "losses"):
        torch.testing.assert_close(getattr(together, field), getattr(alone, field))


def test_unreadable_images_are_skipped_and_named_once() -> None:
    whole = list(batches(8))
    labels = whole[1].labels.clone()
    labels[2] = -1
    broken = whole[1]._replace(labels=labels, problems=["c.jpg: the file is empty"])
    parts: list[list[Batch]] = [[whole[0], broken], [broken]]
    found = Evaluation.join(
        [classify_batches(Sides(), part, torch.device("cpu"), PLAIN, CLASSES) for part in parts]
    )  # the second process had it too
    assert found.problems == ["c.jpg: the file is empty"]
    metrics = found.metrics()
    assert (metrics["count"], metrics["unreadable"]) == (7, 1)
    keep = [0, 1, 2, 3, 4, 5, 7]
    right = (side_scores(batches(8)).argmax(1) == torch.arange(8) % 3)[keep]
    assert metrics["top1"] == pytest.approx(right.float().mean().item())


def test_bfloat16_is_close_and_losses_are_float32() -> None:
    linear = nn.Sequential(nn.Flatten(), nn.Linear(72, 3))
    full, half = (
        classify_batches(linear, batches(10), torch.device("cpu"), PLAIN, CLASSES, precision)
        for precision in (torch.float32, torch.bfloat16)
    )
    assert half.losses.dtype == torch.float32
    assert not torch.equal(half.losses, full.losses)
    torch.testing.assert_close(half.losses, full.losses, atol=0.05, rtol=0.05)


class WithMissingFile(ArraySource):
    def image(self, index: int) -> StoredImage:
        if index == 2:
            raise FileNotFoundError(2, "No such file or directory")
        return super().image(index)


@pytest.mark.parametrize("flip", [False, True])
def test_a_source_and_its_batches_give_the_same_metrics(flip: bool) -> None:
    model = random_model("class token").eval()
    config, names = model.config, tuple("abcdefg")
    images = np.random.default_rng(0).integers(0, 256, (11, 30, 40, 3), dtype=np.uint8)
    source = WithMissingFile(images, np.arange(11) % 7, names, "set")
    loader = EvalLoader(Reader(source, config.image_size, 3, config.preprocessing), BatchSlice(4), workers=0)
    by_batch = classify_batches(model, loader, torch.device("cpu"), config.preprocessing, names, flip=flip)
    by_image = classify_source(Predictor(model, "cpu", batch_size=4, flip=flip), source, names)
    assert by_image.metrics() == pytest.approx(by_batch.metrics())
    assert by_image.metrics()["unreadable"] == 1
    assert by_image.problems == ["set[2]: No such file or directory"]
    torch.testing.assert_close(by_image.losses, by_batch.losses)
    assert torch.equal(by_image.best[by_image.readable], by_batch.best[by_batch.readable])


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_joined_processes_equal_one_predictor(ranks: int) -> None:
    """Exactly, because each process computes whole batches; with five processes, two have none."""
    predictor = Predictor(random_model("class token"), "cpu", batch_size=4)
    images = np.random.default_rng(0).integers(0, 256, (11, 30, 40, 3), dtype=np.uint8)
    source = WithMissingFile(images, np.arange(11) % 7, NAMES, "set")
    alone = classify_source(predictor, source, NAMES)
    parts = [classify_source(predictor, source, NAMES, rank, ranks) for rank in range(ranks)]
    assert sum(len(part.labels) for part in parts) == 11
    joined = Evaluation.join(parts)
    assert joined.problems == alone.problems
    assert joined.metrics() == alone.metrics()
    assert torch.equal(joined.losses, alone.losses)


@pytest.mark.parametrize(("flip", "ranks"), [(False, 1), (True, 5)])
def test_features_are_kept_with_the_logits_of_their_image(flip: bool, ranks: int) -> None:
    predictor = Predictor(random_model("class token"), "cpu", batch_size=4, flip=flip)
    images = np.random.default_rng(0).integers(0, 256, (11, 30, 40, 3), dtype=np.uint8)
    source = WithMissingFile(images, np.arange(11) % 7, NAMES, "set")
    parts = [
        classify_source(predictor, source, NAMES, rank, ranks, keep_logits=True, keep_features=True)
        for rank in range(ranks)
    ]
    found = Evaluation.join(parts)
    assert found.features is not None
    assert found.logits is not None
    torch.testing.assert_close(found.features[found.readable], predictor.embed(np.delete(images, 2, axis=0)))
    torch.testing.assert_close(found.logits[found.readable], predictor.logits(np.delete(images, 2, axis=0)))
    assert found.metrics() == classify_source(predictor, source, NAMES).metrics()
    assert not found.features[2].any()  # unreadable


def test_scores_that_are_not_finite_are_an_error() -> None:
    model = random_model("class token")
    nn.init.constant_(model.head.bias, torch.nan)  # type: ignore[arg-type]
    source = ArraySource(np.zeros((3, 30, 40, 3), np.uint8), np.arange(3), tuple("abcdefg"), "set")
    with pytest.raises(ValueError, match=r"set\[0\]: .*NaN or infinity"):
        classify_source(Predictor(model, "cpu"), source, source.classes)


class CountingSource(ArraySource):
    """Random images of two classes in order, which records which of them are read."""

    def __init__(self, count: int):
        images = np.random.default_rng(count).integers(256, size=(count, 8, 8, 3), dtype=np.uint8)
        super().__init__(images, np.arange(count) * 2 // count, ("a", "b"), "noise")
        self.read = list[int]()

    def image(self, index: int) -> StoredImage:
        self.read.append(index)
        return super().image(index)


@pytest.mark.parametrize(("most", "per_class", "count"), [(200, 10, 64), (40, 10, 40), (40, 50, 100), (40, 200, 300)])
def test_the_familiarity_is_fitted_to_as_many_images_as_its_dimension_needs(
    most: int, per_class: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(classification_metrics, "PER_DIMENSION", 2)
    monkeypatch.setattr(classification_metrics, "MOST_FEATURES", most)
    monkeypatch.setattr(classification_metrics, "MOST_PER_CLASS", per_class)
    small = {"depth": 1, "width": 32, "mlp_width": 32, "num_heads": 2, "patch_size": 4}
    predictor = Predictor(create("ViT-Lite-6/4", num_classes=2, image_size=8, overrides=small), "cpu", workers=0)
    train, val = CountingSource(300), CountingSource(30)
    found, quantiles = fit_familiarity(
        predictor, train, classify_source(predictor, val, ("a", "b"), keep_features=True)
    )
    assert len(train.read) == len(set(train.read)) == count
    assert {0, 299} <= set(train.read)  # evenly spaced, because the images may be sorted by class
    assert sorted(val.read) == list(range(30))  # once each
    assert len(found.means) == 2
    assert quantiles


@pytest.mark.parametrize("count", [1, 9_489, 9_490, 18_979, 100_000])
def test_images_for_the_calibration_are_limited_and_selected_once(count: int) -> None:
    config = ViTConfig(num_classes=1_000, width=768)
    source = ArraySource(np.zeros((count, 1, 1, 3), np.uint8), np.zeros(count, np.int64), ("a",), "images")
    chosen = calibration_images(source, config)
    assert len(chosen) * 1_768 <= MOST_OUTPUTS
    assert calibration_images(chosen, config) is chosen
    assert (chosen is source) == (count * 1_768 <= MOST_OUTPUTS)
