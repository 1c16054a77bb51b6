"""The folder of a run: who may use it, what in it is a run's own, and whether there is something to resume.

config.json          the run's config
data.json.gz         names, labels and splits of the samples (data_record.py)
last/, step-*/       checkpoints to resume from; best/ is a model alone
metrics.jsonl        a line for each epoch
.lock                locked by the process that trains, with its pid and host
.saved               exists once `last/` has been written
"""

import errno
import os
import re
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from vitreous.common.atomic_files import recover

try:
    import fcntl
except ImportError:  # Windows: runs are not locked there
    fcntl = None  # type: ignore[assignment]

CONFIG, DATA, METRICS, LOCK, SAVED = "config.json", "data.json.gz", "metrics.jsonl", ".lock", ".saved"
STEP = re.compile(r"step-\d{8,}")
WRITTEN = (
    "last", "best", METRICS, DATA, "metrics.json", "report.html", "curves.png", "calibration.png", "confusion.png",
    "mistakes.png", "samples.png", "segments.png", "reconstructions.png",
)  # fmt: skip


class LockWarning(UserWarning):
    """The file system has no locks."""


def check_free(folder: Path) -> None:
    """Refuse a folder that holds a run, or anything else that a new run would replace."""
    if (folder / CONFIG).exists():
        raise ValueError(f"{folder} already holds a run: choose another --out, or continue the run with --resume")
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is not a folder: choose another --out")
    there = os.listdir(folder) if folder.is_dir() else []
    if taken := sorted(name for name in there if name in WRITTEN or STEP.fullmatch(name)):
        raise ValueError(f"{folder} already has {taken[0]}, which a run would replace: choose another --out")


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Keep other runs out of a folder. The system releases the lock when this process ends, however it ends."""
    if not fcntl:
        yield
        return
    descriptor = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR, 0o666)
    try:
        _acquire(descriptor, folder)
        yield
    finally:
        os.close(descriptor)


def _acquire(descriptor: int, folder: Path) -> None:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # unlike flock, not inherited by data workers
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            message = f"{folder} cannot be locked ({error.strerror}): do not start a second run in it"
            warnings.warn(message, LockWarning, stacklevel=2)
            return
        holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "another process"
        raise ValueError(f"{folder} is in use by {holder}: wait for its end, or choose another --out") from None
    with suppress(OSError):  # a full disk
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"pid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)


def has_checkpoint(folder: Path) -> bool:
    """True if the run can be resumed from `last/`, False if it was killed before its first save.

    Raises ValueError where a checkpoint must have existed, or may have: starting over would replace its results.
    """
    for name in ("last", "best"):
        recover(folder / name)
    if (folder / "last").exists():
        return True
    killed_early = (folder / DATA).exists() and not (folder / SAVED).exists()
    kept = sorted(path.name for path in folder.iterdir() if STEP.fullmatch(path.name))
    there = [name for name in ("best", METRICS, "metrics.json", *kept) if (folder / name).exists()]
    if not there and not (folder / SAVED).exists():
        return False
    if killed_early and not kept and not (folder / "metrics.json").exists():
        return False
    found = f"there is {', '.join(there)}" if there else "it had saved one"
    choice = f"rename {kept[-1]} to last to resume from there, " if kept else ""
    raise ValueError(
        f"{folder / 'last'} is missing, so there is no checkpoint to resume ({found}): put it back, {choice}"
        "or start a new run in another --out"
    )


def release(folder: Path) -> None:
    """Remove what a run has written that failed before it saved anything."""
    if any((folder / name).exists() for name in ("last", "best", METRICS)):
        return
    for name in (CONFIG, DATA, LOCK):
        (folder / name).unlink(missing_ok=True)
    if not any(folder.iterdir()):
        folder.rmdir()
