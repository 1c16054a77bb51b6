"""Base class of tasks whose images have several targets in a table: labels or numbers.

b: batch; k: targets.
"""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.common.checks import fail
from vitreous.common.progress import Report, silent
from vitreous.data import DataSet, Source, open_data
from vitreous.data.loader import Batch
from vitreous.data.sources.targets import TargetKind
from vitreous.inference.predictor import predictor_for
from vitreous.model.familiarity import Familiarity
from vitreous.model.protocol import Model
from vitreous.report import plots
from vitreous.report.html import Html, inner, name, photos, tag
from vitreous.tasks.base import EVALUATION_BATCH, Finished, Results
from vitreous.tasks.classify import Classify
from vitreous.tasks.config import TrainConfig
from vitreous.tasks.target_metrics import TargetEvaluation
from vitreous.weights import Checkpoint

MOST_LINES = 4  # below an image


class TargetTask(Classify):
    """Base class of tasks with several targets per image. Augmentation and fine-tuning are those of classification."""

    calibrates, train_metric = False, None
    losses: ClassVar[tuple[str, ...]]  # values of --loss; the first is the default
    evaluation: ClassVar[type[TargetEvaluation]]

    @classmethod
    def check(cls, config: TrainConfig) -> None:
        super().check(config)
        if config.targets.loss not in (None, *cls.losses):
            fail("loss", config.targets.loss, f"{' or '.join(cls.losses)} with --task {config.task}")
        if config.train_only == "lda":
            fail("train_only", "lda", f"all, head or lora with --task {config.task}")

    @classmethod
    def target_kind(cls, config: TrainConfig) -> TargetKind:
        """Return what to read from the table."""
        raise NotImplementedError

    @classmethod
    def open_data(cls, config: TrainConfig, init: Checkpoint | None) -> DataSet:
        where: dict[str, Any] = {"root": config.data_root, "val_fraction": config.val_fraction, "seed": config.seed}
        return open_data(str(config.data), **where, targets=cls.target_kind(config))

    @property
    def loss_name(self) -> str:
        return self.config.targets.loss or self.losses[0]

    def evaluate(self, module: nn.Module, batches: Iterable[Batch], precision: torch.dtype) -> Results:
        return self.evaluation.of_batches(module, batches, self.model.config, precision, self.config.flip_test)

    def results_of(self, batch: Batch, scores: Float[Tensor, "b k"]) -> Results:
        return self.evaluation.of_batch(batch, scores, self.model.config)

    def evaluate_best(self, model: Model, source: Source, rank: int, ranks: int, progress: Report = silent) -> Results:
        flip, workers = self.config.flip_test, self.config.workers or None
        options: dict[str, Any] = {"batch_size": EVALUATION_BATCH, "flip": flip, "workers": workers}
        predictor: Any = predictor_for(model, next(model.parameters()).device, **options)
        return self.evaluation.of_source(predictor, source, rank, ranks, progress)

    def calibration_images(self, val: Source) -> Source:
        return val

    def fit_familiarity(
        self, model: Model, train: Source, val: Any, progress: Report = silent
    ) -> tuple[Familiarity, tuple[float, ...]] | None:
        return None

    @classmethod
    def eval_flags(cls, config: TrainConfig) -> list[str]:
        target = config.targets.target
        return [*super().eval_flags(config), *(["--target", *target] if target else [])]

    def worst_images(
        self, run: Finished, indices: Sequence[int], notes: Sequence[Sequence[str]], text: str
    ) -> list[Html]:
        """Return a paragraph, and images of the evaluated split with a few lines of notes each."""
        images, files = list(self.images(run.source, indices)), [run.source.name(index) for index in indices]
        if run.draw:
            short = ["\n".join(plots.readable(line, "", 24) for line in lines[:MOST_LINES]) for lines in notes]
            plots.grid(run.folder / "mistakes.png", images, short, columns=6, width=1.75)
        pairs = [("; ".join(lines), file) for lines, file in zip(notes, files, strict=True)]
        captions = [inner(tag("b", name(note)), tag("small", name(file), title=file)) for note, file in pairs]
        return [tag("p", text), photos(images, [f"{file}: {note}" for note, file in pairs], captions)]
