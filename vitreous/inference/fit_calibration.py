"""Fits a calibration to validation images: the temperature, and thresholds for unknown images and label sets.

Temperature scaling divides all logits by one number, so that predictions with a probability of 80% are correct 80% of
the time (Guo et al. 2017). It never changes the order of the classes.

An image is unknown if its familiarity score (see `vitreous.model.familiarity`) is lower than that of 95% of the
validation images.

A label set contains all classes whose probability reaches a threshold. The threshold is a quantile of the probability
of the true class over the validation images. The label set of a new image then contains the true class with the chosen
probability, whatever the model (split conformal prediction). If the probabilities are correct, no other method gives
smaller sets on average (Sadinle et al. 2019). A set is empty if no class reaches the threshold.

n: images; k: classes.
"""

import math

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitreous.model.calibration import FRACTIONS, Calibration

RANGE = 1e-3, 1e3  # limits of the temperature
STEPS = 100  # maximum number of Newton or bisection steps; about ten are needed


def calibrate_scores(logits: Float[Tensor, "n k"], labels: Int[Tensor, "n"]) -> Calibration:
    """Fit the temperature and the thresholds of label sets to the logits and labels of validation images."""
    temperature = fit_temperature(logits, labels)
    truth = true_probabilities(logits, labels, temperature)
    return Calibration(temperature, len(labels), true_probabilities=lower_quantiles(truth))


def fit_temperature(logits: Float[Tensor, "n k"], labels: Int[Tensor, "n"]) -> float:
    """Return the temperature that minimises the cross-entropy.

    The targets are smoothed by 1 / (n + 2), as in Platt scaling, so that a small sample without errors does not lead to
    full confidence. The loss is convex in the inverse temperature. Newton's method finds the minimum; a Newton step
    that leaves the bracket is replaced by a bisection step.
    """
    if not len(labels):
        raise ValueError("calibration needs at least one readable image, got none")
    n, k = logits.shape
    logits = logits.double() - logits.double().mean(dim=1, keepdim=True)  # so that the uniform part of a target is 0
    target = (1 - k / max(k - 1, 1) / (n + 2)) * float(logits.gather(1, labels[:, None]).mean())
    low, high = 1 / RANGE[1], 1 / RANGE[0]
    inverse = 1.0
    for _ in range(STEPS):
        probabilities = (logits * inverse).softmax(dim=1)
        means = (probabilities * logits).sum(dim=1)
        gradient = float(means.mean()) - target
        curvature = float(((probabilities * logits.square()).sum(dim=1) - means.square()).mean())
        if gradient == 0:  # for example because all logits are equal
            break
        low, high = (inverse, high) if gradient < 0 else (low, inverse)
        step = inverse - gradient / curvature if curvature > 0 else math.nan
        updated = step if low < step < high else math.sqrt(low * high)
        if abs(updated - inverse) <= 1e-6 * inverse:
            break
        inverse = updated
    return float(f"{1 / inverse:.6g}")


def cross_fitted(logits: Float[Tensor, "n k"], labels: Int[Tensor, "n"]) -> Float[Tensor, "n"]:
    """Return the calibrated probability of the top class of each image, with cross-fitted temperatures.

    Each half of the images is scaled with the temperature fitted to the other half, so that no further split is needed
    to measure the calibration. A half contains every second image of each class.
    """
    order = labels.argsort(stable=True)
    confidence = torch.zeros(len(labels))
    for half, other in ((order[::2], order[1::2]), (order[1::2], order[::2])):
        temperature = fit_temperature(logits[other], labels[other]) if len(other) else 1.0
        confidence[half] = (logits[half].float() / temperature).softmax(dim=1).amax(dim=1).cpu()
    return confidence


def true_probabilities(
    logits: Float[Tensor, "n k"], labels: Int[Tensor, "n"], temperature: float
) -> Float[Tensor, "n"]:
    return (logits.double() / temperature).softmax(dim=1).gather(1, labels[:, None])[:, 0]


def lower_quantiles(values: Float[Tensor, "n"]) -> tuple[float, ...]:
    """Return the quantiles for all FRACTIONS that are not too small for n values.

    The quantile for the fraction f is the floor(f (n + 1))-th smallest value. A new value from the same distribution is
    smaller than this quantile with a probability of at most f.
    """
    ordered = np.sort(values.cpu().numpy())
    ranks = [math.floor(fraction * (len(ordered) + 1) + 1e-9) for fraction in FRACTIONS]
    return tuple(float(f"{ordered[rank - 1]:.6g}") for rank in ranks if rank)
