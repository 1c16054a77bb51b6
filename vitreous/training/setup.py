"""Setup of a run: automatic settings, and construction of the model, optimizer and data loaders."""

import dataclasses
import itertools
import math
import os
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from vitreous.common.checks import BadValue, as_size, fail
from vitreous.common.text import plural
from vitreous.common.threads import cores
from vitreous.data.augment.config import Augmentation
from vitreous.data.image import UnreadableImage, size_of
from vitreous.data.loader import (
    Batch,
    BatchSlice,
    EvalLoader,
    Reader,
    ResidentLoader,
    StreamLoader,
    TrainLoader,
    can_reside,
    is_array,
    load_resident,
)
from vitreous.data.sources.base import DataSet, Source
from vitreous.inference.device import total_memory
from vitreous.inference.engine import mixed_precision
from vitreous.model.presets import configure
from vitreous.model.protocol import Model, ModelConfig
from vitreous.tasks.base import SMALL, Choice, Task, checkpoint_config, open_init
from vitreous.tasks.classify import Classify
from vitreous.tasks.config import Augment, TrainConfig, with_fields
from vitreous.tasks.masked import Mae, Mpp
from vitreous.tasks.segment import Segment
from vitreous.training.cached_head import CachedHead, FeatureLoader, can_cache
from vitreous.training.checkpoint import State
from vitreous.training.distributed import World, parallelise, synchronise
from vitreous.training.optim import Ema, Optimizers, add_lora, build_optimizers
from vitreous.training.progress import StepResult, check_tensorboard
from vitreous.weights.catalog import BY_PRESET
from vitreous.weights.io.safetensors_file import copy_to_memory
from vitreous.weights.load import Checkpoint, open_checkpoint
from vitreous.weights.native import check_not_swapped

# ---- Automatic choices -----------------------------------------------------------------------------------------------

TASKS: dict[str, type[Task]] = {"classify": Classify, "segment": Segment, "mae": Mae, "mpp": Mpp}

# Minimum and maximum number of steps. A small model takes about a third of a second per step on a CPU.
STEPS, CPU_STEPS = (600, 40_000), (300, 1_500)
# Minimum number of steps between evaluations (an epoch can be as short as two steps), and of evaluations per run.
EVALUATED_STEPS, EVALUATIONS = 25, 10
GPU_BATCH = 512  # largest default batch size
CPU_SIDE = 224  # largest automatic image size on a CPU
FEW = 2_000  # with fewer images, --init is recommended
MANY = 100_000  # with more images, --init auto uses a smaller model, to keep the run short

# Data sets whose images change meaning when mirrored.
UNMIRRORED = {"digits": "a mirrored 2 is not a digit"}


@dataclass(frozen=True)
class Chosen:
    """A complete config, with a note about every automatic choice."""

    config: TrainConfig
    notes: list[str]
    advice: str = ""


def choose(
    config: TrainConfig,
    data: DataSet,
    device: str,
    processes: int = 1,
    task: type[Task] | None = None,
    init: Checkpoint | None = None,
) -> Chosen:
    """Choose all values that are missing in a config. `init` is the --init checkpoint if it is already open."""
    return _Choices(config, data, device, processes, task or TASKS[config.task], init or open_init(config)).complete()


