"""Weights that lie in a mapped file as they are: query, key and value may be three rows of one tensor in it."""

import copy
import dataclasses
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

import vitreous
from parity import noisy
from peers import import_timm
from vitreous.model.build import build
from vitreous.model.config import ViTConfig
from vitreous.model.options import AttentionPool, Gelu
from vitreous.model.vit import ViT

PLAIN = ViTConfig(
    image_size=(32, 32),
    patch_size=(8, 8),
    width=64,
    depth=2,
    num_heads=1,
    mlp_width=96,
    mlp=Gelu("erf"),
    num_classes=5,
    labels=(),
)
BARE = dataclasses.replace(PLAIN, num_classes=0)
WITHOUT_BIAS = dataclasses.replace(
    PLAIN, width=128, num_heads=2, patch_norm=True, patch_method="linear", qkv_bias=False
)
CASES = {
    "vitreous": (PLAIN, "folder"),
    "huggingface": (PLAIN, "folder"),
    "timm": (PLAIN, "x.safetensors"),
    "timm, pooled": (dataclasses.replace(PLAIN, class_token=False, pool=AttentionPool()), "x.safetensors"),
    "timm, a pickle": (PLAIN, "x.pth"),
    "torchvision": (PLAIN, "x.pth"),
    "dinov2": (BARE, "x.pth"),
    "mae": (PLAIN, "x.pth"),
    "lucidrains": (WITHOUT_BIAS, "x.safetensors"),
}


@pytest.fixture
def timms(tmp_path: Path) -> Path:
    """A file that timm's own model is in, with query, key and value in one tensor."""
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 128, "depth": 2, "num_heads": 2, "num_classes": 7}
    model = noisy(import_timm().create_model("vit_base_patch16_224", **sizes))
    torch.save(model.state_dict(), tmp_path / "timm.pth")
    return tmp_path / "timm.pth"


def load(path: Path) -> ViT:
    model = vitreous.load(path)
    assert isinstance(model, ViT)
    return model


def same(one: ViT, other: ViT) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def places(folder: Path) -> list[range]:
    """The addresses at which files under a folder are mapped, as Linux lists them."""
    lines = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    spans = [line[0].split("-") for line in lines if line[-1].startswith(str(folder))]
    return [range(int(first, 16), int(last, 16)) for first, last in spans]


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux lists what is mapped")
@pytest.mark.parametrize("case", CASES)
def test_matrices_are_mapped_and_not_copied(case: str, tmp_path: Path) -> None:
    config, name = CASES[case]
    model = noisy(build(config))
    vitreous.save(model, tmp_path / name, format=case.split(",")[0], lossy=True)
    again = load(tmp_path / name)
    assert same(again, model)
    mapped = places(tmp_path)
    linear = {name: part for name, part in again.named_modules() if isinstance(part, torch.nn.Linear)}
    copied = [name for name, part in linear.items() if not any(part.weight.data_ptr() in place for place in mapped)]
    assert not copied


def test_theirs_saved_as_ours_is_the_same(timms: Path, tmp_path: Path) -> None:
    model = load(timms)
    vitreous.save(model, tmp_path / "ours")
    assert same(load(tmp_path / "ours"), model)
    for part in ("attention.q", "attention.k", "attention.v"):  # written apart, each of its own size
        assert load(tmp_path / "ours").get_submodule(f"encoder.blocks.0.{part}").weight.shape == (128, 128)


def test_each_part_changes_by_itself(timms: Path) -> None:
    written = timms.read_bytes()
    model, before = load(timms), load(timms)
    with torch.no_grad():
        model.encoder.blocks[0].attention.k.weight.zero_()
        model.encoder.blocks[0].attention.v.bias.zero_()
    for name, value in before.state_dict().items():
        changed = name in ("encoder.blocks.0.attention.k.weight", "encoder.blocks.0.attention.v.bias")
        assert torch.equal(model.state_dict()[name], torch.zeros_like(value) if changed else value), name
    assert timms.read_bytes() == written
    assert same(load(timms), before)


def test_what_was_loaded_can_be_trained(timms: Path) -> None:
    written = timms.read_bytes()
    loaded, images, labels = load(timms), torch.randn(4, 3, 32, 32), torch.tensor([0, 1, 2, 3])
    fresh = build(loaded.config).eval()
    fresh.load_state_dict(loaded.state_dict())  # into memory of its own
    for model in (loaded, fresh):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(3):
            optimizer.zero_grad()
            cross_entropy(model(images), labels).backward()
            optimizer.step()
    for (name, one), other in zip(loaded.named_parameters(), fresh.parameters(), strict=True):
        torch.testing.assert_close(one, other, msg=name)
    assert not same(loaded, load(timms))
    assert timms.read_bytes() == written


def test_copies_are_copies(timms: Path) -> None:
    model = load(timms)
    twin, wide = copy.deepcopy(model), load(timms).double()
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
    assert same(twin, load(timms))
    assert same(wide.float(), twin)
