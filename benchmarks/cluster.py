"""Throughput of `--engine ray` with one and with two workers of one CPU core each, compared with one process.

    python -m benchmarks.cluster CHECKPOINT IMAGES [--count 1000] [--rounds 3]

Each measurement is a run of `vitreous.predict(...).write(...)` on a Ray cluster that is already running, so the time
includes the start of the workers and the transfer of the model; the time between the first and the last finished shard
is given as well. One and two workers alternate. Nothing else should run on the machine.
"""

import argparse
import importlib
import os
import statistics
import tempfile
import time
from pathlib import Path

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import ray
import torch

import vitreous
from vitreous.inference.predict_images import expand


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint")
    parser.add_argument("images", nargs="+")
    parser.add_argument("--count", type=int, default=1000, help="number of images")
    parser.add_argument("--shard-size", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    parquet = importlib.import_module("pyarrow.parquet")
    found = expand(options.images)
    images = found[:: max(len(found) // options.count, 1)][: options.count]
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    speeds: dict[int, list[float]] = {0: [], 1: [], 2: []}
    steady: dict[int, list[float]] = {0: [], 1: [], 2: []}
    tables = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            for workers in (0, 1, 2):
                out = Path(folder, f"{number}-{workers}")
                whole, inner = measure(options.checkpoint, images, out, options.shard_size, workers)
                speeds[workers].append(whole)
                steady[workers].append(inner)
                tables.append(
                    [row for part in sorted(out.glob("part-*")) for row in parquet.read_table(part).to_pylist()]
                )
                print(
                    f"round {number + 1}, {name(workers)}: {whole:.1f} images/s; {inner:.1f} once started", flush=True
                )
    ray.shutdown()
    for workers in speeds:
        print(f"{name(workers)}: median {statistics.median(speeds[workers]):.1f} images/s", end="; ")
        print(f"{statistics.median(steady[workers]):.1f} once started")
    for title, values in (("with start-up", speeds), ("once started", steady)):
        ratios = [two / one for one, two in zip(values[1], values[2], strict=True)]
        print(f"two workers / one, {title}: {', '.join(f'{ratio:.2f}' for ratio in ratios)}", end="; ")
        print(f"median {statistics.median(ratios):.2f}")
    print(f"rows equal in all {len(tables)} runs: {all(table == tables[0] for table in tables)}")


def measure(checkpoint: str, images: list[Path], out: Path, size: int, workers: int) -> tuple[float, float]:
    """Return the images per second of a whole run, and between its first and its last file."""
    engine = {"engine": "ray", "workers": workers} if workers else {}
    started = time.perf_counter()
    vitreous.predict(checkpoint, [*map(str, images)], device="cpu", **engine).write(out, shard_size=size)  # type: ignore[arg-type]
    seconds = time.perf_counter() - started
    ends = sorted(part.stat().st_mtime_ns for part in out.glob("part-*"))
    first = max(workers, 1)  # files that the start of the workers delays
    return len(images) / seconds, (len(ends) - first) * size / ((ends[-1] - ends[first - 1]) / 1e9)


def name(workers: int) -> str:
    return f"{workers} Ray worker{'s' if workers > 1 else ''}" if workers else "one process"


if __name__ == "__main__":
    main()
