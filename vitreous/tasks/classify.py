"""Image classification, with optional distillation from a teacher model.

b: batch; c: channels; h, w: height and width.
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

from vitreous.common.checks import BadValue, fail
from vitreous.common.progress import Report, silent
from vitreous.common.rng import SampleRng
from vitreous.common.text import listed
from vitreous.data.augment.batch import augment, mix
from vitreous.data.augment.config import Augmentation
from vitreous.data.loader import Batch
from vitreous.data.sources.base import DataSet, Source, class_counts
from vitreous.inference.predictor import Predictor
from vitreous.model.familiarity import Familiarity
from vitreous.model.inputs import normalise
from vitreous.model.protocol import Model
from vitreous.report import plots
from vitreous.report.html import (
    Html,
    Section,
    TaskReport,
    bar,
    class_caption,
    details,
    inner,
    label,
    name,
    percent,
    photos,
    plot,
    samples_section,
    table,
    tag,
)
from vitreous.tasks.base import (
    EVALUATION_BATCH,
    SAMPLES,
    SMALL,
    Choice,
    Finished,
    Results,
    Task,
    load_teacher,
    padded_if,
)
from vitreous.tasks.classification_metrics import (
    ClassMetrics,
    Evaluation,
    calibration_images,
    classify_batches,
    classify_source,
    fit_familiarity,
)
from vitreous.tasks.config import Augment, Distillation, TrainConfig
from vitreous.tasks.progressive import Progressive, resize
from vitreous.weights.load import Checkpoint

MISTAKES = 24
MOST_CACHED = 500_000  # maximum number of images with cached features for --train-only head (1.5 GB with width 768)
# If the largest class has this many times as many images as the smallest, `balance` has this value by default.
IMBALANCED, BALANCE = 10, 0.5
FEW_CLASSES, SHOWN_CLASSES, MOST_CLASSES = 20, 30, 1000  # limits above which tables are sorted, folded, truncated


class Classify(Task):
    """Classification with label smoothing, mixup, CutMix, logit adjustment and distillation."""

    metric = "top1"
    train_metric: ClassVar[str | None] = "top1"
    complete_checkpoint = calibrates = lora = True
    options = frozenset(
        {"smoothing", "balance", "progressive", "flip_test", "mixup", "cutmix", *vars(Distillation())}
    ) - {"teacher_size"}
    next_steps: ClassVar[tuple[str, ...]] = (
        "vitreous predict {best} {image}",
        "vitreous eval {best} --data {data}",
        "vitreous serve {best} --open",
    )

    def __init__(self, config: TrainConfig, model: Model):
        super().__init__(config, model)
        self.logit_adjustment: Tensor | None = None
        self.teacher: Model | None = None
        self.progressive: Progressive | None = None
        if config.distillation.teacher is not None:
            device = next(model.parameters()).device
            self.teacher = load_teacher(config.distillation.teacher, device)
            check_teacher(self.teacher, config.distillation.teacher, model)

    @classmethod
    def check(cls, config: TrainConfig) -> None:
        super().check(config)
        if config.progressive and config.distillation.teacher is not None:
            fail("progressive", config.progressive, "0 with a teacher, which needs images of the full size")

    @classmethod
    def choose_options(cls, config: TrainConfig, data: DataSet, init: Checkpoint | None) -> list[Choice]:
        counts = class_counts(data.train).values()
        ratio = max(counts) / min(counts)
        if config.balance is not None or "balance" not in cls.options or ratio < IMBALANCED:
            return []
        return [Choice("balance", BALANCE, f"the largest class has {ratio:.0f} times as many images as the smallest")]

    @classmethod
    def choose_augmentation(cls, config: TrainConfig, count: int, side: int) -> tuple[Augmentation, str]:
        crop = padded_if(side <= SMALL)
        if config.train_only == "head" and count <= MOST_CACHED and not _augmented(config):
            return Augmentation(crop="none"), "only flips, so that features are computed at most twice per image"
        if config.init is not None or count < 5_000:
            light = Augmentation(crop=crop, crop_scale=(0.35, 1.0), policy="trivial")
            return light, "TrivialAugment, " + (
                "for fine-tuning" if config.init is not None else f"for {count:,} images"
            )
        strong = Augmentation(crop=crop, crop_scale=(0.2, 1.0), policy="trivial", mixup=0.2, cutmix=1.0)
        return strong, "TrivialAugment, mixup and CutMix, for training from scratch"

    def module(self) -> nn.Module:
        """Return the model. If it has a distillation token and there is a teacher, wrap it in `TwoHeads`."""
        if self.teacher is not None and self.model.config.distillation_token:
            return TwoHeads(self.model)
        return self.model

    def use_data(self, data: DataSet) -> None:
        if self.config.progressive:
            assert isinstance(self.config.batch_size, int)
            steps_per_epoch = len(data.train) // self.config.batch_size
            epochs = self.config.epochs or (self.config.steps or 1) / steps_per_epoch
            self.progressive = Progressive.of(self.model.config, self.config.progressive * epochs)
            if self.progressive.size(math.ceil(epochs) - 1) != self.model.config.image_size:
                fail(
                    "progressive", self.config.progressive, f"a fraction that leaves at least one of {epochs:g} epochs"
                )
        if self.config.balance:
            labels = torch.from_numpy(data.train.labels)
            counts = torch.bincount(labels, minlength=len(data.train.classes)).float()
            counts[counts == 0] = counts.max()  # do not favour classes without images
            adjustment = self.config.balance * (counts / counts.sum()).log()
            self.logit_adjustment = adjustment.to(next(self.model.parameters()).device)

    @property
    def first_epochs(self) -> Sequence[int]:
        return (0,) if self.progressive is None else self.progressive.first_epochs

    def prepare(self, batch: Batch) -> tuple[Tensor, ...]:
        draws = SampleRng(self.config.seed, batch.epoch, batch.keys)
        images = augment(batch.images, draws, self.augmentation)
        if self.progressive is not None:
            images = resize(images, self.progressive.size(batch.epoch))
        readable = batch.labels >= 0
        images, targets = mix(images, self.targets(batch), draws, self.augmentation, readable)
        return normalise(images, self.model.config.preprocessing), targets, readable.float()

    def targets(self, batch: Batch) -> Float[Tensor, "b classes"]:
        """Return the targets of the images of a batch, on the device."""
        return smooth_targets(batch.labels, self.model.config.num_classes, self.config.smoothing)

    def loss(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        images, targets, weights = inputs
        logits = module(images)
        label_logits, teacher_logits = logits if isinstance(logits, tuple) else (logits, logits)
        losses = cross_entropy(self._adjusted(label_logits), targets)
        if self.teacher is not None:
            weight = self.config.distillation.distill_weight
            losses = (1 - weight) * losses + weight * self._distillation_loss(teacher_logits, images)
        correct = (label_logits.argmax(1) == targets.argmax(1)).float()
        return (losses * weights).sum(), (correct * weights).sum()

    def evaluate(self, module: nn.Module, batches: Iterable[Batch], precision: torch.dtype) -> Results:
        config, device = self.model.config, next(module.parameters()).device
        flip = self.config.flip_test
        return classify_batches(module, batches, device, config.preprocessing, config.labels, precision, flip)

    def results_of(self, batch: Batch, scores: Float[Tensor, "b classes"]) -> Results:
        """Return the results of one batch."""
        return Evaluation.of(scores, batch.labels, self.model.config.labels, batch.indices, batch.problems)

    def evaluate_best(self, model: Model, source: Source, rank: int, ranks: int, progress: Report = silent) -> Results:
        predictor = self._predictor(model)
        keep = self.calibration_images(source) is source
        return classify_source(predictor, source, model.config.labels, rank, ranks, keep, progress, keep)

    def calibration_images(self, val: Source) -> Source:
        return calibration_images(val, self.model.config)

    def calibrate(self, results: Any) -> tuple[dict[str, Any], Results] | None:
        if results.logits is None:
            return None
        calibration, calibrated = results.calibrate()
        return {"calibration": calibration}, calibrated

    def fit_familiarity(
        self, model: Model, train: Source, val: Any, progress: Report = silent
    ) -> tuple[Familiarity, tuple[float, ...]] | None:
        return fit_familiarity(self._predictor(model), train, val, progress)

    def _predictor(self, model: Model) -> Predictor:
        device, flip = next(model.parameters()).device, self.config.flip_test
        return Predictor(model, device, EVALUATION_BATCH, flip=flip, workers=self.config.workers or None)

    def _adjusted(self, logits: Float[Tensor, "b classes"]) -> Float[Tensor, "b classes"]:
        """Add the log frequencies of the classes, which the model then does not learn."""
        return logits if self.logit_adjustment is None else logits.float() + self.logit_adjustment

    @torch.no_grad()
    def _teacher_logits(self, images: Tensor) -> Tensor:
        """Normalise images as the teacher expects, and return the teacher's logits."""
        assert self.teacher is not None
        own, other = self.model.config.preprocessing, self.teacher.config.preprocessing
        if (own.mean, own.std) != (other.mean, other.std):
            mean, std = (images.new_tensor(values).view(1, -1, 1, 1) for values in (own.mean, own.std))
            images = normalise(images * std + mean, other)
        return self.teacher(images).float()

    def _distillation_loss(self, logits: Tensor, images: Tensor) -> Float[Tensor, "b"]:
        teacher, temperature = self._teacher_logits(images), self.config.distillation.distill_temperature
        if self.config.distillation.distill == "hard":
            return F.cross_entropy(self._adjusted(logits).float(), teacher.argmax(1), reduction="none")
        student, target = (F.log_softmax(x.float() / temperature, dim=1) for x in (logits, teacher))
        # The square makes the gradient scale independent of the temperature (Hinton et al.).
        return F.kl_div(student, target, reduction="none", log_target=True).sum(1) * temperature**2

    @classmethod
    def eval_flags(cls, config: TrainConfig) -> list[str]:
        return ["--flip"] if config.flip_test else []

    def report(self, run: Finished) -> TaskReport:
        assert isinstance(run.results, Evaluation)
        classes, metrics, evaluation = run.data.classes, run.results.metrics(), run.results
        labels = [classes[label] if label >= 0 else "unreadable" for label in run.first_batch.labels[:SAMPLES].tolist()]
        correct, count = round(metrics["top1"] * metrics["count"]), metrics["count"]
        headline = ["top1", *(["top5"] if len(classes) > 5 else []), "balanced_accuracy", "loss", "ece"]
        more = "".join(f", {label(key)} {metrics[key]:.4f}" for key in headline[1:])
        if "ece_calibrated" in metrics:
            more += f" ({metrics['ece_calibrated']:.4f} calibrated)"
        return TaskReport(
            f"top-1 {metrics['top1']:.4f} ({correct:,} of {count:,} images){more}",
            f"Classification into {len(classes)} classes, {run.evaluated_on}",
            {key: metrics[key] for key in headline},
            [
                *evaluation_sections(run.folder, evaluation, self._mistakes(run.source, evaluation, classes), run.draw),
                samples_section(run.folder, self.samples(run.first_batch), labels, classes, run.draw),
            ],
        )

    def _mistakes(self, source: Source, evaluation: Evaluation, classes: Sequence[str]) -> list["Mistake"]:
        wrong = evaluation.worst(MISTAKES)
        if not wrong:
            return []
        images = self.images(source, [mistake.index for mistake in wrong])
        return [
            Mistake(image, source.name(row.index), classes[row.true], classes[row.predicted], row.probability)
            for image, row in zip(images, wrong, strict=True)
        ]


