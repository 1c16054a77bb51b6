"""Distillation without labels: a student learns to predict the features of a frozen teacher.

As in Feature Distillation (arXiv 2205.14141), a linear layer on the features of the student predicts those of the
teacher, which are normalised without learned parameters, with a smooth L1 loss. Here, the pooled features have the same
weight as the mean of all patches (as in AM-RADIO, arXiv 2312.06709), and patches of another grid are interpolated.
Student and teacher see the same augmented image (arXiv 2106.05237).

b: batch; c: channels; h, w: image height and width; n: patches; d, e: widths of pooled and patch features.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.common.checks import BadValue, Size, as_size, fail
from vitreous.common.device import choose_dtype, placed
from vitreous.common.rng import SampleRng
from vitreous.data import Batch, DataSet
from vitreous.data.augment.batch import augment, mix
from vitreous.model import Model, ModelConfig
from vitreous.model.init import xavier_
from vitreous.model.inputs import normalise
from vitreous.model.patch import pick
from vitreous.model.tokens import Features
from vitreous.report.html import TaskReport
from vitreous.tasks.base import LARGEST, Choice, Finished, load_teacher
from vitreous.tasks.config import TrainConfig
from vitreous.tasks.unlabelled import Unlabelled
from vitreous.weights import Checkpoint, describe, provenance_of
from vitreous.weights.native import weights_digest

BETA = 2.0  # errors above this value count linearly; normalised features have a std of 1


class Distil(Unlabelled):
    """Distillation of the pooled and patch features of any model into any other model."""

    prepares_groups = False
    options = frozenset({"teacher", "teacher_size", "mixup", "cutmix"})

    def __init__(self, config: TrainConfig, model: Model):
        super().__init__(config, model)
        given, device = config.distillation, next(model.parameters()).device
        assert given.teacher is not None, "see `check`"
        size = as_size(given.teacher_size) if given.teacher_size else None
        try:
            teacher = load_teacher(given.teacher, device, size)
        except BadValue as error:  # the size does not suit its patches
            raise BadValue(f"teacher {given.teacher}: {error}") from error
        channels, own = teacher.config.channels, model.config.channels
        if channels != own:
            raise BadValue(f"teacher {given.teacher} has {channels} input channels, but the student has {own}")
        weights = weights_digest(teacher.config, teacher.state_dict())
        self.record = {"teacher": {"name": str(given.teacher), "weights": weights}}
        vars(model)["provenance"] = provenance_of(model) | self.record
        self.teacher = placed(teacher, device, choose_dtype(config.precision, device))
        with device:
            self._module = FeaturePrediction(model, teacher.config)

    @classmethod
    def check(cls, config: TrainConfig) -> None:
        super().check(config)
        if config.distillation.teacher is None:
            fail("teacher", None, f"a checkpoint path or a catalog name for --task {config.task}")

    @classmethod
    def choose_options(cls, config: TrainConfig, data: DataSet, init: Checkpoint | None) -> list[Choice]:
        if config.distillation.teacher_size:
            return []
        height, width = describe(str(config.distillation.teacher)).config.backbone.image_size
        if height * width <= LARGEST**2:
            return [Choice("teacher_size", (height, width), "from the checkpoint")]
        return [Choice("teacher_size", (cls.fine_tuning.side,), f"the checkpoint uses {height} x {width}")]

    def check_resumable(self, provenance: Mapping[str, Any]) -> None:
        if provenance.get("teacher") != self.record["teacher"]:
            teacher = self.config.distillation.teacher
            raise ValueError(f"teacher {teacher} has changed since the run started; restore it, or start a new run")

    def module(self) -> nn.Module:
        return self._module

    def prepare(self, batch: Batch) -> tuple[Tensor, ...]:
        rng = SampleRng(self.config.seed, batch.epoch, batch.keys)
        images = augment(batch.images, rng, self.augmentation)
        images, _ = mix(images, images.new_zeros(len(images), 0), rng, self.augmentation, batch.labels >= 0)
        return self._inputs(images, batch.labels)

    def prepare_evaluation(self, batch: Batch, device: torch.device) -> tuple[Tensor, ...]:
        return self._inputs(batch.images.to(device, non_blocking=True).float() / 255, batch.labels)

    def _inputs(self, unit: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        """Return the normalised images, the teacher's pooled and patch features, and image weights."""
        readable = (labels >= 0).float().to(unit.device, non_blocking=True)
        return normalise(unit, self.model.config.preprocessing), *self.targets(unit), readable

    @torch.no_grad()
    def targets(self, unit: Float[Tensor, "b c h w"]) -> tuple[Float[Tensor, "b d"], Float[Tensor, "b n e"]]:
        """Return the normalised features of the teacher for images in [0, 1], with patches on the student's grid."""
        config, dtype = self.teacher.config, next(self.teacher.parameters()).dtype
        if unit.shape[2:] != config.image_size:
            unit = F.interpolate(unit, config.image_size, mode="bicubic", antialias=True).clamp(0, 1)
        features = self.teacher.features(normalise(unit, config.preprocessing).to(dtype))
        patches = on_grid(features, self.model.config.grid)
        return normalised(self.teacher.pool_features(features)).to(dtype), normalised(patches).to(dtype)

    def losses(self, module: nn.Module, *inputs: Tensor) -> Float[Tensor, "b"]:
        losses: Tensor = module(*inputs)
        return losses

    def report(self, run: Finished) -> TaskReport:
        description = f"Distillation from {self.config.distillation.teacher}, without labels, {run.evaluated_on}"
        return dataclasses.replace(super().report(run), description=description)


class FeaturePrediction(nn.Module):
    """Predicts the features of a teacher with one linear layer for pooled features and one for patches."""

    def __init__(self, student: Model, teacher: ModelConfig):
        super().__init__()
        config = student.config
        self.student = student
        self.predict_pooled = xavier_(nn.Linear(config.feature_width, teacher.feature_width))
        self.predict_patches = xavier_(nn.Linear(config.pyramid_widths[-1], teacher.pyramid_widths[-1]))

    def forward(
        self, images: Float[Tensor, "b c h w"], pooled: Float[Tensor, "b d"], patches: Float[Tensor, "b n e"]
    ) -> Float[Tensor, "b"]:
        """Return the loss of each image, given the normalised features of the teacher."""
        features = self.student.features(images)
        if features.keep_indices is not None:
            patches = pick(patches, features.keep_indices)
        by_image = _errors(self.predict_pooled(self.student.pool_features(features)), pooled)
        by_patch = _errors(self.predict_patches(features.patches), patches)
        return by_image.mean(1) + by_patch.mean((1, 2))


def _errors(predicted: Tensor, target: Tensor) -> Tensor:
    return F.smooth_l1_loss(predicted.float(), target.float(), reduction="none", beta=BETA)


def normalised(features: Float[Tensor, "*shape d"]) -> Float[Tensor, "*shape d"]:
    """Scale each vector to mean 0 and std 1, in float32."""
    return F.layer_norm(features.float(), features.shape[-1:])


def on_grid(features: Features, grid: Size) -> Float[Tensor, "b n e"]:
    """Interpolate patches to another grid.

    The teacher's patches are interpolated because they need no gradient, which would not be deterministic on a GPU.
    """
    if features.grid == grid:
        return features.patches
    b, _, width = features.patches.shape
    maps = features.patches.float().mT.reshape(b, width, *features.grid)
    return F.interpolate(maps, grid, mode="bilinear", antialias=True).flatten(2).mT
