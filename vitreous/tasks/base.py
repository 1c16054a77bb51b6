"""What is learned: a task turns a batch into a loss, and a model into figures. The loop knows nothing else of it.

b: batch; c: channels; h, w: height and width.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitreous.data.augment.config import Augmentation
from vitreous.data.augment.mixup import mix
from vitreous.data.augment.pipeline import augment
from vitreous.data.loader import Batch
from vitreous.data.rng import SampleRng
from vitreous.model.inputs import normalise
from vitreous.model.resnet import ResNet
from vitreous.model.vit import ViT
from vitreous.tasks.classify_loop import answer
from vitreous.training.config import Distillation


@runtime_checkable
class Measured(Protocol):
    """What was found out about a model on some pictures."""

    @property
    def problems(self) -> list[str]:
        """Pictures that could not be read."""

    def metrics(self) -> dict[str, Any]: ...

    @classmethod
    def join(cls, parts: Sequence[Any]) -> Any:
        """What several processes found out, each picture once."""


class Task(ABC):
    """One kind of training."""

    best: str  # the figure that decides which checkpoint is the best
    larger_is_better: bool = True
    counted: str | None = None  # what the second number of `loss` counts, as a figure's name; None: nothing
    saved_whole: bool = False  # whether a checkpoint has all that `measure` asks for, or only the run's own module

    @abstractmethod
    def module(self) -> nn.Module:
        """What the loop trains and calls: it holds the model, and anything learned beside it."""

    @abstractmethod
    def prepare(self, batch: Batch) -> tuple[Tensor, ...]:
        """The batch as `loss` gets it, on its device: first the pictures, normalised; last the weight of each, [b]."""

    @abstractmethod
    def loss(self, module: nn.Module, parts: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """The sum of the losses over (part of) a prepared batch, and how many pictures are right.

        `module` is `self.module()`, which may be wrapped to be shared or compiled: something to call.
        """

    @abstractmethod
    def measure(
        self, module: nn.Module, batches: Iterable[Batch], device: torch.device, precision: torch.dtype
    ) -> Measured:
        """The module, as it is, on pictures that it does not learn from."""


class Classify(Task):
    """Cross-entropy with labels, which may be smoothed, mixed, or taught by a teacher besides."""

    best = counted = "top1"
    saved_whole = True

    def __init__(
        self,
        model: ViT | ResNet,
        augmentation: Augmentation,
        seed: int,
        smoothing: float = 0.0,
        teacher: ViT | ResNet | None = None,
        distillation: Distillation | None = None,
        flip_test: bool = False,
    ):
        self.flip_test = flip_test
        self.model, self.augmentation, self.seed = model, augmentation, seed
        self.classes, self.smoothing = model.config.num_classes, smoothing
        self.teacher, self.distillation = teacher, distillation or Distillation()

    def module(self) -> nn.Module:
        """Without a teacher, a distillation token's answer is one with the other: their mean learns from the labels."""
        if self.teacher is not None and isinstance(self.model, ViT) and self.model.distillation_head is not None:
            return TwoAnswers(self.model)
        return self.model

    def prepare(self, batch: Batch) -> tuple[Tensor, ...]:
        rng = SampleRng(self.seed, batch.epoch, batch.keys)
        images = augment(batch.images, rng, self.augmentation)
        targets = smooth_targets(batch.labels, self.classes, self.smoothing)
        images, targets = mix(images, targets, rng, self.augmentation)
        return normalise(images, self.model.config.preprocessing), targets, (batch.labels >= 0).float()

    def loss(self, module: nn.Module, parts: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        images, targets, weights = parts
        answers = module(images)
        by_label, by_teacher = answers if isinstance(answers, tuple) else (answers, answers)
        losses = cross_entropy(by_label, targets)
        if self.teacher is not None:
            share = self.distillation.distill_weight
            losses = (1 - share) * losses + share * self._teachers_loss(by_teacher, images)
        right = (by_label.argmax(1) == targets.argmax(1)).float()
        return (losses * weights).sum(), (right * weights).sum()

    def measure(
        self, module: nn.Module, batches: Iterable[Batch], device: torch.device, precision: torch.dtype
    ) -> Measured:
        config = self.model.config
        return answer(module, batches, device, config.preprocessing, config.labels, precision, self.flip_test)

    @torch.no_grad()
    def _teach(self, images: Tensor) -> Tensor:
        """The teacher's answer to the same pictures, normalised as it was taught itself."""
        assert self.teacher is not None
        ours, theirs = self.model.config.preprocessing, self.teacher.config.preprocessing
        if (ours.mean, ours.std) != (theirs.mean, theirs.std):
            mean, std = (images.new_tensor(values).view(1, -1, 1, 1) for values in (ours.mean, ours.std))
            images = normalise(images * std + mean, theirs)
        return self.teacher(images).float()

    def _teachers_loss(self, answers: Tensor, images: Tensor) -> Float[Tensor, "b"]:
        teacher, temperature = self._teach(images), self.distillation.distill_temperature
        if self.distillation.distill == "hard":
            return F.cross_entropy(answers.float(), teacher.argmax(1), reduction="none")
        ours, theirs = (F.log_softmax(x.float() / temperature, dim=1) for x in (answers, teacher))
        # The square keeps the gradient's size whatever the temperature (Hinton et al.).
        return F.kl_div(ours, theirs, reduction="none", log_target=True).sum(1) * temperature**2


class TwoAnswers(nn.Module):
    """A model with a distillation token, giving both of its answers in training and their mean otherwise."""

    def __init__(self, student: ViT):
        super().__init__()
        self.student = student

    def forward(self, images: Float[Tensor, "b c h w"]) -> Any:
        if not self.training:
            return self.student(images)
        return self.student.classify_distilled(self.student.features(images))


def smooth_targets(labels: Int[Tensor, "b"], classes: int, smoothing: float) -> Float[Tensor, "b classes"]:
    """What the model should answer, as probabilities. Nothing is asked where the label is -1."""
    known = (labels >= 0).float()[:, None]
    targets = F.one_hot(labels.clamp(min=0), classes).float() * (1 - smoothing) + smoothing / classes
    return targets * known


def cross_entropy(logits: Float[Tensor, "b classes"], targets: Float[Tensor, "b classes"]) -> Float[Tensor, "b"]:
    return -(targets * F.log_softmax(logits.float(), dim=1)).sum(1)
