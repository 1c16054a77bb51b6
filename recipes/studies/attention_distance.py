"""Attention distance by depth of trained models (Figures 7 and 11).

Claim: some heads attend to most of the image already in the lowest layers, others are local there; with depth, all
heads attend globally. Hybrids have fewer local heads.
"""

import numpy as np
import torch

import vitreous
from recipes.studies.hybrids import hybrid
from recipes.studies.study import Point, Run, Scale, Stage, Study, Trained, seeds
from vitreous.explanation.attention_and_logit_lens import attention_distance, capture
from vitreous.model.inputs import normalise

IMAGES = 64


def runs(scale: Scale) -> list[Run]:
    return [
        Run(name, "", seed, (Stage(config, scale.train),))
        for seed in seeds(scale)
        for name, config in {"ViT": scale.config(seed), "hybrid": scale.config(seed, **hybrid(scale))}.items()
    ]


@torch.no_grad()
def measure(trained: Trained) -> list[Point]:
    """Measure the attention distance of the most local head, the mean head and the most global head of each layer."""
    model = vitreous.load(trained.folder / "best").eval()
    (size,) = trained.run.stages[-1].config.image_size
    images = torch.from_numpy(np.load(trained.data)["x_test"][:IMAGES]).permute(0, 3, 1, 2)
    images = images.expand(-1, model.config.channels, -1, -1).float() / 255
    images = torch.nn.functional.interpolate(images, size, mode="bicubic", antialias=True).clamp(0, 1)
    heads = attention_distance(capture(model, normalise(images, model.config.preprocessing)))
    values = {"most local head": heads.amin(1), "mean": heads.mean(1), "most global head": heads.amax(1)}
    return [
        Point(f"{trained.run.curve}, {name}", layer, value)
        for name, layers in values.items()
        for layer, value in enumerate(layers.tolist(), 1)
    ]


ATTENTION_DISTANCE = Study(
    "attention_distance", "Figures 7 and 11", runs, x="layer", y="pixels", measure=measure, percent=False
)
