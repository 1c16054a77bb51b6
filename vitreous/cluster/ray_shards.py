"""Computes shards on a Ray cluster.

Each worker is a process (a Ray actor) with a copy of the model, which gets one shard at a time. If a worker or its
machine fails, its shard is computed again by another worker, and a new worker is started as soon as there is room.
Ray Data is not used: by default, it retries a shard that kills its worker without limit, and its options for a limit
are deprecated.
"""

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from vitreous.cluster.ray_cluster import FittedWorkers, WorkerSize, connected, import_ray, machines
from vitreous.common.device import placed
from vitreous.common.text import single_spaced
from vitreous.inference.predict_images import Job, Worker
from vitreous.inference.shard_folder import write_shard
from vitreous.inference.shards import Shard
from vitreous.model.protocol import Model

RETRIES = 3  # per shard, after the death of its worker
AHEAD = 4  # results that may wait for an earlier shard, per worker
CHECK_SECONDS = 30.0  # interval of checks whether the cluster still has machines for workers


class ShardProcess:
    """Runs in a process of the cluster."""

    def __init__(self, job: Job, model: Model, workers: FittedWorkers):
        torch.set_num_threads(workers.cpus)
        self.worker = Worker(job, model, 0 if workers.cpus == 1 and not workers.gpus else workers.cpus)

    def ready(self) -> None:
        """Return when the model is loaded."""

    def run(self, shard: Shard, path: Path | None) -> Any:
        """Write the results of a shard to a file and return their `Counts`. Without a file, return the results."""
        return list(self.worker.results(shard.images())) if path is None else write_shard(self.worker, shard, path)


def run_shards(
    job: Job, model: Model, shards: Mapping[int, Shard], files: Mapping[int, Path] | None, size: WorkerSize
) -> Iterator[tuple[int, Any]]:
    """Compute shards and yield the index of each, with its `Counts` if it was written to a file.

    Without `files`, yield the list of results of each shard instead, in the order of the shards.
    """
    ray = import_ray()
    with connected(ray):
        workers = size.fitted(machines(ray), on_cpu=str(job.device) == "cpu")
        model = placed(model, torch.device("cpu"), next(model.parameters()).dtype)
        pool = _Pool(ray, replace(job, device=workers.device(job.device)), model, workers)
        try:
            if files is not None:
                yield from pool.run({index: (shard, files[index]) for index, shard in shards.items()})
            else:
                yield from _in_order(pool.run({index: (shard, None) for index, shard in shards.items()}, AHEAD))
        finally:
            pool.close()


def _in_order(results: Iterator[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
    """Yield results by index, from 0."""
    waiting: dict[int, Any] = {}
    following = 0
    for index, result in results:
        waiting[index] = result
        while following in waiting:
            yield following, waiting.pop(following)
            following += 1


class _Pool:
    """Workers and the shards that they compute."""

    def __init__(self, ray: Any, job: Job, model: Model, workers: FittedWorkers):
        self.ray, self.workers = ray, workers
        self._process = ray.remote(num_cpus=workers.cpus, num_gpus=workers.gpus)(ShardProcess)
        self._arguments = (job, ray.put(model), workers)
        self._running: dict[Any, tuple[int | None, Any]] = {}  # by pending call: shard, or None while starting; worker
        self._failures: Counter[int | None] = Counter()  # by shard

    def run(
        self, tasks: Mapping[int, tuple[Shard, Path | None]], ahead: int | None = None
    ) -> Iterator[tuple[int, Any]]:
        """Yield the index and the result of `ShardProcess.run` for each task, in the order in which they finish.

        `ahead`: Number of shards per worker that may start before an earlier shard is finished; None for no limit.
        """
        queue, idle, finished, first = deque(sorted(tasks)), list[Any](), set[int](), 0
        for _ in range(min(self.workers.count, len(tasks))):
            self._start()
        while len(finished) < len(tasks):
            while first in finished:
                first += 1
            while idle and queue and (ahead is None or queue[0] - first < ahead * self.workers.count):
                index, worker = queue.popleft(), idle.pop()
                self._running[worker.run.remote(*tasks[index])] = (index, worker)
            if (done := self._wait()) is None:
                continue
            shard, worker = self._running.pop(done)
            try:
                result = self.ray.get(done)
            except self.ray.exceptions.RayTaskError as error:  # an exception in our code
                raise error.cause from None
            except self.ray.exceptions.RayError as error:  # the worker or its machine failed
                self._count_failure(shard, error)
                self.ray.kill(worker)
                queue.extendleft([] if shard is None else [shard])
                self._start()
                continue
            idle.append(worker)
            if shard is not None:
                finished.add(shard)
                yield shard, result

    def _count_failure(self, shard: int | None, error: Exception) -> None:
        self._failures[shard] += 1
        if self._failures[shard] > RETRIES * (1 if shard is not None else self.workers.count):
            what = "workers failed to start" if shard is None else f"the worker of shard {shard} failed"
            raise ValueError(f"{what} {self._failures[shard]} times: {single_spaced(str(error), 500)}") from error

    def _start(self) -> None:
        worker = self._process.remote(*self._arguments)
        self._running[worker.ready.remote()] = (None, worker)

    def _wait(self) -> Any:
        """Return a finished call, or None after some time. Raise ValueError if no worker can run any more."""
        done, _ = self.ray.wait(list(self._running), num_returns=1, timeout=CHECK_SECONDS)
        if not done and all(index is None for index, _ in self._running.values()):
            WorkerSize(None, self.workers.cpus, self.workers.gpus).fitted(machines(self.ray), on_cpu=False)
        return done[0] if done else None

    def close(self) -> None:
        for _, worker in self._running.values():
            self.ray.kill(worker)
        self._running.clear()
