"""Runs of `vitreous train` in several processes that torchrun starts, as users start them."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from vitreous.cli.main import PLAIN, lists_together, numbers_last, reject_other_names
from vitreous.cli.train import Flags
from vitreous.training import TrainConfig

SMALL = [
    "--data=digits", "--model=ViT-Lite-6/4", "--image-size=8", "--batch-size=128", "--lr=3e-3", "--ema=0.9",
    "--dropout=0.1", "--device=cpu", "--workers=0", "--evaluate-every=1",
    "--set", "patch_size=4", "width=32", "mlp_width=32", "depth=2", "num_heads=2",
]  # fmt: skip


def parse_train(words: Sequence[str]) -> TrainConfig:
    """Parse and check the arguments of `vitreous train` as the command does, without training."""
    import tyro

    words = numbers_last(lists_together(words))
    reject_other_names(words)
    config = tyro.cli(Flags, config=PLAIN, args=words).config()
    config.check()
    return config


def torchrun(processes: int, *arguments: str, restarts: int = 0) -> "subprocess.Popen[str]":
    """Start `torchrun ... -m vitreous train` on this machine."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command += ["--max-restarts", str(restarts), "-m", "vitreous", "train", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


def worker(running: "subprocess.Popen[str]", rank: int) -> int:
    """Return the process id of a rank. Needs /proc."""
    for child in Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split():
        if f"\0RANK={rank}\0".encode() in b"\0" + Path(f"/proc/{child}/environ").read_bytes():
            return int(child)
    raise ProcessLookupError(f"torchrun has no process of rank {rank}")


def wait_for(path: Path, running: "subprocess.Popen[str]", seconds: float = 120) -> None:
    """Wait until a file exists; raise if the process ends before."""
    end = time.monotonic() + seconds
    while not path.exists():
        if running.poll() is not None or time.monotonic() > end:
            raise TimeoutError(f"{path} was not written")
        time.sleep(0.01)
