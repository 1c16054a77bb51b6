"""Fine-tuning at a higher resolution than pre-training (section 3.2).

Claim: it is often better to fine-tune at a higher resolution; positions are resampled.

The model is trained at a low resolution, then fine-tuned on the same images at several resolutions. For comparison, it
is tested at these resolutions without fine-tuning, and trained from scratch at each with the same total compute.
"""

import dataclasses

from recipes.studies.flops import stage_flops, with_budget
from recipes.studies.positions import top1_at
from recipes.studies.study import Point, Run, Scale, Stage, Study, Trained, seeds
from vitreous.training import Optim

FINE_TUNING = 1 / 4  # fraction of the steps of pre-training
UNTUNED = "not fine-tuned"


def image_sizes(scale: Scale) -> tuple[int, ...]:
    return scale.low_size, *scale.large_sizes


def runs(scale: Scale) -> list[Run]:
    found = []
    optim = Optim(optimizer="adamw", lr=scale.lr / 4, weight_decay=0.05, warmup=0.1)
    for seed in seeds(scale):
        config = scale.config(seed)
        first = Stage(dataclasses.replace(config, image_size=(scale.low_size,)), scale.train)
        found.append(Run(UNTUNED, "", seed, (first,)))
        for size in image_sizes(scale):
            steps = max(round(FINE_TUNING * scale.steps), 1)
            tuned = dataclasses.replace(config, model=None, overrides={}, image_size=(size,), steps=steps, optim=optim)
            stages = (first, Stage(tuned, scale.train))
            scratch = with_budget(dataclasses.replace(config, image_size=(size,)), sum(stage_flops(stages)))
            found.append(Run("fine-tuned", size, seed, stages))
            found.append(Run("from scratch", size, seed, (Stage(scratch, scale.train),)))
    return found


def measure(trained: Trained) -> list[Point]:
    """Measure the top-1 accuracy; without fine-tuning, at all resolutions of the study."""
    run = trained.run
    if run.curve != UNTUNED:
        return [Point(run.curve, run.x, trained.metrics["top1"])]
    return [Point(run.curve, size, top1_at(trained, size)) for size in image_sizes(trained.scale)]


RESOLUTION = Study("resolution", "section 3.2", runs, x="image size", measure=measure)
