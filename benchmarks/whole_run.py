"""Throughput of whole training runs, compared with that of the training step alone.

A run of `vitreous train` on a folder of JPEG files decodes the images, compiles the model's blocks if that makes the
run shorter, trains, evaluates, and writes checkpoints and the report. Its throughput is the number of training images
divided by all seconds after the set-up. The step alone repeats one batch of noise that is already on the device, with
the same model, augmentation and optimizer: not compiled, with compiled blocks, and compiled as a whole (on a GPU).
There is one validation image for 20 training images. On a machine that other programs use, --clock cpu measures the CPU
time of this process instead of the time on the wall.

    python -m benchmarks.whole_run --device cuda
    python -m benchmarks.whole_run --device cpu
    python -m benchmarks.whole_run --device cpu --clock cpu --epochs 2
"""

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal
from unittest.mock import patch

from vitreous.common.threads import spin_briefly

spin_briefly()  # before torch is imported, as in `vitreous train`
# ruff: noqa: E402

import numpy as np
import torch
import tyro

from benchmarks.jpeg_decoding import Options as Pictures
from benchmarks.jpeg_decoding import draw_pictures
from benchmarks.publish_table import publish
from vitreous.common.distributed import world
from vitreous.common.text import plural
from vitreous.data.loader import Batch
from vitreous.data.sources.base import ArraySource, DataSet
from vitreous.training import TrainConfig
from vitreous.training.progress import PhaseTimer
from vitreous.training.run import train
from vitreous.training.run_folder import read_config
from vitreous.training.setup import Job, set_up

Compile = bool | Literal["blocks", "graphs"]
CLASSES = ("a", "b", "c", "d")
SIZES = ((224, 224), (224, 300), (300, 224), (256, 288))  # height and width of the JPEG files
WARM_UP = 5  # steps
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.monotonic, "cpu": time.process_time}


@dataclass(frozen=True)
class Case:
    """A run to measure."""

    model: str
    image_size: int
    images: int
    epochs: float
    steps: int  # to measure the step alone


CASES = {
    "cuda": (Case("ViT-S/16", 224, 10_000, 60, 60), Case("ViT-B/16", 224, 10_000, 25, 40)),
    "cpu": (Case("ViT-Ti/16", 128, 1_000, 8, 20),),
}


@dataclass(frozen=True)
class Options:
    """Benchmark options."""

    device: Literal["cuda", "cpu"] = "cuda"
    models: tuple[str, ...] = ()  # all by default
    epochs: float | None = None  # about a minute per run on a GPU, two minutes on two cores by default
    clock: Literal["wall", "cpu"] = "wall"
    compile: Compile | None = None  # chosen automatically by default
    out: Path = Path("runs/bench/whole_run.json")


@dataclass(frozen=True)
class Result:
    model: str
    steps: dict[str, float]  # images per second of the step alone, by kind of compilation
    compile_seconds: dict[str, float]
    run: float  # images per second of the whole run
    fraction: float  # run / fastest step
    fraction_after_compile: float  # the same without the time to compile
    compiled: str
    seconds_by_phase: dict[str, float]


def fill(folder: Path, count: int) -> None:
    """Write JPEG files, which repeat a few hundred different images."""
    drawn = [draw_pictures(Pictures(height=height, width=width)) for height, width in SIZES]
    pictures = [picture for four in zip(*drawn, strict=True) for picture in four]
    for split, images in (("train", count), ("val", count // 20)):
        for i in range(images):
            file = folder / split / CLASSES[i % 5 % len(CLASSES)] / f"{i}.jpg"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(pictures[i % len(pictures)])


def step_speed(
    config: TrainConfig, steps: int, compile: Compile, clock: Callable[[], float] = time.monotonic
) -> tuple[float, float]:
    """Measure training steps on one batch of noise, in images per second; also return the seconds to compile."""
    count, side = config.batch_size, config.image_size[0]
    assert isinstance(count, int)
    pixels = np.random.default_rng(0).integers(0, 256, (count, side, side, 3), dtype=np.uint8)
    source = ArraySource(pixels, np.arange(count) % len(CLASSES), CLASSES, "noise")
    config = replace(config, augment=replace(config.augment, crop="none"), compile=compile)
    with world(config.device) as here:
        job = set_up(config, DataSet("noise", source, source, None, "one batch"), here)
        batch = next(iter(job.loader.batches(0, 1)))
        _repeat(job, batch, WARM_UP)
        start = clock()
        _repeat(job, batch, steps)
        speed = steps * count / (clock() - start)
    torch.compiler.reset()
    return speed, job.phases.seconds()["compile"]


def _repeat(job: Job, batch: Batch, steps: int) -> None:
    for _ in range(steps):
        result = job.stepper(batch)
    result.loss.item()  # waits for the device


def measure(case: Case, options: Options, data: Path, out: Path) -> Result:
    config = TrainConfig(
        data=data,
        model=case.model,
        image_size=(case.image_size,),
        epochs=options.epochs or case.epochs,
        device=options.device,
        compile=options.compile,
        out=out,
    )
    clock = CLOCKS[options.clock]
    with patch("vitreous.training.run.PhaseTimer", partial(PhaseTimer, clock)):
        run = train(config)  # first, because a second compilation of the same model is faster
    config, phases = read_config(out), run.metrics["seconds_by_phase"]
    assert isinstance(config.batch_size, int)
    images, seconds = run.metrics["steps"] * config.batch_size, sum(phases.values()) - phases["set-up"]
    torch.compiler.reset()
    ways: tuple[Compile, ...] = (False, "blocks", True) if options.device == "cuda" else (False,)
    steps = {str(way): step_speed(config, case.steps, way, clock) for way in ways}
    fastest = max(speed for speed, _ in steps.values())
    return Result(
        case.model,
        {way: speed for way, (speed, _) in steps.items()},
        {way: compile_seconds for way, (_, compile_seconds) in steps.items()},
        images / seconds,
        images / seconds / fastest,
        images / (seconds - phases["compile"]) / fastest,
        str(config.compile),
        phases,
    )


def show(results: list[Result], options: Options) -> None:
    where = torch.cuda.get_device_name() if options.device == "cuda" else plural(torch.get_num_threads(), "CPU thread")
    rows = [
        [
            row.model,
            ", ".join(f"{way} {speed:,.0f}" for way, speed in row.steps.items()),
            ", ".join(f"{way} {seconds:.1f}" for way, seconds in row.compile_seconds.items()),
            f"{row.run:,.0f} ({row.compiled})",
            f"{row.fraction:.0%}",
            f"{row.fraction_after_compile:.0%}",
            " ".join(f"{phase} {seconds:.1f}" for phase, seconds in row.seconds_by_phase.items()),
        ]
        for row in results
    ]
    per = "s" if options.clock == "wall" else "CPU second"
    speeds = f"step, images/{per}", "compile, s", f"run, images/{per}"
    columns = ["model", *speeds, "run / step", "after compiling", "seconds"]
    publish(f"{where}, JPEG files of 224 to 300 pixels", columns, rows, results, options.out)


def main(options: Options) -> None:
    cases = [case for case in CASES[options.device] if not options.models or case.model in options.models]
    results: list[Result] = []
    with tempfile.TemporaryDirectory() as folder:
        fill(Path(folder) / "data", max(case.images for case in cases))
        for i, case in enumerate(cases):
            results.append(measure(case, options, Path(folder) / "data", Path(folder) / f"run-{i}"))
            show(results, options)  # after every model, in case the next one is interrupted


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
