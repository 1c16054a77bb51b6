"""Run folder: its files, lock and config, and detection of changed data on resume.

config.json          the complete config; "overrides" maps fields of the model config to values
commands.txt         the command that started the run, followed by the commands that resumed it
data.json.gz         names, labels and splits of all samples, to detect changed data on resume
last/, step-*/       checkpoints to resume from; best/ contains only the model
metrics.jsonl        one line per epoch
metrics.json         final metrics
pseudo_labels.npz    probabilities that a teacher predicts for unlabelled images; its run is in teacher/
trackers.json        ids of the run in experiment trackers
.lock                locked by the training process; contains the pid and the host name
.saved               exists once `last/` has been written
"""

import dataclasses
import errno
import gzip
import json
import os
import re
import socket
import warnings
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from json import dumps
from pathlib import Path
from typing import Any

import numpy as np

from vitreous.common.atomic_files import atomic_file, recover
from vitreous.common.checks import fail
from vitreous.common.codec import from_dict, parse_fields, to_dict
from vitreous.common.distributed import World
from vitreous.common.text import listed, plural
from vitreous.common.untrusted_files import parse_json, read_json_object
from vitreous.data.sources.base import SPLITS, DataSet, Subset, pick, split_name, without_labels
from vitreous.tasks.config import TrainConfig, flatten, typed_overrides, with_fields
from vitreous.training.checkpoint import STEP

try:
    import fcntl
except ImportError:  # Windows: runs are not locked there
    fcntl = None  # type: ignore[assignment]

CONFIG, DATA, METRICS, LOCK, SAVED = "config.json", "data.json.gz", "metrics.jsonl", ".lock", ".saved"
COMMANDS = "commands.txt"
WRITTEN = (
    "last", "best", METRICS, DATA, COMMANDS, "metrics.json", "report.html", "curves.png", "calibration.png",
    "confusion.png", "mistakes.png", "samples.png", "segments.png", "reconstructions.png", "pseudo_labels.npz",
)  # fmt: skip
MAY_CHANGE = (
    "resume", "auto_resume", "out", "device", "workers", "parallel", "data_root", "max_unreadable", "allow_data_change",
    "track",
)  # fmt: skip


class LockWarning(UserWarning):
    """Warning that the run folder could not be locked."""


