"""Everything a run needs, put together from its config: data, model, task, optimizer, loaders."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from vitreous.common.checks import fail
from vitreous.common.text import listed
from vitreous.data.augment.config import Augmentation
from vitreous.data.loader import (
    BatchSlice,
    EvalLoader,
    Reader,
    ResidentLoader,
    StreamLoader,
    TrainLoader,
    can_reside,
    load_resident,
)
from vitreous.data.sources.base import DataSet, Source
from vitreous.model.config import ViTConfig
from vitreous.model.kinds import AnyModel
from vitreous.model.resnet import ResNet
from vitreous.model.segmenter import Segmenter
from vitreous.model.vit import ViT
from vitreous.tasks.base import Classify, Task
from vitreous.tasks.masked import FillIn
from vitreous.tasks.segment import Segment
from vitreous.training.checkpoint import State
from vitreous.training.config import TrainConfig
from vitreous.training.distributed import World, parallelise
from vitreous.training.ema import Ema
from vitreous.training.initial_model import build_model, choose_weights, encoder_of
from vitreous.training.optim import build_optimizers
from vitreous.training.step import Stepper
from vitreous.training.tensorboard import check_tensorboard
from vitreous.weights.config_match import check_not_swapped
from vitreous.weights.io.safetensors_file import copy_to_memory
from vitreous.weights.load import load_encoder

MakeTask = Callable[[AnyModel, TrainConfig, DataSet, World], Task]


@dataclass(frozen=True)
class Job:
    """A run, ready to go."""

    config: TrainConfig
    data: DataSet
    world: World
    task: Task
    state: State
    stepper: Stepper
    loader: TrainLoader
    steps_per_epoch: int
    total_steps: int

    def evaluator(self, source: Source) -> EvalLoader:
        """Batches of a part of the data, to evaluate on."""
        config = self.state.model.config
        masks = self.config.task == "segment"
        reader = Reader(source, config.image_size, config.channels, config.preprocessing, masks=masks)
        resident = self.world.device if can_reside(source, config.image_size, config.channels) else None
        return EvalLoader(reader, _place(self.config, self.world), self.config.workers or 0, resident)


def set_up(config: TrainConfig, data: DataSet, world: World, make_task: MakeTask | None = None) -> Job:
    """`config` has nothing left open (see defaults.py). `make_task` makes another task than the config names."""
    place = _place(config, world)
    if len(data.train) < place.batch_size:
        fail("batch_size", place.batch_size, f"at most the number of training pictures ({len(data.train)})")
    if config.tensorboard:
        check_tensorboard()
    torch.manual_seed(config.seed)
    model = build_model(config, data).to(world.device)
    copy_to_memory(model)  # frozen weights must not depend on the file of --init; checkpoints need them contiguous
    encoder = encoder_of(model)
    if config.optim.optimizer == "muon" and (config.train_only != "all" or not isinstance(encoder, ViT)):
        fail("optimizer", "muon", "adamw or sgd here: Muon moves the matrices of a ViT's blocks, all of them")
    choose_weights(model, config)
    task = (make_task or build_task)(model, config, data, world)
    if make_task is not None and config.train_only != "lora":  # which is merged before it is saved
        check_not_swapped(model)  # or its checkpoints could not be read
    module = task.module().train()
    if config.checkpoint_blocks:
        if not isinstance(encoder, ViT):
            fail("checkpoint_blocks", True, "left out for a model without blocks")
        encoder.encoder.recompute = True
    wrapped = parallelise(module, world, config.parallel)
    fast = compiled(wrapped, config, world, make_task is None) if config.compile else wrapped
    optimizers = build_optimizers(module, config.optim, encoder)
    ema = Ema(model, config.optim.ema) if config.optim.ema is not None else None
    steps_per_epoch = len(data.train) // place.batch_size
    total = config.steps or max(round((config.epochs or 1) * steps_per_epoch), 1)
    return Job(
        config,
        data,
        world,
        task,
        State(model, module, optimizers, ema),
        Stepper(task, wrapped, fast, optimizers, world, dtype_of(config, world), config.accumulate, config.optim.clip),
        build_loader(config, data.train, model, world, place, total / steps_per_epoch),
        steps_per_epoch,
        total,
    )


def build_task(model: AnyModel, config: TrainConfig, data: DataSet, world: World) -> Task:
    if isinstance(model, Segmenter):
        return Segment(model, config.augment.on(Augmentation()), config.seed, config.segmenting.dice)
    if config.task != "classify":
        if not isinstance(model, ViT):
            fail("model", config.model, f"a ViT for --task {config.task}: a ResNet has no patches to hide")
        if config.train_only != "all":
            fail("train_only", config.train_only, f"all for --task {config.task}: there is no head to learn alone")
        return FillIn(model, config.task, config.masking, config.augment.on(Augmentation()), config.seed)
    teacher: ViT | ResNet | None = None
    if config.distillation.teacher is not None:
        teacher = load_encoder(config.distillation.teacher).to(world.device).eval().requires_grad_(False)
        copy_to_memory(teacher)
        check_teacher(teacher, str(config.distillation.teacher), model, data)
    return Classify(
        model,
        config.augment.on(Augmentation()),
        config.seed,
        config.smoothing,
        teacher,
        config.distillation,
        config.flip_test,
    )


def check_teacher(teacher: ViT | ResNet, where: str, student: ViT | ResNet, data: DataSet) -> None:
    """A teacher answers to the same pictures with the same classes."""
    theirs, ours = teacher.config, student.config
    if theirs.num_classes != len(data.classes):
        fail("teacher", where, f"trained on {len(data.classes)} classes (it has {theirs.num_classes})")
    if theirs.labels not in ((), data.classes):
        fail("teacher", where, f"trained on the classes {listed(data.classes)} (it has {listed(theirs.labels)})")
    if theirs.channels != ours.channels:
        fail("teacher", where, f"one for pictures of {ours.channels} channels (it takes {theirs.channels})")
    if isinstance(theirs, ViTConfig):
        theirs.grid_for(ours.image_size)  # or says which sizes its patches tile


def exact_from(decode: Literal["auto", "exact", "fast"], epochs: float) -> int:
    """The first epoch in which JPEGs are decoded exactly: for `auto`, that of the last tenth, at least one epoch.

    >>> exact_from("auto", 300), exact_from("auto", 5), exact_from("auto", 0.5), exact_from("exact", 300)
    (270, 4, 0, 0)
    """
    whole = math.ceil(epochs)
    return {"exact": 0, "fast": whole, "auto": whole - math.ceil(whole / 10)}[decode]


def build_loader(
    config: TrainConfig, source: Source, model: AnyModel, world: World, place: BatchSlice, epochs: float
) -> TrainLoader:
    shape, augmentation = model.config, config.augment.on(Augmentation())
    reader = Reader(
        source,
        shape.image_size,
        shape.channels,
        shape.preprocessing,
        augmentation,
        config.seed,
        masks=config.task == "segment",
        exact_from=exact_from(config.decode, epochs),
    )
    if augmentation.crop != "resized" and can_reside(source, shape.image_size, shape.channels):
        return ResidentLoader(load_resident(reader, world.device), config.seed, place, augmentation.repeats)
    return StreamLoader(reader, place, config.workers or 0, world.device)


def compiled(module: nn.Module, config: TrainConfig, world: World, called_once: bool) -> nn.Module:
    """The module, compiled; its thousand kernels are launched as two graphs where results may lie in fixed places.

    A GPU waits for a host that launches them one by one where a step is short. But what a graph puts out is overwritten
    when it runs again, so gradients must not outlive one pass, nor be gathered by others, and a task that is not ours
    may call its module as often as it likes.
    """
    fixed = world.device.type == "cuda" and not world.many and config.accumulate == 1 and called_once
    return torch.compile(module, mode="reduce-overhead" if fixed else None)  # type: ignore[return-value]


def dtype_of(config: TrainConfig, world: World) -> torch.dtype:
    """`auto` is bfloat16 where the device is built for it."""
    precision = config.precision
    if precision == "auto":
        precision = "bf16" if world.device.type == "cuda" and torch.cuda.is_bf16_supported() else "fp32"
    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]


def _place(config: TrainConfig, world: World) -> BatchSlice:
    size = config.batch_size
    if not isinstance(size, int):
        fail("batch_size", size, "chosen before the run is set up")
    unit = world.size * config.accumulate
    if size % unit:
        below = max(size // unit, 1) * unit
        fail("batch_size", size, f"a multiple of processes x accumulate ({unit}), such as {below} or {below + unit}")
    return BatchSlice(size, world.rank, world.size)
