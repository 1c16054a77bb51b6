"""Base class of all tasks, and functions that build or load the initial model of a run.

b: batch; k: images.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import UInt8
from torch import Tensor, nn

from vitreous.common.checks import BadValue, Size, as_size, fail
from vitreous.common.distributed import World
from vitreous.common.progress import Report, silent
from vitreous.common.rng import SampleRng
from vitreous.data import Augmentation, Batch, DataSet, Source, open_data
from vitreous.data.augment.batch import augment
from vitreous.data.loader import BatchSlice, Reader, Request, TrainLoader
from vitreous.model import Model, ModelConfig, configure
from vitreous.model.build import build
from vitreous.model.familiarity import Familiarity
from vitreous.model.inputs import denormalise, normalise
from vitreous.model.options import Conditional, Dropout, GlobalAverage, OutputConfig, Preprocessing, SingleLabel
from vitreous.report.html import TaskReport, samples_section
from vitreous.tasks.config import TASK_OPTIONS, TrainConfig, flatten
from vitreous.weights import CATALOG, Checkpoint, copy_to_memory, load_encoder, open_checkpoint, provenance_of
from vitreous.weights.native import CALIBRATION

SMALL = 48  # largest side of small images, in pixels
LARGEST = 256  # by default, checkpoints with a larger image size are used at a smaller size
SAMPLES = 16  # number of training images in a report
EVALUATION_BATCH = 64  # same as the default of `vitreous eval`, so that both give the same metrics

# With few images, convolutional positions and mean pooling are better: on the digits data set, the top-1 accuracy is
# 0.992, compared to 0.964 with learned positions and a class token.
FEW_IMAGES = {"position": Conditional(), "pool": GlobalAverage(), "class_token": False}


@runtime_checkable
class Results(Protocol):
    """Interface of evaluation results."""

    @property
    def problems(self) -> list[str]:
        """Unreadable images, each with the reason."""

    def metrics(self) -> dict[str, Any]: ...

    @classmethod
    def join(cls, parts: Sequence[Any]) -> Any:
        """Merge the results of several processes, counting each image once."""


class Choice(NamedTuple):
    """An automatic choice and the reason for it."""

    name: str  # config field
    value: Any
    reason: str
    apply: bool = True  # False if the value is only reported, because the config already implies it


@dataclass(frozen=True)
class Finished:
    """A finished run, as passed to `Task.report`."""

    folder: Path
    data: DataSet
    split: str  # evaluated split: val or test
    source: Source  # images of that split
    results: Results
    first_batch: Batch  # first training batch
    module: nn.Module  # after the last step
    draw: bool  # True in the first process if matplotlib is installed
    closed_form: bool = False  # as in Task

    @property
    def evaluated_on(self) -> str:
        selected = self.split == "val" and not self.closed_form
        chosen = ", which was also used to select the best epoch" if selected else ""
        return f"evaluated on the {self.split} split{chosen}"


class Solution(NamedTuple):
    """Result of `Task.solve`."""

    row: dict[str, Any]  # for metrics.jsonl: train_loss, train_images_per_second, ...
    metrics: dict[str, Any]  # for the provenance of the checkpoint
    problems: list[str]  # unreadable images, each with the reason


@dataclass(frozen=True)
class FineTuning:
    """Defaults for fine-tuning a checkpoint. See docs/en/measured.md for the comparisons."""

    side: int = 224  # image size for checkpoints with a larger image size
    batch_size: int = 64
    layer_decay: float = 0.75  # layer_decay and lr are used if all weights are trained; lr is scaled from `batch_size`
    lr: float = 2.8e-4


class Task(ABC):
    """Base class of tasks. Class methods prepare a run; instances train. The defaults are for labelled images."""

    metric: ClassVar[str]  # used to select the best checkpoint
    larger_is_better: ClassVar[bool] = True
    train_metric: ClassVar[str | None] = None  # name of the second value that `loss` returns; None if unused
    complete_checkpoint: ClassVar[bool] = False  # True if checkpoints contain all that `evaluate_best` needs
    calibrates: ClassVar[bool] = False  # True if `calibrate` can calibrate the best checkpoint
    closed_form: ClassVar[bool] = False  # True if `solve` computes the weights without training steps
    compiles_by_default: ClassVar[bool] = True  # False if steps are only compiled with --compile
    prepares_groups: ClassVar[bool] = True  # False if `prepare` needs much memory, e.g. for the outputs of a teacher
    labelled: ClassVar[bool] = True  # False if the task needs no labels
    outputs: ClassVar[tuple[str, str]] = ("class", "classes")  # words for one output and for several
    masks: ClassVar[bool] = False  # True if batches contain masks
    cpu_batch: ClassVar[int] = 64  # default batch size on a CPU
    cpu_steps: ClassVar[tuple[int, int]] = (300, 1_500)  # minimum and maximum number of steps on a CPU
    muon: ClassVar[bool] = True  # False if Muon is not the default for training from scratch
    lora: ClassVar[bool] = False  # True if LoRA is the default for fine-tuning on few images
    fine_tuning: ClassVar[FineTuning] = FineTuning()
    options: ClassVar[frozenset[str]] = TASK_OPTIONS  # the TASK_OPTIONS that this task uses
    next_steps: ClassVar[tuple[str, ...]] = (  # format strings of suggested commands (see training/run_results.py)
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
        """Reject options that have no effect for this task."""
        default = flatten(TrainConfig())
        for name, value in flatten(config).items():
            if name in TASK_OPTIONS - cls.options and value and value != default[name]:
                raise BadValue(f"{name} is {value}, but it has no effect with {cls.flag(config)}")
        if config.init == "auto" and not cls.labelled:
            fail("init", "auto", f"a checkpoint path or a catalog name for --task {config.task}")

    @classmethod
    def flag(cls, config: TrainConfig) -> str:
        """Return the flag that selects this task, for error messages."""
        return f"--task {config.task}"

    @classmethod
    def complete(cls, config: TrainConfig) -> TrainConfig:
        """Set options that a complete config needs although they have no effect for this task."""
        return config

    @classmethod
    def open_data(cls, config: TrainConfig, init: Checkpoint | None) -> DataSet:
        where: dict[str, Any] = {"root": config.data_root, "val_fraction": config.val_fraction, "seed": config.seed}
        return open_data(str(config.data), **where, labelled=cls.labelled)

    @classmethod
    def classes(cls, data: DataSet) -> tuple[str, ...]:
        """Return the classes in the order of the model outputs."""
        return data.classes if cls.labelled else ()

    @classmethod
    def output(cls, data: DataSet, start: ModelConfig | None) -> OutputConfig:
        """Return the meaning of the outputs. `start` is the config of the checkpoint that the run starts from."""
        return SingleLabel()

    @classmethod
    def choose_model(cls, config: TrainConfig, count: int, side: int, device: str) -> list[Choice]:
        """Choose a preset for `count` images whose shorter side is about `side` pixels."""
        reason = f"for {count:,} images of about {side} pixels per side on {device}"
        if side <= SMALL:
            name = "ViT-S/4" if count >= 20_000 and device == "cuda" else "ViT-Lite-7/4"
        else:
            name = "ViT-Ti/16" if count < 50_000 else "ViT-S/16"
        choices = [Choice("model", name, reason)]
        if not config.overrides and count < 100_000:
            model = choices[0].value
            reason = f"better for few images; to export the model to other libraries, use --model {model} instead"
            choices.append(Choice("overrides", FEW_IMAGES, reason))
        return choices

    @classmethod
    def choose_options(cls, config: TrainConfig, data: DataSet, init: Checkpoint | None) -> list[Choice]:
        """Choose the options that are specific to this task."""
        return []

    @classmethod
    def step_images(cls, config: TrainConfig) -> int:
        """Return the number of images that a step processes per image of the batch size."""
        return 1

    @classmethod
    def choose_augmentation(cls, config: TrainConfig, count: int, side: int) -> tuple[Augmentation, str]:
        """Return the default augmentation and a short description of it."""
        return Augmentation(crop=padded_if(side <= SMALL), crop_scale=(0.2, 1.0)), "crop and flip"

    @classmethod
    def planned_config(cls, config: TrainConfig, data: DataSet, init: Checkpoint | None) -> ModelConfig:
        """Return the config of the model to be built, for estimating its memory use."""
        return planned_config(config, init).backbone

    @classmethod
    def build_model(cls, config: TrainConfig, data: DataSet, init: Checkpoint | None) -> Model:
        """Build or load a model with a head for the classes of the data, or without a head if there are no classes."""
        classes = cls.classes(data)
        if init is None:
            return with_output(build_preset(config, classes), cls.output(data, None))
        start = init.model(image_size(config), overrides=model_fields(config)).float()
        model: Model = start.backbone
        vars(model)["provenance"] = {key: value for key, value in provenance_of(start).items() if key != CALIBRATION}
        model.config = model.config.uncalibrated()
        output = cls.output(data, model.config)
        if model.config.labels != classes or model.config.num_classes != len(classes):
            model.replace_head(len(classes), classes)
        return with_output(model, output)

    @classmethod
    def earlier_run(cls, config: TrainConfig) -> TrainConfig | None:
        """Return the config of a run that must be finished before this run, such as that of its teacher."""
        return None

    @classmethod
    def complete_data(cls, data: DataSet, config: TrainConfig, world: World, log: Callable[[str], None]) -> DataSet:
        """Add results of the earlier run to the data, such as pseudo labels. All processes must call this."""
        return data

    # ---- Training and evaluation -------------------------------------------------------------------------------------

    def module(self) -> nn.Module:
        """Return the module to train, which contains the model."""
        return self.model

    def use_data(self, data: DataSet) -> None:
        """Compute statistics of the training data for the loss, such as the class frequencies."""
        return

    @property
    def first_epochs(self) -> Sequence[int]:
        """The first epoch of every image size in training, counted from 0."""
        return (0,)

    def train_loader(
        self, data: DataSet, world: World, batch_slice: BatchSlice, precision: torch.dtype
    ) -> TrainLoader | None:
        """Return a loader that replaces the loader of the training images, or None to use the default loader."""
        return None

    def evaluation_batches(self, source: Source) -> list[Batch] | None:
        """Return the evaluation batches of a split for this process, or None to load its images as usual."""
        return None

    def prepare(self, batch: Batch) -> tuple[Tensor, ...]:
        """Return the inputs of `loss` on the device: normalised images first and image weights [b] last.

        Built-in tasks with `prepares_groups` may get several batches of an epoch at once (training/grouped_loader.py).
        """
        images = augment(batch.images, SampleRng(self.config.seed, batch.epoch, batch.keys), self.augmentation)
        return normalise(images, self.model.config.preprocessing), batch.labels, (batch.labels >= 0).float()

    @abstractmethod
    def loss(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Return the loss and `train_metric`, both summed over a (micro-)batch. `module` may wrap `self.module()`."""

    def learners(self) -> list[nn.Module]:
        """Return the modules that a step updates in turn with `turn_losses`, or [] to update `module()` with `loss`."""
        return []

    def turn_losses(
        self, modules: list[nn.Module], inputs: tuple[Tensor, ...], world: World
    ) -> Iterator[tuple[Tensor, ...]]:
        """Yield the summed loss of each of several learners, the first one with `train_metric`; both are logged.

        `modules` may wrap the learners. Each learner is updated before the generator continues, so the next loss can
        depend on the update. A step does not update the remaining learners if the generator ends early.
        """
        raise NotImplementedError

    def start_step(self, step: int, total: int) -> None:
        """Prepare for a step of a run with `total` steps, counted from 0."""
        return

    @abstractmethod
    def evaluate(self, module: nn.Module, batches: Iterable[Batch], precision: torch.dtype) -> Results:
        """Evaluate the module on batches of a validation or test split."""

    def check_resumable(self, provenance: Mapping[str, Any]) -> None:
        """Raise ValueError if a run whose last checkpoint has this provenance cannot be resumed with this task."""
        return

    def solve(self, source: Source, world: World, precision: torch.dtype, log: Callable[[str], None]) -> Solution:
        """Compute the weights in closed form. `log` is called with lines that report the progress."""
        raise NotImplementedError

    def evaluate_best(self, model: Model, source: Source, rank: int, ranks: int, progress: Report = silent) -> Results:
        """Evaluate the best checkpoint like `vitreous eval`, on the images that belong to process `rank` of `ranks`."""
        raise NotImplementedError

    def calibration_images(self, val: Source) -> Source:
        """Return the validation images on which to calibrate the best checkpoint."""
        return val

    def calibrate(self, results: Any) -> tuple[dict[str, Any], Results] | None:
        """Fit config fields to the results of `evaluate_best`. Return the fields and the results with these fields.

        Return None if the results have no logits.
        """
        raise NotImplementedError

    def fit_familiarity(
        self, model: Model, train: Source, val: Results, progress: Report = silent
    ) -> tuple[Familiarity, tuple[float, ...]] | None:
        """Fit the familiarity model of the best checkpoint. Also return quantiles of the validation scores.

        `val` are the results of `evaluate_best` on the calibration images. Return None if `calibrate` returns no
        calibration.
        """
        return None

    @classmethod
    def eval_flags(cls, config: TrainConfig) -> list[str]:
        """Return the flags with which `vitreous eval` repeats the evaluation of a run."""
        return []

    # ---- Report ------------------------------------------------------------------------------------------------------

    def report(self, run: Finished) -> TaskReport:
        """Return the summary line, headline metrics and report sections. All processes must call this."""
        number = run.results.metrics()[self.metric]
        samples = samples_section(run.folder, self.samples(run.first_batch), draw=run.draw)
        description = f"{type(self).__name__}, {run.evaluated_on}"
        return TaskReport(f"{self.metric} {number:.4f}", description, {self.metric: number}, [samples])

    def steps_taken(self, steps: int, epochs: int) -> str:
        """Describe the length of the run for the report."""
        return f"{steps:,} with {self.config.batch_size} images each ({epochs} epochs)"

    def images(self, source: Source, indices: Sequence[int]) -> UInt8[Tensor, "k c h w"]:
        """Return images of a source as the model sees them in evaluation."""
        config, which = self.model.config, torch.tensor(indices, dtype=torch.int64)
        reader = Reader(source, config.image_size, config.channels, config.preprocessing)
        return reader[Request(0, which, which)].images

    def samples(self, batch: Batch) -> UInt8[Tensor, "k c h w"]:
        """Return augmented training images as uint8."""
        return denormalise(self.prepare(batch)[0][:SAMPLES], self.model.config.preprocessing).cpu()