def check_free(folder: Path) -> None:
    """Raise ValueError if a folder contains a run, or a file that a new run would overwrite."""
    if (folder / CONFIG).exists():
        raise ValueError(f"{folder} already contains a run; choose another --out, or resume the run with --resume")
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; choose another --out")
    there = os.listdir(folder) if folder.is_dir() else []
    if taken := sorted(name for name in there if name in WRITTEN or STEP.fullmatch(name)):
        raise ValueError(f"{folder} already contains {taken[0]}, which a new run would overwrite; choose another --out")


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Lock a folder. The operating system releases the lock when the process ends, even if it is killed."""
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
            message = f"{folder} cannot be locked ({error.strerror}); do not start a second run in it"
            warnings.warn(message, LockWarning, stacklevel=2)
            return
        holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "another process"
        raise ValueError(f"{folder} is in use by {holder}; wait until it finishes, or choose another --out") from None
    with suppress(OSError):  # the disk may be full
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"pid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)


def has_checkpoint(folder: Path) -> bool:
    """Return True if `last/` exists, and False if the run has not saved anything yet. Raise if `last/` was deleted."""
    for name in ("last", "best"):
        recover(folder / name)
    if (folder / "last").exists():
        return True
    killed_early = (folder / DATA).exists() and not (folder / SAVED).exists()
    kept = sorted(path.name for path in folder.iterdir() if STEP.fullmatch(path.name))
    existing = [name for name in ("best", METRICS, "metrics.json", *kept) if (folder / name).exists()]
    if not existing and not (folder / SAVED).exists():
        return False
    if killed_early and not kept and not (folder / "metrics.json").exists():
        return False
    found = ", ".join(existing) or "a checkpoint"
    choice = f"rename {kept[-1]} to last to resume from there, " if kept else ""
    raise ValueError(
        f"{folder / 'last'} is missing, although the run has already saved {found}; restore it, {choice}"
        "or start a new run with another --out"
    )


def release(folder: Path) -> None:
    """Remove the folder of a run that failed before its first checkpoint, unless it has results of earlier runs."""
    results = ("last", "best", METRICS, "pseudo_labels.npz")
    if any((folder / name).exists() for name in results) or any(folder.glob(f"*/{CONFIG}")):
        return
    for name in (CONFIG, COMMANDS, DATA, LOCK):
        (folder / name).unlink(missing_ok=True)
    if not any(folder.iterdir()):
        folder.rmdir()


def create(config: TrainConfig, command: str, world: World, held: ExitStack) -> None:
    """Create and lock the folder of a new run. All processes must call this."""
    folder = folder_of(config)
    world.wait()  # until all processes have checked that the folder is free
    if world.first:
        folder.mkdir(parents=True, exist_ok=True)
    world.first_only(lambda: held.enter_context(lock(folder)))
    world.first_only(lambda: check_free(folder))  # another run may have used the folder since the first check
    if world.first:
        (folder / SAVED).unlink(missing_ok=True)
        write_config(config)
    record_command(folder, command, world)


def write_config(config: TrainConfig) -> None:
    with atomic_file(folder_of(config) / CONFIG) as aside:
        aside.write_text(json.dumps(to_dict(config), indent=2))


def record_command(folder: Path, command: str, world: World) -> None:
    """Append a command to commands.txt, which may be missing in runs of early versions."""
    if world.first:
        line = " ".join(command.splitlines())
        new = not (folder / COMMANDS).exists() and (folder / SAVED).exists()
        with open(folder / COMMANDS, "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{'(not recorded)' + chr(10) if new else ''}{line}\n")


def reopen(config: TrainConfig, world: World, held: ExitStack) -> bool:
    """Lock the folder of a run to resume. Return True if a checkpoint exists. All processes must call this."""
    folder = folder_of(config)
    world.first_only(lambda: held.enter_context(lock(folder)))
    found = world.first_only(lambda: has_checkpoint(folder))
    if found and world.first:
        (folder / SAVED).touch()  # missing in runs of early versions
    return found


def folder_of(config: TrainConfig) -> Path:
    assert config.out is not None, "the config must be complete (see defaults.py)"
    return Path(config.out)


def resumed_config(given: TrainConfig) -> TrainConfig:
    """Return the config of the run in `given.out`, updated with the MAY_CHANGE fields of `given`."""
    config = read_config(folder_of(given))
    before, default, changes = flatten(config), flatten(TrainConfig()), {}
    for name, value in flatten(given).items():
        if name in MAY_CHANGE:
            changes[name] = before[name] if value is None else value
        elif value not in (before[name], default[name], "auto"):
            fail(name, value, f"{before[name]!r} as in the run being resumed, or omitted")
    return with_fields(config, changes)


def read_config(folder: Path) -> TrainConfig:
    """Read the config of a run. Early versions stored overrides as "set": ["field=JSON", ...]."""
    path = folder / CONFIG
    if not path.exists():
        raise ValueError(f"no run to resume in {folder}: config.json is missing")
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


# ---- Data record -----------------------------------------------------------------------------------------------------

MAX_RATIO = 300  # of compression; a record of long paths reaches 110, a gzip bomb 1,000
UNLABELLED = "unlabelled"  # split of the images of --unlabelled
POSITION = re.compile(r"\[\d+\]$")  # end of the name of a sample that is identified only by its index


@dataclass(frozen=True)
class SplitRecord:
    """Samples of one split, in order. `labels` are class names or targets, or empty if the task uses no labels."""

    names: list[str]
    labels: list[str]


@dataclass(frozen=True)
class DataRecord:
    """Classes, in the order of the model outputs, and the samples of every split.

    Names of unlabelled images from other data may equal those of labelled images, so they are compared separately.
    """

    classes: list[str]
    splits: dict[str, SplitRecord]

    @classmethod
    def of(cls, data: DataSet, classes: Sequence[str]) -> "DataRecord":
        """Create a record of a data set and the classes of the task."""
        unlabelled = None if data.unlabelled_is_train else data.unlabelled
        sources = {UNLABELLED: unlabelled, "train": data.train, "val": data.val, "test": data.test}
        labelled = bool(classes) and tuple(classes) == data.classes
        splits = {
            split: SplitRecord(
                [source.name(index) for index in range(len(source))],
                [source.label(index) for index in range(len(source))] if labelled and split != UNLABELLED else [],
            )
            for split, source in sources.items()
            if source is not None
        }
        return cls(list(classes), splits)

    def write(self, path: Path) -> None:
        with atomic_file(path) as aside:
            aside.write_bytes(gzip.compress(dumps(asdict(self)).encode(), compresslevel=1, mtime=0))

    @classmethod
    def read(cls, path: Path) -> "DataRecord":
        try:
            content = _unpack(path.read_bytes())
        except (OSError, zlib.error) as error:
            raise ValueError(f"{path} cannot be read: {error}; delete it to skip the data check") from error
        value = parse_json(content, path)
        try:
            splits = {split: SplitRecord(**record) for split, record in value["splits"].items()}
            record = cls(_texts(value["classes"]), splits)
            for split in splits.values():
                _texts([*split.names, *split.labels])
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{path} is not a valid data record; delete it to skip the data check") from error
        return record

    def labels(self) -> dict[str, str]:
        """Return a mapping from the names of all labelled samples to their labels."""
        splits = [self.splits[split] for split in SPLITS if split in self.splits]
        pairs = [zip(split.names, split.labels or [""] * len(split.names), strict=False) for split in splits]
        return {name: label for pair in pairs for name, label in pair}

    def names(self, *splits: str) -> set[str]:
        """Return the names of the samples of some splits, by default train, val and test."""
        return {name for split in splits or SPLITS if split in self.splits for name in self.splits[split].names}


def resume_data(data: DataSet, before: DataRecord, classes: Sequence[str], allow_change: bool) -> DataSet:
    """Return the data of a resumed run with its original split. Raise ValueError if the data changed.

    With `allow_change`, samples may be added or removed. Changed classes, changed labels and samples that moved from
    train to val or test are always rejected.
    """
    now = DataRecord.of(data, classes)
    if now == before:
        return data
    if now.classes != before.classes:
        raise ValueError(f"{data.name}: {_class_changes(before.classes, now.classes)}; start a new run")
    if data.val_drawn:
        data = _keep_split(data, before)
        now = DataRecord.of(data, classes)
        if now == before:  # the change was accepted in an earlier resume
            return data
    changes = _changes(before, now)
    if reason := _unacceptable(before, now):
        raise ValueError(f"{data.name} has changed since the run started ({changes}): {reason}; restore the old data")
    if not allow_change:
        raise ValueError(
            f"{data.name} has changed since the run started ({changes}); "
            "restore the old data, or resume with --allow-data-change"
        )
    return replace(data, note=f"{data.note}; changed since the run started: {changes}")


def _keep_split(data: DataSet, before: DataRecord) -> DataSet:
    """Restore the recorded split. New samples are added to the train split."""
    assert isinstance(data.train, Subset)
    assert isinstance(data.val, Subset)
    source = data.train.source
    indices = np.sort(np.concatenate([data.train.indices, data.val.indices]))
    held_out = before.names("val")
    in_val = np.array([source.name(int(index)) in held_out for index in indices])
    if not in_val.any() or in_val.all():
        missing = "validation" if not in_val.any() else "training"
        raise ValueError(f"{data.name} has changed since the run started: no {missing} samples are left")
    train, val = pick(source, indices[~in_val]), pick(source, indices[in_val])
    note = f"train {len(train):,}, val {len(val):,}; same split as at the start of the run"
    unlabelled = without_labels(train) if data.unlabelled_is_train else data.unlabelled
    return replace(data, train=train, val=val, unlabelled=unlabelled, note=note)


def _class_changes(before: list[str], now: list[str]) -> str:
    removed, added = [name for name in before if name not in now], [name for name in now if name not in before]
    changes = [f"classes removed: {listed(removed)}"] if removed else []
    changes += [f"classes added: {listed(added)}"] if added else []
    return ", ".join(changes) or "the order of the classes changed"


def _changes(before: DataRecord, now: DataRecord) -> str:
    old, new = before.names(), now.names()
    parts = [_some(old - new, "removed"), _some(new - old, "added"), _some(_relabelled(before, now), "relabelled")]
    parts += [_some((now.names(split) & old) - before.names(split), f"moved to {split}") for split in SPLITS]
    old, new = before.names(UNLABELLED), now.names(UNLABELLED)
    parts += [_some(old - new, "removed from --unlabelled"), _some(new - old, "added to --unlabelled")]
    return ", ".join(filter(None, parts)) or "the order of the samples changed"


def _unacceptable(before: DataRecord, now: DataRecord) -> str:
    """Return the reason to reject a change of the data, or an empty string if the change is acceptable."""
    trained = before.names("train") - before.names("val", "test")
    held_out, vanished = now.names("val", "test"), {_without_split(name) for name in trained - now.names()}
    leaked = {name for name in held_out - before.names() if _without_split(name) in vanished} | (trained & held_out)
    if leaked:
        return f"{plural(len(leaked), 'training sample')} would be used for evaluation"
    splits = (*SPLITS, UNLABELLED)
    if any(POSITION.search(name) for name in before.names(*splits) | now.names(*splits)):
        return "samples are identified only by their index, so old and new samples cannot be distinguished"
    if _relabelled(before, now):
        return "labels of existing samples changed"
    return ""


def _without_split(name: str) -> str:
    """Remove the split folder from a path, to recognise samples that moved to another split."""
    return "/".join(piece for piece in Path(name).parts if split_name(piece) is None)


def _relabelled(before: DataRecord, now: DataRecord) -> set[str]:
    old = before.labels()
    return {name for name, label in now.labels().items() if old.get(name, label) != label}


def _some(names: Iterable[str], verb: str) -> str:
    names = sorted(names)
    return f"{plural(len(names), 'sample')} {verb}, such as {names[0]!r}" if names else ""


def _unpack(content: bytes) -> bytes:
    """Unpack gzip data. Raise zlib.error if it is incomplete or a bomb."""
    unpacker, unpacked, chunk = zlib.decompressobj(wbits=31), bytearray(), 1 << 16
    for start in range(0, len(content), chunk):
        limit = (1 << 26) + MAX_RATIO * (start + chunk)
        unpacked += unpacker.decompress(content[start : start + chunk], limit - len(unpacked))
        if unpacker.unconsumed_tail:
            raise zlib.error("it unpacks to too many bytes")
    if not unpacker.eof:
        raise zlib.error("it is incomplete")
    return bytes(unpacked)


def _texts(values: Any) -> list[str]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise TypeError(f"expected a list of strings, got {values!r:.80}")
    return values