def _augmented(config: TrainConfig) -> bool:
    """Return True if distillation or any augmentation other than flips is requested."""
    return dataclasses.replace(config.augment, flip=None) != Augment() or config.distillation.teacher is not None


class TwoHeads(nn.Module):
    """Returns the logits of both heads of a distilled model during training, and their mean during evaluation."""

    def __init__(self, student: Model):
        super().__init__()
        self.student = student

    def forward(self, images: Float[Tensor, "b c h w"]) -> Any:
        if not self.training:
            return self.student(images)
        return self.student.classify_distilled(self.student.features(images))


def check_teacher(teacher: Model, path: str | Path, student: Model) -> None:
    """Raise BadValue if the teacher and the student differ in classes, input channels or supported image sizes."""
    config, own = teacher.config, student.config
    if config.num_classes != own.num_classes:
        raise BadValue(f"teacher {path} has {config.num_classes} classes, but the student has {own.num_classes}")
    if config.labels not in ((), own.labels):
        raise BadValue(f"teacher {path} has classes {listed(config.labels)}, but the student has {listed(own.labels)}")
    if config.channels != own.channels:
        raise BadValue(f"teacher {path} has {config.channels} input channels, but the student has {own.channels}")
    config.grid_for(own.image_size)  # raises if the teacher's patches do not tile the images


