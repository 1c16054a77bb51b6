"""Floating-point operations of training, to match the compute of different models and to plan sessions."""

import dataclasses
from collections.abc import Sequence
from functools import cache

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from recipes.studies.study import Stage
from vitreous.model.build import build
from vitreous.model.config import ViTConfig
from vitreous.model.cost import cost, forward_flops
from vitreous.model.masked import MaskedAutoencoder, MaskedPatchPrediction
from vitreous.model.presets import configure
from vitreous.model.protocol import ModelConfig
from vitreous.tasks.config import Masking, TrainConfig

CLASSES = 10


def model_config(config: TrainConfig) -> ModelConfig:
    """Return the model that a config trains from scratch."""
    classes = CLASSES if config.task == "classify" else 0
    return configure(config.model or "", classes, config.image_size, config.overrides)


def step_flops(config: TrainConfig, model: ModelConfig | None = None) -> float:
    """Count the operations of a training step. A backward pass costs as much as two forward passes."""
    assert isinstance(config.batch_size, int)
    return 3.0 * config.batch_size * image_flops(config.task, config.masking, model or model_config(config))


def with_budget(config: TrainConfig, flops: float) -> TrainConfig:
    """Return the config with as many steps as `flops` floating-point operations allow."""
    return dataclasses.replace(config, steps=max(round(flops / step_flops(config)), 1))


@cache
def image_flops(task: str, masking: Masking, model: ModelConfig) -> int:
    """Count the operations of a forward pass in training for one image."""
    if task == "classify":
        return cost(model).flops
    assert isinstance(model, ViTConfig)
    with FakeTensorMode():
        encoder, images = build(model), torch.empty(1, model.channels, *model.image_size)
        noise = torch.empty(1, 3, model.grid[0] * model.grid[1])
        if task == "mpp":
            return forward_flops(MaskedPatchPrediction(encoder, masking.mpp_target), images, images, noise)
        width, depth = masking.decoder_shape(model)
        decoder = {"width": width, "depth": depth, "num_heads": max(width // 32, 1)}
        return forward_flops(MaskedAutoencoder(encoder, **decoder), images, noise[:, 0])


def stage_flops(stages: Sequence[Stage]) -> list[float]:
    """Count the operations of each stage. Later stages have the model of the first, at their own image size."""
    first = stages[0].config
    later = [stage.config.image_size or first.image_size for stage in stages[1:]]
    models = [model_config(first), *(configure(first.model or "", CLASSES, size, first.overrides) for size in later)]
    return [
        (stage.config.steps or 0) * step_flops(stage.config, model) for stage, model in zip(stages, models, strict=True)
    ]
