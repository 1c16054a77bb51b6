"""Semi-supervised classification: a few labelled images, and many images without labels (--unlabelled).

Consistency is FixMatch (arXiv 2001.07685), which follows UDA (arXiv 1904.12848): the model learns its own prediction
for a cropped and flipped image from a strongly augmented copy. NoisyStudent (arXiv 1911.04252) learns the predictions
of a teacher from an earlier run. MetaPseudoLabels (arXiv 2003.10580) trains teacher and student together.

b: labelled images; u: unlabelled images.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vitreous.common.atomic_files import atomic_file
from vitreous.common.checks import fail
from vitreous.common.distributed import World
from vitreous.common.progress import ProgressLines, silent
from vitreous.common.rng import SampleRng
from vitreous.data.augment.batch import augment, mix
from vitreous.data.augment.config import Augmentation
from vitreous.data.loader import UNLABELLED_SEED, Batch
from vitreous.data.open import is_same_data, open_unlabelled
from vitreous.data.sources.arrays import read_npz
from vitreous.data.sources.base import DataSet, without_labels
from vitreous.inference.forward_pass import evaluation_mode
from vitreous.inference.predictor import Predictor
from vitreous.model.inputs import normalise
from vitreous.model.protocol import Model
from vitreous.tasks.base import EVALUATION_BATCH, SMALL, Choice, padded_if
from vitreous.tasks.classification_metrics import UNREADABLE, classify_source
from vitreous.tasks.classify import Classify, cross_entropy
from vitreous.tasks.config import Distillation, SemiSupervised, TrainConfig
from vitreous.weights.load import Checkpoint, load_encoder

PSEUDO_LABELS, TEACHER = "pseudo_labels.npz", "teacher"  # file and folder of a Noisy Student run
# Fractions of a Meta Pseudo Labels run: at its start, the weight of weak views increases linearly, because the first
# predictions of the teacher are wrong; at its end, only the student is trained, on the labelled images.
RAMP, FINE_TUNING = 0.5, 0.2


class SemiTask(Classify):
    """Base class of semi-supervised tasks. Labelled images are augmented and learned as in a supervised run."""

    train_metric = "pseudo_labelled"  # fraction of the unlabelled images whose pseudo label is probable enough
    options = frozenset({"smoothing", "flip_test", "mixup", "cutmix", *vars(SemiSupervised())} - {"rounds"})
    default_threshold: ClassVar[float]  # of --threshold
    ema: ClassVar[float | None] = None  # default of --ema

    def __init__(self, config: TrainConfig, model: Model):
        super().__init__(config, model)
        threshold = config.semi_supervised.threshold
        self.threshold = self.default_threshold if threshold is None else threshold
        self.unlabelled_weight = config.semi_supervised.unlabelled_weight

    @classmethod
    def flag(cls, config: TrainConfig) -> str:
        return f"--semi {config.semi_supervised.semi}"

    @classmethod
    def open_data(cls, config: TrainConfig, init: Checkpoint | None) -> DataSet:
        data = super().open_data(config, init)
        root = None if config.data_root is None else Path(config.data_root)
        spec = str(config.semi_supervised.unlabelled)
        # The images of the data itself, without those that are held out from it for validation.
        same = data.val_drawn and is_same_data(spec, str(config.data), root)
        unlabelled = without_labels(data.train) if same else open_unlabelled(spec, root, config.seed)
        note = f"{data.note}; unlabelled {len(unlabelled):,}"
        return replace(data, unlabelled=unlabelled, unlabelled_is_train=same, note=note)

    @classmethod
    def choose_options(cls, config: TrainConfig, data: DataSet, init: Checkpoint | None) -> list[Choice]:
        semi, reason = config.semi_supervised, f"for {cls.flag(config)}"
        given = {"threshold": semi.threshold, "ema": config.optim.ema}
        default = {"threshold": cls.default_threshold, "ema": cls.ema}
        return [Choice(k, v, reason) for k, v in default.items() if given[k] is None and v is not None]

    @classmethod
    def choose_augmentation(cls, config: TrainConfig, count: int, side: int) -> tuple[Augmentation, str]:
        return (
            Augmentation(crop=padded_if(side <= SMALL), crop_scale=(0.35, 1.0), policy="randaugment", erasing=0.5),
            "RandAugment and random erasing, except for weak views",
        )

    @classmethod
    def step_images(cls, config: TrainConfig) -> int:
        return 1 + config.semi_supervised.unlabelled_ratio

    def prepare(self, batch: Batch) -> tuple[Tensor, ...]:
        images, targets, weights = super().prepare(batch)
        assert batch.unlabelled is not None
        more = batch.unlabelled
        rng = SampleRng(self.config.seed + UNLABELLED_SEED, more.epoch, more.keys)
        return images, targets, *self.prepare_unlabelled(more, rng), weights

    def prepare_unlabelled(self, batch: Batch, rng: SampleRng) -> tuple[Tensor, ...]:
        """Return the inputs of the loss for the unlabelled images, on the device: a weak and a strong view of each, a
        random number, and 1 for each readable image.
        """
        weak, strong = (
            normalise(augment(batch.images, rng, how), self.model.config.preprocessing)
            for how in (weak_augmentation(self.augmentation), self.augmentation)
        )
        numbers = rng.uniform("pseudo label").to(strong.device, non_blocking=True)
        return weak, strong, numbers, (batch.labels >= 0).float()

    def unlabelled_sum(self, losses: Float[Tensor, "u"], weights: Float[Tensor, "u"]) -> Tensor:
        """Return the sum that, divided by the number of labelled images, is the mean over the unlabelled images."""
        return (losses * weights).sum() / self.config.semi_supervised.unlabelled_ratio

    def confident(self, logits: Float[Tensor, "u c"]) -> Float[Tensor, "u"]:
        """Return 1 for each prediction that is probable enough to be a pseudo label."""
        return (logits.softmax(1).amax(1) >= self.threshold).float()

    def steps_taken(self, steps: int, epochs: int) -> str:
        size, ratio = self.config.batch_size, self.config.semi_supervised.unlabelled_ratio
        assert isinstance(size, int)
        return f"{steps:,} with {size} labelled and {size * ratio} unlabelled images each ({epochs} epochs)"


def weak_augmentation(strong: Augmentation) -> Augmentation:
    """Return an augmentation with the same crops and flips, and nothing else."""
    return Augmentation(crop=strong.crop, crop_scale=strong.crop_scale, flip=strong.flip, repeats=strong.repeats)


# ---- Consistency -----------------------------------------------------------------------------------------------------


class Consistency(SemiTask):
    """FixMatch: the most probable class of the weak view, if it is probable enough, is the label of the strong view."""

    default_threshold, ema = 0.95, 0.999

    def loss(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        images, targets, weak, strong, _, readable, weights = inputs
        # The module is called once, as CUDA graphs require. The pass without gradients does not use them.
        labelled, unlabelled = module(torch.cat([images, strong])).float().split([len(images), len(strong)])
        predicted = evaluated(self.module(), weak)
        used = self.confident(predicted) * readable
        losses = F.cross_entropy(unlabelled, predicted.argmax(1), reduction="none")
        supervised = (cross_entropy(labelled, targets) * weights).sum()
        loss = supervised + self.unlabelled_weight * self.unlabelled_sum(losses, used)
        return loss, self.unlabelled_sum(used, readable)


def evaluated(module: nn.Module, images: Tensor) -> Float[Tensor, "u c"]:
    """Return the logits in evaluation mode, without gradients."""
    with evaluation_mode(module):
        logits: Tensor = module(images)
    return logits.float()


# ---- Noisy Student ---------------------------------------------------------------------------------------------------


class NoisyStudent(SemiTask):
    """Noisy Student: a student with noise (augmentation, dropout, stochastic depth) learns the probabilities that its
    teacher predicts for the unlabelled images without noise.
    """

    options = SemiTask.options | {"rounds", "teacher"}
    default_threshold = 0.3

    def __init__(self, config: TrainConfig, model: Model):
        super().__init__(replace(config, distillation=Distillation()), model)  # the steps do not need the teacher

    @classmethod
    def earlier_run(cls, config: TrainConfig) -> TrainConfig | None:
        """Return the run of the teacher: the previous student or, for the first student, a supervised run."""
        semi, out = config.semi_supervised, Path(str(config.out)) / TEACHER
        if semi.rounds > 1:
            return replace(config, out=out, semi_supervised=replace(semi, rounds=semi.rounds - 1))
        return None if config.distillation.teacher else replace(config, out=out, semi_supervised=SemiSupervised())

    @classmethod
    def complete_data(cls, data: DataSet, config: TrainConfig, world: World, log: Callable[[str], None]) -> DataSet:
        """Add the probabilities that the teacher predicts, which are computed once and stored in the run folder."""
        assert data.unlabelled is not None
        out, first = Path(str(config.out)), config.distillation.teacher if cls.earlier_run(config) is None else None
        file, shape = out / PSEUDO_LABELS, (len(data.unlabelled), len(data.classes))
        names = [data.unlabelled.name(index) for index in range(shape[0])]
        if not world.first_only(file.exists):
            teacher = load_encoder(first or out / TEACHER / "best").to(world.device).eval()
            if teacher.config.labels != data.classes and (
                teacher.config.labels or teacher.config.num_classes != shape[1]
            ):
                fail("teacher", first, f"a classifier of the {shape[1]} classes of {data.name}")
            predictor = Predictor(teacher, world.device, EVALUATION_BATCH, workers=config.workers or None)
            progress = ProgressLines(log) if world.first else silent
            outputs = tuple(map(str, range(shape[1])))
            mine = classify_source(predictor, data.unlabelled, outputs, world.rank, world.size, True, progress)
            found = type(mine).join(world.gather(mine))
            assert found.logits is not None
            if world.first:
                readable = (found.labels != UNREADABLE)[:, None]
                predicted = torch.where(readable, found.logits.softmax(1), 0).numpy()
                with atomic_file(file) as aside, open(aside, "wb") as stream:
                    np.savez_compressed(stream, probabilities=predicted, names=np.array(names))
            world.wait()
        stored = read_npz(file)
        probabilities = stored.get("probabilities")
        if probabilities is None or probabilities.shape != shape or stored["names"].tolist() != names:
            raise ValueError(f"{file} does not belong to the {shape[0]:,} images of --unlabelled; start a new run")
        assert config.semi_supervised.threshold is not None
        used = int(has_pseudo_label(torch.from_numpy(probabilities), config.semi_supervised.threshold).sum())
        log(f"pseudo labels for {used:,} of {shape[0]:,} unlabelled images ({used / shape[0]:.1%})")
        unlabelled = copy.copy(data.unlabelled)
        unlabelled.targets = probabilities
        return replace(data, unlabelled=unlabelled)

    def prepare_unlabelled(self, batch: Batch, rng: SampleRng) -> tuple[Tensor, ...]:
        """Return the augmented and mixed images, their targets, and 1 for each image that has a pseudo label."""
        assert batch.targets is not None
        images = augment(batch.images, rng, self.augmentation)
        targets = batch.targets.to(images.device, non_blocking=True)
        used = has_pseudo_label(targets, self.threshold) & (batch.labels >= 0)
        images, targets = mix(images, targets, rng, self.augmentation, used)
        return normalise(images, self.model.config.preprocessing), targets, used.float()

    def loss(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        images, targets, more, pseudo, used, weights = inputs
        labelled, unlabelled = module(torch.cat([images, more])).split([len(images), len(more)])
        supervised = (cross_entropy(labelled, targets) * weights).sum()
        loss = supervised + self.unlabelled_weight * self.unlabelled_sum(cross_entropy(unlabelled, pseudo), used)
        return loss, self.unlabelled_sum(torch.ones_like(used), used)


def has_pseudo_label(probabilities: Float[Tensor, "u c"], threshold: float) -> Bool[Tensor, "u"]:
    """Return True for images whose most probable class reaches the threshold. Those of unreadable images are all 0."""
    most = probabilities.amax(1)
    return (most >= threshold) & (most > 0)


# ---- Meta Pseudo Labels ----------------------------------------------------------------------------------------------


class StudentAndTeacher(nn.Module):
    """Two models. Evaluation uses the student."""

    def __init__(self, student: Model, teacher: Model):
        super().__init__()
        self.student, self.teacher = student, teacher

    def forward(self, images: Tensor) -> Tensor:
        return self.student(images)


class MetaPseudoLabels(SemiTask):
    """Meta Pseudo Labels: the student learns labels that the teacher draws from its predictions; then the teacher makes
    these labels more likely if they reduced the loss of the student on the labelled images, and less likely otherwise.

    In addition, the teacher learns from the labelled images, and consistently from weak and strong views as in UDA. The
    last steps train the student on the labelled images, at the small learning rates at the end of the schedule.
    """

    compiles_by_default = False  # CUDA graphs do not support two models
    default_threshold, ema = 0.6, 0.995
    temperature = 0.7  # of the teacher's predictions for weak views

    def __init__(self, config: TrainConfig, model: Model):
        super().__init__(config, model)
        self.net = StudentAndTeacher(model, copy.deepcopy(model))
        self.ramp, self.labelled_only = 1.0, False

    @classmethod
    def check(cls, config: TrainConfig) -> None:
        super().check(config)
        for name, value in (("accumulate", 1), ("parallel", "ddp")):
            if getattr(config, name) != value:
                fail(name, getattr(config, name), f"{value} for {cls.flag(config)}")
        if config.compile:
            fail("compile", config.compile, f"omitted for {cls.flag(config)}")

    @classmethod
    def step_images(cls, config: TrainConfig) -> int:
        return 1 + 2 * config.semi_supervised.unlabelled_ratio  # the graphs of both models

    def module(self) -> nn.Module:
        return self.net

    def learners(self) -> list[nn.Module]:
        return [self.net.student, self.net.teacher]

    def start_step(self, step: int, total: int) -> None:
        self.ramp = min((step + 1) / (RAMP * total), 1.0)
        self.labelled_only = step >= total - round(FINE_TUNING * total)

    def turn_losses(
        self, modules: list[nn.Module], inputs: tuple[Tensor, ...], world: World
    ) -> Iterator[tuple[Tensor, ...]]:
        (student, teacher), own = modules, self.net.student
        images, targets, weak, strong, numbers, readable, weights = inputs
        if self.labelled_only:
            yield (cross_entropy(student(images), targets) * weights).sum(), torch.zeros_like(weights.sum())
            return

        def labelled_loss() -> Tensor:
            """Return the mean loss of the student on the labelled images of all processes."""
            losses = cross_entropy(evaluated(own, images), targets)
            total, count = world.sum(torch.stack([(losses * weights).sum(), weights.sum()]))
            return total / count.clamp(min=1)

        # Gradients of the teacher are computed after the student's update, from these logits.
        on_labelled, on_strong = teacher(torch.cat([images, strong])).float().split([len(images), len(strong)])
        predicted = evaluated(self.net.teacher, weak) / self.temperature
        used = self.confident(predicted) * readable
        drawn = draw_labels(on_strong.detach().softmax(1), numbers)
        before = labelled_loss()
        learned = F.cross_entropy(student(strong).float(), drawn, reduction="none")
        yield self.unlabelled_sum(learned, readable), self.unlabelled_sum(used, readable)

        feedback = before - labelled_loss()
        chosen = F.cross_entropy(on_strong, drawn, reduction="none")
        consistency = self.unlabelled_sum(cross_entropy(on_strong, predicted.softmax(1)), used)
        supervised = (cross_entropy(on_labelled, targets) * weights).sum()
        weight, feedback_loss = self.ramp * self.unlabelled_weight, feedback * self.unlabelled_sum(chosen, readable)
        yield (supervised + weight * consistency + feedback_loss,)


def draw_labels(probabilities: Float[Tensor, "u c"], numbers: Float[Tensor, "u"]) -> Int[Tensor, "u"]:
    """Draw a class for each image, given its class probabilities and a uniform random number."""
    below = probabilities.cumsum(1) <= numbers[:, None]
    return below.sum(1).clamp(max=probabilities.shape[1] - 1)
