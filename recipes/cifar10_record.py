"""CIFAR-10 in seconds: a plain ViT from random weights, as fast as possible on one GPU.

Plain: patches of 4 x 4 pixels, attention and MLPs; no convolution except the projection of the patches, no other data,
no pre-training. The accuracy is that of a single view of each test image after the last step; the mean of the logits of
an image and its mirror image is reported separately. The steps are those of `vitreous train`. Their time includes the
augmentation. It excludes set-up, compilation and evaluation, as is usual for CIFAR-10 records.

Command:  python -m recipes.cifar10_record --goal 94 --seeds 5 --data-root DIR   (DIR contains cifar10.npz)
          python -m recipes.cifar10_record --goal 94 --sweep 500 --data-root DIR   compares settings for that goal
          python -m recipes.cifar10_record --goal 94 --profile --data-root DIR     prints where the time of a step goes
Result:   not measured yet
Cost:     the goals are 94 % in 25 s of training steps, 96 % in 90 s, and the best accuracy within 15 minutes, on one
          NVIDIA H200; not measured yet

If a command is repeated, it skips finished runs and resumes interrupted ones. A sweep measures the speed of every
variant in `VARIANTS`, trains all of them for the seconds of the goal, and ranks them by their accuracy on a tenth of
the training images, which it holds out. With --parallel 3, they share the GPU after their speed has been measured.
"""

import dataclasses
import json
import math
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import tyro

from recipes.finished_run import finished
from vitreous.common.codec import parse_fields
from vitreous.model.options import GlobalAverage, Rotary2d, SwiGlu
from vitreous.tasks.config import typed_overrides, with_fields
from vitreous.training import Augment, Optim, TrainConfig

if TYPE_CHECKING:
    from vitreous.model.protocol import ModelConfig
    from vitreous.training.setup import Job

T = TypeVar("T")
R = TypeVar("R")

LAST = 10**6  # epochs between evaluations: only after the last step
MEASURED = 40  # steps to measure the speed of a variant, for every image size
# Dense bf16 operations per second, from the vendor's data sheet.
PEAKS = {"NVIDIA H200": 989e12, "NVIDIA H100 80GB HBM3": 989e12, "NVIDIA A100-SXM4-80GB": 312e12}


@dataclass(frozen=True)
class Goal:
    """Settings for an accuracy. A sweep trains for `seconds`; otherwise, a run has `epochs`."""

    seconds: float
    epochs: float
    shape: dict[str, int]
    fields: dict[str, Any]


SMALL = {"width": 256, "depth": 7, "num_heads": 4, "mlp_width": 512}  # ViT-Lite-7
WIDE = {"width": 384, "depth": 9, "num_heads": 6, "mlp_width": 1536}
GOALS = {
    "94": Goal(25, 80, SMALL, {"ema": 0.99}),
    "96": Goal(90, 80, WIDE, {"policy": "trivial", "ema": 0.998, "stochastic_depth": 0.1}),
    "best": Goal(
        800,
        400,
        WIDE | {"depth": 12},
        {"policy": "trivial", "ema": 0.9995, "stochastic_depth": 0.1, "batch_size": 1024},
    ),
}

