"""Computes the results of a job, in memory or in a folder, in this process or with another runner of shards."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from vitreous.common.checks import BadValue
from vitreous.common.text import SafeConsole, plural
from vitreous.inference.engine import Images, Precision, Throughput
from vitreous.inference.predict_images import Job, Results, Worker, Written
from vitreous.inference.shard_folder import Counts, ShardFolder, write_shard
from vitreous.inference.shards import Shard, find_shards, is_container
from vitreous.model.protocol import Model

LOG_SECONDS = 30.0  # interval of progress lines if stderr is not a terminal

# Computes some shards and yields the index of each, with its `Counts` if there are files to write; otherwise, with the
# list of its results, in order.
Runner = Callable[[Job, Model, Mapping[int, Shard], Mapping[int, Path] | None], Iterator[tuple[int, Any]]]


def compute(
    job: Job, model: Model, images: Images, files: Sequence[Path] | None, run: Runner | None = None
) -> Results[Any]:
    """Return the results of a job, computed on demand. `files` are the image files, unless the images are in memory.

    `run` computes the results, by default in this process.
    """
    if run is not None and files is None:
        raise BadValue("images are in memory, but must be files, folders or globs unless the engine is 'local'")
    precision: Precision = "bf16" if job.precision == "fp8" else job.precision  # this machine need not have a GPU
    worker = Worker(job if run is None else replace(job, device="cpu", precision=precision), model)
    if run is not None and worker.columns is None:
        raise BadValue("masks can only be computed if the engine is 'local'")
    if files is None:
        return worker.results(images)
    paths = () if any(map(is_container, files)) else files
    if run is not None:
        results = worker.as_results(_stream(worker, job, model, files, run), paths, "Ray")
    elif paths:
        results = worker.results(paths, paths)
    else:
        results = worker.results(image for shard in find_shards(files) for image in shard.images())
    if worker.columns is not None:

        def write_shards(folder: Path, size: int | None) -> Written:
            return _write(worker, job, model, find_shards(files, size), folder, run)

        results.write_shards = write_shards
    return results


def _stream(worker: Worker, job: Job, model: Model, files: Sequence[Path], run: Runner) -> Iterator[Any]:
    """Yield the results of all shards, and measure the throughput."""
    started, count = time.perf_counter(), 0
    for _, results in run(job, model, dict(enumerate(find_shards(files))), None):
        count += len(results)
        yield from results
        worker.engine.throughput = Throughput(count, time.perf_counter() - started)


def _write(worker: Worker, job: Job, model: Model, shards: list[Shard], path: Path, run: Runner | None) -> Written:
    folder = ShardFolder(path, shards, job, model)
    counts = folder.finished()
    skipped, started, computed = len(counts), time.perf_counter(), 0
    todo = {index: shard for index, shard in enumerate(shards) if index not in counts}
    files = {index: folder.path(index) for index in todo}
    if run is not None:
        finished = run(job, model, todo, files) if todo else iter(())
    else:
        finished = ((index, write_shard(worker, shard, files[index])) for index, shard in todo.items())
    with show_progress(len(shards), skipped) as advance:
        for index, one in finished:
            counts[index] = one
            computed += one.images
            advance(computed)
    total = Counts(*map(sum, zip(*counts.values(), strict=True))) if counts else Counts(0, 0)
    speed = Throughput(computed, time.perf_counter() - started).images_per_second
    return Written(path, *total, len(shards), skipped, speed)


@contextmanager
def show_progress(shards: int, finished: int) -> Iterator[Callable[[int], None]]:
    """Yield a function that is called with the number of images after each shard.

    On a terminal, show a progress bar. Otherwise, print a line every 30 seconds.
    """
    console, started = SafeConsole(stderr=True), time.monotonic()
    if finished:
        print(f"{finished:,} of {plural(shards, 'shard')} already finished", file=sys.stderr)
    text = TextColumn("{task.fields[text]}")
    columns = (TextColumn("shards"), BarColumn(), MofNCompleteColumn(), text, TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=shards, completed=finished, text="")
        printed = started

        def advance(images: int) -> None:
            nonlocal finished, printed
            finished, now = finished + 1, time.monotonic()
            text = f"{plural(images, 'image')}, {images / max(now - started, 1e-9):.1f} images/s"
            bar.update(task, completed=finished, text=text)
            if not console.is_terminal and now - printed >= LOG_SECONDS:
                printed = now
                print(f"{finished:,} of {plural(shards, 'shard')}, {text}", file=sys.stderr, flush=True)

        yield advance
