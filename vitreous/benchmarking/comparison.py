"""Measures Vitreous and other libraries: training steps, predictions of a batch, and predictions of a single image."""

import gc
import importlib.metadata
import operator
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from typing import Any, get_args

import torch

from vitreous.benchmarking.systems import (
    OURS,
    OURS_TANH,
    PEERS,
    Case,
    Models,
    Workload,
    comparable,
    contender,
    has_tanh,
    matrix_product,
    settings_of,
)
from vitreous.benchmarking.timing import Clock, Contender, alternate
from vitreous.common.checks import check_choice, check_positive, check_whole
from vitreous.common.device import choose_device, choose_dtype
from vitreous.common.text import plural
from vitreous.model.base_config import ModelConfig
from vitreous.model.cost import cost
from vitreous.model.presets import configure

WORKLOADS: tuple[Workload, ...] = get_args(Workload)
GPU_MODELS, CPU_MODELS = ("ViT-S/16", "ViT-B/16", "ViT-L/16", "DINOv2-S/14"), ("ViT-S/16", "ViT-B/16")
# Images per batch by default. A long sequence, such as that of DINOv2 at 518 pixels, has fewer images.
GPU_BATCH, CPU_BATCH, LONG_TOKENS, LONG_BATCH = 256, 8, 1024, 64
PASSES = {"train": 3, "inference": 1, "latency": 1}  # the backward pass has twice the FLOPs of the forward pass


@dataclass(frozen=True)
class Result:
    """A system in one setting, or the reason why there is no measurement."""

    model: str
    image_size: tuple[int, ...]
    workload: str
    precision: str
    batch_size: int
    system: str
    setting: str
    seconds: float | None = None  # per batch, median over rounds
    fastest: float | None = None
    slowest: float | None = None
    images_per_second: float | None = None
    speed: float | None = None  # relative to the fastest setting of another library, from times relative to each round
    mfu: float | None = None  # fraction of the measured peak speed
    memory_bytes: int | None = None  # peak, with weights and optimizer state; only on a GPU
    difference: float | None = None  # largest difference from float64, as a fraction of the largest output
    set_up_seconds: float = 0.0
    times: tuple[float, ...] = ()  # seconds per batch in each round
    error: str = ""


def compare_systems(
    models: Sequence[str] = (),
    against: Sequence[str] = tuple(PEERS),
    workloads: Sequence[str] = WORKLOADS,
    *,
    device: str = "auto",
    precision: str = "auto",
    image_size: Sequence[int] = (),
    batch_size: int | None = None,
    rounds: int = 5,
    seconds: float = 480.0,
    eager: bool = False,
    report: Callable[[str], None] = print,
    finished: Callable[[dict[str, Any]], None] = lambda record: None,
    clock: Clock = time.perf_counter,
) -> dict[str, Any]:
    """Measure all systems, and return a record that can be written as JSON. See `vitreous bench --help`.

    `finished` is called with the record after each model and workload.
    """
    for name, values, allowed in (("against", against, list(PEERS)), ("workloads", workloads, WORKLOADS)):
        for value in values:
            check_choice(name, value, allowed)
    check_choice("precision", precision, ("auto", "fp32", "bf16"))
    check_whole("rounds", rounds, 1, 1000)
    check_positive("seconds", seconds)
    if batch_size is not None:
        check_whole("batch_size", batch_size, 1, 2**20)
    where = choose_device(device)
    dtype = choose_dtype(precision, where)
    models = models or (GPU_MODELS if where.type == "cuda" else CPU_MODELS)
    configs = {name: comparable(configure(name, image_size=image_size or None)) for name in models}
    started, notes, results, peaks = clock(), [], [], dict[str, float]()
    for name in (name for name in against if not PEERS[name].installed):
        notes.append(f"{name} is not installed: pip install {name}")
        report(notes[-1])
    systems = [OURS, *(name for name in against if PEERS[name].installed)]
    record: dict[str, Any] = {"machine": _machine(where, systems), "limit": seconds, "notes": notes}
    left = len(configs) * len(workloads)
    for name, config in configs.items():
        built, known = Models(config), [OURS]
        if where.type == "cuda" and has_tanh(configure(name)):
            known.append(OURS_TANH)
        for system in systems[1:]:
            if reason := built.unsupported(system):
                notes.append(f"{name}: {system} skipped: {reason}")
                report(notes[-1])
            else:
                known.append(system)
        size = batch_size or _default_batch(config, where)
        torch.manual_seed(0)
        images = torch.randn(size, config.channels, *config.image_size, device=where)
        labels = torch.randint(config.num_classes or config.feature_width, (size,), device=where)
        flops = cost(config).flops
        for workload in WORKLOADS:
            if workload not in workloads:
                continue
            count = 1 if workload == "latency" else size
            case = Case(workload, where, dtype, images[:count], labels[:count])
            report(f"{name}, {workload}, {_short(dtype)}, {plural(count, 'image')} of {_pixels(config)}")
            budget = (seconds - (clock() - started)) / left
            contenders, peak, product = _contenders(known, built, case, eager)
            alternate([peak, *contenders], rounds, budget, report, clock)
            speed = product / statistics.median(peak.times) if peak.times else None
            about = {"model": name, "image_size": config.image_size, "workload": workload, "precision": _short(dtype)}
            results += _results(contenders, about, count, PASSES[workload] * flops * count, speed)
            if speed is not None:
                peaks[_short(dtype)] = max(speed, peaks.get(_short(dtype), 0.0))
            for one in (*contenders, peak):
                one.run = None
            _free(where)
            left -= 1
            record |= {"seconds": clock() - started, "peak_flops": peaks, "results": [asdict(one) for one in results]}
            finished(record)
    return record


