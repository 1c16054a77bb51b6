"""Computes shards on a Ray cluster with Ray Data.

Each worker is a process with a copy of the model. Ray Data starts the workers, gives each one shard at a time, limits
the results that wait to be read, and repeats shards whose worker or machine has failed.
"""

import logging
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from vitreous.cluster.ray_cluster import FittedWorkers, WorkerSize, connected, import_ray, machines
from vitreous.inference.predict_images import Job, Worker
from vitreous.inference.shard_folder import write_shard
from vitreous.inference.shards import Shard
from vitreous.model.protocol import Model

RETRIES = 3  # per shard, after the death of its worker


class ShardProcess:
    """Runs in a process of the cluster. Called once per shard."""

    def __init__(self, job: Job, model: Any, workers: FittedWorkers):
        import ray

        torch.set_num_threads(workers.cpus)
        decode_threads = 0 if workers.cpus == 1 and not workers.gpus else workers.cpus
        self.worker = Worker(job, ray.get(model), decode_threads)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        shard, path = pickle.loads(row["shard"])
        result = list(self.worker.results(shard.images())) if path is None else write_shard(self.worker, shard, path)
        return {"index": row["index"], "result": pickle.dumps(result)}


def run_shards(
    job: Job, model: Model, shards: Mapping[int, Shard], files: Mapping[int, Path] | None, size: WorkerSize
) -> Iterator[tuple[int, Any]]:
    """Compute shards and yield the index of each, with its `Counts` if it was written to a file.

    Without `files`, yield the list of results of each shard instead, in the order of the shards.
    """
    ray = import_ray("data")
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    with connected(ray):
        workers = size.fitted(machines(ray), on_cpu=str(job.device) == "cpu")
        if str(job.device).startswith("cuda"):
            job = replace(job, device="cuda")  # Ray selects the GPU
        rows = [
            {"index": index, "shard": pickle.dumps((shard, files and files[index]))} for index, shard in shards.items()
        ]
        data = ray.data.from_items(rows, override_num_blocks=len(rows))
        data.context.enable_progress_bars = False
        data.context.execution_options.preserve_order = files is None
        count = min(workers.count, len(rows))
        data = data.map(
            ShardProcess,
            fn_constructor_args=(job, ray.put(model), workers),
            compute=ray.data.ActorPoolStrategy(min_size=1, max_size=count, initial_size=count),
            num_cpus=workers.cpus,
            num_gpus=workers.gpus,
            max_restarts=-1,
            max_task_retries=RETRIES,
        )
        for row in data.iter_rows():
            yield row["index"], pickle.loads(row["result"])
