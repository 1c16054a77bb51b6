"""Connects to a Ray cluster, and divides its machines among workers."""

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vitreous.common.checks import check_real, check_whole, fail
from vitreous.common.threads import cores


def import_ray() -> Any:
    """Import Ray."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would report to its developers
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # new behaviour; avoids a warning
    # On a machine with busy cores, Ray Serve's proxy starts in more than 5 s; Ray would kill it and give up.
    os.environ.setdefault("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "60")
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        import ray
    except ModuleNotFoundError as error:
        raise ValueError(f'engine "ray" requires {error.name}: pip install "vitreous[ray]"') from error
    return ray


@contextlib.contextmanager
def connected(ray: Any) -> Iterator[bool]:
    """Connect to the cluster of RAY_ADDRESS or of this machine, or start one for this process. Disconnect at the end.

    Yield True if the cluster was started here, so that it ends with this process. An existing connection is used, and
    kept.
    """
    if ray.is_initialized():
        yield False
        return
    quiet: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}
    try:
        ray.init(num_cpus=cores(), **quiet)
        started = True
    except ValueError:  # the number of cores cannot be given for an existing cluster
        ray.init(**quiet)
        started = False
    try:
        yield started
    finally:
        ray.shutdown()


@dataclass(frozen=True)
class WorkerSize:
    """Number of workers, and the resources of each. None selects a number for the cluster.

    count: By default, as many workers as fit.
    cpus: CPU cores per worker: one or, with a GPU, the cores that the machine has for it.
    gpus: GPUs per worker, 1 if the machines have GPUs. With 0.5, two workers share a GPU.
    """

    count: int | None = None
    cpus: int | None = None
    gpus: float | None = None

    def __post_init__(self) -> None:
        if self.count is not None:
            check_whole("workers", self.count, 1, 10**6)
        if self.cpus is not None:
            check_whole("worker_cpus", self.cpus, 1, 10**4)
        if self.gpus is not None:
            check_real("worker_gpus", self.gpus, 0, 64)
            if self.gpus > 1 and self.gpus != int(self.gpus):
                fail("worker_gpus", self.gpus, "a fraction of 1, or an integer")

    def fitted(self, machines: Sequence[Mapping[str, float]], on_cpu: bool) -> "FittedWorkers":
        """Fill in the missing numbers for machines with these resources. Raise ValueError if no worker fits.

        >>> WorkerSize(gpus=0.5).fitted([{"CPU": 16, "GPU": 2}, {"CPU": 4}], on_cpu=False)
        FittedWorkers(count=4, cpus=4, gpus=0.5)
        """
        with_gpu = [machine for machine in machines if machine.get("GPU", 0) > 0]
        gpus = self.gpus if self.gpus is not None else float(bool(with_gpu) and not on_cpu)
        cpus = self.cpus
        if cpus is None:
            shares = [machine.get("CPU", 0) * gpus / machine["GPU"] for machine in with_gpu] if gpus else []
            cpus = max(int(min(shares, default=1)), 1)
        fits = sum(_fitting(machine, cpus, gpus) for machine in machines)
        if not fits:
            largest = {name: max((machine.get(name, 0) for machine in machines), default=0) for name in ("CPU", "GPU")}
            raise ValueError(
                f"a worker with {cpus} CPU cores and {gpus:g} GPUs fits on no machine of the Ray cluster, which have "
                f"at most {largest['CPU']:g} CPU cores and {largest['GPU']:g} GPUs"
            )
        return FittedWorkers(self.count or fits, cpus, gpus)


def _fitting(machine: Mapping[str, float], cpus: int, gpus: float) -> int:
    """Return the number of workers that fit on a machine. A worker uses a fraction of one GPU, or whole GPUs."""
    by_cpu = int(machine.get("CPU", 0) // cpus)
    if not gpus:
        return by_cpu
    available = machine.get("GPU", 0)
    return min(by_cpu, int(available * (1 // gpus) if gpus < 1 else available // gpus))


@dataclass(frozen=True)
class FittedWorkers:
    """Number of workers and resources of each worker."""

    count: int
    cpus: int
    gpus: float

    def device(self, wanted: Any) -> Any:
        """Return the device of a worker. Ray selects the GPU, and a worker without one must not use any."""
        if str(wanted).startswith("cuda"):
            return "cuda"
        return "cpu" if not self.gpus and wanted in ("auto", None) else wanted


def machines(ray: Any) -> list[Mapping[str, float]]:
    """Return the resources of the machines in the cluster."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]
