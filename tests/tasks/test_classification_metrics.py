import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import (
    confusion_matrix,
    log_loss,
    precision_recall_fscore_support,
    top_k_accuracy_score,
)
from torch import Tensor

from vitreous.tasks.classification_metrics import Evaluation

NAMES = tuple("abcdefg")


def scores(n: int, classes: int, seed: int = 0, ties: bool = False) -> tuple[Tensor, Tensor]:
    """Scores that are right rather often, on a coarse grid where many should be equal."""
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
def test_figures_equal_those_of_scikit_learn(n: int, classes: int, seed: int, ties: bool, hidden: int) -> None:
    logits, labels = scores(n + hidden, classes, seed, ties)
    labels[:hidden] = -1
    logits[:hidden] = torch.nan  # what stands there for an unreadable picture must not matter
    figures = Evaluation.of(logits, labels).metrics()
    seen, known, all_classes = logits[hidden:].double(), labels[hidden:], range(classes)
    # Of equal scores scikit-learn takes the higher class and we the lower, so it is asked about the mirror image.
    mirror = {"y_true": classes - 1 - known, "y_score": seen.flip(1), "labels": all_classes}
    assert figures["top1"] == pytest.approx(top_k_accuracy_score(**mirror, k=1))
    if classes > 5:
        assert figures["top5"] == pytest.approx(top_k_accuracy_score(**mirror, k=5))
    assert figures["loss"] == pytest.approx(log_loss(known, seen.softmax(1), labels=all_classes), abs=1e-5)
    assert (figures["count"], figures["unreadable"]) == (n, hidden)


@pytest.mark.parametrize("ties", [False, True])
def test_classes_and_confusion_equal_those_of_scikit_learn(ties: bool) -> None:
    logits, labels = scores(200, 7, ties=ties)
    labels[labels == 3] = 2  # no picture of class 3
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


def test_a_confidence_on_an_edge_belongs_below_it() -> None:
    counts = Evaluation.of(torch.zeros(3, 2), torch.tensor([0, 1, 1])).calibration(bins=4).counts
    assert counts.tolist() == [0, 3, 0, 0]  # one half


def test_a_perfectly_calibrated_guess_has_no_error() -> None:
    logits = torch.zeros(40, 4)
    evaluation = Evaluation.of(logits, torch.arange(40) % 4)
    assert evaluation.metrics() == pytest.approx(
        {"top1": 0.25, "top5": 1, "loss": math.log(4), "ece": 0, "count": 40, "unreadable": 0}, abs=1e-6
    )
    assert set(evaluation.predicted.tolist()) == {0}


def test_ties_go_to_the_lower_class_also_among_the_best_five() -> None:
    logits = torch.tensor([[0.0, 1, 1, 0, 0, 0, 1, 0]])
    assert Evaluation.of(logits, torch.tensor([0])).best.tolist() == [[1, 2, 6, 0, 3]]


def test_the_most_confused_pairs_by_counting() -> None:
    true = [0] * 10 + [1] * 4 + [2] * 8 + [-1] * 5
    guess = [0] * 7 + [1] * 3 + [2] * 3 + [1] + [0] * 3 + [2] * 5 + [0] * 5
    evaluation = Evaluation.of(torch.eye(3)[guess], torch.tensor(true))
    found = [(pair.true, pair.predicted, pair.count, pair.share) for pair in evaluation.most_confused(10)]
    assert found == [(1, 2, 3, 3 / 4), (2, 0, 3, 3 / 8), (0, 1, 3, 3 / 10)]
    assert evaluation.most_confused(1) == evaluation.most_confused(10)[:1]


def test_the_worst_mistakes_are_the_surest_and_keep_their_place() -> None:
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


def test_batches_joined_are_the_whole() -> None:
    logits, labels = scores(50, 9)
    labels[4] = -1
    names = [f"class {i}" for i in range(9)]
    whole = Evaluation.of(logits, labels, names)
    parts = zip(logits.split(16), labels.split(16), strict=True)
    joined = Evaluation.join([Evaluation.of(*part, names) for part in parts])
    assert joined.metrics() == whole.metrics()
    assert joined.worst(5) == whole.worst(5)
    assert joined.names == tuple(names)


def test_what_is_kept_does_not_grow_with_the_classes() -> None:
    def kept(classes: int) -> int:
        evaluation = Evaluation.of(*scores(10, classes))
        tensors = (evaluation.labels, evaluation.best, evaluation.confidence, evaluation.losses)
        return sum(tensor.untyped_storage().nbytes() for tensor in tensors)

    assert kept(21_841) == kept(5) == 56 * 10


def test_half_precision_is_measured_in_single() -> None:
    logits, labels = scores(64, 6)
    assert Evaluation.of(logits.half(), labels).metrics() == Evaluation.of(logits.half().float(), labels).metrics()


@pytest.mark.parametrize(
    ("logits", "labels", "names", "message"),
    [
        (torch.zeros(2, 3), torch.tensor([0, 3]), None, "labels must be from 0 to 2"),
        (torch.zeros(2, 3), torch.tensor([0, -2]), None, "or -1 for an unreadable"),
        (torch.zeros(2, 3), torch.tensor([0, 1]), ("a", "b"), "names has 2 entries, but the scores are of 3"),
        (torch.tensor([[0, torch.inf], [0, 0]]), torch.tensor([0, 1]), None, "scores of 1 of 2 pictures"),
        (torch.tensor([[0, torch.nan], [0, 0]]), torch.tensor([0, 1]), None, "not a number"),
    ],
)
def test_nonsense_is_named(logits: Tensor, labels: Tensor, names: tuple[str, ...] | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Evaluation.of(logits, labels, names)


def test_nothing_readable_has_no_figures() -> None:
    evaluation = Evaluation.of(torch.zeros(3, 2), torch.full((3,), -1))
    with pytest.raises(ValueError, match="none of the 3 pictures"):
        evaluation.metrics()
    assert evaluation.worst(3) == evaluation.most_confused(3) == []
    assert [row.f1 for row in evaluation.per_class()] == [None, None]
    with pytest.raises(ValueError, match="no batch"):
        Evaluation.join([])
    with pytest.raises(ValueError, match="different classes"):
        Evaluation.join([evaluation, Evaluation.of(torch.zeros(1, 3), torch.tensor([0]))])
