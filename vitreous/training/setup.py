"""Set up a run from its complete config: model, task, optimizer, loaders."""

import math
from typing import Literal

import torch
from torch import nn

from vitreous.common.checks import fail
from vitreous.data.augment.config import Augmentation
from vitreous.data.loader import (
    BatchSlice,
    Reader,
    ResidentLoader,
    StreamLoader,
    TrainLoader,
    can_reside,
    load_resident,
)
from vitreous.data.sources.base import DataSet, Source
from vitreous.model.protocol import Model
from vitreous.tasks import task_named
from vitreous.tasks.base import Task
from vitreous.training.checkpoint import State
from vitreous.training.config import TrainConfig
from vitreous.training.distributed import World, parallelise
from vitreous.training.loop import Job, Stepper
from vitreous.training.lora import add_lora
from vitreous.training.metrics_log import check_tensorboard
from vitreous.training.optim import Ema, build_optimizers
from vitreous.weights.io.safetensors_file import copy_to_memory
from vitreous.weights.native import check_not_swapped


def set_up(config: TrainConfig, data: DataSet, world: World, own_task: type[Task] | None = None) -> Job:
    """Build everything that a run needs. `own_task` replaces the task that the config names."""
    task_class = own_task or task_named(config.task)
    place = _place(config, world)
    if len(data.train) < place.batch_size:
        fail("batch_size", place.batch_size, f"at most the number of training images ({len(data.train)})")
    if config.tensorboard:
        check_tensorboard()

    torch.manual_seed(config.seed)
    model = task_class.build_model(config, data).to(world.device)
    copy_to_memory(model)  # frozen weights must not depend on the file of --init; checkpoints need them contiguous
    backbone = model.backbone
    freeze(model, config)
    task = task_class(config, model)
    if own_task is not None and config.train_only != "lora":  # LoRA is merged before it is saved
        check_not_swapped(model)  # or its checkpoints could not be loaded
    module = task.module().train()
    if config.checkpoint_blocks:
        if not backbone.blocks:
            fail("checkpoint_blocks", True, "omitted for a model without blocks")
        backbone.recompute_blocks()

    wrapped = parallelise(module, world, config.parallel)
    fast = compiled(wrapped, config, world, own_task is None) if config.compile else wrapped
    if config.optim.optimizer == "muon" and (config.train_only != "all" or not backbone.blocks):
        fail("optimizer", "muon", "adamw or sgd here: Muon needs all matrices of a ViT's blocks")
    optimizers = build_optimizers(module, config.optim, backbone)
    ema = Ema(model, config.optim.ema) if config.optim.ema is not None else None
    precision = dtype_of(config, world)

    steps_per_epoch = len(data.train) // place.batch_size
    total = config.steps or max(round((config.epochs or 1) * steps_per_epoch), 1)
    return Job(
        config,
        data,
        world,
        task,
        State(model, module, optimizers, ema),
        Stepper(task, wrapped, fast, optimizers, world, precision, config.accumulate, config.optim.clip),
        build_loader(config, data.train, model, world, place, total / steps_per_epoch, task.masks),
        place,
        steps_per_epoch,
        total,
    )


def freeze(model: Model, config: TrainConfig) -> None:
    """Freeze the weights that are not trained, and add LoRA matrices if they are."""
    if config.train_only == "all":
        return
    if config.init is None:
        fail("train_only", config.train_only, "used with --init: frozen random weights are useless")
    backbone = model.backbone
    backbone.requires_grad_(False)
    if config.train_only == "lora":
        if not backbone.blocks or config.parallel == "fsdp":
            fail("train_only", "lora", "used with a ViT and without --parallel fsdp")
        add_lora(backbone, config.lora_rank)
    for head in backbone.heads:
        head.requires_grad_(True)


def exact_from(decode: Literal["auto", "exact", "fast"], epochs: float) -> int:
    """The first epoch in which JPEGs are decoded exactly: for `auto`, that of the last tenth, at least one epoch.

    >>> exact_from("auto", 300), exact_from("auto", 5), exact_from("auto", 0.5), exact_from("exact", 300)
    (270, 4, 0, 0)
    """
    whole = math.ceil(epochs)
    return {"exact": 0, "fast": whole, "auto": whole - math.ceil(whole / 10)}[decode]


def build_loader(
    config: TrainConfig,
    source: Source,
    model: Model,
    world: World,
    place: BatchSlice,
    epochs: float,
    masks: bool = False,
) -> TrainLoader:
    """Load training batches from memory if the images fit there, else with worker processes."""
    shape, augmentation = model.config, config.augment.on(Augmentation())
    reader = Reader(
        source,
        shape.image_size,
        shape.channels,
        shape.preprocessing,
        augmentation,
        config.seed,
        masks=masks,
        exact_from=exact_from(config.decode, epochs),
    )
    if augmentation.crop != "resized" and can_reside(source, shape.image_size, shape.channels):
        return ResidentLoader(load_resident(reader, world.device), config.seed, place, augmentation.repeats)
    return StreamLoader(reader, place, config.workers or 0, world.device)


def compiled(module: nn.Module, config: TrainConfig, world: World, called_once: bool) -> nn.Module:
    """Compile a module, with CUDA graphs if possible: launching every kernel from the host is slow in short steps.

    A graph overwrites its outputs when it runs again, so gradients must not be accumulated or reduced by other
    processes, and the module must be called once per step, which is not known of a user's own task.
    """
    graphs = world.device.type == "cuda" and not world.many and config.accumulate == 1 and called_once
    return torch.compile(module, mode="reduce-overhead" if graphs else None)  # type: ignore[return-value]


def dtype_of(config: TrainConfig, world: World) -> torch.dtype:
    """The precision of the computation; `auto` is bfloat16 on a GPU that supports it."""
    precision = config.precision
    if precision == "auto":
        precision = "bf16" if world.device.type == "cuda" and torch.cuda.is_bf16_supported() else "fp32"
    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]


def _place(config: TrainConfig, world: World) -> BatchSlice:
    size = config.batch_size
    assert isinstance(size, int), "the config must be complete (see defaults.py)"
    unit = world.size * config.accumulate
    if size % unit:
        below = max(size // unit, 1) * unit
        fail("batch_size", size, f"a multiple of processes x accumulate ({unit}), such as {below} or {below + unit}")
    return BatchSlice(size, world.rank, world.size)
