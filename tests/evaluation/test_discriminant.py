import numpy as np
import pytest
import torch
from torch.nn import functional as F

from vitreous.evaluation import discriminant
from vitreous.evaluation.discriminant import SHRINKAGES, Classifier, Discriminant, Statistics, best_factor
from vitreous.evaluation.features import FeatureSet


def clusters(n: int = 90, width: int = 12, classes: int = 4, spread: float = 1.5) -> FeatureSet:
    """Overlapping classes, with correlated features far from zero and of different scales."""
    labels = torch.arange(n) % classes
    centres = torch.randn(classes, width, generator=torch.Generator().manual_seed(1))
    noise = torch.randn(n, width, generator=torch.Generator().manual_seed(2))
    points = centres[labels] + spread * (noise + noise.roll(1, dims=1))
    return FeatureSet(points * torch.logspace(-1, 1, width) + 20, labels)


@pytest.mark.parametrize("shrinkage", [0.01, 0.5, 1.0])
def test_scores_equal_a_numpy_solution(shrinkage: float) -> None:
    data = clusters()
    x, y = data.features.double().numpy(), data.labels.numpy()
    means = np.stack([x[y == c].mean(0) for c in range(4)])
    within = np.cov((x - means[y]).T, bias=True)
    shrunk = (1 - shrinkage) * within + shrinkage * np.diag(np.diag(within))
    difference = x[:, None] - means
    expected = -0.3 / 2 * np.einsum("ncd,de,nce->nc", difference, np.linalg.inv(shrunk), difference)
    found = Discriminant(Statistics.of(data, 4)).at(shrinkage, 0.3)(data.features).numpy()
    ours, theirs = (each - each[:, :1] for each in (found, expected))  # up to a term that all classes share
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("shrinkage", [0.01, 0.5, 1.0])
def test_leave_one_out_scores_equal_a_fit_without_the_image(shrinkage: float) -> None:
    data = clusters(n=30)
    model = Discriminant(Statistics.of(data, 4))
    found = model.leave_one_out(data.features, data.labels, shrinkage)
    x = model.scaling(data.features)
    for i in (0, 7, 29):
        z, y = x[torch.arange(30) != i], data.labels[torch.arange(30) != i]
        means = torch.stack([z[y == c].mean(0) for c in range(4)])
        own = z - means[y]
        # The shrinkage target is the diagonal of the fit to all images, whose standardised features have variance 1.
        covariance = (1 - shrinkage) * own.T @ own / 30 + shrinkage * torch.eye(12)
        difference = x[i] - means
        expected = -(difference @ torch.linalg.inv(covariance) * difference).sum(1) / 2
        torch.testing.assert_close(found[i], expected)


def test_shrinkage_and_factor_are_the_best_for_leave_one_out_predictions() -> None:
    data = clusters()
    found, model = Classifier.fit(Statistics.of(data, 4)), Discriminant(Statistics.of(data, 4))
    scores = {shrinkage: model.leave_one_out(data.features, data.labels, shrinkage) for shrinkage in SHRINKAGES}
    factors = torch.linspace(0.05, 1, 96)
    losses = {
        (shrinkage, factor): float(F.cross_entropy(factor * some, data.labels))
        for shrinkage, some in scores.items()
        for factor in factors.tolist()
    }
    assert found.loss <= min(losses.values()) + 1e-9
    assert found.shrinkage == min(losses, key=lambda pair: losses[pair])[0]
    assert found.top1 == pytest.approx(float((scores[found.shrinkage].argmax(1) == data.labels).double().mean()))


def test_the_factor_is_at_most_1_if_every_prediction_is_correct() -> None:
    labels = torch.arange(12) % 3
    scores = 50 * F.one_hot(labels, 3).double()
    assert best_factor(scores, labels) == 1
    assert best_factor(scores[torch.randperm(12, generator=torch.Generator().manual_seed(0))], labels) < 0.1


