"""Reads and writes tensor files: `.safetensors`, `.npz`, torch and Paddle pickles, and sharded checkpoints.

The file type is detected from the content because suffixes are often wrong. No code in a file is executed. `unwrapped`
finds the tensors in the nested dicts that training scripts save.
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

# Weight file names of transformers, timm and OpenCLIP, in order of preference, and OpenCLIP's config.
USUAL_NAMES = (
    *("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json"),
    *("open_clip_model.safetensors", "open_clip_pytorch_model.bin"),
)
OPEN_CLIP_CONFIG = "open_clip_config.json"
PICKLES = (".pt", ".pth", ".bin", ".pdparams", ".ckpt")
SUFFIXES = (".safetensors", ".npz", *PICKLES)
TORCH_SUFFIXES = (".pth", ".pt", ".bin", ".safetensors")
NOT_TAR = (".pt.tar", ".pth.tar", ".ckpt.tar")  # names that many scripts give torch.save files
PICKLE_START = b"\x80"  # protocol 2 or later
TAR, TAR_AT = b"ustar", 257
START_BYTES = 512

# First bytes of files that are often mistaken for weights.
OTHER_FILES = {
    b"version https://git-lfs": "a Git LFS pointer, not the file itself: download it with `git lfs pull`",
    b"<!doctype": "a web page, not a weight file: download the file that the page links to",
    b"<html": "a web page, not a weight file: download the file that the page links to",
    b"<?xml": "XML, probably a server error message: download the file again",
    b"{": "a JSON file, not a weight file",
    b"\x1f\x8b": "a gzip file: decompress it first",
    b"\x89hdf": "an HDF5 file, which is not supported: convert it to safetensors or npz first",
}
# Keys under which timm, DeiT, MAE, DINO, DINOv2, torchvision's references, Lightning, PyTorch's tutorials, fastai and
# flax store weights. Averaged weights come first. AVERAGED_MODULES are also common module names.
AVERAGED_MODULES = ("model_ema", "ema_model", "ema", "teacher", "averaged_model", "target_encoder", "momentum_encoder")
AVERAGED = ("state_dict_ema", "ema_state_dict", "model_ema_state_dict", "ema_model_state_dict", *AVERAGED_MODULES)
WRAPPERS = (
    *AVERAGED,
    *("model_state_dict", "model_state", "state_dict", "model", "net", "network", "module", "weights"),
    *("params", "target"),  # flax
    *("backbone", "encoder", "student"),
)
MAX_TENSOR_NAME = 500
FLAX_PREFIXES = ("opt/target/", "params/")  # flax keys in flattened names
# Module names inserted by torch.compile, activation checkpointing and FSDP.
INSERTED = re.compile(r"(?<![^.])(_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module)\.")


def read_file(file: Path, lazy: bool = False) -> Any:
    """Read the tensors of a file into a dict by name. In pickles, tensors may be nested among other values.

    With `lazy`, even unaligned tensors are memory-mapped, and no data is read or verified.
    """
    if file.name.endswith(".index.json"):
        return _read_shards(file, lazy)
    if (suffix := suffix_of(file)) not in SUFFIXES:
        raise BadCheckpoint(f"{file} has the suffix {file.suffix!r}; weight files end in {', '.join(SUFFIXES)}")
    match _sniff(file) or suffix:
        case ".safetensors":
            return read_tensors(file, alignment=8)  # safetensors guarantees this alignment; copying would not be faster
        case ".npz":
            return read_npz(file, lazy)
    return read_pickle(file, lazy)


def suffix_of(file: Path) -> str:
    """Return the lower-case suffix of a weight file, ignoring `.tar` in names such as `model.pth.tar`."""
    name = file.name.lower()
    return Path(name.removesuffix(".tar") if name.endswith(NOT_TAR) else name).suffix


def _sniff(file: Path) -> str | None:
    """Detect the file type from the first bytes. Return its usual suffix, or None if the type is unknown."""
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
        raise BadCheckpoint(f"{index} has no weight_map from tensor names to file names")
    check_count(index, len(weight_map))
    tensors = Mapped()
    for name in sorted(set(weight_map.values())):
        if Path(name).name != name:
            raise BadCheckpoint(f"{index} lists {name!r}, which is not in the same folder")
        if not name.endswith(SUFFIXES) or "\0" in name:
            raise BadCheckpoint(f"{index} lists {name!r}; weight files end in {', '.join(SUFFIXES)}")
        shard = read_file(index.parent / name, lazy)
        if not isinstance(shard, dict):
            raise BadCheckpoint(f"{index.parent / name} must contain a dict of tensors, got {type_name(shard)}")
        tensors = Mapped(tensors | shard, *tensors.files, *(shard.files if isinstance(shard, Mapped) else ()))
        check_count(index, len(tensors))
    if missing := [name for name in weight_map if name not in tensors]:
        raise BadCheckpoint(f"{index} lists tensors that are missing from its files, such as {missing[0]}")
    return tensors


def type_name(value: object) -> str:
    """Return the class name of a value in a pickle."""
    return value.name if isinstance(value, Ignored) else type(value).__name__


# ---- Training script wrappers ---------------------------------------------------------------------------------------


def unwrapped(value: Any, path: Path, part: str = "") -> tuple[dict[str, Tensor], tuple[str, ...], str]:
    """Find the tensors in a training checkpoint.

    Return the tensors, the keys that lead to them, and the rest of `part`, a dotted name that may start with such keys.
    """
    if not isinstance(value, Mapping):
        raise BadCheckpoint(f"{path} must contain a dict of tensors, got {type_name(value)}")
    found = _find_tensors(value, part)
    if found is None:
        first = list(value.items())[:5]
        keys = [shown(key) + (f" ({item.name})" if isinstance(item, Ignored) else "") for key, item in first]
        raise BadCheckpoint(f"{path} has no tensors under a known key; found {', '.join(keys) or 'no keys'}")
    held, keys_to_it, rest = found
    tensors: dict[str, Tensor] = {}
    for key, item in held.items():
        if isinstance(item, Tensor):
            if (length := len(str(key))) > MAX_TENSOR_NAME:
                limit = f"the maximum is {MAX_TENSOR_NAME}"
                raise BadCheckpoint(f"{path} has a tensor name of {length:,} characters ({limit}): {shown(key)}")
            name = INSERTED.sub("", str(key))
            if name in tensors:
                raise BadCheckpoint(f"{path} contains {shown(name)} twice, once as {shown(key)}")
            tensors[name] = item
    tensors.pop("n_averaged", None)  # update counter of torch's AveragedModel
    for prefix in FLAX_PREFIXES:
        if all(name.startswith(prefix) for name in tensors):
            tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    return tensors, keys_to_it, rest


def _find_tensors(value: Mapping[Any, Any], part: str) -> tuple[Mapping[Any, Any], tuple[str, ...], str] | None:
    """Return the nested mapping that contains the tensors, the keys that lead to it, and the rest of `part`.

    Keys at the start of `part` are followed first, then those of WRAPPERS, in order.
    """
    chosen = [key for key in value if isinstance(key, str) and f"{part}.".startswith(f"{key}.")]
    for key in chosen or WRAPPERS:
        rest = part[len(key) + 1 :] if chosen else part
        if isinstance(inner := value.get(key), Mapping) and (found := _find_tensors(inner, rest)):
            return found[0], (key, *found[1]), found[2]
    return (value, (), part) if any(isinstance(item, Tensor) for item in value.values()) else None


# ---- Writing ---------------------------------------------------------------------------------------------------------


def write_file(tensors: Mapping[str, Tensor], path: Path, under: str | None = None) -> None:
    """Write tensors in the file type given by the suffix. In torch files, nest them under the key `under` if given."""
    match path.suffix:
        case ".safetensors":
            write_tensors(tensors, path)
        case ".npz":
            write_npz(tensors, path)
        case ".pt" | ".pth" | ".bin":
            # Clone, because torch.save writes the whole storage of a view.
            whole = {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}
            torch.save(whole if under is None else {under: whole}, path)
        case ".pdparams":
            write_pdparams(tensors, path)
        case _:
            usual = ".safetensors, .npz, .pt, .pth, .bin or .pdparams"
            raise ValueError(f"{path} has the suffix {path.suffix!r}; expected {usual}")