# Changes to the settings of a goal that a sweep compares, the most promising first: a sweep may run out of time.
VARIANTS: dict[str, dict[str, Any]] = {
    "goal": {},
    "TrivialAugment": {"policy": "trivial"},
    "progressive 0.5": {"progressive": 0.5},
    "no mixup or CutMix": {"mixup": 0.0, "cutmix": 0.0, "smoothing": 0.2},
    "rotary": {"overrides": {"position": Rotary2d()}},
    "width 384, depth 6": {"overrides": {"width": 384, "depth": 6, "num_heads": 6, "mlp_width": 1152}},
    "lr 5e-3": {"lr": 5e-3},
    "lr 2e-2": {"lr": 2e-2},
    "width 256, depth 9, MLP 4": {"overrides": {"width": 256, "depth": 9, "num_heads": 4, "mlp_width": 1024}},
    "batch size 1024": {"batch_size": 1024},
    "random flips": {"flip": 0.5},
    "not whitened": {"whiten": False},
    "no EMA": {"ema": None},
    "weight decay 0.2": {"weight_decay": 0.2},
    "patch dropout 0.25": {"patch_dropout": 0.25},
    "only CutMix": {"mixup": 0.0},
    "erasing": {"erasing": 0.25},
    "progressive 0.8": {"progressive": 0.8},
    "rotary, qk norm": {"overrides": {"position": Rotary2d(), "qk_norm": True}},
    "batch size 256": {"batch_size": 256},
    "SwiGLU": {"overrides": {"mlp": SwiGlu()}},
    "width 192, depth 9": {"overrides": {"width": 192, "depth": 9, "num_heads": 3, "mlp_width": 576}},
    "width 512, depth 6": {"overrides": {"width": 512, "depth": 6, "num_heads": 8, "mlp_width": 1536}},
}


@dataclass(frozen=True)
class Options:
    """Options of the recipe."""

    goal: Literal["94", "96", "best"] = "94"
    seeds: int = 5
    """Number of runs, with seeds from 0."""
    data: str = "cifar10"
    """Data set: cifar10, cifar100, fashion-mnist, or a file or folder with small images."""
    data_root: Path | None = None
    """Folder with a local copy of the data."""
    out: Path = Path("runs/record")
    """Output folder."""
    set: tuple[str, ...] = ()
    """Changes to the settings, as field=JSON, e.g. lr=0.02 or 'overrides={"depth": 9}'."""
    parallel: int = 1
    """Number of runs that share the GPU. Times are only reported for one."""
    sweep: float | None = None
    """Compare variants for this number of seconds instead."""
    variants: tuple[str, ...] = ()
    """Names of the variants to compare; all by default."""
    seconds: float | None = None
    """Seconds of training for each variant; by default those of the goal."""
    profile: bool = False
    """Profile training steps instead."""
    device: str = "auto"


@dataclass(frozen=True)
class Result:
    """A finished run."""

    seed: int
    top1: float
    top1_mirrored: float  # with the mean of the logits of an image and its mirror image
    training_seconds: float | None  # None if runs shared the GPU
    evaluation_seconds: float | None
    compile_seconds: float | None
    images_per_second: float | None
    mfu: float | None  # fraction of the peak of the GPU; None if that is unknown


@dataclass(frozen=True)
class Trial:
    """A run of a sweep."""

    variant: str
    seed: int
    epochs: float
    milliseconds: float  # per step, alone on the device
    top1: float
    loss: float


# ---- Settings --------------------------------------------------------------------------------------------------------


def config(goal: str = "94", seed: int = 0, **changes: Any) -> TrainConfig:
    """Return the settings of a goal with changed fields. `overrides` are added to those of the goal."""
    settings = GOALS[goal]
    plain: dict[str, Any] = {"pool": GlobalAverage(), "class_token": False}
    start = TrainConfig(
        data="cifar10",
        model="ViT-Lite-7/4",
        overrides=plain | settings.shape | changes.pop("overrides", {}),
        epochs=settings.epochs,
        batch_size=512,
        seed=seed,
        whiten=True,
        smoothing=0.1,
        optim=Optim(optimizer="muon", lr=1e-2, weight_decay=0.05, schedule="linear", warmup=0.05),
        augment=Augment(crop="padded", flip="alternate", policy="none", mixup=0.2, cutmix=1.0),
        evaluate_every=LAST,
    )
    return with_fields(start, settings.fields | changes)


def configured(options: Options, seed: int = 0, **changes: Any) -> TrainConfig:
    """Return the settings that the options describe. `changes` take precedence."""
    fields = parse_fields(options.set)
    fields |= changes | {"overrides": fields.get("overrides", {}) | changes.get("overrides", {})}
    where: dict[str, Any] = {"data": options.data, "data_root": options.data_root, "device": options.device}
    settings = dataclasses.replace(config(options.goal, seed, **fields), **where)
    return dataclasses.replace(settings, overrides=typed_overrides(settings.overrides))


