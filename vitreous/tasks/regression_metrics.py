"""Regression metrics: mean absolute error, root mean squared error and R², per target and averaged over targets.

n: images; k: targets.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vitreous.inference.predictor import numbers
from vitreous.model.options import Numbers
from vitreous.tasks.target_metrics import TargetEvaluation


@dataclass(frozen=True)
class TargetMetrics:
    """Metrics of one target, in its units."""

    name: str
    mae: float
    rmse: float
    r2: float
    mean: float  # of the true values
    std: float


@dataclass(frozen=True)
class WrongNumbers:
    """An image with its true and predicted numbers."""

    index: int  # position in the source
    true: list[float]
    predicted: list[float]


@dataclass(frozen=True)
class NumberEvaluation(TargetEvaluation):
    """Evaluation of n images with one or several numbers."""

    def metrics(self) -> dict[str, Any]:
        """Return `mae`, `rmse` and `r2`, averaged over targets, `loss` and image counts.

        `loss` is the smooth L1 loss of the standardised numbers, averaged over images and targets.
        """
        counts, rows = self.counts(), self.per_target()
        means = {key: sum(getattr(row, key) for row in rows) / len(rows) for key in ("mae", "rmse", "r2")}
        scores, truth = self.scores[self.readable].double(), standardised(self.targets, self.output)[self.readable]
        return {**means, "loss": float(F.smooth_l1_loss(scores, truth)), **counts}

    @property
    def output(self) -> Numbers:
        assert isinstance(self.config.output, Numbers)
        return self.config.output

    @cached_property
    def predicted(self) -> Float[Tensor, "n k"]:
        """Predicted numbers, in the units of the targets."""
        return numbers(self.scores, self.config)

    def per_target(self) -> list[TargetMetrics]:
        truth, errors = self.targets[self.readable], (self.predicted - self.targets)[self.readable]
        squared, spread = errors.square().mean(0), truth.var(0, correction=0)
        # As in scikit-learn, the R² of a constant target is 1 if all predictions are correct, otherwise 0.
        r2 = torch.where(spread > 0, 1 - squared / spread.clamp(min=1e-300), (squared == 0).double())
        columns = (errors.abs().mean(0), squared.sqrt(), r2, truth.mean(0), spread.sqrt())
        rows = zip(self.names, *(column.tolist() for column in columns), strict=True)
        return [TargetMetrics(*row) for row in rows]

    def worst(self, k: int) -> list[WrongNumbers]:
        """Return the k images with the largest errors, relative to the standard deviation of each target."""
        errors = standardised(self.predicted, self.output) - standardised(self.targets, self.output)
        sizes = torch.where(self.readable, errors.abs().amax(1), -1.0)
        order = [row for row in sizes.argsort(descending=True, stable=True)[:k].tolist() if self.readable[row]]
        return [
            WrongNumbers(int(self.indices[row]), self.targets[row].tolist(), self.predicted[row].tolist())
            for row in order
        ]


def standardised(values: Float[Tensor, "n k"], output: Numbers) -> Float[Tensor, "n k"]:
    """Return numbers with mean 0 and standard deviation 1 on the training split, in float64."""
    mean, std = (torch.tensor(part, dtype=torch.float64) for part in (output.mean, output.std))
    return (values.double() - mean) / std
