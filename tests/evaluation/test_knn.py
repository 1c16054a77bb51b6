import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vitreous.evaluation import features
from vitreous.evaluation.features import FeatureSet, count_hits
from vitreous.evaluation.probe import check_options, knn, nearest, votes


def clustered(n: int, classes: int = 7, width: int = 12, seed: int = 0, spread: float = 1.5) -> FeatureSet:
    """Points around a centre for each class, near enough to each other to be confused."""
    rng, centres = np.random.default_rng(seed), np.random.default_rng(99).normal(size=(classes, width))
    labels = rng.integers(classes, size=n)
    points = centres[labels] + spread * rng.normal(size=(n, width))
    return FeatureSet(torch.from_numpy(points).float(), torch.from_numpy(labels))


class Largest(TorchDispatchMode):
    """Records the size of the largest tensor that any operation creates."""

    bytes = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        made = [leaf.nbytes for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        self.bytes = max([self.bytes, *made])
        return result


@pytest.mark.parametrize("k", [1, 5, 20, 60])
@pytest.mark.parametrize("rows", [1, 7, 64, 10_000])
def test_votes_equal_those_of_scikit_learn(k: int, rows: int) -> None:
    bank, queries = clustered(150), clustered(30, seed=1)
    peer = KNeighborsClassifier(k, metric="cosine", weights=lambda distance: np.exp((1 - distance) / 0.07))
    peer.fit(bank.features.double().numpy(), bank.labels.numpy())
    similarity, indices = nearest(queries.features, bank.features, k, rows)
    [(_, scores)] = votes(similarity, bank.labels[indices], 7, (k,))
    shares = scores.clamp(min=0).double()
    shares /= shares.sum(dim=1, keepdim=True)
    np.testing.assert_allclose(shares, peer.predict_proba(queries.features.double().numpy()), atol=2e-5)


def test_accuracy_equals_that_of_scikit_learn_for_every_k_and_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    bank, queries = clustered(300), clustered(101, seed=1)
    expected = [
        KNeighborsClassifier(k, metric="cosine", weights=lambda distance: np.exp((1 - distance) / 0.07))
        .fit(bank.features.double().numpy(), bank.labels.numpy())
        .score(queries.features.double().numpy(), queries.labels.numpy())
        for k in (20, 5, 100)
    ]
    assert 0.3 < min(expected) < max(expected) < 0.95  # neither trivial nor impossible
    for budget in (2000, 20_000, 1 << 29):
        monkeypatch.setattr(features, "BUDGET", budget)
        results = knn(bank, queries, 7, (20, 5, 100))
        assert [result.neighbours for result in results] == [20, 5, 100]
        assert [result.top1 for result in results] == pytest.approx(expected)
        assert all(result.top1 <= result.top5 <= 1 for result in results)


def test_half_precision_is_compared_in_single() -> None:
    bank, queries = clustered(200), clustered(50, seed=1)
    halves = [FeatureSet(part.features.half(), part.labels) for part in (bank, queries)]
    wholes = [FeatureSet(part.features.float(), part.labels) for part in halves]
    assert knn(halves[0], halves[1], 7) == knn(wholes[0], wholes[1], 7)


def test_the_order_of_images_does_not_matter() -> None:
    bank, queries = clustered(200), clustered(90, seed=1)
    mixed = [part.pick(torch.randperm(len(part))) for part in (bank, queries)]
    assert knn(bank, queries, 7, (1, 20)) == knn(mixed[0], mixed[1], 7, (1, 20))


@pytest.mark.parametrize("rows", [1, 3, 100])
def test_of_equally_similar_images_the_earlier_is_nearer(rows: int) -> None:
    bank = torch.eye(3)[[1, 0, 1, 2, 0, 1, 0]]
    similarity, indices = nearest(torch.tensor([[2.0, 0, 0], [0, 3.0, 0]]), bank, 5, rows)
    assert indices.tolist() == [[1, 4, 6, 0, 2], [0, 2, 5, 1, 3]]
    assert similarity.tolist() == [[1, 1, 1, 0, 0]] * 2
    collapsed = nearest(torch.ones(2, 3), torch.ones(9, 3), 4, rows)[1]  # an encoder with a constant output
    assert collapsed.tolist() == [[0, 1, 2, 3]] * 2


def test_several_neighbours_in_one_pass_equal_separate_passes() -> None:
    bank, queries = clustered(200), clustered(90, seed=1)
    together = knn(bank, queries, 7, (1, 3, 50))
    assert together == [knn(bank, queries, 7, (k,))[0] for k in (1, 3, 50)]


def hits_as_dino_counts(bank: FeatureSet, queries: FeatureSet, classes: int, k: int) -> tuple[float, float]:
    """DINO's eval_knn.py in plain loops: all classes are ranked by their votes, those without votes last."""
    top1 = top5 = 0
    for query, true in zip(queries.features.double().numpy(), queries.labels.tolist(), strict=True):
        rows = bank.features.double().numpy()
        similarity = rows @ query / np.linalg.norm(rows, axis=1) / np.linalg.norm(query)
        votes = [0.0] * classes
        for index in np.argsort(-similarity, kind="stable")[:k]:
            votes[int(bank.labels[index])] += math.exp(similarity[index] / 0.07)
        ranking = sorted(range(classes), key=lambda label: -votes[label])
        top1 += ranking[0] == true
        top5 += true in ranking[: min(5, k)]
    return top1 / len(queries), top5 / len(queries)


@pytest.mark.parametrize("classes", [7, 40])
@pytest.mark.parametrize("k", [1, 2, 4, 5, 20])
def test_top1_and_top5_equal_those_of_dino(classes: int, k: int) -> None:
    bank, queries = clustered(120, classes), clustered(60, classes, seed=1)
    [result] = knn(bank, queries, classes, (k,))
    assert (result.top1, result.top5) == pytest.approx(hits_as_dino_counts(bank, queries, classes, k))


def test_classes_without_votes_fill_the_top_five_in_order() -> None:
    bank = FeatureSet(torch.ones(5, 2), torch.full((5,), 3))
    [result] = knn(bank, FeatureSet(torch.ones(6, 2), torch.arange(6)), 6, (5,))
    assert (result.top1, result.top5) == pytest.approx((1 / 6, 5 / 6))  # all but class 5


def test_nan_scores_are_never_hits() -> None:
    scores = torch.tensor([[torch.nan, 1.0], [0.0, torch.nan], [-torch.inf, 0], [1, 1]])
    assert count_hits(scores, torch.tensor([1, 0, 0, 0])).tolist() == [1, 1]
    assert count_hits(torch.zeros(3, 9), torch.tensor([0, 4, 5])).tolist() == [1, 2]


def test_no_tensor_grows_beyond_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    bank, queries, budget = clustered(3000), clustered(2000, seed=1), 1 << 19
    monkeypatch.setattr(features, "BUDGET", budget)
    with Largest() as largest:
        few = knn(bank, queries, 7)
    assert largest.bytes <= budget // 2
    assert 4 * len(bank) * len(queries) > 40 * budget  # all similarities at once
    monkeypatch.setattr(features, "BUDGET", 1 << 29)
    assert few == knn(bank, queries, 7)
    monkeypatch.setattr(features, "BUDGET", budget)
    collapsed = FeatureSet(torch.ones(3000, 12), bank.labels)
    with Largest() as largest:
        knn(collapsed, FeatureSet(torch.ones(500, 12), queries.labels[:500]), 7)
    assert largest.bytes <= budget // 2  # also where every similarity is the same, and has to be sorted


def test_planted_classes_are_found_and_random_ones_are_not() -> None:
    bank, queries = clustered(500, spread=0.05), clustered(200, seed=1, spread=0.05)
    assert knn(bank, queries, 7)[0].top1 == 1
    shuffled = FeatureSet(bank.features, bank.labels[torch.randperm(500)])
    assert abs(knn(shuffled, queries, 7)[0].top1 - 1 / 7) < 4 * math.sqrt(1 / 7 * 6 / 7 / 7)  # 7 clusters, 7 guesses


def test_invalid_numbers_of_neighbours_are_rejected() -> None:
    with pytest.raises(ValueError, match="neighbours is 31, but must be at most 30, the number of training images"):
        knn(clustered(30), clustered(5), 7, (20, 31))
    with pytest.raises(ValueError, match="neighbours is 0, but must be an integer from 1"):
        check_options("knn", "pooled", (0,), ())
    with pytest.raises(ValueError, match="at least one"):
        check_options("knn", "pooled", (), ())
