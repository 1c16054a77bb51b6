"""Record of a run's samples: names, labels and splits, to detect changed data when a run is resumed."""

import gzip
import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from json import dumps
from pathlib import Path
from typing import Any

import numpy as np

from vitreous.common.atomic_files import atomic_file
from vitreous.common.text import listed, plural
from vitreous.common.untrusted_files import parse_json
from vitreous.data.sources.base import DataSet, Subset
from vitreous.data.split import pick, split_name

POSITION = re.compile(r"\[\d+\]$")  # name of a sample that is identified by its index


@dataclass(frozen=True)
class SplitRecord:
    """The samples of one split, in order. `labels` are class names; empty if the task uses none."""

    names: list[str]
    labels: list[str]


@dataclass(frozen=True)
class DataRecord:
    """Classes in the order of the model's outputs, and the samples of every split."""

    classes: list[str]
    splits: dict[str, SplitRecord]

    @classmethod
    def of(cls, data: DataSet, classes: Sequence[str]) -> "DataRecord":
        """Record a data set with the classes that the task learns."""
        sources = {"train": data.train, "val": data.val} | ({} if data.test is None else {"test": data.test})
        labelled = bool(classes) and tuple(classes) == data.classes
        splits = {
            split: SplitRecord(
                [source.name(index) for index in range(len(source))],
                [data.classes[label] for label in source.labels.tolist()] if labelled else [],
            )
            for split, source in sources.items()
        }
        return cls(list(classes), splits)

    def write(self, path: Path) -> None:
        with atomic_file(path) as aside:
            aside.write_bytes(gzip.compress(dumps(asdict(self)).encode(), compresslevel=1, mtime=0))

    @classmethod
    def read(cls, path: Path) -> "DataRecord":
        try:
            content = gzip.decompress(path.read_bytes())
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{path} cannot be read: {error}; delete it to resume without this check") from error
        value = parse_json(content, path)
        try:
            splits = {split: SplitRecord(**record) for split, record in value["splits"].items()}
            record = cls(_texts(value["classes"]), splits)
            for split in splits.values():
                _texts([*split.names, *split.labels])
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{path} is not a record of data: delete it to resume without this check") from error
        return record

    def labels(self) -> dict[str, str]:
        """The label of every sample, by name."""
        pairs = [zip(one.names, one.labels or [""] * len(one.names), strict=False) for one in self.splits.values()]
        return {name: label for pair in pairs for name, label in pair}

    def names(self, *splits: str) -> set[str]:
        return {name for split in splits or self.splits if split in self.splits for name in self.splits[split].names}


def resume_data(data: DataSet, before: DataRecord, classes: Sequence[str], allow_change: bool) -> DataSet:
    """The data of a resumed run, with its original split. Raises if the data has changed.

    With `allow_change`, samples may have been added or removed: known samples keep their split, so that no training
    sample is evaluated on, and new ones join train if the split was random. Changed classes, changed labels and samples
    that moved from train to val or test are rejected in any case.
    """
    now = DataRecord.of(data, classes)
    if now == before:
        return data
    if now.classes != before.classes:
        raise ValueError(f"{data.name}: {_class_changes(before.classes, now.classes)}: start a new run")
    if data.val_drawn:
        data = _keep_split(data, before)
        now = DataRecord.of(data, classes)
        if now == before:  # after a change that was accepted earlier
            return data
    changes = _changes(before, now)
    if reason := _unacceptable(before, now):
        raise ValueError(f"{data.name} has changed since the run began ({changes}): {reason}; restore it")
    if not allow_change:
        raise ValueError(
            f"{data.name} has changed since the run began ({changes}): restore it, or resume with --allow-data-change"
        )
    return replace(data, note=f"{data.note}; changed since the run began: {changes}")


def _keep_split(data: DataSet, before: DataRecord) -> DataSet:
    """Split the samples as recorded; unknown ones go to train."""
    assert isinstance(data.train, Subset)
    assert isinstance(data.val, Subset)
    source = data.train.source
    indices = np.sort(np.concatenate([data.train.indices, data.val.indices]))
    held_out = before.names("val")
    in_val = np.array([source.name(int(index)) in held_out for index in indices])
    if not in_val.any() or in_val.all():
        missing = "validation" if not in_val.any() else "training"
        raise ValueError(f"{data.name} has changed since the run began: none of its {missing} samples is left")
    train, val = pick(source, indices[~in_val]), pick(source, indices[in_val])
    note = f"train {len(train):,}, val {len(val):,}; split as at the start of the run"
    return replace(data, train=train, val=val, note=note)


def _class_changes(before: list[str], now: list[str]) -> str:
    gone, new = ([name for name in one if name not in other] for one, other in ((before, now), (now, before)))
    parts = [f"the class {listed(gone)} is gone" if gone else "", f"the class {listed(new)} is new" if new else ""]
    return " and ".join(filter(None, parts)) or "the order of the classes has changed"


def _changes(before: DataRecord, now: DataRecord) -> str:
    """Short description of the differences."""
    old, new = before.names(), now.names()
    parts = [_some(old - new, "removed"), _some(new - old, "added"), _some(_relabelled(before, now), "relabelled")]
    for split, record in now.splits.items():
        moved = (set(record.names) & old) - before.names(split)
        parts.append(_some(moved, f"moved to {split}"))
    return ", ".join(filter(None, parts)) or "the samples are in another order"


def _unacceptable(before: DataRecord, now: DataRecord) -> str:
    """Reason to reject a change; empty if it is acceptable."""
    trained = before.names("train") - before.names("val", "test")
    held_out, vanished = now.names("val", "test"), {_without_split(name) for name in trained - now.names()}
    leaked = {name for name in held_out - before.names() if _without_split(name) in vanished} | (trained & held_out)
    if leaked:
        return f"{plural(len(leaked), 'sample')} that the run was trained on would be evaluated on"
    if any(POSITION.search(name) for name in before.names() | now.names()):
        return "its samples are identified by their index only, so old and new ones cannot be distinguished"
    if _relabelled(before, now):
        return "the labels of known samples differ"
    return ""


def _without_split(name: str) -> str:
    """A path without the folder of its split, which stays the same if a sample moves to another split."""
    return "/".join(piece for piece in Path(name).parts if split_name(piece) is None)


def _relabelled(before: DataRecord, now: DataRecord) -> set[str]:
    old = before.labels()
    return {name for name, label in now.labels().items() if old.get(name, label) != label}


def _some(names: Iterable[str], verb: str) -> str:
    names = sorted(names)
    return f"{plural(len(names), 'sample')} {verb}, such as {names[0]!r}" if names else ""


def _texts(values: Any) -> list[str]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise TypeError("not a list of text")
    return values
