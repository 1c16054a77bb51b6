"""Peak memory and run time of the probes on a million features.

The features are memory-mapped from a file, as in `eval --probe`. Each probe runs in a new process. `own` is the peak
memory that the probe allocated; `with file` includes the resident pages of the mapped file, which the system can drop
at any time.

    python -m benchmarks.probe_memory --probes knn ridge fewshot
"""

import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import tyro

from benchmarks.publish_table import publish
from vitreous.common.device import choose_device
from vitreous.common.text import plural
from vitreous.evaluation.features import FeatureSet, read_features, slices, write_features
from vitreous.evaluation.linear import Ridge, fewshot, linear_probe
from vitreous.evaluation.probe import knn

Probe = Literal["knn", "ridge", "fewshot", "linear"]


@dataclass(frozen=True)
class Options:
    """Benchmark options."""

    probes: tuple[Probe, ...] = ("knn", "ridge", "fewshot", "linear")  # linear: ridge and SGD with their sweeps
    count: int = 1_000_000
    width: int = 384
    classes: int = 100
    queries: int = 500
    device: str = "auto"
    out: Path = Path("runs/bench/probe_memory.json")


@dataclass(frozen=True)
class Result:
    probe: str
    top1: float
    seconds: float
    own: float  # GB
    with_file: float  # GB


def planted(count: int, width: int, classes: int, seed: int) -> FeatureSet:
    """Generate overlapping Gaussian clusters, one per class."""
    centres = torch.randn(classes, width, generator=torch.Generator().manual_seed(99))
    generator, features = torch.Generator().manual_seed(seed), torch.empty(count, width, dtype=torch.float16)
    labels = torch.randint(classes, (count,), generator=generator)
    for part in slices(count, 1 << 16):
        there = labels[part]
        features[part] = (centres[there] + 4 * torch.randn(len(there), width, generator=generator)).half()
    return FeatureSet(features, labels)


def probe(name: Probe, bank: FeatureSet, queries: FeatureSet, classes: int, device: torch.device) -> float:
    """Run a probe and return its top-1 accuracy."""
    match name:
        case "knn":
            return knn(bank, queries, classes, device=device)[0].top1
        case "ridge":
            return Ridge(bank, classes, device=device).at(len(bank)).accuracy(queries).top1
        case "fewshot":
            return fewshot(bank, queries, [str(i) for i in range(classes)], (10,), device=device)[0].top1
        case "linear":
            return linear_probe(bank, queries, classes, device=device)[0].top1


def memory(kind: str) -> int:
    """Return the memory of this process in bytes: RssAnon without mapped files, VmRSS including them."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith(f"{kind}:"))


@contextmanager
def watched() -> Iterator[Callable[[], tuple[int, int]]]:
    """Sample memory fifty times per second. Yields a function that returns the peak growth without and with files."""
    own, resident, most, done = memory("RssAnon"), memory("VmRSS"), [0, 0], threading.Event()

    def sample() -> None:
        while not done.wait(0.02):
            most[:] = max(most[0], memory("RssAnon") - own), max(most[1], memory("VmRSS") - resident)

    watcher = threading.Thread(target=sample)
    watcher.start()
    try:
        yield lambda: (most[0], most[1])
    finally:
        done.set()
        watcher.join()


def measure(name: Probe, file: Path, options: Options) -> Result:
    device = choose_device(options.device, torch.device("cpu"))
    queries = planted(options.queries, options.width, options.classes, seed=1)
    with watched() as most:
        start = time.perf_counter()
        bank = read_features(file)
        assert bank is not None
        top1 = probe(name, bank, queries, options.classes, device)
        seconds = time.perf_counter() - start
        own, with_file = most()
    return Result(name, top1, seconds, own / 1e9, with_file / 1e9)


def main(options: Options) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "features.safetensors"
        write_features(planted(options.count, options.width, options.classes, seed=0), file)
        size = os.path.getsize(file) / 1e9
        results = []
        for name in options.probes:
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as alone:
                results.append(alone.submit(measure, name, file, options).result())
    setting = (
        f"{options.count:,} float16 features of width {options.width} ({size:.2f} GB), {options.classes} classes, "
        f"{options.queries} queries, {options.device}, {plural(torch.get_num_threads(), 'thread')}"
    )
    rows = [
        [row.probe, f"{row.top1:.1%}", f"{row.seconds:.1f}", f"{row.own:.2f}", f"{row.with_file:.2f}"]
        for row in results
    ]
    publish(setting, ["probe", "top-1", "s", "own (GB)", "with file (GB)"], rows, results, options.out)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
