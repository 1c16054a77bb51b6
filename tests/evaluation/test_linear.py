import math

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from vitreous.evaluation import features, linear
from vitreous.evaluation.features import FeatureSet
from vitreous.evaluation.linear import Ridge, Scaling, Sgd, hold_out, linear_probe, train_sgd


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "STEPS", (60, 60))


def separable(n: int, classes: int = 4, width: int = 16, seed: int = 0, noise: float = 0.3) -> FeatureSet:
    """Separable classes with an unusual scale and offset."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (n,), generator=generator)
    points = noise * torch.randn(n, width, generator=generator)
    points[torch.arange(n), labels] += 3
    return FeatureSet(50 + points * torch.logspace(-2, 1, width), labels)


def test_both_methods_solve_a_separable_problem() -> None:
    results = linear_probe(separable(400), separable(200, seed=1), 4)
    assert {result.method for result in results} == {"ridge", "sgd"}
    assert all(result.top1 == result.top5 == result.held_out == 1 for result in results)
    assert results[0].method == "ridge"  # of equals


def test_random_labels_give_chance_accuracy() -> None:
    train, test = separable(600), separable(600, seed=1)
    train = FeatureSet(train.features, torch.randint(4, (600,)))
    test = FeatureSet(test.features, torch.randint(4, (600,)))
    for result in linear_probe(train, test, 4):
        assert abs(result.top1 - 1 / 4) < 4 * math.sqrt(3 / 16 / 600)
        assert result.top5 == 1


def test_settings_are_chosen_on_held_out_images_never_on_test() -> None:
    noisy, test = (separable(n, seed=n, noise=2) for n in (300, 100))
    wrong = FeatureSet(test.features, (test.labels + 1) % 4)
    chosen, other = (sorted(linear_probe(noisy, part, 4), key=lambda r: r.method) for part in (test, wrong))
    for one, two in zip(chosen, other, strict=True):
        assert (one.setting, one.held_out) == (two.setting, two.held_out)
        assert one.top1 > two.top1
    fit, held = hold_out(noisy, 4, 0)
    ridge = Ridge(fit, 4)
    tried = {p: ridge.at(p * len(fit)).accuracy(held).top1 for p in linear.PENALTIES}
    assert chosen[0].held_out == max(tried.values()) == tried[chosen[0].setting["penalty"]]
    best = Ridge(noisy, 4).at(chosen[0].setting["penalty"] * len(noisy))  # fitted again, to all of train
    assert chosen[0].top1 == best.accuracy(test).top1


def test_a_fifth_of_every_class_is_held_out() -> None:
    labels = torch.tensor([0] * 50 + [1] * 10 + [2] * 2 + [3])
    features = torch.arange(63.0)[:, None]
    fit, held = hold_out(FeatureSet(features, labels), 5, seed=0)
    assert torch.bincount(held.labels, minlength=5).tolist() == [10, 2, 1, 0, 0]
    assert sorted(torch.cat([fit.features, held.features])[:, 0].tolist()) == list(range(63))
    assert not torch.equal(held.features, hold_out(FeatureSet(features, labels), 5, seed=1)[1].features)
    with pytest.raises(ValueError, match="at least two training images"):
        hold_out(FeatureSet(torch.zeros(3, 2), torch.arange(3)), 3, seed=0)


def test_sgd_finds_the_minimum_of_scikit_learn() -> None:
    n, width, decay = 60, 6, 1e-2  # so few that every batch is all of them
    features, labels = torch.randn(n, width) * 5 + 2, torch.randint(3, (n,))
    train = FeatureSet(features, labels)
    [found] = train_sgd(train, 3, [Sgd(2.0, decay)], steps=1500)
    scaled = Scaling.of(features, torch.device("cpu"))(features) / math.sqrt(width)
    peer = LogisticRegression(C=1 / (n * decay), tol=1e-8, max_iter=1000).fit(scaled.numpy(), labels.numpy())
    np.testing.assert_allclose(found(features).softmax(1), peer.predict_proba(scaled.numpy()), atol=2e-3)


def test_classifiers_trained_together_equal_separate_ones() -> None:
    train, sweep = separable(1500), [Sgd(1.0, 0.0), Sgd(10.0, 1e-3)]
    together = train_sgd(train, 4, sweep, steps=20, seed=3)
    for one, how in zip(together, sweep, strict=True):
        [alone] = train_sgd(train, 4, [how], steps=20, seed=3)
        torch.testing.assert_close(one.weight, alone.weight, rtol=1e-4, atol=1e-5)
    assert not torch.equal(together[0].weight, train_sgd(train, 4, sweep, steps=20, seed=4)[0].weight)


def test_a_diverging_learning_rate_is_not_chosen() -> None:
    train, test = separable(300), separable(100, seed=1)
    results = linear_probe(train, test, 4, sweep=[Sgd(torch.inf, 0.0), Sgd(10.0, 0.0)])
    assert next(r for r in results if r.method == "sgd").setting == {"lr": 10.0, "weight_decay": 0.0}


def test_the_same_seed_gives_the_same_results_within_any_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    noisy, test = (separable(n, seed=n, noise=2) for n in (300, 100))
    assert linear_probe(noisy, test, 4) == linear_probe(noisy, test, 4)
    whole = linear_probe(noisy, test, 4)[0].top1
    monkeypatch.setattr(features, "BUDGET", 1)
    assert linear_probe(noisy, test, 4)[0].top1 == whole
