import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge as SklearnRidge
from torch import Tensor

from vitreous.evaluation import features
from vitreous.evaluation.features import FeatureSet
from vitreous.evaluation.linear import EPSILON, Ridge, Scaling

CPU = torch.device("cpu")


def problem(n: int, width: int, classes: int = 4) -> FeatureSet:
    """Features of very different means and scales; one of them is constant."""
    points = torch.randn(n, width) * torch.logspace(-2, 2, width) + torch.linspace(-300, 300, width)
    points[:, 1] = 7
    return FeatureSet(points, torch.randint(classes, (n,)))


def targets(labels: Tensor, classes: int) -> np.ndarray:
    return 2 * np.eye(classes)[labels] - 1


def standardised(features: Tensor, by: Tensor) -> np.ndarray:
    x, known = features.double().numpy(), by.double().numpy()
    return (x - known.mean(0)) / (known.std(0) + EPSILON)


@pytest.mark.parametrize("l2", [1e-3, 1.0, 1024.0])
@pytest.mark.parametrize("n", [12, 25, 300])
@pytest.mark.parametrize("dual", [False, True, None])
def test_solutions_equal_the_closed_form_and_scikit_learn(n: int, dual: bool | None, l2: float) -> None:
    train, test = problem(n, 25), problem(40, 25)
    x, y = standardised(train.features, train.features), targets(train.labels, 4)
    weight = np.linalg.solve(x.T @ x + l2 * np.eye(25), x.T @ (y - y.mean(0)))
    new = standardised(test.features, train.features)
    found = Ridge(train, 4, dual=dual).at(l2)(test.features)
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found, new @ weight + y.mean(0), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(found, SklearnRidge(alpha=l2, solver="svd").fit(x, y).predict(new), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("n", [15, 200])
def test_the_budget_does_not_change_results(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    train = problem(n, 20)
    whole = Ridge(train, 4).at(1.0)
    accuracy = whole.accuracy(train)
    monkeypatch.setattr(features, "BUDGET", 1)
    bits = Ridge(train, 4).at(1.0)
    torch.testing.assert_close(whole(train.features), bits(train.features), rtol=1e-9, atol=1e-9)
    assert whole.accuracy(train) == accuracy


@pytest.mark.parametrize("n", [15, 200])
def test_the_order_of_images_does_not_matter(n: int) -> None:
    train = problem(n, 20)
    one, other = Ridge(train, 4).at(1.0), Ridge(train.pick(torch.randperm(n)), 4).at(1.0)
    torch.testing.assert_close(one(train.features), other(train.features), rtol=1e-9, atol=1e-9)


def test_scaling_far_from_zero_is_exact() -> None:
    features = torch.tensor([[4096.0], [4096.5], [4097.0]])
    scaling = Scaling.of(features, CPU)
    assert float(scaling.std) == pytest.approx(np.sqrt(1 / 6) + EPSILON, rel=1e-12)
    assert float(scaling(features).sum()) == 0


def test_a_class_without_images_is_never_predicted() -> None:
    train = problem(50, 10, classes=3)
    scores = Ridge(train, 5).at(1.0)(train.features)
    assert scores.shape == (50, 5)
    assert bool((scores[:, 3:] == -1).all())
