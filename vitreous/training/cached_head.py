"""Implements `--train-only head` with features that are computed once per image, because the encoder is frozen.

This is possible if flipping is the only augmentation: the features of each image and of its mirror image are kept.
With random crops, colour jitter, mixup or dropout in the encoder, features differ in every epoch, so the encoder runs
in every step.

b: batch; n: images; d: feature width.
"""

from collections.abc import Iterable, Iterator

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from vitreous.common.distributed import World
from vitreous.common.rng import SampleRng
from vitreous.data.augment.config import Augmentation
from vitreous.data.augment.operations import draw_flips
from vitreous.data.loader import Batch, BatchSlice, Request, schedule
from vitreous.data.sources.base import DataSet, Source
from vitreous.evaluation.features import slices
from vitreous.inference.forward_pass import evaluation_mode, mixed_precision
from vitreous.model.options import Dropout
from vitreous.model.protocol import Model, ModelConfig
from vitreous.tasks.all_tasks import TASKS
from vitreous.tasks.base import SAMPLES, Results, Task
from vitreous.tasks.classify import Classify
from vitreous.tasks.config import TrainConfig
from vitreous.training.frozen_features import FrozenFeatures, frozen_features

ROWS = 8192  # images per evaluation batch


def can_cache(config: TrainConfig, task: type[Task], encoder: ModelConfig) -> bool:
    """Return True if the head can be trained on features that are computed only once."""
    if config.train_only != "head" or config.parallel != "ddp" or config.precision == "fp16":
        return False
    if not issubclass(task, Classify) or task not in TASKS.values():  # other tasks may override what CachedHead needs
        return False
    if config.distillation.teacher is not None or encoder.distillation_token or config.flip_test or config.progressive:
        return False
    images = config.augment.on(Augmentation())
    mixed = images.colour_jitter or images.erasing or images.mixup or images.cutmix
    rates = [getattr(encoder, name, 0.0) for name in ("stochastic_depth", "patch_dropout")]
    rates += vars(getattr(encoder, "dropout", Dropout())).values()
    return images.crop == "none" and images.policy == "none" and not mixed and not any(rates)


class FeatureHead(nn.Module):
    """Applies the head of a model to features. Contains the whole model, which checkpoints need."""

    def __init__(self, model: Model):
        super().__init__()
        self.model = model

    def forward(self, features: Float[Tensor, "b d"]) -> Float[Tensor, "b classes"]:
        [head] = self.model.heads
        return head(features)


def with_cached_features(task: type[Task]) -> type[Task]:
    """Return a subclass of a task that trains the head on features that are computed once."""
    return type(f"Cached{task.__name__}", (CachedHead, task), {})


class CachedHead(Classify):
    """Mixin for a task that trains only the head, on batches of cached features."""

    compiles_by_default = False  # its steps are too short
    loader: "FeatureLoader"

    def module(self) -> nn.Module:
        return FeatureHead(self.model)

    def train_loader(
        self, data: DataSet, world: World, batch_slice: BatchSlice, precision: torch.dtype
    ) -> "FeatureLoader":
        self.loader = FeatureLoader(self.model, self.config, data, world, batch_slice, precision)
        return self.loader

    def evaluation_batches(self, source: Source) -> list[Batch]:
        return self.loader.evaluation(source)

    def prepare(self, batch: Batch) -> tuple[Tensor, ...]:
        assert batch.features is not None
        return batch.features, self.targets(batch), (batch.labels >= 0).float()

    def evaluate(self, module: nn.Module, batches: Iterable[Batch], precision: torch.dtype) -> Results:
        device = next(module.parameters()).device
        with evaluation_mode(module), mixed_precision(device, precision):
            parts = [self.results_of(batch, module(batch.features)) for batch in batches]
        return type(parts[0]).join(parts)

    def samples(self, batch: Batch) -> UInt8[Tensor, "k c h w"]:
        return self.images(self.loader.source, batch.indices[:SAMPLES].tolist())


class FeatureLoader:
    """Loads batches of features in the same order as the image loaders. Features are computed on first use."""

    def __init__(
        self,
        model: Model,
        config: TrainConfig,
        data: DataSet,
        world: World,
        place: BatchSlice,
        precision: torch.dtype,
    ):
        self.model, self.config, self.source = model, config, data.train
        self.world, self.place, self.precision = world, place, precision
        self.known: dict[tuple[int, bool], tuple[Source, FrozenFeatures]] = {}  # a stored source keeps its id unique

    def features(self, source: Source, mirrored: bool = False) -> FrozenFeatures:
        """Return the features of all images of a source, on the device. All processes must call this."""
        key = (id(source), mirrored)
        if key not in self.known:
            log = print if self.world.first else lambda line: None
            found = frozen_features(self.model, source, self.config, self.world, self.precision, log, mirrored)
            self.known[key] = source, found.to(self.world.device)
        return self.known[key][1]

    def batches(self, start: int, stop: int) -> Iterator[Batch]:
        """Yield the batches of steps `start` to `stop`. Images are mirrored in epochs when `augment` flips them."""
        config, flip = self.config, self.config.augment.flip or 0.0
        plain = self.features(self.source)
        mirrored = self.features(self.source, mirrored=True) if flip else plain
        repeats, problems = config.augment.repeats or 1, plain.problems
        for request in schedule(len(self.source), config.seed, self.place, repeats, start, stop):
            batch, other = plain.batch(request, problems), mirrored.batch(request)
            assert batch.features is not None
            assert other.features is not None
            flipped = draw_flips(SampleRng(config.seed, request.epoch, request.keys), flip)
            flipped = flipped.to(self.world.device, non_blocking=True)[:, None]
            yield batch._replace(features=torch.where(flipped, other.features, batch.features))
            problems = []

    def evaluation(self, source: Source) -> list[Batch]:
        """Return this process's batches of a split. All processes get the same number of images, as in `EvalLoader`."""
        found, world = self.features(source), self.world
        count = len(source)
        mine = torch.arange(world.rank, -(-count // world.size) * world.size, world.size).clamp(max=count - 1)
        requests = [Request(0, mine[part], mine[part]) for part in slices(len(mine), ROWS)]
        return [found.batch(request, found.problems if i == 0 else []) for i, request in enumerate(requests)]
