"""What it saves to encode only the patches that are seen: a step of MAE beside the full encoder's training step.

Both are steps of `vitreous train`, of the same preset on the same batch, from augmentation to moved weights: those of
`--task classify`, whose encoder works on every patch, and those of `--task mae`, whose encoder works on a quarter of
them and whose light decoder paints the others. They take turns in every round; what counts is the ratio.

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
from vitreous.data.loader import Batch
from vitreous.data.sources.base import ArraySource, DataSet
from vitreous.training import Augment, Masking, Optim, TrainConfig
from vitreous.training.distributed import World, world
from vitreous.training.setup import Job, choose, set_up

WARM_UP = 3  # rounds; compiling and the choice of kernels are over then
CLASSES = ("a", "b")


@dataclass(frozen=True)
class Options:
    """What to measure."""

    models: tuple[str, ...] = ("ViT-B/16", "ViT-S/16")
    batch_size: int = 256
    image_size: int = 224
    mask_rate: float = 0.75
    decoder_width: int | None = None  # left out: what `vitreous train --task mae` takes
    decoder_depth: int | None = None
    rounds: int = 15
    steps: int | None = None  # in a round, without waiting for the device between them, as in training; 10 on a GPU
    device: str = "auto"
    compile: bool = False
    out: Path = Path("runs/bench/masked_step.json")


@dataclass(frozen=True)
class Result:
    model: str
    full_seconds: float  # the median step
    mae_seconds: float
    ratio: float  # the median of the rounds' ratios; above 1, the masked step is faster
    decoder_share: float  # of the parameters in blocks, decoder / encoder: its work on a token, compared


def noise(batch_size: int, side: int) -> DataSet:
    """A batch of pictures in memory: what they show costs nothing."""
    pixels = np.random.default_rng(0).integers(0, 256, (batch_size, side, side, 3), dtype=np.uint8)
    source = ArraySource(pixels, np.arange(batch_size) % len(CLASSES), CLASSES, "noise")
    return DataSet("noise", source, source, None, "one batch")


def job_of(task: Literal["classify", "mae"], model: str, data: DataSet, here: World, options: Options) -> Job:
    """A run that is ready to go, as `vitreous train` makes it."""
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
    """Of a step, from the batch to moved weights."""
    start = time.perf_counter()
    for _ in range(steps):
        result = job.stepper(batch)
    result.loss.item()  # waits for the device
    return (time.perf_counter() - start) / steps


def measure(model: str, here: World, options: Options) -> Result:
    data = noise(options.batch_size, options.image_size)
    full, mae = (job_of(task, model, data, here, options) for task in ("classify", "mae"))
    batch, steps = next(iter(full.loader.batches(0, 1))), options.steps or (1 if here.device.type == "cpu" else 10)
    times: list[tuple[float, float]] = []
    for turn in range(WARM_UP + options.rounds):
        if turn % 2:  # nobody always goes first
            one = seconds(mae, batch, steps)
            pair = seconds(full, batch, steps), one
        else:
            pair = seconds(full, batch, steps), seconds(mae, batch, steps)
        if turn >= WARM_UP:
            times.append(pair)
    encoder, decoder = (
        sum(weight.numel() for name, weight in job.state.module.named_parameters() if name.startswith(blocks))
        for job, blocks in ((full, "encoder.blocks."), (mae, "blocks."))
    )
    return Result(
        model,
        statistics.median(one for one, _ in times),
        statistics.median(other for _, other in times),
        statistics.median(one / other for one, other in times),
        decoder / encoder,
    )


def main(options: Options) -> None:
    with world(options.device) as here:
        results = [measure(model, here, options) for model in options.models]
        cuda = here.device.type == "cuda"
        where = torch.cuda.get_device_name() if cuda else f"CPU, {torch.get_num_threads()} threads"
    how = ("bf16" if cuda else "fp32") + (", compiled" if options.compile else "")
    setting = f"{where}, {how}, batch {options.batch_size}, {options.image_size} px, {options.mask_rate:.0%} hidden"
    rows = [
        [one.model, f"{one.full_seconds * 1e3:.1f}", f"{one.mae_seconds * 1e3:.1f}", f"{one.ratio:.2f}",
         f"{one.decoder_share:.1%}"]
        for one in results
    ]  # fmt: skip
    publish(setting, ["model", "full step, ms", "MAE step, ms", "full / MAE", "decoder / encoder"], rows, results,
            options.out)  # fmt: skip


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
