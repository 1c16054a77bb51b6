"""The folder of a run: its files, its lock, its config, and the checkpoint to resume from.

config.json          the complete config; "overrides" maps fields of the model's config to their values
commands.txt         the command that started the run, then one line for each that resumed it
data.json.gz         names, labels and splits of the samples (data_record.py)
last/, step-*/       checkpoints to resume from; best/ is a model alone
metrics.jsonl        one line per epoch
metrics.json         final metrics
.lock                locked by the process that trains, with its pid and host
.saved               exists once `last/` has been written
"""

import dataclasses
import errno
import json
import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from vitreous.common.atomic_files import atomic_file, recover
from vitreous.common.checks import fail
from vitreous.common.codec import from_dict, parse_fields, to_dict
from vitreous.common.untrusted_files import read_json_object
from vitreous.tasks.config import flatten, typed_overrides, with_fields
from vitreous.training.checkpoint import STEP
from vitreous.training.config import TrainConfig
from vitreous.training.distributed import World

try:
    import fcntl
except ImportError:  # Windows: runs are not locked there
    fcntl = None  # type: ignore[assignment]

CONFIG, DATA, METRICS, LOCK, SAVED = "config.json", "data.json.gz", "metrics.jsonl", ".lock", ".saved"
COMMANDS = "commands.txt"
WRITTEN = (
    "last", "best", METRICS, DATA, COMMANDS, "metrics.json", "report.html", "curves.png", "calibration.png",
    "confusion.png", "mistakes.png", "samples.png", "segments.png", "reconstructions.png",
)  # fmt: skip
MAY_CHANGE = ("resume", "out", "device", "workers", "parallel", "data_root", "max_unreadable", "allow_data_change")


class LockWarning(UserWarning):
    """The file system does not support locks."""


def check_free(folder: Path) -> None:
    """Raise if a folder contains a run, or a file that a new run would replace."""
    if (folder / CONFIG).exists():
        raise ValueError(f"{folder} already contains a run: choose another --out, or resume the run with --resume")
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is not a folder: choose another --out")
    there = os.listdir(folder) if folder.is_dir() else []
    if taken := sorted(name for name in there if name in WRITTEN or STEP.fullmatch(name)):
        raise ValueError(f"{folder} already has {taken[0]}, which a run would replace: choose another --out")


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Lock a folder. The system releases the lock when this process ends, however it ends."""
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
        raise ValueError(
            f"{folder} is in use by {holder}: wait until it has finished, or choose another --out"
        ) from None
    with suppress(OSError):  # a full disk
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"pid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)


def has_checkpoint(folder: Path) -> bool:
    """True if the run can be resumed from `last/`, False if it was killed before its first save.

    Raises ValueError if a checkpoint may have existed: starting again would replace its results.
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
    """Remove the run folder if setup failed before the first checkpoint."""
    if any((folder / name).exists() for name in ("last", "best", METRICS)):
        return
    for name in (CONFIG, COMMANDS, DATA, LOCK):
        (folder / name).unlink(missing_ok=True)
    if not any(folder.iterdir()):
        folder.rmdir()


def create(config: TrainConfig, command: str, world: World, held: ExitStack) -> None:
    """Create and lock the folder of a new run, after everything that may fail. Every process calls this."""
    folder = folder_of(config)
    world.wait()  # until all processes have seen that it is free
    if world.first:
        folder.mkdir(parents=True, exist_ok=True)
    world.first_only(lambda: held.enter_context(lock(folder)))
    world.first_only(lambda: check_free(folder))  # another run may have created it meanwhile
    if world.first:
        (folder / SAVED).unlink(missing_ok=True)
        with atomic_file(folder / CONFIG) as aside:
            aside.write_text(json.dumps(to_dict(config), indent=2))
    record_command(folder, command, world)


def record_command(folder: Path, command: str, world: World) -> None:
    """Append a line to commands.txt; runs of early versions have none."""
    if world.first:
        line = " ".join(command.splitlines())
        new = not (folder / COMMANDS).exists() and (folder / SAVED).exists()
        with open(folder / COMMANDS, "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{'(not recorded)' + chr(10) if new else ''}{line}\n")


def reopen(config: TrainConfig, world: World, held: ExitStack) -> bool:
    """Lock the folder of a run to resume; True if it has a checkpoint. Every process calls this."""
    folder = folder_of(config)
    world.first_only(lambda: held.enter_context(lock(folder)))
    found = world.first_only(lambda: has_checkpoint(folder))
    if found and world.first:
        (folder / SAVED).touch()  # missing in runs of early versions
    return found


def folder_of(config: TrainConfig) -> Path:
    assert config.out is not None, "the config must be complete (see defaults.py)"
    return config.out


def resumed_config(given: TrainConfig) -> TrainConfig:
    """The config of the run in `given.out`; only MAY_CHANGE may differ from it."""
    config = read_config(folder_of(given))
    before, default, changes = flatten(config), flatten(TrainConfig()), {}
    for name, value in flatten(given).items():
        if name in MAY_CHANGE:
            changes[name] = before[name] if value is None else value
        elif value not in (before[name], default[name], "auto"):
            fail(name, value, f"omitted or {before[name]!r}, as in the run to resume")
    return with_fields(config, changes)


def read_config(folder: Path) -> TrainConfig:
    """Read the config of a run. Early versions wrote the overrides as "set": ["field=JSON", ...]."""
    path = folder / CONFIG
    if not path.exists():
        raise ValueError(f"there is no run to resume in {folder}: config.json is missing")
    document = read_json_object(path)
    try:
        if isinstance(document.get("set"), list):
            document["overrides"] = parse_fields(tuple(map(str, document.pop("set"))))
        config = from_dict(TrainConfig, document)
        config = dataclasses.replace(config, overrides=typed_overrides(config.overrides))
        config.check()
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return config
