"""Files that declare more tensors than any model has are rejected early."""

import io
import json
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import vitreous
from vitreous.weights.io import npz as npz_files
from vitreous.weights.io import safetensors_file as safetensors_files
from vitreous.weights.io.errors import BadCheckpoint
from vitreous.weights.io.pickle import tensors as pickle_tensors
from vitreous.weights.io.safetensors_file import MAX_TENSORS


def header_of(count: int) -> bytes:
    entry = '"t%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    return ("{" + ",".join(entry % i for i in range(count)) + "}").encode()


def safetensors(file: Path, count: int) -> None:
    text = header_of(count)
    file.write_bytes(struct.pack("<Q", len(text)) + text)


def npz(file: Path, count: int) -> None:
    empty = io.BytesIO()
    np.save(empty, np.zeros(0, np.float32))
    with zipfile.ZipFile(file, "w") as archive:
        for i in range(count):
            archive.writestr(f"{i:x}.npy", empty.getvalue())


def torch_file(file: Path, count: int) -> None:
    torch.save({"state_dict": {str(i): torch.empty(0) for i in range(count)}}, file)


def paddle_file(file: Path, count: int) -> None:
    file.write_bytes(pickle.dumps({str(i): np.zeros(0, np.float32) for i in range(count)}, protocol=4))


@pytest.mark.slow
@pytest.mark.parametrize("count", [MAX_TENSORS + 1, 1_000_000])
def test_too_many_tensors_in_safetensors_are_rejected(tmp_path: Path, count: int) -> None:
    safetensors(tmp_path / "x.safetensors", count)
    with pytest.raises(BadCheckpoint, match=r"x\.safetensors has .* maximum"):
        vitreous.load(tmp_path / "x.safetensors")


@pytest.mark.parametrize(("name", "write"), [("x.npz", npz), ("x.pth", torch_file), ("x.pdparams", paddle_file)])
def test_too_many_tensors_in_other_files_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, write: Callable[[Path, int], None]
) -> None:
    for reader in (npz_files, pickle_tensors):  # real files would take long to write
        monkeypatch.setattr(reader, "MAX_TENSORS", 50)
    write(tmp_path / name, 51)
    with pytest.raises(BadCheckpoint, match=rf"{name} contains .*(maximum is 50|more than 50)"):
        vitreous.load(tmp_path / name)


@pytest.mark.slow
def test_header_with_a_million_tensors_is_not_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unused(*_: object, **__: object) -> None:
        raise AssertionError("the header was parsed")

    safetensors(tmp_path / "x.safetensors", 1_000_000)
    monkeypatch.setattr(safetensors_files, "safe_open", unused)
    with pytest.raises(BadCheckpoint, match="header of"):
        vitreous.load(tmp_path / "x.safetensors")


@pytest.mark.slow
def test_too_many_tensors_in_all_shards_are_rejected(tmp_path: Path) -> None:
    """Each file is below the limit, but their total is above it."""
    shards = [f"model-{i}.safetensors" for i in range(3)]
    for i, shard in enumerate(shards):
        text = header_of(MAX_TENSORS // 2).replace(b'"t', f'"{i}t'.encode())
        (tmp_path / shard).write_bytes(struct.pack("<Q", len(text)) + text)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {s: s for s in shards}}))
    with pytest.raises(BadCheckpoint, match="maximum"):
        vitreous.load(tmp_path)