# ---- Runs ------------------------------------------------------------------------------------------------------------


def run(settings: TrainConfig) -> Result:
    """Train or resume a run, and evaluate it. A finished run with the same settings is not repeated."""
    import torch

    import vitreous
    from vitreous.training.run_folder import METRICS, folder_of, read_config
    from vitreous.weights.native import load_folder

    folder, metrics = folder_of(settings), finished(settings)
    data: dict[str, Any] = {"data": str(settings.data), "data_root": settings.data_root, "device": settings.device}
    mirrored = vitreous.evaluate(str(folder / "best"), **data, flip=True).to_dict()
    seconds = json.loads((folder / METRICS).read_text().splitlines()[-1])["seconds"]
    complete, phases = read_config(folder), metrics["seconds_by_phase"]
    speed = metrics["steps"] * (complete.batch_size or 0) / seconds
    peak = PEAKS.get(torch.cuda.get_device_name()) if torch.cuda.is_available() else None
    return Result(
        settings.seed,
        metrics["top1"],
        mirrored["top1"],
        seconds,
        phases["evaluation"],
        phases["compile"],
        speed,
        flops(complete, load_folder(folder / "best").config) * speed / peak if peak else None,
    )


def flops(settings: TrainConfig, model: "ModelConfig") -> float:
    """Return the mean number of operations to train on an image. A backward pass has twice those of a forward pass."""
    from vitreous.model.cost import cost
    from vitreous.tasks.progressive import Progressive

    epochs = settings.epochs or 1
    schedule = Progressive.of(model, settings.progressive * epochs)
    sizes = Counter(schedule.size(epoch) for epoch in range(math.ceil(epochs)))
    total = sum(count * cost(model.resized(size)).flops for size, count in sizes.items())
    return 3 * total / sizes.total() * (1 - (settings.patch_dropout or 0))


def runs(options: Options) -> list[Result]:
    """Train and evaluate with every seed."""
    name = f"{options.goal}-{Path(options.data).stem}" + ("-shared" if options.parallel > 1 else "")
    todo = [
        dataclasses.replace(configured(options, seed), out=options.out / f"{name}-{seed}")
        for seed in range(options.seeds)
    ]
    results = list(each_of(run, todo, options.parallel))
    if options.parallel > 1:
        untimed: dict[str, Any] = dict.fromkeys(
            ("training_seconds", "evaluation_seconds", "compile_seconds", "images_per_second", "mfu")
        )
        results = [dataclasses.replace(result, **untimed) for result in results]
    publish_runs(sorted(results, key=lambda result: result.seed), options, options.out / f"{name}.json")
    return results


def publish_runs(results: list[Result], options: Options, out: Path) -> None:
    from benchmarks.publish_table import publish

    def row(name: str, values: Sequence[float | None]) -> list[str]:
        formats = (".2%", ".2%", ".1f", ".1f", ".1f", ",.0f", ".1%")
        return [
            name,
            *("" if value is None else format(value, form) for value, form in zip(values, formats, strict=True)),
        ]

    numbers = [list(dataclasses.astuple(result))[1:] for result in results]
    rows = [row(f"seed {result.seed}", values) for result, values in zip(results, numbers, strict=True)]
    columns = [[value for value in column if value is not None] for column in zip(*numbers, strict=True)]
    rows.append(row("mean", [mean(column) if column else None for column in columns]))
    if len(results) > 1:
        rows.append(row("std", [stdev(column) if column else None for column in columns]))
    header = ["", "top-1", "with mirror images", "training s", "evaluation s", "compile s", "images/s", "MFU"]
    publish(f"Goal {options.goal} on {options.data}, {device_name(options.device)}", header, rows, results, out)


# ---- Sweep -----------------------------------------------------------------------------------------------------------


