import math
import statistics

import numpy as np
import pytest
import torch

from vitreous.evaluation.features import FeatureSet
from vitreous.evaluation.linear import PENALTY, Ridge, draw, fewshot
from vitreous.evaluation.probe import check_options

NAMES = ("ant", "bee", "cat")


def clustered(n: int, width: int = 30, spread: float = 1.0, seed: int = 0) -> FeatureSet:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 3
    centres = torch.randn(3, width, generator=torch.Generator().manual_seed(9))
    return FeatureSet(centres[labels] + spread * torch.randn(n, width, generator=generator), labels)


def big_vision(x: np.ndarray, labels: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Solve what fewshot_lsr solves: standardised features and a penalised bias column of 100."""
    mean, std = x.mean(0), x.std(0) + 1e-5
    x, new = (np.hstack([(part - mean) / std, np.full((len(part), 1), 100.0)]) for part in (x, new))
    y = 2 * np.eye(3)[labels] - 1
    return new @ np.linalg.solve(x.T @ x + 2**10 * np.eye(x.shape[1]), x.T @ y)


@pytest.mark.parametrize("shots", [1, 5, 40])
def test_scores_equal_the_authors_code_up_to_a_shared_bias(shots: int) -> None:
    train, test = clustered(150), clustered(60, seed=1)
    chosen = train.pick(draw(train.labels, shots, seed=0))
    ours = Ridge(chosen, 3).at(PENALTY)(test.features).numpy()
    theirs = big_vision(chosen.features.double().numpy(), chosen.labels.numpy(), test.features.double().numpy())
    np.testing.assert_allclose(ours - ours[:, :1], theirs - theirs[:, :1], atol=1e-9)
    [result] = fewshot(train, test, NAMES, (shots,), seeds=(0,))
    assert result.top1 == (theirs.argmax(1) == test.labels.numpy()).mean()


@pytest.mark.parametrize("shots", [1, 5, 10, 25])
def test_primal_and_dual_are_the_same(shots: int) -> None:
    train, test = clustered(150), clustered(60, seed=1)
    chosen = train.pick(draw(train.labels, shots, seed=0))
    primal, dual = (Ridge(chosen, 3, dual=dual).at(PENALTY)(test.features) for dual in (False, True))
    torch.testing.assert_close(primal, dual, rtol=1e-9, atol=1e-9)


def test_draws_have_equal_classes_and_are_nested() -> None:
    labels = torch.randint(5, (300,))
    few, many = draw(labels, 3, seed=2), draw(labels, 10, seed=2)
    assert torch.bincount(labels[few]).tolist() == [3] * 5
    assert torch.bincount(labels[many]).tolist() == [10] * 5
    assert set(few.tolist()) < set(many.tolist())
    assert set(few.tolist()) != set(draw(labels, 3, seed=3).tolist())
    assert torch.equal(few, draw(labels, 3, seed=2))


def test_the_result_is_the_mean_over_draws() -> None:
    train, test = clustered(120, spread=3), clustered(90, spread=3, seed=1)
    results = fewshot(train, test, NAMES, (1, 20))
    assert [(result.shots, len(result.draws)) for result in results] == [(1, 5), (20, 5)]
    for result in results:
        assert result.top1 == pytest.approx(np.mean(result.draws))
        assert result.std == pytest.approx(statistics.stdev(result.draws))
        assert result.top5 == 1
    assert results[1].top1 > results[0].top1 + 0.05
    assert results[0].std > 0
    assert fewshot(train, test, NAMES, (1,), seeds=(4,))[0].std == 0


def test_planted_classes_are_found_and_random_ones_are_not() -> None:
    train, test = clustered(90, spread=0.05), clustered(300, spread=0.05, seed=1)
    assert all(result.top1 == 1 for result in fewshot(train, test, NAMES, (1, 5, 25)))
    train, test = (FeatureSet(torch.randn(n, 30), torch.arange(n) % 3) for n in (90, 900))
    for result in fewshot(train, test, NAMES, (1, 25)):
        assert abs(result.top1 - 1 / 3) < 4 * math.sqrt(2 / 9 / 900)


def test_a_class_with_too_few_images_is_named() -> None:
    train = clustered(60)
    few = train.pick(torch.tensor([*range(0, 60, 3), 1, 4, 7, 2]))  # 20 ants, 3 bees and a cat
    with pytest.raises(ValueError, match=r"shots is 5, but must be at most 1: class 'cat' only has 1 training image"):
        fewshot(few, train, NAMES, (1, 5))
    assert fewshot(few, train, NAMES, (1,), seeds=(0,))[0].shots == 1


def test_a_class_without_images_needs_no_shots() -> None:
    [result] = fewshot(clustered(60, spread=0.05), clustered(30, spread=0.05, seed=1), (*NAMES, "dog"), (5,))
    assert result.top1 == 1


@pytest.mark.parametrize("shots", [(0,), (-1, 5)])
def test_invalid_numbers_of_shots_are_rejected(shots: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"shots is .* but must be"):
        check_options("fewshot", "pooled", (20,), shots)
