"""Writes the results of shards into a folder, one Parquet file per shard, so that an aborted run can be continued.

A file gets its final name once it is complete. `_manifest.json` describes the model, the options and the images. A run
with another manifest is rejected, so the files of a folder always belong together. A run with the same manifest skips
the shards that have a file.
"""

import importlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from vitreous.common.atomic_files import atomic_file
from vitreous.common.checks import fail
from vitreous.common.codec import to_dict
from vitreous.common.untrusted_files import read_json_object
from vitreous.inference.predict_images import Job, Worker
from vitreous.inference.prediction_files import write, writer_for
from vitreous.inference.shards import Shard, fingerprint
from vitreous.model.protocol import Model
from vitreous.weights.native import int8_scales, weights_digest

MANIFEST = "_manifest.json"  # readers of Parquet folders ignore files that start with an underscore
UNIMPORTANT = ("batch_size", "device")  # options that do not change the results


class Counts(NamedTuple):
    """Number of images in a shard, and number of those that could not be read."""

    images: int
    errors: int


def write_shard(worker: Worker, shard: Shard, path: Path) -> Counts:
    """Compute the results of a shard and write them to a Parquet file."""
    assert worker.columns is not None
    results = worker.results(shard.images())
    write(results, path, worker.columns)
    return Counts(results.images, results.errors)


class ShardFolder:
    """A folder with one file per shard. The constructor creates the folder, or checks that it is of the same run."""

    def __init__(self, folder: Path, shards: Sequence[Shard], job: Job, model: Model):
        self.folder, self.count = folder.absolute(), len(shards)
        writer_for(self.path(0))  # raises if pyarrow is missing
        manifest = _manifest(shards, job, model)
        if (folder / MANIFEST).exists():
            _check_same(folder, read_json_object(folder / MANIFEST), manifest)
            return
        if folder.is_dir() and any(not entry.name.startswith(".") for entry in folder.iterdir()):
            fail("out", folder, f"a new or empty folder, or one with a {MANIFEST}")
        with atomic_file(self.folder / MANIFEST) as file:
            file.write_text(json.dumps(manifest, indent=2))

    def path(self, index: int) -> Path:
        """Return the file of a shard."""
        return self.folder / f"part-{index:05d}-of-{self.count:05d}.parquet"

    def finished(self) -> dict[int, Counts]:
        """Return the counts of all shards that have a complete file."""
        found = {index: _counts(self.path(index)) for index in range(self.count) if self.path(index).exists()}
        return {index: counts for index, counts in found.items() if counts is not None}


def _manifest(shards: Sequence[Shard], job: Job, model: Model) -> dict[str, Any]:
    familiarity = {} if model.familiarity is None else model.familiarity.tensors()
    tensors = {**model.state_dict(), **{f"familiarity.{name}": tensor for name, tensor in familiarity.items()}}
    tensors |= int8_scales(model).tensors() if job.precision == "int8" else {}
    return {
        "format": 1,
        "options": {name: value for name, value in asdict(job).items() if name not in UNIMPORTANT},
        "model": {
            "weights": weights_digest(model.config, tensors),
            "calibration": None if model.config.calibration is None else to_dict(model.config.calibration),
        },
        "images": {"shards": len(shards), "files": fingerprint(shards)},
    }


def _check_same(folder: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    now = json.loads(json.dumps(now))
    if different := [key for key in now if now[key] != before.get(key)]:
        values = {key: (before.get(key), now[key]) for key in different}
        if different == ["options"] and isinstance(before["options"], dict):
            values = {key: (before["options"].get(key), value) for key, value in now["options"].items()}
        changed = "; ".join(_change(key, *pair) for key, pair in values.items() if pair[0] != pair[1])
        raise ValueError(
            f"{folder} contains results of a different run ({changed}); choose another --out, or delete the folder"
        )


def _change(key: str, before: object, now: object) -> str:
    if isinstance(now, dict) or isinstance(before, dict):  # hashes are not readable
        return f"the {key} changed"
    return f"{key} was {before!r} and is now {now!r}"


def _counts(path: Path) -> Counts | None:
    """Read the number of rows and of errors from the metadata of a file. Return None if the file is damaged."""
    parquet = importlib.import_module("pyarrow.parquet")
    try:
        metadata = parquet.read_metadata(path)
        groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
        last = metadata.num_columns - 1  # the column `error`
        readable = sum(group.column(last).statistics.null_count for group in groups)
    except (OSError, ValueError, AttributeError):
        return None
    return Counts(metadata.num_rows, metadata.num_rows - readable)