def sweep(options: Options) -> list[Trial]:
    """Train variants for the seconds of the goal, and rank them. The better half is repeated with the next seed."""
    assert options.sweep is not None
    seconds, names = options.seconds or GOALS[options.goal].seconds, options.variants or tuple(VARIANTS)
    if unknown := set(names) - VARIANTS.keys():
        raise ValueError(f"variants must be among {'; '.join(VARIANTS)}, got {'; '.join(unknown)}")
    deadline = time.monotonic() + options.sweep - (seconds if options.parallel == 1 else 0)
    speeds: dict[str, float] = {}
    for name in names:
        speeds[name] = seconds_per_epoch(configured(options, **VARIANTS[name]))
        print(f"{name}: {seconds / speeds[name]:.1f} epochs in {seconds:g} s", flush=True)
    trials, ranked = list[Trial](), list(names)
    for seed in range(options.seeds):
        todo = []
        for name in ranked[: math.ceil(len(names) / 2**seed)]:
            settings = configured(options, seed, **VARIANTS[name], epochs=seconds / speeds[name])
            todo.append((name, settings, speeds[name]))
        trials += [trial for trial in each_of(try_variant, todo, options.parallel, deadline) if trial is not None]
        ranked = [name for name, *_ in ranking(trials)]
    if not trials:
        raise ValueError(f"no variant was trained in {options.sweep:g} s; allow more time with --sweep")
    publish_sweep(trials, f"Goal {options.goal} on {options.data}, {seconds:g} s of training, held-out images", options)
    return trials


def ranking(trials: list[Trial]) -> list[tuple[str, float, float, list[Trial]]]:
    """Return the variants with their mean accuracy and loss and their trials. The most accurate comes first."""
    groups = {
        name: [trial for trial in trials if trial.variant == name] for name in {trial.variant for trial in trials}
    }
    means = [(name, mean(t.top1 for t in group), mean(t.loss for t in group), group) for name, group in groups.items()]
    return sorted(means, key=lambda entry: (-entry[1], entry[2]))


def publish_sweep(trials: list[Trial], title: str, options: Options) -> None:
    from benchmarks.publish_table import publish

    rows = [
        [name, f"{top1:.2%}", f"{loss:.4f}", str(len(group)), f"{group[0].epochs:.1f}", f"{group[0].milliseconds:.2f}"]
        for name, top1, loss, group in ranking(trials)
    ]
    columns = ["variant", "top-1", "loss", "seeds", "epochs", "ms per step"]
    publish(title, columns, rows, trials, options.out / f"sweep-{options.goal}-{Path(options.data).stem}.json")


def try_variant(variant: tuple[str, TrainConfig, float]) -> Trial | None:
    """Train a variant on nine tenths of the training images, and evaluate it on the others. Return None if it fails."""
    from vitreous.training.progress import ProgressDisplay, read_rows
    from vitreous.training.run import train_steps
    from vitreous.training.run_folder import METRICS

    name, settings, seconds = variant
    with tempfile.TemporaryDirectory() as folder, job_of(settings) as job:
        display = ProgressDisplay(job.total_steps, job.steps_per_epoch, settings.epochs or 1, quiet=True)
        try:
            train_steps(job, Path(folder), display, resume=False)
        except ValueError as error:  # e.g. the learning rate is too high
            print(f"{name}: {error}", file=sys.stderr)
            return None
        row = read_rows(Path(folder) / METRICS)[-1]
        print(f"{name}, seed {settings.seed}: {row['val_top1']:.2%}", flush=True)
        milliseconds = 1000 * seconds / job.steps_per_epoch
        return Trial(name, settings.seed, settings.epochs or 1, milliseconds, row["val_top1"], row["val_loss"])


def seconds_per_epoch(settings: TrainConfig, epochs: int = 10) -> float:
    """Measure the mean duration of an epoch. With progressive resizing, the steps of every image size are measured."""
    with job_of(dataclasses.replace(settings, epochs=epochs)) as job:
        spans = pairwise(epoch * job.steps_per_epoch for epoch in [*job.task.first_epochs, epochs])
        return sum((stop - start) * seconds_per_step(job, start, stop) for start, stop in spans) / epochs