def smooth_targets(labels: Int[Tensor, "b"], classes: int, smoothing: float) -> Float[Tensor, "b classes"]:
    """Return smoothed one-hot targets, or zeros for unreadable images (label -1)."""
    known = (labels >= 0).float()[:, None]
    targets = F.one_hot(labels.clamp(min=0), classes).float() * (1 - smoothing) + smoothing / classes
    return targets * known


def cross_entropy(logits: Float[Tensor, "b classes"], targets: Float[Tensor, "b classes"]) -> Float[Tensor, "b"]:
    return -(targets * F.log_softmax(logits.float(), dim=1)).sum(1)


# ---- Report ----------------------------------------------------------------------------------------------------------


class Mistake(NamedTuple):
    """A misclassified image and the probability of the predicted class."""

    image: UInt8[Tensor, "c h w"]
    name: str
    truth: str
    predicted: str
    probability: float


def evaluation_sections(
    folder: Path, evaluation: Evaluation, mistakes: Sequence[Mistake] = (), draw: bool = True
) -> list[Section]:
    """Return report sections on per-class metrics, confusion, mistakes and calibration. Plots are saved in `folder`."""
    if not bool(evaluation.readable.any()):
        return []
    drawn = draw and evaluation.num_classes <= plots.MOST_CLASSES
    if drawn:
        names = [evaluation.name(index) for index in range(evaluation.num_classes)]
        plots.confusion(folder / "confusion.png", evaluation.confusion().numpy(), names)
    if draw:
        plots.calibration(folder / "calibration.png", **vars(evaluation.calibration()))
        captions = []
        for mistake in mistakes:
            labels = (mistake.truth, mistake.predicted)
            truth, predicted = (class_caption(label, evaluation.names or ()) for label in labels)
            arrow = " → " if len(truth + predicted) <= 10 else " →\n"
            captions.append(f"{truth}{arrow}{predicted} ({mistake.probability:.0%})")
        plots.grid(folder / "mistakes.png", [mistake.image for mistake in mistakes], captions, columns=6, width=1.75)
    return [
        Section("Classes", per_class(evaluation)),
        Section("Confusion", confusion(evaluation, folder / "confusion.png" if drawn else None)),
        Section("Worst mistakes", _mistakes(evaluation, mistakes)),
        Section("Calibration", calibration(evaluation, folder / "calibration.png" if draw else None)),
    ]


