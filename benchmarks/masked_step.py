"""Training step time of MAE, which encodes only visible patches, compared with classification.

Both are complete steps of `vitreous train` with the same model and batch, from augmentation to the optimizer update.
With `--task classify`, the encoder processes all patches; with `--task mae`, it processes a quarter of them, and a
small decoder predicts the rest. The two alternate in each round; compare the ratio.

    python -m benchmarks.masked_step --device cpu --batch-size 16 --rounds 5
    python -m benchmarks.masked_step --device cuda --batch-size 256 --compile
"""

import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import tyro

from benchmarks.publish_table import publish
from vitreous.common.distributed import World, world
from vitreous.common.text import plural
from vitreous.data.loader import Batch
from vitreous.data.sources.base import ArraySource, DataSet
from vitreous.training import Augment, Masking, Optim, TrainConfig
from vitreous.training.defaults import choose
from vitreous.training.setup import Job, set_up

WARM_UP = 3  # rounds, for compilation and kernel selection
CLASSES = ("a", "b")


@dataclass(frozen=True)
class Options:
    """Benchmark options."""

    models: tuple[str, ...] = ("ViT-B/16", "ViT-S/16")
    batch_size: int = 256
    image_size: int = 224
    mask_rate: float = 0.75
    decoder_width: int | None = None  # None is the default of `vitreous train --task mae`
    decoder_depth: int | None = None
    rounds: int = 15
    steps: int | None = None  # per round, without synchronisation in between; None is 10 on a GPU, else 1
    device: str = "auto"
    compile: bool = False
    out: Path = Path("runs/bench/masked_step.json")


@dataclass(frozen=True)
class Result:
    model: str
    full_seconds: float  # per step, median
    mae_seconds: float
    ratio: float  # full / MAE, median over rounds; above 1, MAE is faster
    decoder_fraction: float  # block parameters of the decoder / encoder


def noise(batch_size: int, side: int) -> DataSet:
    """Return a data set with one batch of random images in memory."""
    pixels = np.random.default_rng(0).integers(0, 256, (batch_size, side, side, 3), dtype=np.uint8)
    source = ArraySource(pixels, np.arange(batch_size) % len(CLASSES), CLASSES, "noise")
    return DataSet("noise", source, source, None, "one batch")


def job_of(task: Literal["classify", "mae"], model: str, data: DataSet, here: World, options: Options) -> Job:
    """Set up a training run like `vitreous train`."""
    config = TrainConfig(
        data=data.name,
        model=model,
        image_size=(options.image_size,),
        task=task,
        batch_size=options.batch_size,
        steps=1,
        compile=options.compile,
        device=options.device,
        workers=0,
        optim=Optim(lr=1e-4),
        augment=Augment(crop="none", flip=0.5, policy="none", mixup=0.0, cutmix=0.0),  # the same for both
        masking=Masking(
            mask_rate=options.mask_rate, decoder_width=options.decoder_width, decoder_depth=options.decoder_depth
        ),
        out=Path("unused"),
    )
    return set_up(choose(config, data, here.device.type).config, data, here)


def seconds(job: Job, batch: Batch, steps: int) -> float:
    """Measure the time of a training step."""
    start = time.perf_counter()
    for _ in range(steps):
        result = job.stepper(batch)
    result.loss.item()  # synchronises with the device
    return (time.perf_counter() - start) / steps


def measure(model: str, here: World, options: Options) -> Result:
    data = noise(options.batch_size, options.image_size)
    full, mae = (job_of(task, model, data, here, options) for task in ("classify", "mae"))
    batch, steps = next(iter(full.loader.batches(0, 1))), options.steps or (1 if here.device.type == "cpu" else 10)
    times: list[tuple[float, float]] = []
    for turn in range(WARM_UP + options.rounds):
        if turn % 2:  # alternate the order
            mae_seconds = seconds(mae, batch, steps)
            pair = seconds(full, batch, steps), mae_seconds
        else:
            pair = seconds(full, batch, steps), seconds(mae, batch, steps)
        if turn >= WARM_UP:
            times.append(pair)
    encoder, decoder = (
        sum(weight.numel() for name, weight in job.state.module.named_parameters() if name.startswith(blocks))
        for job, blocks in ((full, "encoder.blocks."), (mae, "blocks."))
    )
    full_times, mae_times = zip(*times, strict=True)
    return Result(
        model,
        statistics.median(full_times),
        statistics.median(mae_times),
        statistics.median(a / b for a, b in times),
        decoder / encoder,
    )


def main(options: Options) -> None:
    with world(options.device) as here:
        results = [measure(model, here, options) for model in options.models]
        cuda = here.device.type == "cuda"
        where = torch.cuda.get_device_name() if cuda else f"CPU, {plural(torch.get_num_threads(), 'thread')}"
    how = ("bf16" if cuda else "fp32") + (", compiled" if options.compile else "")
    setting = f"{where}, {how}, batch {options.batch_size}, {options.image_size} px, {options.mask_rate:.0%} masked"
    rows = [
        [row.model, f"{row.full_seconds * 1e3:.1f}", f"{row.mae_seconds * 1e3:.1f}", f"{row.ratio:.2f}",
         f"{row.decoder_fraction:.1%}"]
        for row in results
    ]  # fmt: skip
    publish(setting, ["model", "full step, ms", "MAE step, ms", "full / MAE", "decoder / encoder"], rows, results,
            options.out)  # fmt: skip


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
