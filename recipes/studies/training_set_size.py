"""Accuracy by training-set size for ViT, BiT ResNet and hybrid of equal training compute (Figures 3 and 4).

Claim: ResNets are better with few images, ViTs with many. The paper uses 9 million to 300 million images; here are far
fewer, also with the settings that Vitreous uses for small data sets (Muon, convolutional positions, augmentation), and
with masked pre-training on the same images.
"""

import dataclasses

from recipes.studies.flops import step_flops, with_budget
from recipes.studies.hybrids import hybrid, resnet
from recipes.studies.masked import AVERAGE, finetuning, pretraining
from recipes.studies.study import Run, Scale, Stage, Study, seeds
from vitreous.tasks.base import FEW_IMAGES
from vitreous.training import Augment, Optim, TrainConfig

MIXED = 5_000  # from this number of images, mixup and CutMix help


def recipe(scale: Scale, config: TrainConfig, images: int) -> TrainConfig:
    """Return the config with the settings for small data sets, which are defaults of `vitreous train`."""
    mixup, cutmix = (0.2, 1.0) if images >= MIXED else (0.0, 0.0)
    augment = Augment(crop="padded", flip=scale.flip, policy="trivial", mixup=mixup, cutmix=cutmix)
    muon = Optim(optimizer="muon", lr=7e-3, weight_decay=0.05, warmup=0.1)
    optim = config.optim if config.model == "BiT-R50x1" else muon  # Muon is for the matrices of transformer blocks
    return dataclasses.replace(config, augment=augment, optim=optim)


def runs(scale: Scale) -> list[Run]:
    found = []
    for seed in seeds(scale):
        base = scale.config(seed, **AVERAGE)
        budget = (base.steps or 0) * step_flops(base)
        largest = resnet(scale, base, scale.resnet_stages[-1])
        plain = {"ViT": base, "hybrid": scale.config(seed, **AVERAGE, **hybrid(scale)), "BiT ResNet": largest}
        small = {
            "ViT": scale.config(seed, **FEW_IMAGES),
            "hybrid": scale.config(seed, **FEW_IMAGES, **hybrid(scale)),
            "BiT ResNet": largest,
        }
        for images in scale.train_sizes:
            for name, config in plain.items():
                found.append(Run(name, images, seed, (Stage(with_budget(config, budget), images),)))
            for name, config in small.items():
                tuned = with_budget(recipe(scale, config, images), budget)
                found.append(Run(f"{name}, small-data recipe", images, seed, (Stage(tuned, images),)))
            first = Stage(pretraining(scale, base, "mae", budget / 2), images)
            second = Stage(finetuning(scale, base, budget / 2), images)
            found.append(Run("ViT, MAE first", images, seed, (first, second)))
    return found


TRAINING_SET_SIZE = Study("training_set_size", "Figures 3 and 4", runs, x="training images", log_x=True)
