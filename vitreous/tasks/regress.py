"""Regression: one or several numbers per image.

b: batch; k: targets.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.common.text import listed
from vitreous.data import Augmentation, DataSet
from vitreous.data.loader import Batch
from vitreous.data.sources.targets import NumberTargets, TargetKind
from vitreous.model.options import Numbers, OutputConfig
from vitreous.model.protocol import ModelConfig
from vitreous.report import plots
from vitreous.report.html import Html, Section, TaskReport, name, plot, samples_section, table, tag
from vitreous.tasks.base import SAMPLES, Finished
from vitreous.tasks.classify import MISTAKES
from vitreous.tasks.config import TableTargets, TrainConfig
from vitreous.tasks.regression_metrics import NumberEvaluation, standardised
from vitreous.tasks.target_task import TargetTask

SHOWN_TARGETS = 4  # targets that are drawn


class Regress(TargetTask):
    """Regression of standardised numbers, with the smooth L1 loss or the mean squared error."""

    metric = "r2"  # does not depend on the units, unlike an error
    outputs = ("target", "targets")
    options = frozenset({"progressive", "flip_test", *vars(TableTargets())})
    losses = ("smooth-l1", "mse")  # outliers, which are common in measured numbers, would dominate squared errors
    evaluation = NumberEvaluation

    @classmethod
    def target_kind(cls, config: TrainConfig) -> TargetKind:
        return NumberTargets(config.targets.target)

    @classmethod
    def output(cls, data: DataSet, start: ModelConfig | None) -> OutputConfig:
        """Return the mean and standard deviation of the training targets, or those of a checkpoint for the same."""
        if start is not None and isinstance(start.output, Numbers) and start.labels == data.classes:
            return start.output
        values = data.train.targets
        assert values is not None
        mean, std = values.mean(0), values.std(0)
        if constant := [name for name, spread in zip(data.classes, std.tolist(), strict=True) if not spread > 0]:
            raise ValueError(f"{data.name}: {listed(constant)} has the same value in all training images")
        return Numbers(tuple(mean.tolist()), tuple(std.tolist()))

    @classmethod
    def choose_augmentation(cls, config: TrainConfig, count: int, side: int) -> tuple[Augmentation, str]:
        return Augmentation(crop="none"), "flips, because crops and other changes can affect the numbers"

    def targets(self, batch: Batch) -> Float[Tensor, "b k"]:
        assert batch.targets is not None
        assert isinstance(self.model.config.output, Numbers)
        return standardised(batch.targets, self.model.config.output).float().to(batch.labels.device)

    def loss(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        images, targets, weights = inputs
        function: Any = F.mse_loss if self.loss_name == "mse" else F.smooth_l1_loss
        losses = function(module(images).float(), targets, reduction="none").mean(1)
        return (losses * weights).sum(), torch.zeros_like(weights.sum())

    def report(self, run: Finished) -> TaskReport:
        evaluation = run.results
        assert isinstance(evaluation, NumberEvaluation)
        metrics, targets = evaluation.metrics(), run.data.classes
        rows = run.first_batch.indices[:SAMPLES].tolist()
        several = " (means over targets)" if len(targets) > 1 else ""
        return TaskReport(
            f"R² {metrics['r2']:.4f}, mean absolute error {metrics['mae']:.4g}, RMSE {metrics['rmse']:.4g}{several}, "
            f"on {metrics['count']:,} images",
            f"Regression of {', '.join(targets)}, {run.evaluated_on}",
            {key: metrics[key] for key in ("r2", "mae", "rmse", "loss")},
            [
                Section("Targets", per_target(evaluation)),
                Section("Predictions", _plots(run, evaluation)),
                Section("Worst predictions", self._worst(run, evaluation)),
                samples_section(
                    run.folder,
                    self.samples(run.first_batch),
                    [run.data.train.label(row) for row in rows],
                    draw=run.draw,
                ),
            ],
        )

    def _worst(self, run: Finished, evaluation: NumberEvaluation) -> list[Html]:
        worst = evaluation.worst(MISTAKES)
        words = [f"{target}: " if len(evaluation.names) > 1 else "" for target in evaluation.names]
        notes = [
            [
                f"{word}{true:.4g} → {guess:.4g}"
                for word, true, guess in zip(words, row.true, row.predicted, strict=True)
            ]
            for row in worst
        ]
        text = "The largest errors, relative to the spread of each target. Captions: true → predicted value."
        return self.worst_images(run, [row.index for row in worst], notes, text)


def per_target(evaluation: NumberEvaluation) -> list[Html]:
    """Return a table of the metrics of each target."""
    text = (
        "MAE: mean absolute error. RMSE: root mean squared error, which weights large errors more. Both are in the "
        "units of the target. R²: fraction of the variance that is explained; 0 if the model always predicts the mean."
    )
    rows = [
        [name(row.name), *(f"{number:.4g}" for number in (row.mae, row.rmse, row.r2, row.mean, row.std))]
        for row in evaluation.per_target()
    ]
    return [tag("p", text), table(["target", "MAE", "RMSE", "R²", "mean", "std"], rows)]


def _plots(run: Finished, evaluation: NumberEvaluation) -> list[Html]:
    """Return scatter plots of predictions and residuals."""
    if not run.draw:
        return []
    truth, predicted = (
        {name: values[evaluation.readable, i].numpy() for i, name in enumerate(evaluation.names[:SHOWN_TARGETS])}
        for values in (evaluation.targets, evaluation.predicted)
    )
    plots.predictions(run.folder / "predictions.png", truth, predicted)
    plots.residuals(run.folder / "residuals.png", truth, predicted)
    about = "Each dot is an image. On the line, the prediction is correct."
    residual = "Predicted minus true value. A slope or a curve means that the model is biased for some values."
    return [
        plot(run.folder / "predictions.png", "Predicted against true values", about),
        plot(run.folder / "residuals.png", "Residuals against true values", residual),
    ]
