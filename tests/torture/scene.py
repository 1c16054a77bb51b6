"""Folder and commands of a case."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchrun import SMALL


class NotRun(Exception):
    """The machine lacks what a case needs."""


@dataclass(frozen=True)
class Done:
    """Result of a command. `memory` is the peak in MB."""

    status: int
    out: str
    errors: str
    memory: float


@dataclass(frozen=True)
class Scene:
    """`folder` belongs to a case; `shared` contains files that several cases copy."""

    folder: Path
    shared: Path

    # ---- Commands ----------------------------------------------------------------------------------------------------

    def start(self, *arguments: object, ahead: Sequence[str] = (), **options: Any) -> "subprocess.Popen[str]":
        """Start `vitreous` with arguments. `ahead` is a command that runs it, such as setpriv."""
        environment = os.environ | {"OMP_NUM_THREADS": "1", "VITREOUS_CACHE": str(self.folder / "cache")}
        environment |= options.pop("env", {})
        command = [*ahead, sys.executable, "-m", "vitreous", *map(str, arguments)]
        files = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        return subprocess.Popen(command, env=environment, text=True, **files)

    def vitreous(self, *arguments: object, limit: float = 120, **options: Any) -> Done:
        """Run `vitreous` to its end."""
        return finish(self.start(*arguments, **options), limit)

    def train(self, out: Path, *more: object, steps: int = 22, **options: Any) -> "subprocess.Popen[str]":
        """Start a small run. It saves after every evaluation, and with SAVE_EVERY_STEP after every step."""
        return self.start("train", *SMALL, f"--steps={steps}", f"--out={out}", *more, **options)

    def train_images(self, data: object, out: Path, *more: object, **options: Any) -> "subprocess.Popen[str]":
        """Start a run of ten steps on small images."""
        flags = (f"--data={data}", f"--out={out}", "--steps=10", "--batch-size=8", "--image-size=16", "--device=cpu")
        model = ("--model=ViT-Lite-6/4", "--set", "patch_size=4", "width=32", "mlp_width=32", "depth=1", "num_heads=2")
        return self.start("train", *flags, *more, *model, **options)

    # ---- Files -------------------------------------------------------------------------------------------------------

    def finished_run(self, name: str = "run") -> Path:
        """Return a copy of a finished run of 22 steps."""
        return Path(shutil.copytree(self._finished(), self.folder / name))

    def checkpoint(self) -> Path:
        """Return the checkpoint of a small classifier of digits. Do not change it."""
        return self._finished() / "best"

    def _finished(self) -> Path:
        run = self.shared / "run"
        if not (run / "metrics.json").exists():
            done = finish(self.train(run))
            assert done.status == 0, done.errors
        return run

    def images(self, name: str = "images", count: int = 10, size: int = 16) -> Path:
        """Write a folder with two classes of random images."""
        import numpy as np
        from PIL import Image

        for number, label in enumerate(("cat", "dog")):
            (self.folder / name / label).mkdir(parents=True)
            for index in range(count):
                pixels = np.random.default_rng(1000 * number + index).integers(0, 255, (size, size, 3), np.uint8)
                Image.fromarray(pixels).save(self.folder / name / label / f"{index:02d}.png")
        return self.folder / name


SAVE_EVERY_STEP = "--save-minutes=1e-5"


def finish(running: "subprocess.Popen[str]", limit: float = 120) -> Done:
    """Wait for a process."""
    peak = 0.0
    try:
        out, errors = "", ""
        end = time.monotonic() + limit
        while True:
            try:
                out, errors = running.communicate(timeout=0.2)
                break
            except subprocess.TimeoutExpired:
                peak = max(peak, memory(running.pid))
                assert time.monotonic() < end, f"still running after {limit:g} s"
    finally:
        running.kill()
    return Done(running.returncode, out or "", errors or "", peak)


def memory(process: int) -> float:
    """Return the peak resident memory of a process in MB, or 0 if it has ended."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0.0
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) / 1e3 if found else 0.0


def wait_until(condition: Callable[[], Any], running: "subprocess.Popen[str]", seconds: float = 90) -> None:
    """Wait until a condition is true; fail if the process ends before."""
    end = time.monotonic() + seconds
    while not condition():
        if running.poll() is not None:
            out, errors = running.communicate()
            raise AssertionError(f"ended with {running.returncode} too early: {errors or out}")
        assert time.monotonic() < end, f"nothing happened in {seconds:g} s"
        time.sleep(0.005)


def stop(running: "subprocess.Popen[str]", number: signal.Signals) -> Done:
    running.send_signal(number)
    return finish(running, 60)


def rejected(done: Done, *words: str, status: int = 1) -> str:
    """Assert that a command failed with one clear line that contains `words`, and return that line."""
    assert "Traceback" not in done.errors + done.out, f"a traceback: {(done.errors + done.out)[-600:]}"
    assert done.status == status, f"exit status {done.status}: {done.errors or done.out[-500:]}"
    lines = [line for line in done.errors.splitlines() if line.startswith("vitreous: ") and "warning:" not in line]
    assert len(lines) == 1, f"{len(lines)} lines: {done.errors}"
    for word in words:
        assert word.lower() in lines[0].lower(), f"{word!r} is missing in: {lines[0]}"
    return f"exit {status}: {lines[0].removeprefix('vitreous: ')}"


def succeeded(done: Done) -> Done:
    assert done.status == 0, f"exit status {done.status}: {(done.errors or done.out)[-800:]}"
    assert "Traceback" not in done.errors, done.errors[-600:]
    return done


def same_weights(one: Path, other: Path) -> None:
    """Assert that the last checkpoints of two runs have equal tensors: model, optimizer and weight average."""
    from safetensors.numpy import load_file

    for name in ("model.safetensors", *(f"training/{path.name}" for path in (one / "last/training").iterdir())):
        ours, theirs = load_file(one / "last" / name), load_file(other / "last" / name)
        assert ours.keys() == theirs.keys(), f"{name}: different tensors"
        different = [key for key in ours if ours[key].tobytes() != theirs[key].tobytes()]
        assert not different, f"{name}: {len(different)} of {len(ours)} tensors differ"


def run_step(run: Path) -> int:
    """Return the step of the last checkpoint."""
    import json

    return int(json.loads((run / "last" / "progress.json").read_text())["step"])


def without_root() -> list[str]:
    """Return a command that runs another one without the right to ignore file permissions."""
    if os.geteuid() != 0:
        return []
    if not shutil.which("setpriv"):
        raise NotRun("root ignores permissions, and setpriv is not installed")
    return ["setpriv", "--bounding-set=-dac_override,-dac_read_search,-fowner"]
