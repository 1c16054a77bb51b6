"""Tar files, Parquet files and folders with the same small images."""

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet

from images import encoded


def small_images(count: int, seed: int = 0) -> dict[str, bytes]:
    """Return PNG files by name, in sorted order."""
    rng = np.random.default_rng(seed)
    return {f"{i:04d}.png": encoded(rng.integers(0, 256, (9, 12, 3), dtype=np.uint8)) for i in range(count)}


def write_folder(folder: Path, images: Mapping[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in images.items():
        (folder / name).write_bytes(data)
    return folder


def write_tar(path: Path, images: Mapping[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in images.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def write_parquet(path: Path, images: Mapping[str, bytes | None], row_group: int = 1000) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = arrow.table({"image": arrow.array(images.values(), arrow.binary()), "caption": list(images)})
    parquet.write_table(table, path, row_group_size=row_group)
    return path
