"""Reads and writes files of tensors: `.safetensors`, `.npz`, pickles of torch and Paddle, and indexed shards of them.

The content decides how a file is read, because names are often wrong. No code in any file is executed.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitreous.common.json_files import read_json_object
from vitreous.weights.io.errors import BadCheckpoint, Refused, naming
from vitreous.weights.io.npz import read_npz, write_npz
from vitreous.weights.io.pickle.paddle import write_pdparams
from vitreous.weights.io.pickle.read import read_pickle
from vitreous.weights.io.pickle.tensors import Ignored
from vitreous.weights.io.safetensors_file import Mapped, check_count, read_tensors, write_tensors
from vitreous.weights.io.zip_directory import ZIP_START, opened_zip

# Names of weights in folders of transformers and timm, in order of preference.
USUAL_NAMES = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
PICKLES = (".pt", ".pth", ".bin", ".pdparams", ".ckpt")
SUFFIXES = (".safetensors", ".npz", *PICKLES)
TORCH_SUFFIXES = (".pth", ".pt", ".bin", ".safetensors")
NOT_TAR = (".pt.tar", ".pth.tar", ".ckpt.tar")  # names that many scripts give to files of torch.save
PICKLE_START = b"\x80"  # of protocol 2 or later
TAR, TAR_AT = b"ustar", 257
START_BYTES = 512

# The first bytes of files that are often mistaken for weights.
OTHER_FILES = {
    b"version https://git-lfs": "only the pointer of Git LFS, not the file itself: get it with `git lfs pull`",
    b"<!doctype": "a web page, not weights: download the file that the page links to",
    b"<html": "a web page, not weights: download the file that the page links to",
    b"<?xml": "XML, probably an error message of a server: download the file again",
    b"{": "JSON, not weights",
    b"\x1f\x8b": "compressed by gzip: unpack it first",
    b"\x89hdf": "HDF5, which is not supported: convert it with the system that wrote it",
}


def read_file(file: Path) -> Any:
    """Read the tensors of a file by name; a pickle may nest them in other values."""
    if file.name.endswith(".index.json"):
        return _read_shards(file)
    if (suffix := suffix_of(file)) not in SUFFIXES:
        raise BadCheckpoint(f"{file} ends in {file.suffix!r}, but weights are in {', '.join(SUFFIXES)}")
    match _sniff(file) or suffix:
        case ".safetensors":
            return read_tensors(file, alignment=8)  # safetensors guarantees no more, and copies would not be faster
        case ".npz":
            return read_npz(file)
    return read_pickle(file)


def suffix_of(file: Path) -> str:
    """Return the suffix of a file of weights, in lower case.

    >>> suffix_of(Path("last.pth.tar")), suffix_of(Path("VIT.NPZ"))
    ('.pth', '.npz')
    """
    name = file.name.lower()
    return Path(name.removesuffix(".tar") if name.endswith(NOT_TAR) else name).suffix


def _sniff(file: Path) -> str | None:
    """Return the suffix that fits the first bytes of a file, or None. Refuse other kinds of file."""
    with naming(file), open(file, "rb") as stream:
        start, size = stream.read(START_BYTES), os.fstat(stream.fileno()).st_size
        if start[8:9] == b"{" and 8 + int.from_bytes(start[:8], "little") <= size:
            return ".safetensors"
        if start.startswith(ZIP_START):
            with opened_zip(stream) as (_, members):
                return ".npz" if any(name.endswith(".npy") for name in members) else ".pth"
        text = start.lstrip(b"\xef\xbb\xbf \r\n\t").lower()
        for sign, kind in OTHER_FILES.items():
            if text.startswith(sign):
                raise Refused(f"is {kind}")
        if start[TAR_AT:].startswith(TAR):
            raise Refused("is a tar archive: unpack it first")
        return ".pth" if start.startswith(PICKLE_START) else None


def _read_shards(index: Path) -> Mapped:
    weight_map = read_json_object(index, BadCheckpoint).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise BadCheckpoint(f"{index} has no weight_map, which assigns tensors to files")
    check_count(index, len(weight_map))
    tensors = Mapped()
    for name in sorted(set(weight_map.values())):
        if Path(name).name != name:
            raise BadCheckpoint(f"{index} names {name!r}, which is not in the same folder")
        if not name.endswith(SUFFIXES) or "\0" in name:
            raise BadCheckpoint(f"{index} names {name!r}, but weights are in {', '.join(SUFFIXES)}")
        shard = read_file(index.parent / name)
        if not isinstance(shard, dict):
            raise BadCheckpoint(f"{index.parent / name} holds {kind_of(shard)}, but must hold tensors by name")
        tensors = Mapped(tensors | shard, *tensors.files, *(shard.files if isinstance(shard, Mapped) else ()))
        check_count(index, len(tensors))
    if missing := [name for name in weight_map if name not in tensors]:
        raise BadCheckpoint(f"{index} lists {missing[0]} and {len(missing) - 1} more that its files do not have")
    return tensors


def kind_of(value: object) -> str:
    """Name the kind of a value for an error message.

    >>> kind_of([]), kind_of(Ignored("argparse.Namespace"))
    ('a list', 'argparse.Namespace')
    """
    return value.name if isinstance(value, Ignored) else f"a {type(value).__name__}"


def write_file(tensors: Mapping[str, Tensor], path: Path, under: str | None = None) -> None:
    """Write tensors in the format of the file's suffix; torch's files may hold them `under` one more key."""
    match path.suffix:
        case ".safetensors":
            write_tensors(tensors, path)
        case ".npz":
            write_npz(tensors, path)
        case ".pt" | ".pth" | ".bin":
            # torch.save writes the whole storage of a view.
            whole = {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}
            torch.save(whole if under is None else {under: whole}, path)
        case ".pdparams":
            write_pdparams(tensors, path)
        case _:
            usual = ".safetensors, .npz, .pt, .pth, .bin or .pdparams"
            raise ValueError(f"{path} ends in {path.suffix!r}, but must end in {usual}")
