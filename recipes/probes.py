"""Probes of a frozen encoder on several data sets, compared with a randomly initialised control.

There are four probes: weighted k-NN, linear probes with ridge regression and with SGD, and few-shot least squares with
5 and 10 images per class (mean and std over five draws). All use the same features, which are computed once per encoder
and data set and cached on disk. The control has the same config with random weights and a LayerScale of 1, because with
DINOv2's initial 1e-5 the class token would hardly depend on the image.

Command:  python -m recipes.probes dinov2s_reg4.pt --data PETS cifar10.npz
          (PETS contains train/BREED/... and test/BREED/...; any data set of `vitreous eval --data` is accepted)
Result:   top-1 in % for a DINOv2-S with four registers at 224 pixels, with --precision bf16:

              data        encoder           20-NN    5-shot        10-shot       ridge    SGD
              Pets        DINOv2-S          52.3     38.2 ± 2.0    46.7 ± 1.5    66.0     72.2
              Pets        random weights     6.2      5.1 ± 0.4     5.9 ± 0.3    10.3     10.1
              CIFAR-10    DINOv2-S          81.9     59.9 ± 2.6    68.2 ± 1.2    85.5     89.1
              CIFAR-10    random weights    35.3     19.5 ± 1.0    21.5 ± 1.2    45.3     46.3

          The checkpoint was trained further for another purpose, so these are not results of the published DINOv2.
          Pets has 3,680 training and 3,669 test images of 160 pixels.
Cost:     44 s on one NVIDIA H200
"""

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import torch
import tyro

from benchmarks.publish_table import publish
from vitreous.cli.main import exit_with_error
from vitreous.data.open import open_data
from vitreous.evaluation.evaluate_model import choose_split
from vitreous.evaluation.features import cached_features
from vitreous.evaluation.linear import FewShotResult, LinearResult
from vitreous.evaluation.probe import PROBES, KnnResult, Result, run_probe
from vitreous.inference.predictor import Predictor
from vitreous.model.build import build
from vitreous.model.config import ViTConfig
from vitreous.model.protocol import Model
from vitreous.weights.load import load_encoder


@dataclass(frozen=True)
class Options:
    """Options of the probes."""

    checkpoint: Annotated[Path, tyro.conf.Positional]
    """Checkpoint in any supported format."""
    data: tuple[str, ...]
    """Data sets with a train split."""
    image_size: tuple[int, ...] = (224,)
    features: Literal["pooled", "class+mean"] = "pooled"
    """Pooled features, or the class token concatenated with the mean patch token."""
    neighbours: int = 20
    shots: tuple[int, ...] = (5, 10)
    data_root: Path | None = None
    """Folder with local copies of named data sets."""
    batch_size: int = 256
    device: str = "auto"
    precision: Literal["auto", "fp32", "bf16"] = "fp32"
    workers: int = 8
    seed: int = 0
    """Seed for the control's weights, the few-shot draws and the held-out images."""
    cache: Path = Path("runs/probes/features")
    out: Path = Path("runs/probes/results.json")


@dataclass(frozen=True)
class Row:
    """Probe results for one encoder and one data set."""

    data: str
    encoder: str
    part: str  # evaluated split
    count: int
    train_count: int
    results: list[Result]
    seconds: float


def control(model: Model, seed: int) -> Model:
    """Build the same architecture with random weights."""
    config = model.config
    if isinstance(config, ViTConfig) and config.layer_scale is not None:
        config = dataclasses.replace(config, layer_scale=1.0)
    torch.manual_seed(seed)
    return build(config).eval()


def probe(name: str, model: Model, data: str, options: Options) -> Row:
    """Run all probes of one encoder on one data set."""
    started = time.perf_counter()
    found = open_data(data, root=options.data_root, seed=options.seed)
    part, source = choose_split(found)
    predictor = Predictor(model, options.device, options.batch_size, options.precision, workers=options.workers)
    train, test = (
        cached_features(options.cache, predictor, images, options.features)[0] for images in (found.train, source)
    )
    results = [
        result
        for kind in PROBES
        for result in run_probe(
            kind, train, test, found.classes, options.seed, (options.neighbours,), options.shots, predictor.device
        )
    ]
    return Row(found.name, name, part, len(test), len(train), results, time.perf_counter() - started)


def table(row: Row) -> dict[str, str]:
    """Return the table cells of a row by column, with the linear probes in a fixed order."""
    cells = {}
    for result in sorted(row.results, key=lambda result: result.method if isinstance(result, LinearResult) else ""):
        match result:
            case KnnResult():
                cells[f"{result.neighbours}-NN"] = f"{100 * result.top1:.1f}"
            case LinearResult():
                cells[result.method] = f"{100 * result.top1:.1f}"
            case FewShotResult():
                cells[f"{result.shots}-shot"] = f"{100 * result.top1:.1f} ± {100 * result.std:.1f}"
    return {"data": row.data, "encoder": row.encoder, **cells, "s": f"{row.seconds:.0f}"}


def main(options: Options) -> list[Row]:
    learned = load_encoder(options.checkpoint, image_size=options.image_size or None)
    encoders = {options.checkpoint.stem: learned, "random weights": control(learned, options.seed)}
    rows = [probe(name, model, data, options) for data in options.data for name, model in encoders.items()]
    cells = [table(row) for row in rows]
    size = " x ".join(map(str, learned.config.image_size))
    setting = f"top-1 in % with frozen features ({options.features}), {size} pixels"
    publish(setting, list(cells[0]), [list(row.values()) for row in cells], rows, options.out)
    return rows


if __name__ == "__main__":
    try:
        main(tyro.cli(Options, description=__doc__))
    except (ValueError, OSError) as error:
        exit_with_error(error)
