"""Training steps with small batches on a GPU: as they are, with CUDA graphs, and with compiled blocks and graphs.

A step of DINOv2-S with 64 images keeps an H200 busy for a third of the time that Python needs to start its kernels.

    python -m benchmarks.short_steps
"""

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import tyro

import vitreous
from benchmarks.publish_table import publish
from benchmarks.whole_run import Compile, step_speed
from vitreous.data.sources.base import ArraySource, DataSet
from vitreous.training import TrainConfig
from vitreous.training.defaults import choose

CLASSES = 10


@dataclass(frozen=True)
class Options:
    """Benchmark options."""

    device: Literal["cuda", "cpu"] = "cuda"
    model: str = "DINOv2-S/14-reg"
    image_size: int = 224
    batch_sizes: tuple[int, ...] = (64, 256)
    steps: int = 40
    out: Path = Path("runs/bench/short_steps.json")


@dataclass(frozen=True)
class Result:
    train_only: str
    batch_size: int
    compile: str
    milliseconds: float


def main(options: Options) -> None:
    count, side = 8 * max(options.batch_sizes), options.image_size
    pixels = np.random.default_rng(0).integers(0, 256, (count, side, side, 3), dtype=np.uint8)
    source = ArraySource(pixels, np.arange(count) % CLASSES, tuple(map(str, range(CLASSES))), "noise")
    data, results = DataSet("noise", source, source, None, "noise"), []
    ways: tuple[Compile, ...] = (False, "graphs", "blocks") if options.device == "cuda" else (False,)
    with tempfile.TemporaryDirectory() as folder:
        vitreous.save(vitreous.create(options.model, image_size=options.image_size), folder)
        config = TrainConfig(data="noise", init=folder, image_size=(side,), device=options.device)
        for train_only in ("lora", "all"):
            for size in options.batch_sizes:
                chosen = choose(replace(config, train_only=train_only, batch_size=size), data, options.device).config
                for way in ways:
                    speed, _ = step_speed(chosen, options.steps, way)
                    results.append(Result(train_only, size, str(way), 1000 * size / speed))
    where = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    rows = [[row.train_only, str(row.batch_size), row.compile, f"{row.milliseconds:.1f}"] for row in results]
    title = f"{options.model} at {side} pixels, {where}"
    publish(title, ["trained weights", "batch size", "compile", "ms per step"], rows, results, options.out)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
