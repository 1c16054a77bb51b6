"""Small runs in separate processes. They start quickly because a fork server has already imported what they need."""

import dataclasses
import multiprocessing
import os
import signal
import socket
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from vitreous.training import Augment, Optim, TrainConfig

SERVER: ForkServerContext = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["vitreous.training.run", "train_runs", "torch._dynamo"])


def tiny(out: Path, **changes: Any) -> TrainConfig:
    """Return the config of a small run with all state that resuming must restore, e.g. EMA and augmentation."""
    config = TrainConfig(
        data="digits",
        model="ViT-Lite-6/4",
        overrides={"patch_size": 4, "width": 32, "mlp_width": 32, "depth": 2, "num_heads": 2, "channels": 1},
        image_size=(8,),
        out=out,
        steps=30,
        batch_size=128,
        device="cpu",
        workers=0,
        dropout=0.1,
        stochastic_depth=0.1,
        evaluate_every=1,
        optim=Optim(lr=3e-3, ema=0.9),
        augment=Augment(crop="padded", flip=0.5, policy="trivial", mixup=0.2, cutmix=1.0, repeats=2),
    )
    return dataclasses.replace(config, **changes)


def skip_report(patch: pytest.MonkeyPatch) -> None:
    """Disable reports and plots, and fit the familiarity to few images, as all this takes longer than these runs."""
    from vitreous.tasks import classification_metrics
    from vitreous.training import run_results

    patch.setattr(run_results, "write_report", lambda folder, report: folder / "report.html")
    patch.setattr(run_results, "can_draw", lambda: False)
    patch.setattr(classification_metrics, "MOST_FEATURES", 100)


def start(
    config: TrainConfig, die_after: int | None = None, stop_after: int | None = None, world: Any = None
) -> BaseProcess:
    """Start a run that gets SIGKILL after `die_after` steps or SIGTERM after `stop_after` steps."""
    process = SERVER.Process(target=_train, args=(config, die_after, stop_after, world))
    process.start()
    return process


def finish(config: TrainConfig, **how: Any) -> int | None:
    """Wait for a run and return its exit code, which is negative if it was ended by a signal."""
    process = start(config, **how)
    process.join(300)
    assert not process.is_alive(), "the run did not finish in five minutes"
    return process.exitcode


def finish_in_two(config: TrainConfig, **how: Any) -> None:
    """Wait for a run in two processes."""
    finish_in(2, config, **how)


def finish_in(processes: int, config: TrainConfig, **how: Any) -> None:
    """Wait for a run in several processes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    base = {"WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = [
        start(config, world=base | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, **how) for rank in range(processes)
    ]
    for process in ranks:
        process.join(300)
    assert [process.exitcode for process in ranks] == [0] * processes


def _train(config: TrainConfig, die_after: int | None, stop_after: int | None, world: Any) -> None:
    import torch

    from vitreous.training.progress import Monitor
    from vitreous.training.run import Interrupted, train

    torch.set_num_threads(1)
    os.environ |= world or {}
    skip_report(pytest.MonkeyPatch())
    add = Monitor.add

    def counted(self: Any, result: Any, batch: Any) -> None:
        add(self, result, batch)
        self.seen = getattr(self, "seen", 0) + 1
        if self.seen == die_after:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.seen == stop_after:
            os.kill(os.getpid(), signal.SIGTERM)

    Monitor.add = counted  # type: ignore[method-assign]
    try:
        train(config)
    except Interrupted as stop:
        raise SystemExit(128 + stop.signal_number) from stop
