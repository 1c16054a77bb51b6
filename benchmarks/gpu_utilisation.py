"""GPU utilisation during training: the fraction of time in which the GPU does not wait for images.

A ViT trains on JPEG files of 500 x 375 pixels, which worker processes decode, crop and resize as in `vitreous train`.
The same training steps are then repeated with a single batch that is already on the device. The utilisation is the
ratio of the two speeds.

    python -m benchmarks.gpu_utilisation --models ViT-B/16 ViT-S/16
"""

import itertools
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro

from benchmarks.jpeg_decoding import Options as Pictures
from benchmarks.jpeg_decoding import draw_pictures
from benchmarks.publish_table import publish
from vitreous.common.distributed import world
from vitreous.data.loader import Batch
from vitreous.data.open import open_data
from vitreous.training import Augment, Optim, TrainConfig
from vitreous.training.defaults import choose
from vitreous.training.setup import Job, set_up


@dataclass(frozen=True)
class Options:
    """Benchmark options."""

    models: tuple[str, ...] = ("ViT-B/16", "ViT-S/16")
    batch_size: int = 256
    workers: int = os.cpu_count() or 1
    steps: int = 60
    files: int = 8192
    out: Path = Path("runs/bench/gpu_utilisation.json")


@dataclass(frozen=True)
class Result:
    model: str
    workers: int
    images_per_second: float  # including data loading
    without_reading: float  # images per second, excluding data loading
    busy: float


def fill(folder: Path, count: int) -> None:
    """Write JPEG files of two classes, repeating 64 different images."""
    pictures = draw_pictures(Pictures())
    for i in range(count):
        file = folder / "train" / ("ab"[i % 2]) / f"{i}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(pictures[i % len(pictures)])
    for i in range(4):
        file = folder / "val" / ("ab"[i % 2]) / f"{i}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(pictures[i])


def speed(job: Job, batches: Iterator[Batch], warm_up: int, steps: int) -> float:
    """Measure training steps in images per second."""
    for batch in itertools.islice(batches, warm_up):
        job.stepper(batch)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for batch in itertools.islice(batches, steps):
        job.stepper(batch)
    torch.cuda.synchronize()
    return steps * len(batch.labels) / (time.perf_counter() - start)


def main(options: Options) -> None:
    results = []
    with tempfile.TemporaryDirectory() as folder, world("cuda") as here:
        fill(Path(folder), options.files)
        data = open_data(folder)
        for model in options.models:
            config = TrainConfig(
                data=folder,
                model=model,
                image_size=(224,),
                batch_size=options.batch_size,
                workers=options.workers,
                epochs=1,
                compile=True,
                optim=Optim(lr=1e-3),
                augment=Augment(crop="resized", policy="three", colour_jitter=0.3, mixup=0.8, cutmix=1.0),
                out=Path(folder) / "run",
            )
            job = set_up(choose(config, data, "cuda").config, data, here)
            stream = job.loader.batches(0, 10_000)
            held = next(stream)
            alone = speed(job, itertools.repeat(held), 15, options.steps)
            reading = speed(job, stream, 4 * options.workers, options.steps)  # skip prefetched batches
            results.append(Result(model, options.workers, reading, alone, reading / alone))
            del stream, job
    setting = f"{torch.cuda.get_device_name()}, {options.workers} workers, 500 x 375 JPEG to 224, bf16, compiled"
    rows = [
        [row.model, f"{row.images_per_second:.0f}", f"{row.without_reading:.0f}", f"{row.busy:.1%}"] for row in results
    ]
    publish(setting, ["model", "images/s", "without loading", "utilisation"], rows, results, options.out)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
