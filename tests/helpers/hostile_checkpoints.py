"""Functions that write hostile checkpoints: code in pickles, bombs, absurd sizes, paths outside the folder."""

import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import vitreous

Maker = Callable[[Path, Path], Path]  # arguments: working folder, file that must not appear


class Payload:
    """Creates a file when unpickled."""

    def __init__(self, canary: Path):
        self.canary = canary

    def __reduce__(self) -> tuple[object, ...]:
        return (open, (str(self.canary), "w"))


def plain_pickle(folder: Path, canary: Path) -> Path:
    file = folder / "x.pth"
    file.write_bytes(pickle.dumps({"model": Payload(canary)}))
    return file


def torch_pickle(folder: Path, canary: Path) -> Path:
    file = folder / "x.pt"
    torch.save({"state_dict": {"a": torch.zeros(2)}, "args": Payload(canary)}, file)
    return file


def paddle_pickle(folder: Path, canary: Path) -> Path:
    file = folder / "x.pdparams"
    file.write_bytes(pickle.dumps({"a": np.zeros(2), "b": Payload(canary)}, protocol=4))
    return file


def truncated_safetensors(folder: Path, canary: Path) -> Path:
    file = folder / "x.safetensors"
    vitreous.save(vitreous.create("ViT-Ti/16", overrides={"depth": 1}), folder / "saved")
    file.write_bytes((folder / "saved" / "model.safetensors").read_bytes()[:-100])
    return file


def huge_safetensors(folder: Path, canary: Path) -> Path:
    header = {"patch_embed.proj.weight": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}}
    text = json.dumps(header).encode()
    file = folder / "x.safetensors"
    file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(64))
    return file


def huge_header(folder: Path, canary: Path) -> Path:
    file = folder / "x.safetensors"
    file.write_bytes((2**62).to_bytes(8, "little") + bytes(64))
    return file


def huge_npy(folder: Path, canary: Path) -> Path:
    """An array that declares 10^12 elements."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (10**6, 10**6)})
    file = folder / "x.npz"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("embedding/kernel.npy", header.getvalue() + bytes(64))
    return file


def zip_bomb(folder: Path, canary: Path) -> Path:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (1 << 28,)})
    file = folder / "x.npz"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("cls.npy", "w") as member:
        member.write(header.getvalue())
        for _ in range(256):
            member.write(bytes(1 << 20))
    return file


def absurd_config(folder: Path, canary: Path) -> Path:
    vitreous.save(vitreous.create("ViT-Ti/16", overrides={"depth": 1}), folder / "saved")
    file = folder / "saved" / "config.json"
    document = json.loads(file.read_text())
    document["model"] |= {"width": 10**9, "depth": 10**6, "image_size": [10**8, 10**8]}
    file.write_text(json.dumps(document))
    return folder / "saved"


def absurd_depth(folder: Path, canary: Path) -> Path:
    """Each number is valid, but the tensors are missing."""
    vitreous.save(vitreous.create("ViT-Ti/16", overrides={"depth": 1}), folder / "saved")
    file = folder / "saved" / "config.json"
    document = json.loads(file.read_text())
    document["model"] |= {"depth": 1000}
    file.write_text(json.dumps(document))
    return folder / "saved"


def absurd_transformers_config(folder: Path, canary: Path) -> Path:
    vitreous.save(vitreous.create("ViT-Ti/16", overrides={"depth": 1}), folder / "foreign", format="huggingface")
    file = folder / "foreign" / "config.json"
    document = json.loads(file.read_text())
    document |= {"hidden_size": 10**9, "num_hidden_layers": 10**6, "image_size": 10**8, "intermediate_size": 10**10}
    file.write_text(json.dumps(document))
    return folder / "foreign"


def index_outside_the_folder(folder: Path, canary: Path) -> Path:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../../etc/passwd"}}))
    return folder


def empty_with_overflowing_stride(folder: Path, canary: Path) -> Path:
    """No elements, and a stride that does not fit in 64 bits."""
    text = json.dumps({"cls_token": {"dtype": "F32", "shape": [0, 2**40, 2**40], "data_offsets": [0, 0]}}).encode()
    file = folder / "x.safetensors"
    file.write_bytes(len(text).to_bytes(8, "little") + text)
    return file
