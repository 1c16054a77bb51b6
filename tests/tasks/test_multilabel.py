"""Multi-label classification: its losses and metrics against their definitions and scikit-learn."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from vitreous.common.checks import BadValue
from vitreous.data.loader import Batch
from vitreous.model.build import build_vit
from vitreous.model.config import ViTConfig
from vitreous.model.options import MultiLabel
from vitreous.tasks.config import Augment, TableTargets, TrainConfig
from vitreous.tasks.multilabel import MultiLabelTask, asymmetric_loss, binary_cross_entropy
from vitreous.tasks.multilabel_metrics import MultiLabelEvaluation, average_precision, best_threshold

metrics = pytest.importorskip("sklearn.metrics")

# Few distinct values, so that there are ties.
SCORES = arrays(np.float32, st.tuples(st.integers(1, 30), st.integers(1, 4)), elements=st.integers(-8, 8).map(float))


def evaluation(scores: np.ndarray, truth: np.ndarray, **fields: Any) -> MultiLabelEvaluation:
    n, k = scores.shape
    config = ViTConfig(num_classes=k, output=MultiLabel(**fields))
    everything = torch.ones(n, dtype=torch.bool)
    return MultiLabelEvaluation.of(torch.tensor(scores), torch.tensor(truth), everything, torch.arange(n), config)


@given(SCORES, st.randoms(use_true_random=False))
def test_average_precision_and_f1_equal_those_of_scikit_learn(scores: np.ndarray, random: Any) -> None:
    truth = np.array([[random.random() < 0.4 for _ in row] for row in scores], bool)
    found = evaluation(scores, truth)
    present = truth.any(0)
    if present.any():
        expected = metrics.average_precision_score(truth[:, present], scores[:, present], average="macro")
        assert found.metrics()["map"] == pytest.approx(expected)
        predicted = scores >= 0  # a probability of 0.5
        f1 = [
            metrics.f1_score(*pair, zero_division=0)
            for pair in zip(truth.T[present], predicted.T[present], strict=True)
        ]
        assert found.metrics()["f1"] == pytest.approx(np.mean(f1))
        assert found.metrics()["f1_micro"] == pytest.approx(metrics.f1_score(truth.ravel(), predicted.ravel()))
    for column, row in enumerate(found.per_class()):
        assert row.count == truth[:, column].sum()
        assert (row.average_precision is None) == (row.recall is None) == (not present[column])


@given(SCORES, st.randoms(use_true_random=False))
def test_fitted_thresholds_have_the_highest_f1(scores: np.ndarray, random: Any) -> None:
    truth = np.array([[random.random() < 0.4 for _ in row] for row in scores], bool)
    fitted = evaluation(scores, truth).fitted()
    for column, row in enumerate(fitted.per_class()):
        if row.count:
            cuts = [scores[:, column] >= cut for cut in np.unique(scores[:, column])]
            best = max(metrics.f1_score(truth[:, column], predicted, zero_division=0) for predicted in cuts)
            assert row.f1 == pytest.approx(best)
        else:
            assert row.threshold == 0.5


def test_a_threshold_is_halfway_between_probabilities() -> None:
    truth = np.array([True, True, False, False])
    assert best_threshold(np.array([0.9, 0.7, 0.3, 0.1], np.float32), truth) == pytest.approx(0.5)
    assert best_threshold(np.array([0.2, 0.2, 0.2, 0.2], np.float32), truth) == pytest.approx(0.1)
    assert average_precision(np.zeros(3, np.float32), np.zeros(3, bool)) is None


def test_thresholds_of_the_model_are_used() -> None:
    scores, truth = np.array([[0.0, 0.0]], np.float32), np.array([[True, True]])
    found = evaluation(scores, truth, thresholds=(0.4, 0.6))
    assert found.predicted().tolist() == [[True, False]]
    assert [row.threshold for row in found.per_class()] == [0.4, 0.6]


def test_joined_parts_count_each_image_once_and_exclude_unreadable_images() -> None:
    rng = np.random.default_rng(0)
    scores, truth = rng.normal(size=(20, 3)).astype(np.float32), rng.random((20, 3)) < 0.4
    whole = evaluation(scores, truth)
    readable = torch.arange(20) != 7
    parts = [
        MultiLabelEvaluation.of(whole.scores[rows], whole.targets[rows], readable[rows], rows, whole.config, [])
        for rows in (torch.arange(19, -1, -2), torch.arange(0, 20, 2), torch.tensor([3, 4]))
    ]
    joined = MultiLabelEvaluation.join(parts)
    assert joined.indices.tolist() == list(range(20))
    without = evaluation(np.delete(scores, 7, 0), np.delete(truth, 7, 0)).metrics()
    assert joined.metrics() == {**without, "unreadable": 1}


def test_worst_images_name_missed_and_wrong_labels() -> None:
    config = ViTConfig(num_classes=3, labels=("ant", "bee", "cat"), output=MultiLabel())
    scores = torch.tensor([[5.0, -5.0, 5.0], [5.0, -5.0, -5.0], [-9.0, -5.0, -5.0]])
    truth = torch.tensor([[True, True, False], [True, False, False], [True, False, False]])
    found = MultiLabelEvaluation.of(scores, truth, torch.ones(3, dtype=torch.bool), torch.tensor([4, 5, 6]), config)
    first, second = found.worst(5)
    assert (first.index, first.missed, first.wrong) == (4, ["bee"], ["cat"])
    assert (second.index, second.missed, second.wrong) == (6, ["ant"], [])


# ---- Losses ----------------------------------------------------------------------------------------------------------


def test_asymmetric_loss_matches_its_definition() -> None:
    logits, targets = 3 * torch.randn(6, 5), torch.rand(6, 5)  # soft targets, as after mixup
    p = logits.sigmoid()
    shifted = (p - 0.05).clamp(min=0)
    expected = -(targets * p.log() + (1 - targets) * shifted**4 * (1 - shifted).log()).mean(1)
    torch.testing.assert_close(asymmetric_loss(logits, targets), expected)


def test_asymmetric_loss_ignores_easy_negatives_and_has_finite_gradients() -> None:
    logits = torch.tensor([[-4.0, 200.0, -200.0]], requires_grad=True)
    loss = asymmetric_loss(logits, torch.tensor([[0.0, 0.0, 1.0]]))
    loss.sum().backward()
    assert logits.grad is not None
    assert logits.grad[0, 0] == 0
    assert logits.grad.isfinite().all()
    assert loss.isfinite().all()


def test_cross_entropy_is_that_of_torch() -> None:
    logits, targets = torch.randn(4, 3), torch.rand(4, 3)
    torch.testing.assert_close(
        binary_cross_entropy(logits, targets).mean(), F.binary_cross_entropy_with_logits(logits, targets)
    )


# ---- Task ------------------------------------------------------------------------------------------------------------


def task_of(small: ViTConfig, **fields: Any) -> MultiLabelTask:
    model = build_vit(dataclasses.replace(small, output=MultiLabel()))
    torch.nn.init.normal_(model.head.weight)  # type: ignore[arg-type]
    plain = {"augment": Augment(crop="none", flip=0.0)}
    return MultiLabelTask(TrainConfig(task="multilabel", **(plain | fields)), model)


def batch_of(labels: list[int], targets: torch.Tensor) -> Batch:
    count = len(labels)
    images, where = torch.randint(0, 256, (count, 3, 24, 32), dtype=torch.uint8), torch.arange(count)
    return Batch(images, torch.tensor(labels), where, where, 0, [], targets=targets)


@pytest.mark.parametrize("loss", ["bce", "asymmetric"])
def test_unreadable_images_have_no_loss(small: ViTConfig, loss: Any) -> None:
    task = task_of(small, targets=TableTargets(loss=loss))
    batch = batch_of([0, -1, 0], torch.rand(3, 5) < 0.5)
    rows = [0, 2]
    readable = Batch(*(part[rows] for part in batch[:4]), 0, [], targets=batch.targets[rows])  # type: ignore[index]
    totals = [task.loss(task.module().train(), task.prepare(one))[0] for one in (batch, readable)]
    torch.testing.assert_close(totals[0], totals[1])


def test_targets_are_smoothed(small: ViTConfig) -> None:
    task = task_of(small, smoothing=0.2)
    targets = task.prepare(batch_of([0], torch.tensor([[True, False, True, False, False]])))[1]
    torch.testing.assert_close(targets, torch.tensor([[0.9, 0.1, 0.9, 0.1, 0.1]]))


def test_images_without_labels_are_mixed(small: ViTConfig) -> None:
    task = task_of(small, augment=Augment(crop="none", flip=0.0, mixup=1.0))
    targets = torch.tensor([[False] * 5, [True] * 5])
    mixed = task.prepare(batch_of([0, 0], targets))[1]
    assert 0 < float(mixed[0, 0]) < 1
    assert float(mixed[0, 0]) == pytest.approx(1 - float(mixed[1, 0]))


def test_losses_of_other_tasks_are_rejected() -> None:
    with pytest.raises(BadValue, match="loss is 'mse'"):
        MultiLabelTask.check(TrainConfig(task="multilabel", targets=TableTargets(loss="mse")))
    with pytest.raises(BadValue, match="teacher"):
        MultiLabelTask.check(TrainConfig(task="multilabel", distillation=dataclasses.replace(TrainConfig().distillation, teacher="x")))  # fmt: skip  # noqa: E501
