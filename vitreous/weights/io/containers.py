"""Files that hold tensors, whatever they are called there: `.safetensors`, `.npz`, and the pickles of torch and Paddle.

A folder may hold one such file, or many that an index names. No code in any of them is executed.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitreous.common.json_files import read_json_object
from vitreous.weights.io.checkpoint import ForeignCheckpoint
from vitreous.weights.io.errors import if_run, not_there
from vitreous.weights.io.npz import read_npz, write_npz
from vitreous.weights.io.pickle.files import read_pickle
from vitreous.weights.io.pickle.pdparams import write_pdparams
from vitreous.weights.io.safetensors_file import BadCheckpoint, Mapped, check_count, read_tensors, write_tensors
from vitreous.weights.io.sniff import content_of
from vitreous.weights.io.wrappers import kind_of, unwrapped

PICKLES = (".pt", ".pth", ".bin", ".pdparams", ".ckpt")
SUFFIXES = (".safetensors", ".npz", *PICKLES)
NO_TARS = (".pt.tar", ".pth.tar", ".ckpt.tar")  # so many scripts call what torch.save writes
TORCH_SUFFIXES = (".pth", ".pt", ".bin", ".safetensors")

# What transformers and timm call their weights in a folder, in the order in which they are looked for.
USUAL = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")


def open_found(path: Path) -> ForeignCheckpoint:
    """The tensors of a file or folder, without wrappers, and the config.json beside them.

    A file with the name that it has in such a folder stands for the folder: what is beside it is about it.
    """
    file = weights_in(path) if path.is_dir() else path
    if not file.is_file():
        raise not_there(path)
    config, config_file = {}, file.parent / "config.json"
    if (path.is_dir() or file.name in USUAL) and config_file.is_file():
        path, config = file.parent, read_json_object(config_file, BadCheckpoint)
    content = read_file(file)
    forget = content.forget if isinstance(content, Mapped) else lambda: None
    tensors, inside = unwrapped(content, path)
    return ForeignCheckpoint(path, tensors, config, forget, inside, model_name=_model_name(content))


def _model_name(content: Mapping[str, Any]) -> str:
    """The name that metadata give: timm's training scripts write `arch` beside the weights."""
    metadata = content.metadata if isinstance(content, Mapped) else content
    names = (metadata.get(key) for key in ("architecture", "arch"))
    return next((name for name in names if isinstance(name, str)), "")


def weights_in(folder: Path) -> Path:
    """The one file of a folder that has weights: what transformers and timm write, or whatever is alone there."""
    for name in USUAL:
        if (folder / name).is_file():
            return folder / name
    files = sorted(file for file in folder.iterdir() if suffix_of(file) in SUFFIXES)
    if len(files) == 1:
        return files[0]
    if_run(folder)
    held = f"{len(files)} of them: name the one you mean" if files else "none"
    raise BadCheckpoint(f"{folder} must hold one file of weights ({', '.join(SUFFIXES)}), but has {held}")


def suffix_of(file: Path) -> str:
    """What a name says that a file is.

    >>> suffix_of(Path("last.pth.tar")), suffix_of(Path("VIT.NPZ"))
    ('.pth', '.npz')
    """
    name = file.name.lower()
    return Path(name.removesuffix(".tar") if name.endswith(NO_TARS) else name).suffix


def read_file(file: Path) -> Any:
    """What a file holds: tensors by name, in a pickle perhaps inside of other things.

    Its name says whether it is meant to be weights; what kind of file it is, its content, as far as it tells.
    """
    if file.name.endswith(".index.json"):
        return _read_shards(file)
    if (suffix := suffix_of(file)) not in SUFFIXES:
        raise BadCheckpoint(f"{file} ends in {file.suffix!r}, but weights are in {', '.join(SUFFIXES)}")
    match content_of(file) or suffix:
        case ".safetensors":
            return read_tensors(file, alignment=8)  # as safetensors guarantees it: a copy would not compute faster
        case ".npz":
            return read_npz(file)
    return read_pickle(file)


def _read_shards(index: Path) -> dict[str, Tensor]:
    weight_map = read_json_object(index, BadCheckpoint).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise BadCheckpoint(f"{index} has no weight_map, which says what is where")
    check_count(index, len(weight_map))
    tensors = Mapped()
    for name in sorted(set(weight_map.values())):
        if Path(name).name != name:
            raise BadCheckpoint(f"{index} names {name!r}, which is not in its own folder")
        if not name.endswith(SUFFIXES) or "\0" in name:
            raise BadCheckpoint(f"{index} names {name!r}, but weights are in {', '.join(SUFFIXES)}")
        shard = read_file(index.parent / name)
        if not isinstance(shard, dict):
            raise BadCheckpoint(f"{index.parent / name} holds {kind_of(shard)}, but must hold tensors by name")
        tensors = Mapped(tensors | shard, *tensors.files, *(shard.files if isinstance(shard, Mapped) else ()))
        check_count(index, len(tensors))
    if missing := [name for name in weight_map if name not in tensors]:
        raise BadCheckpoint(f"{index} promises {missing[0]} and {len(missing) - 1} more that its files do not have")
    return tensors


def write_file(tensors: Mapping[str, Tensor], path: Path, under: str | None = None) -> None:
    """Tensors as a file of the kind that its name says; in torch's, perhaps in a dictionary under one more name."""
    match path.suffix:
        case ".safetensors":
            write_tensors(tensors, path)
        case ".npz":
            write_npz(tensors, path)
        case ".pt" | ".pth" | ".bin":
            # A tensor that is a view of another would be written with all of it.
            whole = {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}
            torch.save(whole if under is None else {under: whole}, path)
        case ".pdparams":
            write_pdparams(tensors, path)
        case _:
            usual = ".safetensors, .npz, .pt, .pth, .bin or .pdparams"
            raise ValueError(f"{path} ends in {path.suffix!r}, but must end in {usual}")
