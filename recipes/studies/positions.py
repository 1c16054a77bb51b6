"""Position embeddings (Table 8, appendix D.4), also tested at another image size without training at it.

Claim: any position embedding is much better than none, and the kind matters little.
"""

import vitreous
from recipes.studies.study import Point, Run, Scale, Stage, Study, Trained, seeds
from vitreous.model.options import (
    Conditional,
    Learned1d,
    Learned2d,
    MixedRotary2d,
    NoPosition,
    PositionConfig,
    RelativeBias,
    Rotary2d,
    SinCos2d,
)

KINDS: dict[str, PositionConfig] = {
    "none": NoPosition(),
    "1-D": Learned1d(),
    "2-D": Learned2d(),
    "relative": RelativeBias(),
    "sin-cos": SinCos2d(),
    "rotary": Rotary2d(),
    "mixed rotary": MixedRotary2d(),
    "conditional": Conditional(),
}


def runs(scale: Scale) -> list[Run]:
    return [
        Run(f"{scale.image_size} pixels", name, seed, (Stage(scale.config(seed, position=position), scale.train),))
        for seed in seeds(scale)
        for name, position in KINDS.items()
    ]


def measure(trained: Trained) -> list[Point]:
    """Measure the top-1 accuracy at the image size of training, and at 1.5 times that size."""
    (size,) = trained.run.stages[0].config.image_size
    top1 = top1_at(trained, size * 3 // 2)
    points = {f"{size} pixels": trained.metrics["top1"], f"tested at {size * 3 // 2} pixels": top1}
    return [Point(curve, trained.run.x, value) for curve, value in points.items()]


def top1_at(trained: Trained, size: int) -> float:
    """Evaluate the final model at an image size. Positions are resampled."""
    metrics = vitreous.evaluate(trained.folder / "best", trained.data, image_size=size, device=trained.device)
    top1 = metrics.summary()["top1"]
    assert isinstance(top1, float)
    return top1


POSITIONS = Study("positions", "Table 8", runs, x="position embedding", measure=measure)
