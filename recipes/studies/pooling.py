"""Class token compared with pooling of the patches, at several learning rates (Figure 9, appendix D.3).

Claim: both work equally well, but need different learning rates.
"""

import dataclasses
from typing import Any

from recipes.studies.study import Run, Scale, Stage, Study, seeds
from vitreous.model.options import AttentionPool, ClassToken, GlobalAverage

KINDS: dict[str, dict[str, Any]] = {
    "class token": {"pool": ClassToken(), "class_token": True},
    "average": {"pool": GlobalAverage(), "class_token": False},
    "attention": {"pool": AttentionPool(), "class_token": False},
}
FACTORS = (1 / 4, 1, 4)  # of the usual learning rate


def runs(scale: Scale) -> list[Run]:
    configs = {(name, seed): scale.config(seed, **kind) for seed in seeds(scale) for name, kind in KINDS.items()}
    return [
        Run(name, scale.lr * factor, seed, (Stage(with_rate(config, scale.lr * factor), scale.train),))
        for (name, seed), config in configs.items()
        for factor in FACTORS
    ]


def with_rate(config: Any, lr: float) -> Any:
    return dataclasses.replace(config, optim=dataclasses.replace(config.optim, lr=lr))


POOLING = Study("pooling", "Figure 9", runs, x="learning rate", log_x=True)
