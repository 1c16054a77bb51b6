"""Regression: its losses and metrics against their definitions and scikit-learn."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from vitreous.common.checks import BadValue
from vitreous.data.loader import Batch
from vitreous.model.build import build_vit
from vitreous.model.config import ViTConfig
from vitreous.model.options import Numbers
from vitreous.tasks.config import Augment, TableTargets, TrainConfig
from vitreous.tasks.regress import Regress
from vitreous.tasks.regression_metrics import NumberEvaluation, standardised

metrics = pytest.importorskip("sklearn.metrics")

SHAPES = st.tuples(st.integers(2, 20), st.integers(1, 3))
PAIRS = SHAPES.flatmap(
    lambda shape: st.tuples(*(arrays(np.float64, shape, elements=st.integers(-9, 9).map(float)) for _ in range(2)))
)


def evaluation(predicted: np.ndarray, truth: np.ndarray) -> NumberEvaluation:
    """Evaluate predictions in the units of the targets."""
    n, k = truth.shape
    output = Numbers(tuple(100.0 + i for i in range(k)), tuple(2.0 + i for i in range(k)))
    config = ViTConfig(num_classes=k, output=output)
    scores = standardised(torch.tensor(predicted), output).float()
    everything = torch.ones(n, dtype=torch.bool)
    return NumberEvaluation.of(scores, torch.tensor(truth), everything, torch.arange(n), config)


@given(PAIRS)
def test_metrics_equal_those_of_scikit_learn(pair: tuple[np.ndarray, np.ndarray]) -> None:
    predicted, truth = pair
    found = evaluation(predicted, truth)
    exact = found.predicted.numpy()  # after rounding to float32
    np.testing.assert_allclose(exact, predicted, atol=1e-4)
    expected = {
        "mae": metrics.mean_absolute_error(truth, exact),
        "rmse": metrics.root_mean_squared_error(truth, exact),
        "r2": metrics.r2_score(truth, exact),
    }
    assert {key: found.metrics()[key] for key in expected} == pytest.approx(expected, abs=1e-9)
    for column, row in enumerate(found.per_target()):
        assert row.mae == pytest.approx(metrics.mean_absolute_error(truth[:, column], exact[:, column]), abs=1e-9)
        assert row.mean == pytest.approx(truth[:, column].mean())


def test_unreadable_images_are_excluded() -> None:
    rng = np.random.default_rng(0)
    predicted, truth = rng.normal(size=(9, 2)), rng.normal(size=(9, 2))
    whole = evaluation(predicted, truth)
    parts = [
        dataclasses.replace(
            whole,
            scores=torch.where(rows[:, None] == 4, 0, whole.scores[rows]),
            targets=whole.targets[rows],
            readable=rows != 4,
            indices=rows,
        )
        for rows in (torch.tensor([8, 6, 4, 2, 0]), torch.tensor([1, 3, 5, 7, 0]))
    ]
    joined = NumberEvaluation.join(parts)
    without = evaluation(np.delete(predicted, 4, 0), np.delete(truth, 4, 0)).metrics()
    assert joined.metrics() == pytest.approx({**without, "unreadable": 1})
    assert 4 not in [row.index for row in joined.worst(20)]


def test_the_worst_images_have_the_largest_relative_errors() -> None:
    truth = np.zeros((4, 2))
    predicted = np.array([[3.0, 0], [0, 3.5], [0, 0], [-8, 0]])  # the targets have the scales 2 and 3
    rows = evaluation(predicted, truth).worst(3)
    assert [row.index for row in rows] == [3, 0, 1]
    assert rows[0].predicted == pytest.approx([-8, 0], abs=1e-4)
    assert rows[0].true == [0, 0]


# ---- Task ------------------------------------------------------------------------------------------------------------


def task_of(small: ViTConfig, loss: Any = None) -> Regress:
    output = Numbers((10.0, -1e6), (2.0, 1e3))
    model = build_vit(dataclasses.replace(small, num_classes=2, output=output))
    torch.nn.init.normal_(model.head.weight)  # type: ignore[arg-type]
    augment = Augment(crop="none", flip=0.0)
    return Regress(TrainConfig(task="regress", augment=augment, targets=TableTargets(loss=loss)), model)


def batch_of(labels: list[int], targets: torch.Tensor) -> Batch:
    count = len(labels)
    images, where = torch.randint(0, 256, (count, 3, 24, 32), dtype=torch.uint8), torch.arange(count)
    return Batch(images, torch.tensor(labels), where, where, 0, [], targets=targets)


TARGETS = torch.tensor([[10.0, -1e6], [14.0, -1e6 + 500], [0.0, 0.0]], dtype=torch.float64)


def test_targets_are_standardised(small: ViTConfig) -> None:
    targets = task_of(small).prepare(batch_of([0, 0, 0], TARGETS))[1]
    torch.testing.assert_close(targets, torch.tensor([[0.0, 0.0], [2.0, 0.5], [-5.0, 1000.0]]))


@pytest.mark.parametrize("loss", [None, "smooth-l1", "mse"])
def test_loss_is_that_of_torch_without_unreadable_images(small: ViTConfig, loss: Any) -> None:
    task = task_of(small, loss)
    inputs = task.prepare(batch_of([0, -1, 0], TARGETS))
    found = task.loss(task.module(), inputs)[0]
    outputs, targets = task.module()(inputs[0])[[0, 2]], inputs[1][[0, 2]]
    function = torch.nn.MSELoss() if loss == "mse" else torch.nn.SmoothL1Loss()
    torch.testing.assert_close(found, 2 * function(outputs, targets))


def test_options_of_other_tasks_are_rejected() -> None:
    for changes in ({"targets": TableTargets(loss="bce")}, {"augment": Augment(mixup=0.2)}, {"smoothing": 0.1}):
        with pytest.raises(BadValue):
            Regress.check(TrainConfig(task="regress", **changes))  # type: ignore[arg-type]
