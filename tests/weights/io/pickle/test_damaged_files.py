"""Invalid and randomly damaged pickle files."""

import io
import os
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from corrupted_files import check_read_or_rejected, damaged
from handmade_pickles import array, check_rejected, pickled, shifted, torch_old, torch_zip, view, zip_of
from vitreous.weights.io.errors import BadCheckpoint
from vitreous.weights.io.pickle.read import read_pickle

ZIP = torch_zip(view())
FILES = {
    "nothing": (b"", "is empty"),
    "text": (b"weights? none", "is not a complete pickle"),
    "a compressed bomb": (
        zip_of({"x/data.pkl": pickled(view(elements=2**26)), "x/data/0": bytes(2**26)}, zipfile.ZIP_DEFLATED),
        "in compressed form; torch stores it uncompressed",
    ),
    "a compressed storage": (
        shifted(torch_zip(view()), b"PK\1\2", 10, "<H", zipfile.ZIP_DEFLATED),
        "contains x/data/0 in compressed form; torch stores it uncompressed",
    ),
    "another method": (shifted(ZIP, b"PK\1\2", 10, "<H", zipfile.ZIP_LZMA), "compressed by method 14"),
    "a password": (shifted(ZIP, b"PK\1\2", 8, "<H", 1), "encrypted"),
    "two sizes": (shifted(ZIP, b"PK\1\2", 24, "<I", 2**31), "inconsistent sizes"),
    "a member beyond the end": (
        shifted(shifted(ZIP, b"PK\1\2", 20, "<I", 2**31), b"PK\1\2", 24, "<I", 2**31),
        "truncated: x/data/0 ends at byte 2,147",
    ),
    "members that overlap": (shifted(ZIP, b"PK\1\2", 42, "<I", 0), "which overlaps x/data"),
    "a member elsewhere": (shifted(ZIP, b"PK\1\2", 42, "<I", 200), "at byte 200, but no member starts"),
    "a name twice": (zip_of({"x/data.pkl": b"", "x/data/0": b"", "x/data/1": b""}).replace(b"a/1", b"a/0"), "0 twice"),
    "a directory without end": (
        b"PK\3\4" + bytes(2**23) + struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, 2**23, 4, 0),
        "a zip directory of 8,388,608 bytes",
    ),
    "a cut zip": (ZIP[:-9], "is not a complete zip file"),
    "another zip": (zip_of({"a.npy": b""}), "0 data.pkl members"),
    "two zips": (zip_of({"a/data.pkl": b"", "b/data.pkl": b""}), "2 data.pkl"),
    "the big end first": (torch_zip(view(), byteorder=b"big"), "big-endian"),
    "a missing storage": (zip_of({"x/data.pkl": pickled(view())}), "has 0 bytes for the storage 0; expected 24"),
    "another version": (torch_old(view(), version=1), "expected 1001"),
    "the big end first, long ago": (torch_old(view(), little_endian=False), "big-endian"),
    "storages that are not listed": (torch_old(view(), keys=()), "lists storages other than"),
    "storages that are no text": (torch_old(view(), keys=([[]],)), "lists storages other than"),
    "storages that are not used": (torch_old(view(), keys=("0", "1")), "lists storages other than"),
    "a storage twice": (torch_old(view(), keys=("0", "0")), "lists storages other than"),
    "another count": (torch_old(view(), count=2**40), "of 1,099,511,627,776 elements; expected 24"),
    "a cut storage": (torch_old(view())[:-1], "has 23 bytes for the storage 0"),
    "no storage": (torch_old(view())[:-32], "truncated at .*: storage 0"),
    "the beginning only": (torch_old(view())[:40], "is not a complete pickle|is truncated"),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", FILES)
def test_invalid_files_are_rejected(tmp_path: Path, name: str) -> None:
    check_rejected(tmp_path, *FILES[name])


def test_valid_examples_are_read(tmp_path: Path) -> None:
    for data in (torch_zip([view(), array()]), torch_old([view(), array()])):
        (tmp_path / "x").write_bytes(data)
        tensor, numbers = read_pickle(tmp_path / "x")
        assert tensor.tolist() == [[0, 0, 0], [0, 0, 0]]
        assert numbers.tolist() == [0, 0]


def test_error_names_folders_pipes_and_missing_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, reason in [("", "is not a file"), ("pipe", "is not a file"), ("none", "cannot be read: No such file")]:
        with pytest.raises(BadCheckpoint, match=f"{name} {reason}"):
            read_pickle(tmp_path / name)


# ---- Random damage ---------------------------------------------------------------------------------------------------


def _samples() -> list[bytes]:
    base = torch.arange(12.0).view(3, 4)
    value = {"a": base, "b": base.T[1:], "c": torch.nn.Parameter(base), "d": [1, 2.5, None, "x"], "e": torch.ones(2)}
    value |= {"model": torch.nn.BatchNorm1d(3).state_dict(), "half": torch.ones(2).half(), "n": np.arange(3.0)}
    arrays = {"a": np.ones((2, 3), "f4"), "b": np.asfortranarray(np.ones((2, 3))), "c": {"d": np.float32(1)}}
    samples = [pickle.dumps(arrays, protocol) for protocol in (2, 4, 5)]
    for old in (False, True):
        stream = io.BytesIO()
        torch.save(value, stream, _use_new_zipfile_serialization=not old)
        samples.append(stream.getvalue())
    return samples


@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=damaged(_samples()))
def test_damage_is_detected_or_harmless(tmp_path: Path, data: bytes) -> None:
    check_read_or_rejected(read_pickle, tmp_path / "x", data)
