"""A task: the data that it needs, its model, loss, metrics, defaults and report, behind one small class.

b: batch; k: images.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import UInt8
from torch import Tensor, nn

from vitreous.common.checks import Size, as_size, fail
from vitreous.common.rng import SampleRng
from vitreous.data.augment.batch import augment
from vitreous.data.augment.config import Augmentation
from vitreous.data.loader import Batch
from vitreous.data.open import open_data
from vitreous.data.sources.base import DataSet, Source
from vitreous.model.build import build
from vitreous.model.inputs import denormalise, normalise
from vitreous.model.options import Conditional, Dropout, GlobalAverage, Preprocessing
from vitreous.model.presets import configure
from vitreous.model.protocol import Model, ModelConfig
from vitreous.report.html import TaskReport, samples_section
from vitreous.tasks.config import TASK_OPTIONS, TrainConfig, flatten
from vitreous.weights.load import Source as Checkpoint
from vitreous.weights.load import open_checkpoint
from vitreous.weights.native import provenance_of

SMALL = 48  # largest side of small images, in pixels
SAMPLES = 16  # training images in a report

# A convolution for positions and the mean of the patches learn more from few images: on the digits they make a quarter
# of the errors of learned positions and a class token (top-1 0.992 against 0.964).
FEW_IMAGES = {"position": Conditional(), "pool": GlobalAverage(), "class_token": False}


@runtime_checkable
class Results(Protocol):
    """Results of an evaluation."""

    @property
    def problems(self) -> list[str]:
        """Name and reason of every unreadable image."""

    def metrics(self) -> dict[str, Any]: ...

    @classmethod
    def join(cls, parts: Sequence[Any]) -> Any:
        """Combine the results of several processes, each image once."""


class Choice(NamedTuple):
    """A value that is chosen automatically, and the reason."""

    name: str  # of a field of the config
    value: Any
    reason: str
    apply: bool = True  # False: only report it, the config already implies it


@dataclass(frozen=True)
class Finished:
    """A finished run, as its task reports it."""

    folder: Path
    data: DataSet
    split: str  # that the best model was evaluated on: val or test
    source: Source  # the images of that split
    results: Results
    first_batch: Batch  # of training
    module: nn.Module  # after the last step
    draw: bool  # True in the first process if matplotlib is installed

    @property
    def evaluated_on(self) -> str:
        chosen = ", which also selected the best epoch" if self.split == "val" else ""
        return f"evaluated on the {self.split} split{chosen}"


class Task(ABC):
    """One kind of training; class methods prepare a run, an instance trains. Defaults suit images with labels."""

    metric: ClassVar[str]  # selects the best checkpoint
    larger_is_better: ClassVar[bool] = True
    train_metric: ClassVar[str | None] = None  # name of the second value of `loss`; None if it has no meaning
    complete_checkpoint: ClassVar[bool] = False  # True if a checkpoint contains everything that `evaluate` needs
    labelled: ClassVar[bool] = True  # False if images need no labels
    masks: ClassVar[bool] = False  # True if batches contain masks
    options: ClassVar[frozenset[str]] = TASK_OPTIONS  # those of TASK_OPTIONS that have an effect
    next_steps: ClassVar[tuple[str, ...]] = (  # commands after a run, for str.format (see training/run.py)
        "vitreous eval {best} --data {labelled} --probe knn",
        "vitreous train --data {labelled} --init {best}",
        "vitreous info {best}",
    )

    def __init__(self, config: TrainConfig, model: Any):
        self.config, self.model = config, model
        self.augmentation = config.augment.on(Augmentation())

    # ---- Before the model exists -------------------------------------------------------------------------------------

    @classmethod
    def check(cls, config: TrainConfig) -> None:
        """Raise if an option has no effect for this task."""
        default = flatten(TrainConfig())
        for name, value in flatten(config).items():
            if name in TASK_OPTIONS - cls.options and value and value != default[name]:
                fail(name, value, f"omitted for --task {config.task}, where it has no effect")

    @classmethod
    def open_data(cls, config: TrainConfig, init: Checkpoint | None) -> DataSet:
        where: dict[str, Any] = {"root": config.data_root, "val_fraction": config.val_fraction, "seed": config.seed}
        return open_data(config.data, **where, labelled=cls.labelled)

    @classmethod
    def classes(cls, data: DataSet) -> tuple[str, ...]:
        """Classes in the order of the model's outputs."""
        return data.classes if cls.labelled else ()

    @classmethod
    def choose_model(cls, config: TrainConfig, count: int, side: int) -> list[Choice]:
        """Choose a preset for `count` images whose shorter side is about `side` pixels."""
        size = f"images of about {side} pixels"
        name, reason = ("ViT-Ti/16" if count < 50_000 else "ViT-S/16"), f"{count} {size}"
        choices = [Choice("model", "ViT-Lite-7/4", size) if side <= SMALL else Choice("model", name, reason)]
        if not config.overrides and count < 100_000:
            reason = "these learn from few images; no other format supports such positions"
            choices.append(Choice("overrides", FEW_IMAGES, reason))
        return choices

    @classmethod
    def choose_options(cls, config: TrainConfig, data: DataSet, init: Checkpoint | None) -> list[Choice]:
        """Choose the options of this task."""
        return []

    @classmethod
    def choose_augmentation(cls, config: TrainConfig, count: int, side: int) -> tuple[Augmentation, str]:
        """Choose the augmentation, and say why."""
        return Augmentation(crop=padded_if(side <= SMALL), crop_scale=(0.2, 1.0)), "crop and flip"

    @classmethod
    def planned_config(cls, config: TrainConfig, data: DataSet, init: Checkpoint | None) -> ModelConfig:
        """Config of the model that will be built, to estimate its memory."""
        return planned_config(config, init).backbone

    @classmethod
    def build_model(cls, config: TrainConfig, data: DataSet, init: Checkpoint | None) -> Model:
        """Build or load a model with a head for the classes, or without a head if there are none."""
        classes = cls.classes(data)
        if init is None:
            return build_preset(config, classes)
        start = load_init(config, init)
        model: Model = start.backbone
        vars(model)["provenance"] = provenance_of(start)
        if model.config.labels != classes or model.config.num_classes != len(classes):
            model.replace_head(len(classes), classes)
        return model

    # ---- Training and evaluation -------------------------------------------------------------------------------------

    def module(self) -> nn.Module:
        """The module that the loop trains and calls: it contains the model."""
        return self.model

    def prepare(self, batch: Batch) -> tuple[Tensor, ...]:
        """Inputs of `loss`, on their device: first the normalised images, last the weight of each image, [b]."""
        images = augment(batch.images, SampleRng(self.config.seed, batch.epoch, batch.keys), self.augmentation)
        return normalise(images, self.model.config.preprocessing), batch.labels, (batch.labels >= 0).float()

    @abstractmethod
    def loss(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Sums of loss and `train_metric` over a (micro-)batch; `module` is `self.module()`, possibly wrapped."""

    @abstractmethod
    def evaluate(self, module: nn.Module, batches: Iterable[Batch], precision: torch.dtype) -> Results:
        """Evaluate the module on images that it is not trained on."""

    def evaluate_best(
        self, model: Model, source: Source, batches: Iterable[Batch], precision: torch.dtype, rank: int, ranks: int
    ) -> Results:
        """Evaluate the best checkpoint at the end of a run; `rank` of `ranks` processes."""
        return self.evaluate(model, batches, precision)

    # ---- Report ------------------------------------------------------------------------------------------------------

    def report(self, run: Finished) -> TaskReport:
        """Summary line, headline metrics and report sections. Every process calls this; the first uses the result."""
        number = run.results.metrics()[self.metric]
        samples = samples_section(run.folder, self.samples(run.first_batch), draw=run.draw)
        description = f"{type(self).__name__}, {run.evaluated_on}"
        return TaskReport(f"{self.metric} {number:.4f}", description, {self.metric: number}, [samples])

    def samples(self, batch: Batch) -> UInt8[Tensor, "k c h w"]:
        """Training images as the model sees them."""
        return denormalise(self.prepare(batch)[0][:SAMPLES], self.model.config.preprocessing).cpu()


def padded_if(small: bool) -> Literal["padded", "resized"]:
    """Crop for small or other images."""
    return "padded" if small else "resized"


# ---- The model that a run starts from --------------------------------------------------------------------------------


def build_preset(config: TrainConfig, classes: tuple[str, ...]) -> Model:
    """Build the preset of --model with random weights."""
    if config.model is None:
        fail("model", None, "the name of a preset, or --init a checkpoint")
    size, fields = image_size(config), {"labels": classes} | model_fields(config)
    if size is not None and max(size) <= 64:  # small images lose too much in a centre crop
        fields = {"preprocessing": Preprocessing(crop_fraction=1.0)} | fields
    return build(configure(config.model, len(classes), size, fields))


def open_init(config: TrainConfig) -> Checkpoint | None:
    """Open the checkpoint of --init; None without --init."""
    return None if config.init is None else open_checkpoint(config.init)


def checkpoint_config(config: TrainConfig, init: Checkpoint | None) -> ModelConfig | None:
    """Return the config of an opened checkpoint with the run's overrides; None without a checkpoint."""
    return None if init is None else init.describe(config.overrides).config


def load_init(config: TrainConfig, init: Checkpoint) -> Model:
    """Load the model of an opened checkpoint with the run's image size and overrides."""
    return init.model(image_size(config), overrides=model_fields(config)).float()


def planned_config(config: TrainConfig, init: Checkpoint | None) -> ModelConfig:
    """Return the config of the model that will be built, without fields that do not affect memory."""
    size, checkpoint = image_size(config), checkpoint_config(config, init)
    if checkpoint is None:
        return configure(config.model or "", image_size=size, overrides=config.overrides)
    return checkpoint if size is None else checkpoint.resized(size)


def check_preset(config: TrainConfig) -> None:
    """Raise if --model or its overrides are invalid."""
    if config.model is not None:
        configure(config.model, None, image_size(config), model_fields(config))


def image_size(config: TrainConfig) -> Size | None:
    return as_size(config.image_size) if config.image_size else None


def model_fields(config: TrainConfig) -> dict[str, Any]:
    """Fields of the model's config that the run sets."""
    rates = {"stochastic_depth": config.stochastic_depth, "patch_dropout": config.patch_dropout}
    fields: dict[str, Any] = {name: rate for name, rate in rates.items() if rate is not None}
    if config.dropout is not None:
        fields["dropout"] = Dropout(embedding=config.dropout, hidden=config.dropout)
    return fields | dict(config.overrides)