@pytest.mark.parametrize("parts", [[30, 60], [1, 89], [10, 20, 60]])
def test_adding_statistics_equals_fitting_all_images(parts: list[int]) -> None:
    data = clusters()
    features, labels = data.features.split(parts), data.labels.split(parts)  # type: ignore[no-untyped-call]
    first, *rest = (Statistics.of(FeatureSet(*part), 4) for part in zip(features, labels, strict=True))
    total, whole = sum(rest, start=first), Statistics.of(data, 4)
    for name in ("counts", "means", "scatter"):
        torch.testing.assert_close(getattr(total, name), getattr(whole, name), rtol=1e-10, atol=1e-10)
    one, other = Classifier.fit(total), Classifier.fit(whole)
    torch.testing.assert_close(vars(one.linear), vars(other.linear), rtol=1e-7, atol=1e-7)
    assert (one.shrinkage, one.top1) == (other.shrinkage, other.top1)


def test_the_budget_does_not_change_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    data = clusters()
    whole = Statistics.of(data, 4)
    monkeypatch.setattr(discriminant, "rows_within_budget", lambda width: 7)
    torch.testing.assert_close(Statistics.of(data, 4).scatter, whole.scatter, rtol=1e-10, atol=1e-10)


def test_statistics_of_other_classes() -> None:
    data = clusters()
    old, places = data.labels < 3, torch.tensor([3, 0, 2, 1])
    known = Statistics.of(data.pick(old.nonzero()[:, 0]), 3).with_classes([3, 0, 2], 4)
    new = data.pick((~old).nonzero()[:, 0])
    total = known + Statistics.of(FeatureSet(new.features, places[new.labels]), 4)
    whole = Statistics.of(FeatureSet(data.features, places[data.labels]), 4)
    torch.testing.assert_close(vars(Classifier.fit(total).linear), vars(Classifier.fit(whole).linear))


def test_a_rare_class_is_predicted() -> None:
    data = clusters(n=800, spread=0.5)
    rare = data.pick(torch.cat([(data.labels > 0).nonzero()[:, 0], (data.labels == 0).nonzero()[:3, 0]]))
    predicted = Classifier.fit(Statistics.of(rare, 4)).linear(data.features).argmax(1)
    assert float((predicted[data.labels == 0] == 0).double().mean()) > 0.5


def test_a_class_without_images_is_never_predicted_and_one_with_a_single_image_may_be() -> None:
    data = clusters()
    single = FeatureSet(torch.cat([data.features, data.features[:1] + 50]), torch.cat([data.labels, torch.tensor([4])]))
    found = Classifier.fit(Statistics.of(single, 6))
    scores = found.linear(single.features)
    assert bool(scores.isfinite().all())
    assert int(scores.argmax(1).max()) == int(scores[-1].argmax()) == 4
    with pytest.raises(ValueError, match="two images"):
        Classifier.fit(Statistics.of(data.pick(torch.arange(4)), 4))


def test_the_sample_is_bounded_and_unbiased(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discriminant, "SAMPLE", 40)
    data = clusters(n=400)
    whole = Statistics.of(data, 4)
    half = torch.arange(200)
    both = Statistics.of(data.pick(half), 4) + Statistics.of(data.pick(half + 200), 4)
    assert len(whole.labels) == len(both.labels) == 40
    assert whole.count == both.count == 400
    first = (both.features[:, None] == data.features[None, :200]).all(-1).any(1)
    assert 12 <= int(first.sum()) <= 28


def test_tensors_are_checked() -> None:
    tensors = Statistics.of(clusters(), 4).tensors()
    torch.testing.assert_close(Statistics.from_tensors(tensors, 4, 12).tensors(), tensors, rtol=0, atol=0)
    for wrong, word in (
        ({"scatter": torch.zeros(3, 3)}, "scatter"),
        ({"labels": tensors["labels"] + 4}, "labels"),
        ({"keys": torch.zeros(1)}, "keys"),
    ):
        with pytest.raises(ValueError, match=word):
            Statistics.from_tensors(tensors | wrong, 4, 12)
    with pytest.raises(ValueError, match="means"):
        Statistics.from_tensors({name: tensor for name, tensor in tensors.items() if name != "means"}, 4, 12)
