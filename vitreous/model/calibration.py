"""Calibration of a classifier on validation images. Model configs store it. This module does not import torch.

`vitreous.inference.fit_calibration` computes the calibration. Without it, class probabilities are a plain softmax.
"""

from dataclasses import dataclass

from vitreous.common.checks import check_numbers, check_positive, check_real, check_whole, fail

# Quantiles are stored for these fractions of the validation images. The steps are finer below 1%.
FRACTIONS = (*(i / 1000 for i in range(1, 10)), *(i / 100 for i in range(1, 100)))
UNKNOWN = 0.05  # fraction of the validation images that score below the threshold for "unknown"

FEWEST = round(1 / UNKNOWN) - 1  # validation images that are needed for this threshold


@dataclass(frozen=True)
class Calibration:
    """Temperature and score quantiles of a classifier, measured on its validation images.

    The quantile for a fraction is the largest score such that at most this fraction of new images scores lower. New
    images must resemble the validation images. There is one quantile for each entry of FRACTIONS, except for fractions
    that are too small for the number of validation images.

    temperature: Divisor of the logits before the softmax.
    images: Number of validation images.
    familiarities: Quantiles of the familiarity score, which is low for images unlike the training images.
    true_probabilities: Quantiles of the probability of the true class, at this temperature.
    """

    temperature: float
    images: int
    familiarities: tuple[float, ...] = ()
    true_probabilities: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check_positive("calibration.temperature", self.temperature)
        check_whole("calibration.images", self.images, 1, 2**53)
        for name in ("familiarities", "true_probabilities"):
            values = getattr(self, name)
            if values:
                check_numbers(f"calibration.{name}", values)
            if len(values) > len(FRACTIONS) or list(values) != sorted(values):
                fail(f"calibration.{name}", values, f"at most {len(FRACTIONS)} increasing numbers")

    @property
    def unknown_below(self) -> float | None:
        """Familiarity score below which an image is unknown. None if there were too few validation images."""
        place = FRACTIONS.index(UNKNOWN) - (len(FRACTIONS) - len(self.familiarities))
        return self.familiarities[place] if place >= 0 else None

    def too_few_note(self) -> str:
        """Explain why no image is marked as unknown, or return "" if there were enough validation images."""
        if self.images >= FEWEST:
            return ""
        return f"no image will be marked as unknown: this needs {FEWEST} validation images, got {self.images}"

    def probability_threshold(self, coverage: float) -> float:
        """Return a threshold that the probability of the true class reaches for a fraction `coverage` of new images.

        >>> Calibration(1.0, 9, true_probabilities=tuple(i / 100 for i in range(1, 91))).probability_threshold(0.85)
        0.06
        """
        check_coverage(coverage)
        allowed = [i for i, fraction in enumerate(FRACTIONS) if fraction <= 1 - coverage + 1e-9]
        missing = len(FRACTIONS) - len(self.true_probabilities)
        return self.true_probabilities[allowed[-1] - missing] if allowed and allowed[-1] >= missing else 0.0


def check_coverage(coverage: object) -> None:
    check_real("coverage", coverage, 0.01, 0.999)
