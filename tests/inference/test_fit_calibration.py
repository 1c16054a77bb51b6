"""Fitting a calibration: the temperature, and the guarantees of label sets and of the threshold for unknown images."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from vitreous.inference.fit_calibration import calibrate_scores, cross_fitted, fit_temperature, lower_quantiles
from vitreous.inference.predictor import familiarity_ranks, label_sets
from vitreous.model.calibration import FRACTIONS, UNKNOWN, Calibration


def sampled(count: int, classes: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return logits, and labels that are drawn from their softmax."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(count, classes, generator=generator)
    return logits, torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]


@pytest.mark.parametrize("scale", [0.02, 0.5, 1.0, 4.0, 90.0])
def test_the_temperature_is_the_scale_of_the_logits(scale: float) -> None:
    logits, labels = sampled(4000)
    assert fit_temperature(scale * logits, labels) == pytest.approx(scale, rel=0.05)


def test_the_temperature_of_two_classes_is_known() -> None:
    """If 3 of 4 images are correct with logits (1, 0), then 1 / T is about log 3."""
    labels = torch.tensor([0, 0, 0, 1]).repeat(1000)
    logits = torch.tensor([1.0, 0.0]).repeat(4000, 1)
    assert fit_temperature(logits, labels) == pytest.approx(1 / math.log(3), rel=1e-3)


def test_the_temperature_minimises_the_loss() -> None:
    logits, labels = sampled(500, classes=10)
    logits += torch.randn(500, 10)
    best = fit_temperature(logits, labels)
    loss = {t: float(torch.nn.functional.cross_entropy(logits / t, labels)) for t in (0.95 * best, best, 1.05 * best)}
    assert min(loss, key=lambda t: loss[t]) == best


def test_few_correct_images_do_not_give_full_confidence() -> None:
    logits = 3 * torch.eye(4)
    probabilities = (logits / fit_temperature(logits, torch.arange(4))).softmax(1).diagonal()
    assert probabilities.max() == pytest.approx(5 / 6, abs=1e-3)  # as in Platt scaling


@pytest.mark.parametrize("logits", [torch.zeros(5, 3), torch.full((5, 3), -7.0)])
def test_equal_logits_have_a_temperature(logits: Tensor) -> None:
    assert fit_temperature(logits, torch.tensor([0, 1, 2, 0, 0])) == 1


def test_no_images_are_an_error() -> None:
    with pytest.raises(ValueError, match="readable image"):
        fit_temperature(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))


def test_cross_fitting_uses_the_temperature_of_the_other_half() -> None:
    logits, labels = sampled(400)
    order = labels.argsort(stable=True)
    logits[order[::2]] *= 10  # so that the temperatures of the halves differ
    confidence = cross_fitted(logits, labels)
    expected = (logits[order[1::2]] / fit_temperature(logits[order[::2]], labels[order[::2]])).softmax(1).amax(1)
    torch.testing.assert_close(confidence[order[1::2]], expected)
    assert cross_fitted(logits[:1], labels[:1]).shape == (1,)


def test_quantiles_bound_the_fraction_of_smaller_values() -> None:
    values = torch.arange(1, 1000).double()  # the floor(1000 f)-th smallest is 1000 f
    assert lower_quantiles(values) == tuple(round(1000 * fraction) for fraction in FRACTIONS)
    assert len(lower_quantiles(values[:19])) == len(FRACTIONS) - FRACTIONS.index(UNKNOWN)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=300))
def test_at_most_the_given_fraction_of_values_is_below_a_quantile(values: list[float]) -> None:
    quantiles = lower_quantiles(torch.tensor(values, dtype=torch.float64))
    ranks = (sum(value < quantile * (1 - 1e-5) for value in values) for quantile in quantiles)  # six digits are kept
    for rank, fraction in zip(ranks, FRACTIONS[len(FRACTIONS) - len(quantiles) :], strict=True):
        assert rank < fraction * (len(values) + 1)


@pytest.mark.parametrize("coverage", [0.8, 0.9, 0.97])
@pytest.mark.parametrize("sharpness", [0.1, 1.0, 5.0])
def test_label_sets_have_the_coverage_for_any_scores(sharpness: float, coverage: float) -> None:
    covered = []
    for seed in range(5):
        logits, labels = sampled(1000, classes=5, seed=seed)
        logits = sharpness * logits + torch.randn(1000, 5)  # not calibrated
        found = calibrate_scores(logits[:500], labels[:500])
        sets = label_sets(found, (logits[500:] / found.temperature).softmax(1), "abcde", coverage)
        indices = [{label.index for label in one} for one in sets]
        covered += [truth in one for truth, one in zip(labels[500:].tolist(), indices, strict=True)]
    assert sum(covered) / len(covered) == pytest.approx(coverage, abs=0.025)


def test_label_sets_are_ordered_and_may_be_empty() -> None:
    found = Calibration(1.0, 2000, true_probabilities=tuple(fraction for fraction in FRACTIONS))
    probabilities = torch.tensor([[0.3, 0.6, 0.1], [0.4, 0.3, 0.3]])
    sets = label_sets(found, probabilities, "abc", 0.7)
    assert [[label.label for label in one] for one in sets] == [["b", "a"], ["a", "b", "c"]]
    assert [len(one) for one in label_sets(found, probabilities, "abc", 0.5)] == [1, 0]


def ranked(validation: Tensor, scores: Tensor) -> Tensor:
    found = Calibration(1.0, len(validation), familiarities=lower_quantiles(validation))
    return torch.tensor(familiarity_ranks(found, scores))


def test_the_familiarity_of_images_like_the_validation_images_is_uniform() -> None:
    new = ranked(torch.randn(2000), torch.randn(2000))
    for fraction in (0.01, UNKNOWN, 0.5, 0.9):
        assert float((new < fraction).float().mean()) == pytest.approx(fraction, abs=0.03)
    assert ranked(torch.randn(2000), torch.tensor([-50.0, 50.0])).tolist() == pytest.approx([0, 0.99])


def test_few_images_mark_nothing_as_unknown() -> None:
    """One of 19 new images is below the smallest of 18 by chance, which is more than 5%."""
    low = torch.tensor([-50.0])
    assert ranked(torch.randn(18), low)[0] >= UNKNOWN
    assert ranked(torch.randn(19), low)[0] < UNKNOWN
