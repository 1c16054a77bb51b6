"""Multi-label classification: any number of classes per image.

b: batch; k: classes.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.data import DataSet
from vitreous.data.loader import Batch
from vitreous.data.sources.targets import LabelTargets, TargetKind
from vitreous.model.options import MultiLabel, OutputConfig
from vitreous.model.protocol import ModelConfig
from vitreous.report import plots
from vitreous.report.html import (
    Html,
    Section,
    TaskReport,
    bar,
    details,
    inner,
    name,
    percent,
    plot,
    samples_section,
    table,
    tag,
)
from vitreous.tasks.base import SAMPLES, Finished, Results
from vitreous.tasks.classify import MISTAKES, SHOWN_CLASSES
from vitreous.tasks.config import TableTargets, TrainConfig
from vitreous.tasks.multilabel_metrics import LabelMetrics, MultiLabelEvaluation
from vitreous.tasks.target_task import TargetTask

POSITIVE, NEGATIVE, MARGIN = 0.0, 4.0, 0.05  # focusing parameters and margin of the asymmetric loss, as in its paper


class MultiLabelTask(TargetTask):
    """Multi-label classification with binary cross-entropy or the asymmetric loss."""

    metric = "map"
    calibrates = True  # fits the thresholds
    options = frozenset({"smoothing", "progressive", "flip_test", "mixup", "cutmix", *vars(TableTargets())})
    losses = ("bce", "asymmetric")
    evaluation = MultiLabelEvaluation

    @classmethod
    def target_kind(cls, config: TrainConfig) -> TargetKind:
        return LabelTargets(config.targets.target)

    @classmethod
    def output(cls, data: DataSet, start: ModelConfig | None) -> OutputConfig:
        return MultiLabel()

    def targets(self, batch: Batch) -> Float[Tensor, "b k"]:
        assert batch.targets is not None
        smoothing = self.config.smoothing
        return batch.targets.to(batch.labels.device).float() * (1 - smoothing) + smoothing / 2

    def loss(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        images, targets, weights = inputs
        function = asymmetric_loss if self.loss_name == "asymmetric" else binary_cross_entropy
        return (function(module(images), targets) * weights).sum(), torch.zeros_like(weights.sum())

    def calibrate(self, results: Any) -> tuple[dict[str, Any], Results] | None:
        fitted = results.fitted()
        return {"output": fitted.config.output}, fitted

    def report(self, run: Finished) -> TaskReport:
        evaluation = run.results
        assert isinstance(evaluation, MultiLabelEvaluation)
        metrics, headline = evaluation.metrics(), ("map", "f1", "f1_micro", "loss")
        labels = [run.data.train.label(index) for index in run.first_batch.indices[:SAMPLES].tolist()]
        return TaskReport(
            f"mAP {metrics['map']:.4f} on {metrics['count']:,} images, F1 {metrics['f1']:.4f} (mean over classes), "
            f"{metrics['f1_micro']:.4f} (over all labels), loss {metrics['loss']:.4f}",
            f"Multi-label classification into {len(run.data.classes)} classes, {run.evaluated_on}",
            {key: metrics[key] for key in headline},
            [
                Section("Classes", per_class(evaluation.per_class(), run.split)),
                Section("Precision and recall", _curve(run, evaluation)),
                Section("Worst mistakes", self._worst(run, evaluation)),
                samples_section(run.folder, self.samples(run.first_batch), labels, run.data.classes, run.draw),
            ],
        )

    def _worst(self, run: Finished, evaluation: MultiLabelEvaluation) -> list[Html]:
        worst = evaluation.worst(MISTAKES)
        if not worst:
            return []
        parts = [{"missed": row.missed, "wrong": row.wrong} for row in worst]
        notes = [[f"{key}: {', '.join(labels)}" for key, labels in part.items() if labels] for part in parts]
        wrong = int((evaluation.readable & (evaluation.predicted() != evaluation.targets).any(1)).sum())
        text = (
            f"{wrong:,} of {int(evaluation.readable.sum()):,} images have at least one missed or wrong label. These "
            "have the highest loss. Often a label is missing in the data."
        )
        return self.worst_images(run, [row.index for row in worst], notes, text)


def _curve(run: Finished, evaluation: MultiLabelEvaluation) -> list[Html]:
    if not run.draw or not bool(evaluation.targets[evaluation.readable].any()):
        return []
    path: Path = run.folder / "precision_recall.png"
    plots.precision_recall(path, *evaluation.curve())
    text = "Precision and recall of all labels together, for every threshold. The area under the curve should be large."
    return [plot(path, "Precision against recall", text)]


def per_class(rows: Sequence[LabelMetrics], split: str) -> list[Html]:
    """Return a table of per-class metrics, worst average precision first. Classes without images come last."""
    rows = sorted(rows, key=lambda row: (row.average_precision is None, row.average_precision or 0.0))
    text = (
        "Average precision (AP): area under the precision-recall curve of a class. Precision, recall and F1 are at the "
        "threshold, the probability from which the class is predicted. It was chosen for the highest F1 on the "
        f"validation split{', so F1 is slightly too high here' * (split == 'val')}. The worst classes come first."
    )
    lines = [
        [
            name(row.name),
            f"{row.count:,}",
            inner(bar(row.average_precision or 0), tag("span", percent(row.average_precision))),
            f"{row.threshold:.2f}",
            *map(percent, (row.precision, row.recall, row.f1)),
        ]
        for row in rows
    ]
    columns = ["class", "images", "AP", "threshold", "precision", "recall", "F1"]
    content = [tag("p", text), table(columns, lines[:SHOWN_CLASSES])]
    if rest := lines[SHOWN_CLASSES:]:
        content.append(details(f"{len(rest):,} more classes", table(columns, rest)))
    return content


# ---- Loss ------------------------------------------------------------------------------------------------------------


def binary_cross_entropy(logits: Float[Tensor, "b k"], targets: Float[Tensor, "b k"]) -> Float[Tensor, "b"]:
    """Return the binary cross-entropy of each image, averaged over classes."""
    return F.binary_cross_entropy_with_logits(logits.float(), targets, reduction="none").mean(1)


def asymmetric_loss(logits: Float[Tensor, "b k"], targets: Float[Tensor, "b k"]) -> Float[Tensor, "b"]:
    """Return the asymmetric loss of each image (ASL, arXiv 2009.14119), averaged over classes.

    Easy negatives, of which multi-label data has many, get a small weight, or none below a probability of MARGIN.
    """
    present = logits.float().sigmoid()
    shifted = (present - MARGIN).clamp(min=0)
    positive = (1 - present) ** POSITIVE * F.logsigmoid(logits.float())
    negative = shifted**NEGATIVE * torch.log1p(-shifted)
    return -(targets * positive + (1 - targets) * negative).mean(1)
