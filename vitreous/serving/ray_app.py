"""Runs the server on Ray Serve (`vitreous serve --engine ray`)."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from vitreous.cluster.ray_cluster import FittedWorkers
from vitreous.cluster.ray_serve import Load, Replicas, run_app
from vitreous.inference.engine import Precision
from vitreous.serving.app import create_app, warn_without_key
from vitreous.serving.models import check_capacity, load_models
from vitreous.serving.settings import Settings

OTHER_REQUESTS = 64  # requests per replica that do not wait for a batch, e.g. for files of the page


def run_on_ray(
    checkpoints: Sequence[str | Path],
    settings: Settings,
    image_size: Sequence[int],
    device: str,
    precision: Precision,
    replicas: Replicas,
) -> None:
    """Serve on a Ray cluster. See `vitreous.serve`."""
    names = [os.path.abspath(name) if os.path.exists(name) else str(name) for name in checkpoints]
    on_cpu: Precision = "bf16" if precision == "fp8" else precision  # this machine need not have a GPU
    load_models(names, image_size, "cpu", on_cpu, settings.max_batch)  # raises here and not in a replica
    warn_without_key(settings.host, settings)

    def build(resources: FittedWorkers) -> Callable[[], Any]:
        def build_app() -> Any:
            torch.set_num_threads(resources.cpus)
            served = load_models(names, image_size, resources.device(device), precision, settings.max_batch)
            for model in served:
                check_capacity(model, settings.timeout)
            return create_app(served, settings, resources.cpus)

        return build_app

    load = Load(settings.max_batch, settings.queue + 2 * settings.max_batch + OTHER_REQUESTS, settings.timeout)
    run_app(build, settings.host, settings.port, load, replicas, on_cpu=device == "cpu")
