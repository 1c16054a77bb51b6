"""The file type is detected from the content, and errors name other file types."""

import pickle
import pickletools
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

import vitreous
from vitreous.model.build import build
from vitreous.model.config import ViTConfig
from vitreous.model.options import Gelu
from vitreous.model.vit import ViT
from vitreous.weights.io.errors import BadCheckpoint

SMALL = ViTConfig(
    image_size=(32, 32), patch_size=(8, 8), width=64, depth=1, num_heads=1, mlp_width=64, num_classes=3, mlp=Gelu("erf")
)


def timm_state(folder: Path) -> tuple[ViT, dict[str, torch.Tensor]]:
    """Return a model and its tensors under timm's names."""
    model = build(SMALL).eval()
    vitreous.save(model, folder / "x.safetensors", format="timm")
    return model, safetensors.torch.load_file(folder / "x.safetensors")


def check_same(file: Path, model: ViT) -> None:
    images = torch.linspace(-1, 1, 3 * 32 * 32).view(1, 3, 32, 32)
    assert torch.equal(vitreous.load(file)(images), model(images))


@pytest.mark.slow
def test_file_type_is_detected_from_content(tmp_path: Path) -> None:
    model, state = timm_state(tmp_path)
    for name in ("a.pth", "a.npz", "a.pt.tar"):
        safetensors.torch.save_file(state, tmp_path / name)
        check_same(tmp_path / name, model)
    for name in ("b.safetensors", "b.npz"):
        for zipped in (True, False):
            torch.save(state, tmp_path / name, _use_new_zipfile_serialization=zipped)
            check_same(tmp_path / name, model)
    with open(tmp_path / "c.bin", "wb") as stream:
        np.savez(stream, **{name: tensor.numpy() for name, tensor in state.items()})
    check_same(tmp_path / "c.bin", model)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\n<!DOCTYPE html><html>", "is a web page"),
        (b"<html>", "is a web page"),
        (b"<?xml version='1.0'?><Error>", "is XML, probably a server error message"),
        (b'{"message": "Not Found"}', "is a JSON file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "is a Git LFS pointer"),
        (b"\x1f\x8b\x08\0", "is a gzip file: decompress it first"),
        (b"\x89HDF\r\n\x1a\n", "is an HDF5 file, which is not supported"),
        (b"last/".ljust(257, b"\0") + b"ustar\0", "is a tar archive: unpack it first"),
    ],
)
@pytest.mark.parametrize("name", ["x.pth", "x.safetensors", "x.npz", "x.pth.tar"])
def test_error_names_other_file_types(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(BadCheckpoint, match=f"{name} .*{message}") as refusal:
        vitreous.load(tmp_path / name)
    assert "\n" not in str(refusal.value)


def test_pickle_that_starts_like_safetensors_is_read(tmp_path: Path) -> None:
    data = pickletools.optimize(pickle.dumps({"{ab}": 1}, 2))
    assert data[8:9] == b"{"
    (tmp_path / "x.pth").write_bytes(data)
    with pytest.raises(BadCheckpoint, match=r"no tensors under a known key; found \{ab\}"):
        vitreous.load(tmp_path / "x.pth")


def test_plain_tar_is_rejected(tmp_path: Path) -> None:
    torch.save(timm_state(tmp_path)[1], tmp_path / "x.tar")
    with pytest.raises(BadCheckpoint, match=r"'\.tar'; weight files end in"):
        vitreous.load(tmp_path / "x.tar")