def padded_if(small: bool) -> Literal["padded", "resized"]:
    """Return the crop method: "padded" for small images, otherwise "resized"."""
    return "padded" if small else "resized"


# ---- Initial model of a run ------------------------------------------------------------------------------------------


def with_output(model: Model, output: OutputConfig) -> Model:
    """Set the meaning of the outputs of a model."""
    model.config = dataclasses.replace(model.config, **model.config.output_field(output))
    return model


def build_preset(config: TrainConfig, classes: tuple[str, ...]) -> Model:
    """Build the preset given by --model, with random weights."""
    if config.model is None:
        raise BadValue("either model (a preset) or init (a checkpoint) is required")
    size, fields = image_size(config), {"labels": classes} | model_fields(config)
    if size is not None and max(size) <= 64:  # small images lose too much in a centre crop
        fields = {"preprocessing": Preprocessing(crop_fraction=1.0)} | fields
    return build(configure(config.model, len(classes), size, fields))


def open_init(config: TrainConfig) -> Checkpoint | None:
    """Open the checkpoint given by --init. Return None without --init, and for `auto`, which is resolved later."""
    return None if config.init in (None, "auto") else open_checkpoint(str(config.init))


def checkpoint_config(config: TrainConfig, init: Checkpoint | None) -> ModelConfig | None:
    """Return the model config of an open checkpoint with the run's overrides, or None if there is no checkpoint."""
    return None if init is None else init.describe(config.overrides).config


