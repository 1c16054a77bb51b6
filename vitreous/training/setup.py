"""Builds a run from its complete config: model, task, optimizer, training step and data loaders."""

import copy
import dataclasses
import math
import os
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Literal, Protocol, TypeVar, cast, runtime_checkable

import numpy as np
import torch

from vitreous.common.checks import BadValue, fail
from vitreous.common.device import choose_dtype, free_memory
from vitreous.common.distributed import World
from vitreous.common.threads import cores
from vitreous.data.augment.config import Augmentation
from vitreous.data.loader import (
    UNLABELLED_SEED,
    Batch,
    BatchSlice,
    EvalLoader,
    PairedLoader,
    Reader,
    StreamLoader,
    TargetLoader,
    TrainLoader,
    with_targets,
)
from vitreous.data.resident import (
    READ,
    KeptImages,
    PackedImages,
    ResidentLoader,
    WholeImages,
    decode_images,
    kept_bytes,
    read_images,
    sampled_sizes,
)
from vitreous.data.sources.base import DataSet, Source, Subset
from vitreous.model.protocol import Model, ModelConfig
from vitreous.tasks.all_tasks import SEMI_SUPERVISED, TASKS
from vitreous.tasks.base import Results, Task, open_init
from vitreous.tasks.classify import Classify
from vitreous.tasks.config import TrainConfig
from vitreous.training.cached_head import can_cache, with_cached_features
from vitreous.training.checkpoint import State
from vitreous.training.compiling import (
    EVALUATED_IMAGES,
    WARM_UP,
    all_of,
    choose_compile,
    compile_blocks,
    compiled,
    compiled_evaluation,
    eager_if,
    record_graphs,
    repeat,
    suits_graphs,
)
from vitreous.training.ddp_fsdp import parallelise
from vitreous.training.grouped_loader import GroupedLoader, group_size
from vitreous.training.lda_head import LdaHead
from vitreous.training.optimizer_step import Ema, Stepper, TurnStepper, add_lora, build_optimizers
from vitreous.training.progress import PhaseTimer, ProgressDisplay, counted
from vitreous.training.run_folder import folder_of
from vitreous.training.trackers import Trackers
from vitreous.training.whitening import IMAGES, whiten_patches
from vitreous.weights.io.safetensors_file import copy_to_memory
from vitreous.weights.load import Checkpoint
from vitreous.weights.native import check_not_swapped

KEPT_FRACTION = 1 / 4  # fraction of the free memory for decoded images; the rest is for the model and its activations
EVALUATION_COST = 1 / 3  # time to evaluate an image / to train on it; a backward pass takes two forward passes
# On 16 cores, JPEGs of about 250 x 250 pixels take 0.24 ms each with 4 threads and 0.40 ms with 16 threads.
SMALL_IMAGE, SMALL_IMAGE_THREADS, MOST_THREADS = 500**2, 4, 32

T = TypeVar("T")


@dataclass(frozen=True)
class Job:
    """A run that is ready to start, with its config, data, task, training state and loaders."""

    config: TrainConfig
    data: DataSet
    world: World
    task: Task
    state: State
    stepper: Stepper
    loader: TrainLoader
    place: BatchSlice
    steps_per_epoch: int
    total_steps: int
    phases: PhaseTimer
    trackers: Trackers
    notes: list[str] = field(default_factory=list)  # automatic choices
    evaluators: dict[int, EvalLoader] = field(default_factory=dict)  # keys: id(source)

    @property
    def evaluated_images(self) -> float:
        """Number of images to evaluate during training."""
        return self.total_steps / self.steps_per_epoch / (self.config.evaluate_every or 1) * len(self.data.val)

    def evaluator(self, source: Source) -> EvalLoader | list[Batch]:
        """Return the evaluation batches of a split. They are read only once if they fit in memory."""
        if (batches := self.task.evaluation_batches(source)) is not None:
            return batches
        if id(source) not in self.evaluators:
            model, workers = self.state.model.config, self.config.workers or 0
            loader = eval_loader(source, model, self.place, self.world.device, workers, self.task.masks)
            self.evaluators[id(source)] = loader
        return self.evaluators[id(source)]

    def evaluate(self, source: Source, display: ProgressDisplay | None = None) -> Results:
        """Evaluate the weights, or their moving average if there is one. Each process returns the merged results."""
        loader = self.evaluator(source)
        batches = loader if display is None else display.evaluating(loader, len(loader))
        ema = self.state.ema.applied() if self.state.ema is not None else nullcontext()
        with ema, eager_if(self.config.compile == "blocks" and self.evaluated_images < EVALUATED_IMAGES):
            mine = self.task.evaluate(self.stepper.evaluated, with_targets(batches, source), self.stepper.precision)
        return type(mine).join(self.world.gather(mine))