class _Choices:
    """Completes a config step by step. Later choices depend on earlier ones."""

    def __init__(
        self, config: TrainConfig, data: DataSet, device: str, processes: int, task: type[Task], init: Checkpoint | None
    ):
        self.config, self.data, self.device, self.processes = config, data, device, processes
        self.task, self.init = task, init
        self.notes: list[str] = []
        self.count, self.side = len(data.train), typical_side(data.train)

    def complete(self) -> Chosen:
        config = self.config
        if config.model is None and config.init is None:
            self.pick(*self.task.choose_model(config, self.count, self.side))
        if not config.image_size:
            self.pick(self.image_size())
        self.pick(*self.task.choose_options(self.config, self.data, self.init))
        if not isinstance(config.batch_size, int):
            self.pick(self.batch_size())
        self.augmentation()
        self.length()
        if config.optim.lr is None:
            self.pick(learning_rate(self.config))
        if config.workers is None:
            self.pick(self.workers())
        if config.out is None:
            folder = free_folder(Path("runs"), Path(self.data.name).stem or "run")
            self.pick(Choice("out", folder, "first unused name"))
        return Chosen(self.config, self.notes, "" if config.init is not None else self.advice(config.model))

    def advice(self, model: str | None) -> str:
        """Recommend pretrained weights for few images, or for the preset of --model."""
        few = f"{self.count} images are few for training from scratch; "
        few = few if self.count < FEW and self.side > SMALL else ""
        weights = BY_PRESET.get(model or "") if self.task.labelled and not self.config.overrides else None
        if weights:
            return f"{few}pretrained weights exist for {model}: use --init {weights[0]} instead of --model"
        if not self.task.labelled:
            return few and f"{few}consider starting from a checkpoint (--init)"
        command = f"vitreous train --data {shlex.quote(str(self.config.data))} --init auto"
        return few and f"{few}consider pretrained weights: `{command}`"

    def pick(self, *choices: Choice) -> None:
        for name, value, reason, apply in choices:
            self.notes.append(f"{name} = {_text(value)} ({reason})")
            if apply:
                self.config = with_fields(self.config, {name: value})

    def image_size(self) -> Choice:
        if (start := checkpoint_config(self.config, self.init)) is not None:
            height, width = start.image_size
            side = _tiled(lambda side: start.resized((side, side)), CPU_SIDE)
            if self.device != "cpu" or height * width <= max(CPU_SIDE, side) ** 2:
                return Choice("image_size", (height, width), "from the checkpoint", apply=False)
            times = f"{height * width / side**2:.2g}"
            return Choice(
                "image_size", (side,), f"the checkpoint's {height} x {width} takes {times} times as long on a CPU"
            )
        large = 224 if self.side >= 160 and self.device != "cpu" else 128 if self.side >= 96 else 64
        pixels = min(max(-(-self.side // 4) * 4, 16), 32) if self.side <= SMALL else large
        model, overrides = self.config.model or "", self.config.overrides
        side = _tiled(lambda side: configure(model, image_size=side, overrides=overrides), pixels)
        return Choice("image_size", (side,), f"for images of about {self.side} pixels on {self.device}")

    def batch_size(self) -> Choice:
        ideal, reason = (GPU_BATCH if self.device == "cuda" else 64), f"for {self.count} images on {self.device}"
        if self.config.batch_size == "auto":
            model = self.task.planned_config(self.config, self.data, self.init)
            ideal = self.processes * fitting_batch(model, free_memory(self.device))
            reason = "fits in half of the free memory"
        parts = self.processes * self.config.accumulate
        return Choice("batch_size", batch_size(self.count, ideal, parts), reason)

    def augmentation(self) -> None:
        base, reason = self.task.choose_augmentation(self.config, self.count, self.side)
        if self.config.augment == Augment():
            self.notes.append(f"augmentation = {reason}")
        if self.config.augment.flip is None and self.data.name in UNMIRRORED:
            self.pick(Choice("flip", 0.0, UNMIRRORED[self.data.name]))
        whole = Augment(**dataclasses.asdict(self.config.augment.on(base)))
        self.config = dataclasses.replace(self.config, augment=whole)

    def length(self) -> None:
        """Choose the number of epochs and the evaluation interval."""
        assert isinstance(self.config.batch_size, int)
        per_epoch = max(self.count // self.config.batch_size, 1)
        if self.config.epochs is None and self.config.steps is None:
            least, most = CPU_STEPS if self.device == "cpu" else STEPS
            large = self.count > 100_000 and self.side > SMALL
            usual = 20 if self.config.init is not None else 300 if large else 100
            epochs = max(min(usual, most // per_epoch), math.ceil(least / per_epoch), 1)
            self.pick(Choice("epochs", epochs, f"{plural(per_epoch, 'step')} per epoch, on {self.device}"))
        total = self.config.epochs or (self.config.steps or 1) / per_epoch
        every = min(math.ceil(EVALUATED_STEPS / per_epoch), int(total / EVALUATIONS))
        if self.config.evaluate_every is None and every > 1:
            self.pick(Choice("evaluate_every", every, f"{plural(per_epoch, 'step')} per epoch"))

    def workers(self) -> Choice:
        if self.config.augment.crop != "resized" and is_array(self.data.train):
            return Choice("workers", 0, "the images are in memory")
        available = cores() // int(os.environ.get("LOCAL_WORLD_SIZE", max(self.processes, 1)))
        if self.device == "cpu":  # a quarter of the cores can decode as fast as the others train
            return Choice("workers", max(available // 4, 1), "training also uses the CPU")
        return Choice("workers", min(max(available, 1), 16), "one per core")


def open_pretrained(
    config: TrainConfig, data: DataSet, world: World
) -> tuple[TrainConfig, Checkpoint | None, list[str]]:
    """Replace --init auto by the pretrained weights for the data and the device; return them with notes.

    If they cannot be downloaded, the run starts from scratch.
    """
    count, side, device = len(data.train), typical_side(data.train), world.device.type
    about = f"{count} images of about {side} pixels on {device}"
    if side <= SMALL and device == "cpu" and config.train_only == "all":
        return dataclasses.replace(config, init=None), None, [f"init = none (training from scratch suits {about})"]
    large = device == "cuda" and count <= MANY
    name = "dinov2-b" if large else "dinov2-s"
    notes = [f"init = {name} ({'better' if large else 'faster'} than dinov2-{'s' if large else 'b'}; for {about})"]
    try:
        world.first_only(lambda: open_checkpoint(name) and None)  # one download for all processes
        init = open_checkpoint(name)
    except OSError as error:
        if config.train_only != "all":  # frozen random weights are useless
            raise
        return dataclasses.replace(config, init=None), None, [f"init = none, training from scratch ({error})"]
    if not config.image_size:  # the weights are for 518 pixels, far more than most data needs
        pixels = 112 if side <= SMALL or device == "cpu" else 224
        notes.append(f"image_size = {pixels} (a multiple of 14 for {about})")
        config = dataclasses.replace(config, image_size=(pixels,))
    if device == "cuda" and config.batch_size is None:
        planned = init.describe().config.resized(as_size(config.image_size))
        if world.size * fitting_batch(planned, free_memory(device)) < GPU_BATCH:
            config = dataclasses.replace(config, batch_size="auto")
    return dataclasses.replace(config, init=name), init, notes


def typical_side(source: Source, samples: int = 25) -> int:
    """Return the median shorter side of a sample of images, read from their headers."""
    sides = []
    for index in np.linspace(0, len(source) - 1, min(samples, len(source))).astype(int):
        try:
            sides.append(min(size_of(source.image(int(index)))))
        except (UnreadableImage, OSError):
            continue  # reported when it is loaded
    if not sides:
        raise ValueError(f"cannot read any of {min(samples, len(source))} sampled images, such as {source.name(0)}")
    return int(np.median(sides))


def _tiled(fits: Callable[[int], object], pixels: int) -> int:
    """Return the size nearest to `pixels` that the patches tile, such as 126 instead of 128 for ViT-L/14."""
    for side in sorted(range(max(pixels - 64, 1), pixels + 64), key=lambda side: abs(side - pixels)):
        try:
            fits(side)
        except BadValue:
            continue
        return side
    return pixels  # the model has another problem, and building it will raise the error


def free_folder(parent: Path, name: str) -> Path:
    """Return the first of parent/name, parent/name-2, ... that does not exist."""
    names = itertools.chain([name], (f"{name}-{i}" for i in itertools.count(2)))
    return next(folder for folder in map(parent.joinpath, names) if not folder.exists())


def batch_size(count: int, ideal: int, parts: int) -> int:
    """Return a batch size up to `ideal`: `count` / 8, but at least 16, rounded down to a multiple of 2 * `parts`."""
    size = min(ideal, max(count // 8, 16), count)
    unit = 2 * parts  # mixup and CutMix need pairs
    return max(size // unit * unit, unit)


def learning_rate(config: TrainConfig) -> Choice:
    assert isinstance(config.batch_size, int)
    peak, reason = 1e-3, "scaled with sqrt(batch size)"
    if config.train_only == "head":
        peak, reason = 3e-3, "for training only the head"
    elif config.optim.optimizer == "sgd":
        peak, reason = 0.03, f"for SGD, {reason}"
    elif config.init is not None and config.train_only == "all":
        peak, reason = 2e-4, f"for fine-tuning, {reason}"
    return Choice("lr", float(f"{peak * math.sqrt(config.batch_size / 512):.2g}"), reason)


def fitting_batch(model: ModelConfig, memory: int) -> int:
    """Return the largest batch size that fits in half of the memory and is a power of two, up to 4096."""
    from vitreous.model.cost import cost  # slow import: torch's fake tensors

    each = cost(model).activation_bytes
    if model.task == "segment":  # the loss stores the logits of every pixel and their softmax
        each += 2 * 4 * model.num_classes * math.prod(model.image_size)
    return 1 << min(max(memory // (2 * each), 1), 4096).bit_length() - 1


def free_memory(device: str) -> int:
    """Return the memory, in bytes, that is available to this process on the device."""
    if device == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(free, total_memory(torch.device("cpu"))) // processes


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{name}={_text(item)}" for name, item in value.items())
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    if isinstance(value, float):
        return f"{value:.1e}".replace(".0e", "e").replace("e-0", "e-") if 0 < value < 0.01 else f"{value:g}"
    return str(value)


# ---- A run that is ready to start ------------------------------------------------------------------------------------


class Stepper:
    """Training step: forward and backward pass of `compiled`, gradient clipping, optimizer step."""

    def __init__(
        self,
        task: Task,
        module: nn.Module,
        compiled: nn.Module,
        optimizers: Optimizers,
        world: World,
        precision: torch.dtype,
        accumulate: int = 1,
        clip: float = 0.0,
    ):
        self.task, self.module, self.compiled = task, module, compiled
        self.optimizers, self.world = optimizers, world
        self.precision, self.accumulate, self.clip = precision, accumulate, clip
        self.scaler = torch.amp.GradScaler(world.device.type, enabled=precision == torch.float16)
        self.weights = [weight for weight in module.parameters() if weight.requires_grad]

    def __call__(self, batch: Batch) -> StepResult:
        inputs = self.task.prepare(batch)
        count = inputs[-1].sum()
        # Sum over all processes, so every image has the same weight. DDP averages gradients, hence world.size below.
        total = self.world.sum(count.clone()).clamp(min=1)
        loss_sum, metric_sum = torch.zeros_like(count), torch.zeros_like(count)
        chunks = list(zip(*(tensor.chunk(self.accumulate) for tensor in inputs), strict=True))
        for i, chunk in enumerate(chunks):
            with synchronise(self.module, i == len(chunks) - 1):
                with mixed_precision(self.world.device, self.precision):
                    loss, metric = self.task.loss(self.compiled, chunk)
                torch.autograd.backward(self.scaler.scale(loss * self.world.size / total))
            loss_sum += loss.detach()
            metric_sum += metric.detach()
        return StepResult(loss_sum, metric_sum, count, self._optimizer_step())

    def _optimizer_step(self) -> Tensor:
        """Update the weights. Return 1 if the step was skipped because the gradient was not finite."""
        for optimizer in self.optimizers.parts:
            self.scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(self.weights, self.clip or float("inf"))
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # FSDP shards it
        skipped = (~norm.isfinite()).float()
        self.optimizers.step(skipped)
        self.optimizers.zero_grad()  # to None, because a CUDA graph's outputs must be freed before it runs again
        if self.scaler.is_enabled():
            self.scaler.update()
            return torch.zeros_like(skipped)  # occasional overflow is normal in fp16; the scaler adapts
        return skipped


@dataclass(frozen=True)
class Job:
    """A run that is ready to start."""

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

    def evaluator(self, source: Source) -> Iterable[Batch]:
        """Return the evaluation batches of a split."""
        if isinstance(self.loader, FeatureLoader):
            return self.loader.evaluation(source)
        config = self.state.model.config
        reader = Reader(source, config.image_size, config.channels, config.preprocessing, masks=self.task.masks)
        resident = self.world.device if can_reside(source, config.image_size, config.channels) else None
        return EvalLoader(reader, self.place, self.config.workers or 0, resident)


# ---- Model, optimizer and loaders ------------------------------------------------------------------------------------


def set_up(
    config: TrainConfig, data: DataSet, world: World, own_task: type[Task] | None = None, init: Checkpoint | None = None
) -> Job:
    """Build a run. `own_task` replaces the config's task; `init` is the --init checkpoint if it is already open."""
    task_class = own_task or TASKS[config.task]
    size, unit = config.batch_size, world.size * config.accumulate
    assert isinstance(size, int), "the config must be complete"
    if size % unit:
        below = max(size // unit, 1) * unit
        fail("batch_size", size, f"a multiple of processes x accumulate ({unit}), such as {below} or {below + unit}")
    place = BatchSlice(size, world.rank, world.size)
    if len(data.train) < place.batch_size:
        fail("batch_size", place.batch_size, f"at most the number of training images ({len(data.train)})")
    if config.tensorboard:
        check_tensorboard()

    torch.manual_seed(config.seed)
    model = task_class.build_model(config, data, init or open_init(config)).to(world.device)
    copy_to_memory(model)  # weights must not stay mapped to the --init file; checkpoints need contiguous tensors
    backbone = model.backbone
    freeze(model, config)
    cached = config.train_only == "head" and can_cache(config, task_class, model)
    task = (CachedHead if cached else task_class)(config, model)
    if own_task is not None and config.train_only != "lora":  # LoRA is merged before saving
        check_not_swapped(model)  # otherwise its checkpoints cannot be loaded
    module = task.module().train()
    if config.checkpoint_blocks:
        if not backbone.blocks:
            raise BadValue("--checkpoint-blocks needs a model with transformer blocks")
        backbone.recompute_blocks()

    wrapped = parallelise(module, world, config.parallel)
    fast = compiled(wrapped, config, world, own_task is None) if config.compile else wrapped
    if config.optim.optimizer == "muon" and (config.train_only != "all" or not backbone.blocks):
        fail("optimizer", "muon", "adamw or sgd unless all weights of a ViT are trained")
    optimizers = build_optimizers(module, config.optim, backbone)
    ema = Ema(model, config.optim.ema) if config.optim.ema is not None else None
    precision = dtype_of(config, world)

    steps_per_epoch = len(data.train) // place.batch_size
    total = config.steps or max(round((config.epochs or 1) * steps_per_epoch), 1)
    stepper = Stepper(task, wrapped, fast, optimizers, world, precision, config.accumulate, config.optim.clip)
    shape, augmentation = model.config, config.augment.on(Augmentation())
    exact, form = exact_from(config.decode, total / steps_per_epoch), (shape.image_size, shape.channels)
    reader = Reader(
        data.train, *form, shape.preprocessing, augmentation, config.seed, masks=task.masks, exact_from=exact
    )
    loader: TrainLoader = StreamLoader(reader, place, config.workers or 0, world.device)
    if isinstance(task, CachedHead):
        task.source, loader = data.train, FeatureLoader(model, config, data, world, place, precision)
    elif augmentation.crop != "resized" and can_reside(data.train, *form):
        loader = ResidentLoader(load_resident(reader, world.device), config.seed, place, augmentation.repeats)
    state = State(model, module, optimizers, ema)
    return Job(config, data, world, task, state, stepper, loader, place, steps_per_epoch, total)


def freeze(model: Model, config: TrainConfig) -> None:
    """Freeze the weights that `train_only` excludes, and add LoRA matrices if it is `lora`."""
    if config.train_only == "all":
        return
    if config.init is None:
        raise BadValue(f"--train-only {config.train_only} needs --init, because frozen random weights are useless")
    backbone = model.backbone
    backbone.requires_grad_(False)
    if config.train_only == "lora":
        if not backbone.blocks or config.parallel == "fsdp":
            raise BadValue("--train-only lora needs a ViT and cannot be used with --parallel fsdp")
        add_lora(backbone, config.lora_rank)
    for head in backbone.heads:
        head.requires_grad_(True)


def exact_from(decode: Literal["auto", "exact", "fast"], epochs: float) -> int:
    """Return the first epoch with exact JPEG decoding; `auto` decodes the last tenth of the epochs exactly.

    >>> exact_from("auto", 300), exact_from("auto", 5), exact_from("auto", 0.5), exact_from("exact", 300)
    (270, 4, 0, 0)
    """
    whole = math.ceil(epochs)
    return {"exact": 0, "fast": whole, "auto": whole - math.ceil(whole / 10)}[decode]


def compiled(module: nn.Module, config: TrainConfig, world: World, called_once: bool) -> nn.Module:
    """Compile a module, with CUDA graphs if its outputs are consumed before the next call."""
    graphs = world.device.type == "cuda" and not world.many and config.accumulate == 1 and called_once
    return torch.compile(module, mode="reduce-overhead" if graphs else None)  # type: ignore[return-value]


def dtype_of(config: TrainConfig, world: World) -> torch.dtype:
    """Return the compute dtype; `auto` is bfloat16 on a GPU that supports it, otherwise float32."""
    precision = config.precision
    if precision == "auto":
        precision = "bf16" if world.device.type == "cuda" and torch.cuda.is_bf16_supported() else "fp32"
    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
