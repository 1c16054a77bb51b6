"""Tensors of loaded models are memory-mapped where possible, each with a separate storage."""

import copy
import itertools
from pathlib import Path

import pytest
import torch
from huggingface_hub import load_torch_model, save_torch_model
from safetensors.torch import load_model, save_model
from torch.nn.functional import cross_entropy

import vitreous
from foreign_models import EVERY, MAPPED, loaded
from optional_imports import import_accelerate, import_timm
from parity import noisy
from vitreous.model.build import build
from vitreous.model.protocol import Model
from vitreous.model.vit import ViT


@pytest.fixture
def timms(tmp_path: Path) -> Path:
    """A timm state dict with query, key and value in one tensor."""
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 128, "depth": 2, "num_heads": 2, "num_classes": 7}
    model = noisy(import_timm().create_model("vit_base_patch16_224", **sizes))
    torch.save(model.state_dict(), tmp_path / "timm.pth")
    return tmp_path / "timm.pth"


def load(path: Path) -> ViT:
    model = vitreous.load(path)
    assert isinstance(model, ViT)
    return model


def same(one: Model, other: Model) -> bool:
    first, second = one.state_dict(), other.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def places(folder: Path) -> list[range]:
    """Return the addresses at which files in a folder are mapped (Linux only)."""
    lines = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    spans = [line[0].split("-") for line in lines if line[-1].startswith(str(folder))]
    return [range(int(first, 16), int(last, 16)) for first, last in spans]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux lists what is mapped")
@pytest.mark.parametrize("case", MAPPED)
def test_matrices_are_mapped_and_not_copied(case: str, tmp_path: Path) -> None:
    config, name = MAPPED[case]
    model = noisy(build(config))
    vitreous.save(model, tmp_path / name, format=case.split(",")[0], lossy=True)
    again = load(tmp_path / name)
    assert same(again, model)
    mapped = places(tmp_path)
    linear = {name: part for name, part in again.named_modules() if isinstance(part, torch.nn.Linear)}
    copied = [name for name, part in linear.items() if not any(part.weight.data_ptr() in place for place in mapped)]
    assert not copied


def test_foreign_model_saved_as_native_is_equal(timms: Path, tmp_path: Path) -> None:
    model = load(timms)
    vitreous.save(model, tmp_path / "saved")
    assert same(load(tmp_path / "saved"), model)
    for part in ("attention.q", "attention.k", "attention.v"):  # written as separate tensors
        assert load(tmp_path / "saved").get_submodule(f"encoder.blocks.0.{part}").weight.shape == (128, 128)


def test_parameters_change_independently(timms: Path) -> None:
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


def test_loaded_model_can_be_trained(timms: Path) -> None:
    written = timms.read_bytes()
    loaded, images, labels = load(timms), torch.randn(4, 3, 32, 32), torch.tensor([0, 1, 2, 3])
    fresh = build(loaded.config).eval()
    fresh.load_state_dict(loaded.state_dict())  # copied into its own memory
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


def test_deep_copies_share_no_memory(timms: Path) -> None:
    model = load(timms)
    twin, wide = copy.deepcopy(model), load(timms).double()
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
    assert same(twin, load(timms))
    assert same(wide.float(), twin)


# ---- Separate storages -----------------------------------------------------------------------------------------------


def check_own_storages(model: Model) -> None:
    """Check that no storage or memory is shared and no storage is larger than its tensor."""
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors.values()}) == len(tensors)
    ranges = sorted((tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes) for tensor in tensors.values())
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ranges))
    for name, tensor in tensors.items():
        assert tensor.is_contiguous(), name
        assert tensor.untyped_storage().nbytes() == tensor.nbytes, name


@pytest.mark.slow
@pytest.mark.parametrize("case", EVERY)
def test_every_tensor_has_a_separate_storage(case: str, tmp_path: Path) -> None:
    check_own_storages(loaded(case, tmp_path))
    classes = {} if "segmenter" in case else {"num_classes": 4}
    check_own_storages(loaded(case, tmp_path, image_size=(96, 64), **classes))


def test_tied_and_strided_tensors_are_separated(timms: Path) -> None:
    """Pickles can contain tensors that overlap, repeat one row, or are transposed."""
    tensors = torch.load(timms)
    shared = torch.randn(2 * 384 * 128)
    for layer in (0, 1):
        tensors[f"blocks.{layer}.attn.qkv.weight"] = shared[layer * 128 :][: 384 * 128].view(384, 128)
        tensors[f"blocks.{layer}.attn.proj.weight"] = shared[: 128 * 128].view(128, 128).T
        tensors[f"blocks.{layer}.norm1.weight"] = shared[:1].expand(128)
    torch.save(tensors, timms)
    model = load(timms)
    check_own_storages(model)
    block = model.encoder.blocks[1]
    assert torch.equal(block.attention.q.weight, tensors["blocks.1.attn.qkv.weight"][:128])
    assert torch.equal(block.attention.output.weight, tensors["blocks.1.attn.proj.weight"])
    assert torch.equal(block.attention_norm.weight, tensors["blocks.1.norm1.weight"])


@pytest.mark.slow
@pytest.mark.parametrize("case", EVERY)
def test_safetensors_and_huggingface_hub_save_and_load_the_model(case: str, tmp_path: Path) -> None:
    model = loaded(case, tmp_path)
    save_model(model, tmp_path / "model.safetensors")
    again = build(model.config)
    load_model(again, tmp_path / "model.safetensors")
    assert same(again, model)

    (tmp_path / "hub").mkdir()
    save_torch_model(model, tmp_path / "hub")
    again = build(model.config)
    load_torch_model(again, tmp_path / "hub")
    assert same(again, model)


@pytest.mark.slow
@pytest.mark.parametrize("case", EVERY)
def test_accelerate_saves_and_loads_the_model(case: str, tmp_path: Path) -> None:
    accelerate = import_accelerate()
    model, accelerator = loaded(case, tmp_path), accelerate.Accelerator(cpu=True)
    accelerator.save_model(model, tmp_path / "model")
    again = build(model.config)
    accelerate.load_checkpoint_in_model(again, tmp_path / "model")
    assert same(again, model)

    before = copy.deepcopy(model)
    accelerator.prepare(model)
    accelerator.save_state(tmp_path / "state")
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
    accelerator.load_state(tmp_path / "state")
    assert same(model, before)