def seconds_per_step(job: "Job", start: int, stop: int) -> float:
    """Measure the mean duration of steps from `start` to `stop`: the first ones, after as many steps to warm up."""
    steps = max(min(MEASURED, (stop - start) // 2), 1)
    batches = job.loader.batches(start, start + 2 * steps)
    for batch in islice(batches, steps):
        job.stepper(batch)
    wait(job)
    began = time.perf_counter()
    for batch in batches:
        job.stepper(batch)
    wait(job)
    return (time.perf_counter() - began) / steps


def wait(job: "Job") -> None:
    """Wait until the device has finished."""
    import torch

    if job.world.device.type == "cuda":
        torch.cuda.synchronize()


@contextmanager
def job_of(settings: TrainConfig) -> Iterator["Job"]:
    """Prepare a run that holds out every tenth training image."""
    from vitreous.common.distributed import world
    from vitreous.data.sources.base import Subset
    from vitreous.tasks.classify import Classify
    from vitreous.training.compiling import release_graphs
    from vitreous.training.defaults import choose
    from vitreous.training.setup import set_up

    data = Classify.open_data(settings, None)
    held_out = np.arange(len(data.train)) % 10 == 0
    train, val = (Subset(data.train, np.flatnonzero(which)) for which in (~held_out, held_out))
    data = dataclasses.replace(data, train=train, val=val, test=None)
    with world(settings.device) as here:
        job = set_up(choose(settings, data, here.device.type).config, data, here)
        try:
            yield job
        finally:
            release_graphs(job.stepper)


# ---- Profile ---------------------------------------------------------------------------------------------------------


def profile(options: Options, steps: int = 20) -> None:
    """Print the duration of a step, that of its kernels, and the kernels that take most of the time."""
    import torch
    from torch.profiler import ProfilerActivity

    with job_of(configured(options)) as job:
        cuda = job.world.device.type == "cuda"
        start = job.task.first_epochs[-1] * job.steps_per_epoch
        seconds = seconds_per_step(job, start, job.total_steps)
        kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
        with torch.profiler.profile(activities=kinds) as recorded:
            for batch in job.loader.batches(start, min(start + steps, job.total_steps)):
                job.stepper(batch)
            wait(job)
    events = recorded.key_averages()
    order = "self_device_time_total" if cuda else "self_cpu_time_total"
    print(events.table(sort_by=order, row_limit=30, max_name_column_width=70))
    device = sum(event.self_device_time_total for event in events) / 1000 / steps
    launches = sum(event.count for event in events if event.key.startswith(("cudaLaunch", "cuLaunch"))) / steps
    print(f"step: {1000 * seconds:.2f} ms; its kernels: {device:.2f} ms, started with {launches:.0f} calls")


# ---- Processes -------------------------------------------------------------------------------------------------------


def each_of(function: Callable[[T], R], items: Sequence[T], processes: int, deadline: float = math.inf) -> Iterator[R]:
    """Yield the results of a function, in any order. At the deadline, processes are terminated."""
    if processes == 1:
        for item in items:
            if time.monotonic() < deadline:
                yield function(item)
        return
    left = None if deadline == math.inf else max(deadline - time.monotonic(), 0)
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(function, item) for item in items]
        try:
            for future in as_completed(futures, timeout=left):
                yield future.result()
        except TimeoutError:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in multiprocessing.active_children():
                child.terminate()


def device_name(device: str) -> str:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() and device != "cpu" else "CPU"


def main(options: Options) -> list[Any]:
    if options.profile:
        profile(options)
        return []
    return runs(options) if options.sweep is None else sweep(options)


if __name__ == "__main__":
    from vitreous.cli.main import run_recipes

    run_recipes(lambda: main(tyro.cli(Options, description=__doc__)))
