"""Faithfulness of importance maps: deletion and insertion of a Swin Transformer and of a ViT on handwritten digits.

Both models have one patch per pixel, average pooling, and about the same cost and accuracy. They are trained unless
their runs exist: three minutes each on one core. Deletion should be low, insertion high (see docs/en/explain.md).

    python -m benchmarks.map_faithfulness
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro

import vitreous
from benchmarks.publish_table import publish
from vitreous.data.image import fit
from vitreous.data.open import open_data
from vitreous.explanation.attention_and_logit_lens import CapturedForward, capture
from vitreous.explanation.methods import MAPS
from vitreous.explanation.rollout_relevance_occlusion import (
    Faithfulness,
    faithfulness,
    importance_map,
    random_faithfulness,
)
from vitreous.inference.forward_pass import model_input
from vitreous.model.options import Conditional, GlobalAverage
from vitreous.model.protocol import Model
from vitreous.training import Augment, Optim

GREY = {"channels": 1, "patch_size": (1, 1)}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Swin": ("Swin-Ti/2", {**GREY, "width": 48, "depths": (2, 4), "stage_heads": (3, 6), "window": (4, 4)}),
    "ViT": (
        "ViT-Lite-6/4",
        {**GREY, "width": 64, "depth": 4, "num_heads": 4, "mlp_width": 256}
        | {"position": Conditional(), "pool": GlobalAverage(), "class_token": False},
    ),
}


@dataclass(frozen=True)
class Options:
    """Benchmark options."""

    runs: Path = Path("runs/bench/map_faithfulness")
    epochs: int = 30
    images: int = 100  # evenly spaced in the validation split
    device: str = "cpu"
    out: Path = Path("runs/bench/map_faithfulness.json")


@dataclass(frozen=True)
class Result:
    """Mean over images; the standard error is that of the difference between insertion and deletion."""

    model: str
    top1: float
    map: str
    deletion: float
    insertion: float
    standard_error: float


def trained(name: str, options: Options) -> Model:
    preset, overrides = MODELS[name]
    folder = options.runs / name
    if not (folder / "best").exists():
        vitreous.train(
            data="digits:",
            model=preset,
            overrides=overrides,
            image_size=(8,),
            epochs=options.epochs,
            batch_size=64,
            workers=0,
            device=options.device,
            evaluate_every=5,
            optim=Optim(ema=0.99),
            augment=Augment(crop="padded", policy="none", mixup=0.2),
            out=folder,
        )
    return vitreous.load(folder / "best").to(options.device)


def measure(captured: CapturedForward) -> dict[str, tuple[float, float]]:
    """Return deletion and insertion of every map and of random orders, for the predicted class."""
    target = int(captured.logits().argmax())
    found: dict[str, Faithfulness] = {
        name: faithfulness(captured, target, importance_map(captured, name, target)) for name in MAPS
    }
    found["random"] = random_faithfulness(captured, target)
    return {name: (test.deletion, test.insertion) for name, test in found.items()}


def main(options: Options) -> list[Result]:
    source, results = open_data("digits:").val, []
    places = torch.linspace(0, len(source) - 1, options.images).long().tolist()
    for name in MODELS:
        model = trained(name, options)
        config = model.config
        top1 = vitreous.evaluate(model, "digits:", workers=0, device=options.device).to_dict()["top1"]
        tests = []
        for place in places:
            pixels = fit(source.image(place), config.image_size, config.preprocessing, config.channels)
            images = model_input(pixels[None], next(model.parameters()).device, config.preprocessing)
            tests.append(measure(capture(model, images)))
        for key in tests[0]:
            deletion, insertion = torch.tensor([test[key] for test in tests], dtype=torch.float64).T
            error = float((insertion - deletion).std()) / len(tests) ** 0.5
            results.append(Result(name, top1, key, float(deletion.mean()), float(insertion.mean()), error))
    columns = ["model", "top-1", "map", "deletion", "insertion", "standard error"]
    rows = [
        [result.model, f"{result.top1:.3f}", result.map]
        + [f"{value:.3f}" for value in (result.deletion, result.insertion, result.standard_error)]
        for result in results
    ]
    publish(f"{options.images} digits", columns, rows, results, options.out)
    return results


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
