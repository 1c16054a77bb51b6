"""Masked pre-training compared with supervised training of the same total compute (section 4.6, appendix B.1.2).

Claim: masked patch prediction improves on training from scratch. Here, images are pre-trained on without labels, and a
part of them has labels. MAE, which is newer than the paper, processes only the visible patches.
"""

import dataclasses
from typing import Any, Literal

from recipes.studies.flops import step_flops, with_budget
from recipes.studies.study import Run, Scale, Stage, Study, seeds
from vitreous.model.options import GlobalAverage
from vitreous.training import Masking, Optim, TrainConfig

AVERAGE: dict[str, Any] = {"pool": GlobalAverage(), "class_token": False}  # predicting patches trains no class token
PRETRAINING = 2 / 3  # fraction of the compute


def pretraining(scale: Scale, config: TrainConfig, task: Literal["mae", "mpp"], flops: float) -> TrainConfig:
    """Return the config of masked pre-training of the same model."""
    optim = Optim(optimizer="adamw", lr=1.5 * scale.lr, weight_decay=0.05, betas=(0.9, 0.95), warmup=0.1)
    masking = Masking(mpp_target="colour")
    return with_budget(dataclasses.replace(config, task=task, masking=masking, optim=optim), flops)


def finetuning(scale: Scale, config: TrainConfig, flops: float) -> TrainConfig:
    """Return a config that continues with the weights of the previous stage."""
    optim = Optim(optimizer="adamw", lr=scale.lr, weight_decay=0.05, warmup=0.1, layer_decay=0.75)
    tuned = with_budget(dataclasses.replace(config, optim=optim), flops)
    return dataclasses.replace(tuned, model=None, overrides={}, image_size=())


def runs(scale: Scale) -> list[Run]:
    found = []
    methods: tuple[tuple[str, Literal["mae", "mpp"]], ...] = (("masked patch prediction", "mpp"), ("MAE", "mae"))
    for seed in seeds(scale):
        config = scale.config(seed, **AVERAGE)
        budget = (config.steps or 0) * step_flops(config)
        for labelled in scale.train_sizes:
            found.append(Run("supervised", labelled, seed, (Stage(config, labelled),)))
            for name, task in methods:
                first = Stage(pretraining(scale, config, task, PRETRAINING * budget), scale.train)
                second = Stage(finetuning(scale, config, (1 - PRETRAINING) * budget), labelled)
                found.append(Run(name, labelled, seed, (first, second)))
    return found


MASKED = Study("masked", "section 4.6", runs, x="images with labels", log_x=True)