def planned_config(config: TrainConfig, init: Checkpoint | None) -> ModelConfig:
    """Return a model config for estimating memory use. Fields that do not affect memory use may still change."""
    size, checkpoint = image_size(config), checkpoint_config(config, init)
    if checkpoint is None:
        return configure(config.model or "", image_size=size, overrides=config.overrides)
    return checkpoint if size is None else checkpoint.resized(size)


def load_teacher(source: str | Path, device: torch.device, size: Size | None = None) -> Model:
    """Load a model to distil from: in evaluation mode, frozen, without the decoder of a segmenter."""
    teacher = load_encoder(source, image_size=size).to(device).eval().requires_grad_(False)
    copy_to_memory(teacher)
    return teacher


def check_preset(config: TrainConfig) -> None:
    """Raise if --model or its overrides are invalid."""
    if config.model in CATALOG:
        fail("model", config.model, f"a preset; to use these pretrained weights, pass --init {config.model}")
    if config.model is not None:
        configure(config.model, None, image_size(config), model_fields(config))


def image_size(config: TrainConfig) -> Size | None:
    return as_size(config.image_size) if config.image_size else None


def model_fields(config: TrainConfig) -> dict[str, Any]:
    """Return the model config fields that are set by the config of the run."""
    rates = {"stochastic_depth": config.stochastic_depth, "patch_dropout": config.patch_dropout}
    fields: dict[str, Any] = {name: rate for name, rate in rates.items() if rate is not None}
    if config.dropout is not None:
        fields["dropout"] = Dropout(embedding=config.dropout, hidden=config.dropout)
    return fields | dict(config.overrides)