def _mistakes(evaluation: Evaluation, mistakes: Sequence[Mistake]) -> list[Html]:
    if not mistakes:
        return []
    metrics = evaluation.metrics()
    text = (
        f"{round(metrics['count'] * (1 - metrics['top1'])):,} of {metrics['count']:,} images were misclassified. "
        "These are the most confident mistakes. Often the label is wrong or the image is ambiguous. "
        "Captions: true class → predicted class (probability)."
    )
    alts = [f"{mistake.name}: {mistake.truth}, predicted as {mistake.predicted}" for mistake in mistakes]
    captions = [
        inner(
            tag("b", name(mistake.truth), " → ", name(mistake.predicted)),
            f" ({mistake.probability:.0%})",
            tag("small", name(mistake.name), title=mistake.name),
        )
        for mistake in mistakes
    ]
    return [tag("p", text), photos([mistake.image for mistake in mistakes], alts, captions)]


def per_class(evaluation: Evaluation) -> list[Html]:
    """Return a table of per-class metrics, sorted by F1 if there are many classes."""
    rows = evaluation.per_class()
    many = len(rows) > FEW_CLASSES
    if many:  # classes without images come last
        rows = sorted(rows, key=lambda row: (row.f1 is None or row.count == 0, row.f1 or 0))
    text = (
        "Recall: fraction of the images of a class that were predicted correctly. Precision: fraction of the "
        "predictions of a class that are correct. F1 is high only if both are high."
    )
    content = [tag("p", text + (" The worst classes come first." if many else ""))]
    # Plots label classes by number if there are many classes or non-ASCII names.
    numbered = evaluation.names is not None and (many or not all(row.name.isascii() for row in rows))
    content.append(_class_table(rows[:SHOWN_CLASSES], numbered))
    if rest := rows[SHOWN_CLASSES:MOST_CLASSES]:
        content.append(details(f"{len(rest):,} more classes", _class_table(rest, numbered)))
    if len(rows) > MOST_CLASSES:
        content.append(tag("p", f"{len(rows) - MOST_CLASSES:,} more classes are not listed.", class_="soft"))
    return content