def task_class_of(config: TrainConfig, custom: type[Task] | None = None) -> type[Task]:
    """Return `custom` if given, otherwise the class of `config.task`, or its variant for `unlabelled` or "lda"."""
    task_class = custom or TASKS[config.task]
    if task_class is Classify and config.semi_supervised.unlabelled is not None:
        if config.train_only == "lda":
            fail("train_only", "lda", "all, head or lora with --unlabelled")
        return SEMI_SUPERVISED[config.semi_supervised.semi]
    if config.train_only != "lda":
        return task_class
    if not issubclass(task_class, Classify):
        fail("train_only", "lda", "all, head or lora, because lda is only for classification")
    return LdaHead if task_class is Classify else type(task_class.__name__, (LdaHead, task_class), {})


def set_up(
    config: TrainConfig,
    data: DataSet,
    world: World,
    task_class: type[Task] | None = None,
    init: Checkpoint | None = None,
    phases: PhaseTimer | None = None,
) -> Job:
    """Build a run. `task_class` overrides the config's task. `init` is the --init checkpoint if it is already open."""
    phases, task_class = phases or PhaseTimer(), task_class or task_class_of(config)
    custom = task_class not in (*TASKS.values(), *SEMI_SUPERVISED.values())
    place, more = batch_slices(config, data, world)
    trackers = Trackers(config)  # raises if a package is missing

    torch.manual_seed(config.seed)
    model = task_class.build_model(config, data, init or open_init(config))
    if config.value_range is not None:
        how = dataclasses.replace(model.config.preprocessing, value_range=config.value_range)
        for part in (model, model.backbone):
            part.config = part.config.override({"preprocessing": how})
    if config.whiten and not (config.resume and (folder_of(config) / "last").exists()):
        whiten_patches(model.backbone, some_images(data.train, model.config))
    model = model.to(world.device)
    copy_to_memory(model)  # unmap the weights from the --init file, and make them contiguous for checkpoints
    backbone = model.backbone
    freeze(model, config)
    if config.cache_features and not can_cache(config, task_class, model.config):
        fail("cache_features", True, "omitted, because features can be cached only if flips are the only augmentation")
    task = (with_cached_features(task_class) if config.cache_features else task_class)(config, model)
    task.use_data(data)
    if custom and config.train_only != "lora":  # LoRA is merged before saving
        check_not_swapped(model)  # checkpoints of a model with swapped modules cannot be loaded
    module = task.module().train()
    learners = task.learners() or [module]
    backbones = [backbone if learner is module else cast(Model, learner).backbone for learner in learners]
    if config.checkpoint_blocks:
        if not backbone.blocks:
            raise BadValue("--checkpoint-blocks needs a model with transformer blocks")
        for encoder in backbones:
            encoder.recompute_blocks()

    wrapped = [parallelise(learner, world, config.parallel) if world.many else learner for learner in learners]
    if config.optim.optimizer == "muon" and (config.train_only != "all" or not backbone.blocks):
        fail("optimizer", "muon", "adamw or sgd, because muon needs Transformer blocks and --train-only all")
    optimizers = [
        build_optimizers(learner, config.optim, encoder) for learner, encoder in zip(learners, backbones, strict=True)
    ]
    ema = Ema(model, config.optim.ema) if config.optim.ema is not None else None
    precision = dtype_of(config, world)

    steps_per_epoch = len(data.train) // place.batch_size
    total = config.steps or max(round((config.epochs or 1) * steps_per_epoch), 1)
    scaler = torch.amp.GradScaler(world.device.type, enabled=precision == torch.float16)
    steppers = [
        Stepper(task, part, own, world, precision, scaler, config.accumulate, config.optim.clip)
        for part, own in zip(wrapped, optimizers, strict=True)
    ]
    stepper = steppers[0] if len(steppers) == 1 else TurnStepper(module, steppers)
    exact = exact_from(config.decode, total / steps_per_epoch)
    reader = train_reader(data.train, config, model.config, task.masks, exact)
    with phases("data"):
        loader = task.train_loader(data, world, place, precision)
        progress = counted if world.first else lambda items, *_: items
        if loader is None:
            loader = train_loader(reader, config, place, world.device, progress)
        resident = isinstance(loader, ResidentLoader)
        if data.train.targets is not None:
            loader = TargetLoader(loader, data.train)
        group = group_size(place.batch_size // world.size, model.config.image_size)
        if resident and not custom and task.prepares_groups and group > 1 and data.unlabelled is None:
            loader = GroupedLoader(loader, task.prepare, steps_per_epoch, group)
        if data.unlabelled is not None:
            other = dataclasses.replace(config, seed=config.seed + UNLABELLED_SEED)
            exact = exact_from(config.decode, total * more.batch_size / len(data.unlabelled))
            reader = train_reader(data.unlabelled, other, model.config, exact_from=exact)
            unlabelled = train_loader(reader, other, more, world.device, progress)
            if data.unlabelled.targets is not None:
                unlabelled = TargetLoader(unlabelled, data.unlabelled)
            loader = PairedLoader(loader, unlabelled)
    state = State(model, module, stepper.optimizers, ema, scaler)
    job = Job(config, data, world, task, state, stepper, loader, place, steps_per_epoch, total, phases, trackers)
    return compile_step(job, called_once=not custom)


def batch_slices(config: TrainConfig, data: DataSet, world: World) -> tuple[BatchSlice, BatchSlice]:
    """Return this process's slices of the labelled and unlabelled batches. Raise if there are too few images."""
    size, unit = config.batch_size, world.size * config.accumulate
    assert isinstance(size, int), "the config must be complete"
    if size % unit:
        below = max(size // unit, 1) * unit
        fail("batch_size", size, f"a multiple of processes x accumulate ({unit}), such as {below} or {below + unit}")
    place = BatchSlice(size, world.rank, world.size)
    if len(data.train) < place.batch_size:
        fail("batch_size", place.batch_size, f"at most the number of training images ({len(data.train)})")
    more = BatchSlice(size * config.semi_supervised.unlabelled_ratio, world.rank, world.size)
    if data.unlabelled is not None and len(data.unlabelled) < more.batch_size:
        count, ratio = len(data.unlabelled), config.semi_supervised.unlabelled_ratio
        raise BadValue(
            f"--unlabelled has {count} images, but a batch needs {more.batch_size} of them (batch_size {size} x "
            f"unlabelled_ratio {ratio})"
        )
    return place, more


def compile_step(job: Job, called_once: bool) -> Job:
    """Compile the training step if the config requires it. By default, compile if that makes a run on a GPU shorter.

    `called_once` is True if a step calls the module only once, which CUDA graphs require.
    """
    config, world, stepper, blocks = job.config, job.world, job.stepper, job.state.model.backbone.blocks
    kernels = job.state.model.backbone.kernels(world.device, stepper.precision)
    if world.device.type == "cuda":
        job.notes.append(f"kernels = {kernels}")
    automatic = config.compile is None and world.device.type == "cuda" and job.task.compiles_by_default
    if not automatic and not config.compile:
        return dataclasses.replace(job, config=dataclasses.replace(config, compile=False))
    firsts = [first for epoch in job.task.first_epochs if (first := epoch * job.steps_per_epoch) < job.total_steps]
    rehearsals = [partial(stepper.rehearse, next(iter(job.loader.batches(step, step + 1)))) for step in firsts]
    rehearse = all_of(rehearsals)
    graphs = suits_graphs(config, world, called_once)
    with job.phases("compile"):
        if automatic:
            supported = () if config.parallel == "fsdp" or kernels.scope == "blocks" else blocks
            steps = [after - first for first, after in pairwise([*firsts, job.total_steps])]
            choice = choose_compile(stepper, rehearsals, steps, supported, graphs, world)
            config = dataclasses.replace(config, compile=choice.value)
            job.notes.append(f"compile = {choice.value} ({choice.reason})")
        elif config.compile in ("blocks", "graphs"):
            if config.compile == "blocks":
                compile_blocks(blocks)
            rehearse()
            failed = record_graphs(stepper, rehearse, len(rehearsals)) if graphs else "not supported for this run"
            if failed and (graphs or config.compile == "graphs"):
                job.notes.append(f"no CUDA graphs: {failed}")
        else:
            stepper.compiled = compiled(stepper.module, graphs)
            if job.evaluated_images >= EVALUATED_IMAGES:
                stepper.evaluated = compiled_evaluation(stepper.module)
        if config.compile:
            repeat(rehearse, WARM_UP, world.device)  # torch.compile records its CUDA graphs in the second step
    return dataclasses.replace(job, config=config)


def freeze(model: Model, config: TrainConfig) -> None:
    """Freeze the weights that `train_only` excludes, and add LoRA matrices if it is `lora`."""
    if config.train_only == "all":
        return
    backbone = model.backbone
    backbone.requires_grad_(False)
    if config.train_only == "lora":
        if not backbone.blocks:
            raise BadValue(f"--train-only lora needs a model with Transformer blocks, got a {backbone.config.summary}")
        if config.parallel == "fsdp":
            raise BadValue("--train-only lora cannot be combined with --parallel fsdp")
        add_lora(backbone, config.lora_rank)
    for head in backbone.heads:
        head.requires_grad_(True)


def exact_from(decode: Literal["auto", "exact", "fast"], epochs: float) -> int:
    """Return the first epoch with exact JPEG decoding. With `auto`, the last tenth of the epochs is decoded exactly.

    >>> exact_from("auto", 300), exact_from("auto", 5), exact_from("auto", 0.5), exact_from("exact", 300)
    (270, 4, 0, 0)
    """
    whole = math.ceil(epochs)
    return {"exact": 0, "fast": whole, "auto": whole - math.ceil(whole / 10)}[decode]


def dtype_of(config: TrainConfig, world: World) -> torch.dtype:
    """Return the compute dtype. `auto` means bfloat16 on a GPU that supports it, and float32 otherwise."""
    return torch.float16 if config.precision == "fp16" else choose_dtype(config.precision, world.device)


# ---- Data loaders ----------------------------------------------------------------------------------------------------


@runtime_checkable
class Counted(Protocol):
    """Iterates over items and shows a progress bar."""

    def __call__(self, items: Iterable[T], total: int, description: str) -> Iterable[T]: ...


def train_reader(
    source: Source, config: TrainConfig, model: ModelConfig, masks: bool = False, exact_from: int = 0
) -> Reader:
    """Return the reader of the training images for a model. Images that are kept in memory are decoded exactly."""
    augmentation = config.augment.on(Augmentation())
    exact_from = 0 if config.decode == "auto" and config.keep_images in ("gpu", "memory") else exact_from
    form = model.image_size, model.channels, model.preprocessing
    return Reader(source, *form, augmentation, config.seed, masks=masks, exact_from=exact_from)


def some_images(source: Source, model: ModelConfig) -> Iterable[Batch]:
    """Read evenly spaced images for `whiten_patches`."""
    indices = np.linspace(0, len(source) - 1, min(IMAGES, len(source))).astype(int)
    reader = Reader(Subset(source, indices), model.image_size, model.channels, model.preprocessing)
    return read_images(reader, decoding_threads(source))


def train_loader(
    reader: Reader, config: TrainConfig, place: BatchSlice, device: torch.device, counted: Counted
) -> TrainLoader:
    """Return the loader of the training batches. If images are kept in memory, decode all of them first."""
    keep, workers = config.keep_images, config.workers or 0
    if keep in (None, "no"):
        return StreamLoader(reader, place, workers, device)
    threads = decoding_threads(reader.source)
    repeats = reader.augmentation.repeats if reader.augmentation is not None else 1
    where = device if keep == "gpu" else torch.device("cpu")
    if reader.crop_scale is None:
        parts = -(-len(reader.source) // READ)
        whole = WholeImages(counted(read_images(reader, threads), parts, "reading images"), where)
        return ResidentLoader(whole, config.seed, place, repeats, device)
    images = counted(decode_images(reader, threads, config.decode == "fast"), len(reader.source), "decoding images")
    if keep == "gpu":
        packed = PackedImages(reader, images, where)
        return ResidentLoader(packed, config.seed, place, repeats, device)
    kept = copy.copy(reader)
    kept.source = KeptImages(reader.source, images)
    return StreamLoader(kept, place, workers, device)


def eval_loader(
    source: Source, model: ModelConfig, place: BatchSlice, device: torch.device, workers: int, masks: bool
) -> EvalLoader:
    """Return a loader for evaluation batches of a split. It keeps the batches in device or main memory if they fit."""
    reader = Reader(source, model.image_size, model.channels, model.preprocessing, masks=masks)
    needed = kept_bytes(reader) / place.world_size
    fits = (where for where in (device, torch.device("cpu")) if needed <= KEPT_FRACTION / 2 * free_memory(where.type))
    keep = next(fits, None)
    return EvalLoader(reader, place, workers, keep, decoding_threads(source) if keep is not None else 1)


def decoding_threads(source: Source) -> int:
    """Return the number of threads that decode images before training: one per core of this process, at most 32.

    Small images are decoded by fewer threads, because more of them would only wait for the GIL.
    """
    pixels = np.mean([height * width for height, width in sampled_sizes(source, 20)] or [0])
    most = SMALL_IMAGE_THREADS if pixels < SMALL_IMAGE else MOST_THREADS
    return min(max(cores() // int(os.environ.get("LOCAL_WORLD_SIZE", 1)), 1), most)
