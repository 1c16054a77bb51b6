"""Hybrid, plain ViT and BiT ResNet by training compute (Figure 5).

Claim: hybrids are slightly better than ViTs with little compute, and the difference vanishes for larger models; ViTs
need less compute than ResNets for the same accuracy.

The models of a curve differ in size, and are all trained for the same number of steps.
"""

import dataclasses
from typing import Any

from recipes.studies.flops import step_flops
from recipes.studies.study import Run, Scale, Stage, Study, seeds
from vitreous.model.options import ResNetStem
from vitreous.training import TrainConfig


def hybrid(scale: Scale, **overrides: Any) -> dict[str, Any]:
    """Return the overrides of a hybrid with the same number of tokens as the base model."""
    stem = ResNetStem(stages=scale.hybrid_stages, width=32)
    return {"stem": stem, "patch_size": (1, 1), **overrides}


def resnet(scale: Scale, config: TrainConfig, stages: tuple[int, ...]) -> TrainConfig:
    """Return a config that trains a BiT ResNet with the settings of another config."""
    fields = {"stages": stages, "width": 32}
    return dataclasses.replace(config, model="BiT-R50x1", overrides=fields, image_size=(scale.resnet_size,))


def runs(scale: Scale) -> list[Run]:
    found = []
    for seed in seeds(scale):
        base = scale.config(seed)
        curves = {
            "ViT": [scale.config(seed, depth=depth) for depth in scale.depths],
            "hybrid": [scale.config(seed, **hybrid(scale, depth=depth)) for depth in scale.depths],
            "BiT ResNet": [resnet(scale, base, stages) for stages in scale.resnet_stages],
        }
        for curve, configs in curves.items():
            found += [Run(curve, training_tflops(one), seed, (Stage(one, scale.train),)) for one in configs]
    return found


def training_tflops(config: TrainConfig) -> float:
    return float(f"{(config.steps or 0) * step_flops(config) / 1e12:.3g}")


HYBRIDS = Study("hybrids", "Figure 5", runs, x="training compute (TFLOP)", log_x=True)