def _contenders(
    systems: Sequence[str], models: Models, case: Case, eager: bool
) -> tuple[list[Contender], Contender, float]:
    """Return the systems in all of their settings, and the matrix product that measures the peak speed."""
    columns = [[(system, one) for one in settings_of(system, case.workload, case.device)] for system in systems]
    pairs = [pair for row in zip_longest(*columns) for pair in row if pair is not None]
    memory: dict[str, int] = {}
    found = [
        contender(system, setting, models, case, memory)
        for system, setting in pairs
        if not (eager and setting.compiles)
    ]
    return found, *matrix_product(case.device, case.dtype)


def _results(
    contenders: Sequence[Contender], about: dict[str, Any], images: int, flops: float, peak: float | None
) -> list[Result]:
    """Return the results of one model and workload. `flops` are those of a batch of `images`."""
    measured = [one for one in contenders if one.times]
    totals = [sum(times) for times in zip(*(one.times for one in measured), strict=True)]  # of each round
    relative = {one.name: statistics.median(map(operator.truediv, one.times, totals)) for one in measured}
    best = min((relative[one.name] for one in measured if one.system in PEERS), default=None)
    found = []
    for one in contenders:
        result = Result(
            **about,
            batch_size=images,
            system=one.system,
            setting=one.setting,
            set_up_seconds=one.set_up_seconds,
            error=one.error,
        )
        if one.times:
            seconds = statistics.median(one.times)
            result = replace(
                result,
                seconds=seconds,
                fastest=min(one.times),
                slowest=max(one.times),
                images_per_second=images / seconds,
                speed=None if best is None else best / relative[one.name],
                mfu=None if peak is None else flops / seconds / peak,
                memory_bytes=one.memory_bytes,
                difference=one.difference,
                times=tuple(one.times),
            )
        found.append(result)
    return found


def _default_batch(config: ModelConfig, device: torch.device) -> int:
    if device.type != "cuda":
        return CPU_BATCH
    return LONG_BATCH if config.num_tokens > LONG_TOKENS else GPU_BATCH


def _machine(device: torch.device, systems: Sequence[str]) -> dict[str, Any]:
    gpu = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if gpu else f"CPU, {plural(torch.get_num_threads(), 'thread')}"
    packages = ("torch", *(system for system in systems if system in PEERS))
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None  # processes that run or wait, not on Windows
    versions = {package: importlib.metadata.version(package) for package in packages}
    return {"device": name, "cores": os.cpu_count(), "load": load, "versions": versions}


def _short(dtype: torch.dtype) -> str:
    return "bf16" if dtype == torch.bfloat16 else "fp32"


def _pixels(config: ModelConfig) -> str:
    return f"{config.image_size[0]} x {config.image_size[1]} pixels"


def _free(device: torch.device) -> None:
    """Drop all compiled code and CUDA graphs, because torch limits their number."""
    torch.compiler.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
