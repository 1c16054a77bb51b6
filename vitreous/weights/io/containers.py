"""Reads and writes files of tensors: `.safetensors`, `.npz`, pickles of torch and Paddle, and indexed shards of them.

The content decides how a file is read, because names are often wrong. No code in any file is executed. `unwrapped`
finds the tensors among the values that training scripts store.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitreous.common.untrusted_files import read_json_object
from vitreous.weights.io.errors import BadCheckpoint, InvalidFile, errors_for, shown
from vitreous.weights.io.npz import read_npz, write_npz
from vitreous.weights.io.pickle.read import read_pickle, write_pdparams
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
# Keys under which timm, DeiT, MAE, DINO, DINOv2, torchvision's references, Lightning, PyTorch's tutorials, fastai and
# flax store weights. Averaged weights are preferred to others. The first group are usual names of modules too.
AVERAGED_MODULES = ("model_ema", "ema_model", "ema", "teacher", "averaged_model", "target_encoder", "momentum_encoder")
AVERAGED = ("state_dict_ema", "ema_state_dict", "model_ema_state_dict", "ema_model_state_dict", *AVERAGED_MODULES)
WRAPPERS = (
    *AVERAGED,
    *("model_state_dict", "model_state", "state_dict", "model", "net", "network", "module", "weights"),
    *("params", "target"),  # flax's
    *("backbone", "encoder", "student"),
)
MAX_TENSOR_NAME = 500
FLAX_PREFIXES = ("opt/target/", "params/")  # the same keys where nested names were joined
# Names that torch.compile, activation checkpointing and FSDP insert anywhere.
INSERTED = re.compile(r"(?<![^.])(_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module)\.")


def read_file(file: Path, lazy: bool = False) -> Any:
    """Read the tensors in a file by name. Pickles may nest them in other values.

    `lazy` maps tensors that are not aligned too, without reading or verifying their data.
    """
    if file.name.endswith(".index.json"):
        return _read_shards(file, lazy)
    if (suffix := suffix_of(file)) not in SUFFIXES:
        raise BadCheckpoint(f"{file} ends in {file.suffix!r}, but weights are in {', '.join(SUFFIXES)}")
    match _sniff(file) or suffix:
        case ".safetensors":
            return read_tensors(file, alignment=8)  # safetensors guarantees no more, and copies would not be faster
        case ".npz":
            return read_npz(file, lazy)
    return read_pickle(file, lazy)


def suffix_of(file: Path) -> str:
    """Return the suffix of a file of weights, in lower case."""
    name = file.name.lower()
    return Path(name.removesuffix(".tar") if name.endswith(NOT_TAR) else name).suffix


def _sniff(file: Path) -> str | None:
    """Return the suffix that fits the first bytes of a file, or None. Refuse other kinds of file."""
    with errors_for(file), open(file, "rb") as stream:
        start, size = stream.read(START_BYTES), os.fstat(stream.fileno()).st_size
        if start[8:9] == b"{" and 8 + int.from_bytes(start[:8], "little") <= size:
            return ".safetensors"
        if start.startswith(ZIP_START):
            with opened_zip(stream) as (_, members):
                return ".npz" if any(name.endswith(".npy") for name in members) else ".pth"
        text = start.lstrip(b"\xef\xbb\xbf \r\n\t").lower()
        for sign, kind in OTHER_FILES.items():
            if text.startswith(sign):
                raise InvalidFile(f"is {kind}")
        if start[TAR_AT:].startswith(TAR):
            raise InvalidFile("is a tar archive: unpack it first")
        return ".pth" if start.startswith(PICKLE_START) else None


def _read_shards(index: Path, lazy: bool) -> Mapped:
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
        shard = read_file(index.parent / name, lazy)
        if not isinstance(shard, dict):
            raise BadCheckpoint(f"{index.parent / name} holds {kind_of(shard)}, but must hold tensors by name")
        tensors = Mapped(tensors | shard, *tensors.files, *(shard.files if isinstance(shard, Mapped) else ()))
        check_count(index, len(tensors))
    if missing := [name for name in weight_map if name not in tensors]:
        raise BadCheckpoint(f"{index} lists {missing[0]} and {len(missing) - 1} more that its files do not have")
    return tensors


def kind_of(value: object) -> str:
    """Name the kind of a value for an error message."""
    return value.name if isinstance(value, Ignored) else f"a {type(value).__name__}"


# ---- Wrappers of training scripts -----------------------------------------------------------------------------------


def unwrapped(value: Any, path: Path) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Return the tensors in a training script's values, and the keys that lead to them."""
    if not isinstance(value, Mapping):
        raise BadCheckpoint(f"{path} holds {kind_of(value)}, but must hold tensors by name")
    found = _find_tensors(value)
    if found is None:
        first = list(value.items())[:5]
        keys = [shown(key) + (f" ({item.name})" if isinstance(item, Ignored) else "") for key, item in first]
        raise BadCheckpoint(f"{path} has no tensors under a known key; it has {', '.join(keys) or 'nothing'}")
    held, keys_to_it = found
    tensors: dict[str, Tensor] = {}
    for key, item in held.items():
        if isinstance(item, Tensor):
            if len(str(key)) > MAX_TENSOR_NAME:
                raise BadCheckpoint(f"{path} has a tensor with a name of {len(str(key)):,} letters: {shown(key)}")
            name = INSERTED.sub("", str(key))
            if name in tensors:
                raise BadCheckpoint(f"{path} has {shown(name)} twice, once as {shown(key)}")
            tensors[name] = item
    tensors.pop("n_averaged", None)  # the number of updates of torch's AveragedModel
    for prefix in FLAX_PREFIXES:
        if all(name.startswith(prefix) for name in tensors):
            tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    return tensors, keys_to_it


def _find_tensors(value: Mapping[Any, Any]) -> tuple[Mapping[Any, Any], tuple[str, ...]] | None:
    """Return the mapping that has tensors, and its keys from the outside; of several, the first in WRAPPERS."""
    for key in WRAPPERS:
        if isinstance(inner := value.get(key), Mapping) and (found := _find_tensors(inner)):
            return found[0], (key, *found[1])
    return (value, ()) if any(isinstance(item, Tensor) for item in value.values()) else None


# ---- Writing ---------------------------------------------------------------------------------------------------------


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