def _class_table(rows: Sequence[ClassMetrics], numbered: bool) -> Html:
    lines = [
        [
            name(row.name),
            *([str(row.index)] if numbered else []),
            f"{row.count:,}",
            percent(row.precision),
            percent(row.recall),
            inner(bar(row.f1 or 0), tag("span", percent(row.f1))),
        ]
        for row in rows
    ]
    return table(["class", *(["number"] if numbered else []), "images", "precision", "recall", "F1"], lines)


def confusion(evaluation: Evaluation, drawn: Path | None) -> list[Html]:
    """Return a table of the most confused class pairs, and the confusion matrix if it was drawn."""
    content = []
    if drawn is not None:
        text = "Each row shows the predictions for the images of one class. Everything off the diagonal is a mistake."
        content.append(plot(drawn, "Confusion matrix: true against predicted classes", text))
    name_of = evaluation.name
    pairs = [
        [name(name_of(pair.true)), name(name_of(pair.predicted)), f"{pair.count:,}", f"{pair.fraction:.1%}"]
        for pair in evaluation.most_confused(10)
    ]
    columns = ["true class", "predicted", "images", "% of true class"]
    content.append(table(columns, pairs, 2, "Most confused") if pairs else tag("p", "No classes were confused."))
    return [tag("div", *content, class_="side")]


def calibration(evaluation: Evaluation, drawn: Path | None) -> list[Html]:
    """Explain the calibration error, and show the reliability diagram if it was drawn."""
    bins, top1 = evaluation.calibration(), evaluation.metrics()["top1"]
    gap = float((bins.confidence * bins.counts).sum() / bins.counts.sum()) - top1
    confidence = "neither overconfident nor underconfident overall"
    if abs(gap) > 0.01:
        confidence = "overconfident overall" if gap > 0 else "underconfident overall"
    text = (
        f"Predictions with a probability of 80% should be correct 80% of the time. The expected calibration error of "
        f"this model is {100 * bins.ece:.1f} percentage points. The model is {confidence}."
    )
    if evaluation.calibrated is not None:
        after = 100 * evaluation.calibration(calibrated=True).ece
        fitted = "on the validation split"
        if evaluation.cross_fitted:
            fitted = "on this split; each half of the images is evaluated with the temperature fitted to the other half"
        text += f" With the calibrated temperature, the error is {after:.1f} points (fitted {fitted})."
    if drawn is None:
        return [tag("p", text)]
    note = f"Hollow dots mark bins with fewer than {plots.FEW} images. These bins are unreliable."
    return [tag("p", text), plot(drawn, "Reliability diagram: accuracy against confidence", note)]
