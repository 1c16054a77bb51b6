"""Hostile files are rejected by name, with little memory and without side effects."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import vitreous
from handmade_pickles import little_memory
from hostile_checkpoints import (
    Maker,
    absurd_config,
    absurd_depth,
    absurd_transformers_config,
    empty_with_overflowing_stride,
    huge_header,
    huge_npy,
    huge_safetensors,
    index_outside_the_folder,
    paddle_pickle,
    plain_pickle,
    torch_pickle,
    truncated_safetensors,
    zip_bomb,
)
from vitreous.model.build import build_vit
from vitreous.model.config import ViTConfig
from vitreous.model.options import Gelu
from vitreous.weights.io.errors import BadCheckpoint


def edited(format: str, **fields: object) -> Maker:
    """A foreign checkpoint folder with changed fields in its JSON files."""

    def make(folder: Path, canary: Path) -> Path:
        vitreous.save(vitreous.create("ViT-Ti/16", overrides={"depth": 1}), folder / "foreign", format=format)
        for file in (folder / "foreign").glob("*.json"):
            document = json.loads(file.read_text())
            for name, value in fields.items():
                *outer, last = name.split("__")
                place = document
                for key in outer:
                    place = place.get(key, {})
                place[last] = value
            file.write_text(json.dumps(document))
        return folder / "foreign"

    make.__name__ = f"{format} {next(iter(fields))}"
    return make


def with_tensors(**changed: torch.Tensor) -> Maker:
    """A timm file with some tensors replaced."""

    def make(folder: Path, canary: Path) -> Path:
        model = vitreous.create("ViT-Ti/16", overrides={"depth": 1, "mlp": Gelu("erf")})
        vitreous.save(model, folder / "x.pth", format="timm")
        torch.save(torch.load(folder / "x.pth", weights_only=True) | changed, folder / "x.pth")
        return folder / "x.pth"

    make.__name__ = f"timm {next(iter(changed))}"
    return make


def narrow_numbers(folder: Path, canary: Path) -> Path:
    """Tensors of a dtype that torch does not promote."""
    vitreous.save(vitreous.create("ViT-Ti/16", overrides={"depth": 1}), folder / "x.npz", format="google")
    with np.load(folder / "x.npz") as arrays:
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    torch.save(tensors | {"cls": tensors["cls"].to(torch.float8_e4m3fn)}, folder / "x.pth")
    return folder / "x.pth"


def token_without_dimensions(folder: Path, canary: Path) -> Path:
    overrides = {"depth": 1, "mlp": Gelu("erf"), "qkv_bias": False, "norm_eps": 1e-5}
    patches = {"patch_method": "linear", "patch_norm": True}
    vitreous.save(vitreous.create("ViT-Ti/16", overrides=overrides | patches), folder / "x.pth", format="lucidrains")
    tensors = torch.load(folder / "x.pth", weights_only=True)
    torch.save(tensors | {"cls_token": torch.tensor(1.0)}, folder / "x.pth")
    return folder / "x.pth"


CASES: list[tuple[Maker, str]] = [
    (with_tensors(pos_embed=torch.zeros(0, 5, 8)), r"pos_embed must have .*got shape \[0, 5, 8\]"),
    (narrow_numbers, r"cls is float8_e4m3fn"),
    (token_without_dimensions, r"cls_token must have 2 dimensions, got shape \[\]"),
    (empty_with_overflowing_stride, r"cls_token has .*invalid shape"),
    (edited("huggingface", layer_norm_eps=10**400), r"layer_norm_eps must be a number, got 1000"),
    (edited("huggingface", image_mean=[10**400] * 3), r"image_mean must be a list of numbers"),
    (edited("huggingface", rescale_factor=float("nan")), r"rescale_factor must be .*got nan"),
    (edited("huggingface", crop_size=10**400), r"crop_size must be .*positive integer.*got 1000"),
    (edited("huggingface", model_type=["vit"]), r"model_type must be a string"),
    (edited("timm", pretrained_cfg__crop_pct=10**400), r"invalid number in pretrained_cfg"),
    (
        edited("timm", pretrained_cfg__crop_mode=["center"]),
        r"crop_mode .* must be a string, got \['center'\]",
    ),
    (edited("timm", pretrained_cfg__input_size="x", model_args={}), r"img_size must be .*got 'x'"),
    (edited("timm", model_args__act_layer=["gelu"]), r"act_layer in config.json must be a string"),
    (edited("timm", model_args__global_pool=["avg"]), r"global_pool in config.json must be a string"),
    (plain_pickle, r"x\.pth contains .*open"),
    (torch_pickle, r"x\.pt contains .*open"),
    (paddle_pickle, r"x\.pdparams contains .*open"),
    (truncated_safetensors, r"x\.safetensors cannot be read"),
    (huge_safetensors, r"x\.safetensors cannot be read"),
    (huge_header, r"x\.safetensors cannot be read"),
    (huge_npy, r"x\.npz.*"),
    (zip_bomb, r"x\.npz.*"),
    (absurd_config, r"config\.json: (image_size|model\.width|width) .*"),
    (absurd_depth, r"too few for the 1000 layers"),
    (absurd_transformers_config, r"foreign.*"),
    (index_outside_the_folder, r"index\.json lists '\.\./\.\./etc/passwd', which is not in the same folder"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("make", "message"), CASES, ids=[make.__name__ for make, _ in CASES])
def test_hostile_files_are_rejected_with_little_memory(make: Maker, message: str, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    source = make(tmp_path, canary)
    before = sorted(tmp_path.rglob("*"))
    with little_memory(1 << 30), pytest.raises(BadCheckpoint, match=message) as error:
        vitreous.load(source)
    assert "\n" not in str(error.value)
    assert not canary.exists()
    assert sorted(tmp_path.rglob("*")) == before


def test_absurd_sizes_are_rejected_before_allocation(small: ViTConfig) -> None:
    with pytest.raises(ValueError, match="parameters"):
        build_vit(ViTConfig(width=2**16, num_heads=1, mlp_width=2**20, depth=1024))
