"""`--train-only lda`: compute the head by linear discriminant analysis on features of the frozen encoder.

There are no epochs, no augmentation and no optimizer. The features are computed in one pass over the images, which are
preprocessed as for evaluation, and the head has a closed-form solution (evaluation/discriminant.py). The statistics of
the features are stored in the checkpoint, so that `vitreous.extend` can add images and classes.
"""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from vitreous.common.checks import BadValue, fail
from vitreous.common.distributed import World
from vitreous.common.progress import Report, silent
from vitreous.data.sources.base import Source
from vitreous.evaluation.discriminant import Classifier, Statistics
from vitreous.evaluation.features import FeatureSet
from vitreous.model.familiarity import Familiarity
from vitreous.model.protocol import Model
from vitreous.tasks.base import Solution
from vitreous.tasks.classification_metrics import fit_familiarity
from vitreous.tasks.classify import Classify
from vitreous.tasks.config import TrainConfig, flatten, with_fields
from vitreous.training.frozen_features import frozen_features
from vitreous.weights.native import set_statistics

USED = frozenset({
    "data", "data_root", "val_fraction", "seed", "model", "init", "image_size", "overrides", "task", "train_only",
    "flip_test", "value_range", "out", "resume", "auto_resume", "batch_size", "device", "precision", "workers",
    "max_unreadable", "tensorboard", "track",
})  # fmt: skip
# Values for options that a complete config needs although they have no effect.
UNUSED = {
    "epochs": 1.0, "lr": 1.0, "crop": "none", "flip": 0.0, "policy": "none", "keep_images": "no", "compile": False,
    "balance": 0.0,
}  # fmt: skip


class LdaHead(Classify):
    """Classification with a frozen encoder and a head that is computed in closed form."""

    closed_form, compiles_by_default = True, False
    next_steps = (*Classify.next_steps, "vitreous extend {best} --data MORE_IMAGES --out {folder}-extended")

    def __init__(self, config: TrainConfig, model: Model):
        linear_head(model)  # raises if the head is not linear
        super().__init__(config, model)
        self.known: FeatureSet | None = None  # features of the training images

    @classmethod
    def check(cls, config: TrainConfig) -> None:
        super().check(config)
        if config.resume:  # the config of the run is complete
            return
        default = flatten(TrainConfig())
        for name, value in flatten(config).items():
            if name not in USED and value != default[name]:
                raise BadValue(f"{name} is {value}, but it has no effect with --train-only lda")
        if config.precision == "fp16":
            fail("precision", "fp16", "auto, fp32 or bf16 with --train-only lda")

    @classmethod
    def complete(cls, config: TrainConfig) -> TrainConfig:
        return with_fields(config, UNUSED)

    def solve(self, source: Source, world: World, precision: torch.dtype, log: Callable[[str], None]) -> Solution:
        """Compute the head. The training loss and accuracy are computed from leave-one-out predictions."""
        started = time.monotonic()
        found = frozen_features(self.model, source, self.config, world, precision, log)
        seconds = time.monotonic() - started
        readable = found.labels >= 0
        if not bool(readable.any()):
            raise ValueError(f"none of the {len(source)} training images could be read")
        self.known = FeatureSet(found.features[readable], found.labels[readable])
        statistics = Statistics.of(self.known, len(source.classes), solver_device(world.device))
        classifier = fit_head(self.model, statistics)
        log(
            f"linear discriminant analysis: shrinkage {classifier.shrinkage:g}, score factor {classifier.factor:.3g}; "
            f"leave-one-out top-1 {classifier.top1:.4f}, loss {classifier.loss:.4f}"
        )
        row = {
            "train_loss": classifier.loss,
            "train_top1": classifier.top1,
            "train_images_per_second": len(source) / seconds,
            "train_unreadable": len(found.problems),
            "unreadable": found.problems,
            "shrinkage": classifier.shrinkage,
            "factor": classifier.factor,
        }
        return Solution(row, {"leave_one_out_top1": classifier.top1}, found.problems)

    def fit_familiarity(
        self, model: Model, train: Source, val: Any, progress: Report = silent
    ) -> tuple[Familiarity, tuple[float, ...]]:
        known = None if self.known is None or self.config.flip_test else (self.known.features, self.known.labels)
        return fit_familiarity(self._predictor(model), train, val, progress, known)

    def steps_taken(self, steps: int, epochs: int) -> str:
        return "none; the head was computed by linear discriminant analysis"


def solver_device(device: torch.device) -> torch.device:
    """Return a device that supports float64: the CPU instead of MPS, otherwise the given device."""
    return torch.device("cpu") if device.type == "mps" else device


@torch.no_grad()
def fit_head(model: Model, statistics: Statistics) -> Classifier:
    """Compute the weights of the head from the statistics, and store the statistics with the model."""
    head = linear_head(model)
    classifier = Classifier.fit(statistics, solver_device(head.weight.device))
    head.weight.copy_(classifier.linear.weight.T)
    head.bias.copy_(classifier.linear.bias)
    set_statistics(model, statistics.tensors())
    return classifier


def linear_head(model: Model) -> nn.Linear:
    """Return the head of a model. Raise BadValue if the head is not a single linear layer."""
    [head, *others] = model.heads
    if others or not isinstance(head, nn.Linear):
        kind = "two heads" if others else type(getattr(model.config, "head", head)).__name__
        raise BadValue(f"--train-only lda needs a model with one linear head, got {kind}")
    return head
