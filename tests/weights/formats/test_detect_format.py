"""The right model is found in training checkpoints, and the provenance records its location."""

import argparse
import copy
import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

import vitreous
from optional_imports import import_timm, import_transformers
from parity import noisy
from vitreous.model.build import build
from vitreous.model.config import ViTConfig
from vitreous.model.options import IMAGENET, Gelu, Learned1d
from vitreous.weights.io.errors import BadCheckpoint
from vitreous.weights.native import provenance_of

SIZE = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 1, "num_classes": 5}
ARGS = argparse.Namespace(
    model="vit_tiny",
    lr=1e-3,
    opt="adamw",
    output=Path("out"),
    device=torch.device("cpu"),
    mean=(0.5, 0.5, 0.5),
    started=datetime.datetime(2024, 1, 1),
    models={"vit"},
)
DINO: dict[str, Any] = {
    "image_size": (28, 28),
    "patch_size": (14, 14),
    "width": 64,
    "depth": 2,
    "num_heads": 1,
    "mlp_width": 256,
    "num_classes": 0,
    "labels": (),
    "layer_scale": 1e-5,
    "mlp": Gelu("erf"),
    "preprocessing": IMAGENET,
    "position": Learned1d(True, "dinov2"),
}
IMAGES = torch.linspace(-1, 1, 2 * 3 * 32 * 32).view(2, 3, 32, 32)


def random_timm_model(seed: int = 0, **sizes: Any) -> Any:
    """A timm model with random parameters."""
    torch.manual_seed(seed)
    return noisy(import_timm().models.VisionTransformer(**{**SIZE, **sizes})).eval()


def check_same(file: Path, reference: nn.Module, part: str | None = None) -> dict[str, Any]:
    """Check that a file loads as this model and return its provenance."""
    loaded = vitreous.load(file, part=part)
    with torch.no_grad():
        torch.testing.assert_close(loaded(IMAGES), reference(IMAGES), rtol=1e-4, atol=1e-5)
    return provenance_of(loaded)


class Training(nn.Module):
    """A module that contains several modules under their names."""

    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)


# ---- Training checkpoints --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("averaged", [False, True])
def test_timms_training_checkpoint_is_read(tmp_path: Path, averaged: bool) -> None:
    timm, model = import_timm(), random_timm_model()
    ema = timm.utils.ModelEmaV3(model) if averaged else None
    expected = copy.deepcopy(model)
    if averaged:
        nn.init.zeros_(model.head.weight)  # the averaged weights differ from the current ones
    optimizer = torch.optim.AdamW(model.parameters())
    saver = timm.utils.CheckpointSaver(
        model, optimizer, args=ARGS, model_ema=ema, checkpoint_dir=str(tmp_path), recovery_dir=str(tmp_path)
    )
    saver.save_checkpoint(3, metric=0.5)
    file = tmp_path / "last.pth.tar"
    known = check_same(file, expected)
    assert known["inside"] == ["state_dict_ema" if averaged else "state_dict"]
    file.rename(tmp_path / "ViT.PTH")
    check_same(tmp_path / "ViT.PTH", expected)


WRAPS: dict[str, tuple[Callable[[dict[str, Tensor]], Any], list[str] | None]] = {
    "DeiT, MAE": (lambda x: {"model": x, "optimizer": {}, "epoch": 3, "args": ARGS}, ["model"]),
    "torchvision": (lambda x: {"model": {}, "model_ema": {"n_averaged": torch.tensor(1), **x}}, ["model_ema"]),
    "PyTorch's tutorial": (lambda x: {"epoch": 1, "model_state_dict": x, "loss": torch.ones(())}, ["model_state_dict"]),
    "net": (lambda x: {"net": x, "acc": 0.5}, ["net"]),
    "weights": (lambda x: {"weights": x}, ["weights"]),
    "averaged weights": (
        lambda x: {"model": {"a": torch.ones(1)}, "ema": {"decay": 0.9, "module": x}},
        ["ema", "module"],
    ),
    "other averaged weights": (lambda x: {"state_dict": {"a": torch.ones(1)}, "ema_state_dict": x}, ["ema_state_dict"]),
    "empty averaged weights": (lambda x: {"ema": {"decay": 0.9}, "model": x}, ["model"]),
    "settings with tensors": (lambda x: {**x, "args": ARGS}, None),
    "milestones": (
        lambda x: {"model": x, "scheduler": torch.optim.lr_scheduler.MultiStepLR(_optimizer(), [1, 2]).state_dict()},
        ["model"],
    ),
}


def _optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([nn.Parameter(torch.ones(1))])


@pytest.mark.slow
@pytest.mark.parametrize("name", WRAPS)
def test_keys_of_training_scripts_are_unwrapped(tmp_path: Path, name: str) -> None:
    model, (wrap, inside) = random_timm_model(), WRAPS[name]
    torch.save(wrap(model.state_dict()), tmp_path / "x.ckpt")
    known = check_same(tmp_path / "x.ckpt", model)
    assert known.get("inside") == inside
    assert "left_out" not in known


# ---- Name prefixes ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "prefix", ["module.", "net.", "vit.", "encoder.", "student.", "base_model.model.", "_forward_module.model.module."]
)
def test_common_prefix_is_removed(tmp_path: Path, prefix: str) -> None:
    model = random_timm_model()
    torch.save({f"{prefix}{name}": tensor for name, tensor in model.state_dict().items()}, tmp_path / "x.pth")
    known = check_same(tmp_path / "x.pth", model)
    assert "left_out" not in known
    assert "inside" not in known


@pytest.mark.slow
def test_compiled_and_averaged_models_are_read(tmp_path: Path) -> None:
    plain = random_timm_model()
    whole = torch.compile(copy.deepcopy(plain))
    blocks = copy.deepcopy(plain)
    for at, block in enumerate(blocks.blocks):
        blocks.blocks[at] = torch.compile(block)
    average = AveragedModel(torch.compile(copy.deepcopy(plain)))
    for model in (whole, blocks, average):
        names = list(model.state_dict())
        assert any("_orig_mod." in name for name in names)
        torch.save({"model": model.state_dict()}, tmp_path / "x.pth")
        assert "left_out" not in check_same(tmp_path / "x.pth", plain)


def test_wrapper_names_inside_tensor_names_are_removed(tmp_path: Path) -> None:
    plain = random_timm_model()
    names = {
        name: name.replace("blocks.1.", "blocks.1._fsdp_wrapped_module._checkpoint_wrapped_module.")
        for name in plain.state_dict()
    }
    state = {f"_fsdp_wrapped_module.{names[name]}": tensor for name, tensor in plain.state_dict().items()}
    torch.save(state, tmp_path / "x.pth")
    check_same(tmp_path / "x.pth", plain)
    torch.save(state | plain.state_dict(), tmp_path / "x.pth")
    with pytest.raises(BadCheckpoint, match=r"contains cls_token twice, once as cls_token$"):
        vitreous.load(tmp_path / "x.pth")


# ---- Models with other modules ---------------------------------------------------------------------------------------


def test_lightning_module_with_a_loss_is_read(tmp_path: Path) -> None:
    """The loss has a tensor, and the settings are objects of an unknown class."""
    model = random_timm_model()
    module = Training(model=model, criterion=nn.CrossEntropyLoss(weight=torch.ones(5)))
    checkpoint = {"epoch": 1, "state_dict": module.state_dict(), "hyper_parameters": {"args": ARGS}, "loops": {}}
    torch.save(checkpoint, tmp_path / "x.ckpt")
    known = check_same(tmp_path / "x.ckpt", model)
    assert known["inside"] == ["state_dict", "model"]
    assert known["left_out"] == ["criterion.weight"]


def test_backbone_with_a_separate_classifier_is_read(tmp_path: Path) -> None:
    backbone = random_timm_model(num_classes=0)
    torch.save(Training(backbone=backbone, fc=nn.Linear(64, 3)).state_dict(), tmp_path / "x.pth")
    known = check_same(tmp_path / "x.pth", backbone)
    assert known["inside"] == ["backbone"]
    assert known["left_out"] == ["fc.* (2 tensors)"]


def test_dinos_teacher_is_preferred(tmp_path: Path) -> None:
    """The file contains a DDP student and a teacher, both with backbone and head, and the settings."""
    student, teacher = (
        Training(backbone=random_timm_model(seed, num_classes=0), head=Training(mlp=nn.Linear(64, 8)))
        for seed in (1, 2)
    )
    checkpoint = {
        "student": Training(module=student).state_dict(),
        "teacher": teacher.state_dict(),
        "dino_loss": {"center": torch.zeros(1, 8)},
        "args": ARGS,
    }
    torch.save(checkpoint, tmp_path / "x.pth")
    known = check_same(tmp_path / "x.pth", teacher.backbone)
    assert known["inside"] == ["teacher", "backbone"]
    assert known["left_out"] == ["head.* (2 tensors)"]


def test_averaged_model_is_preferred(tmp_path: Path) -> None:
    student, teacher = random_timm_model(1), random_timm_model(2)
    torch.save({"model": Training(student=student, teacher=teacher).state_dict()}, tmp_path / "x.pth")
    known = check_same(tmp_path / "x.pth", teacher)
    assert known["inside"] == ["model", "teacher"]
    assert known["left_out"] == [f"student.* ({len(student.state_dict())} tensors)"]
    torch.save(Training(one=student, other=teacher).state_dict(), tmp_path / "x.pth")
    with pytest.raises(BadCheckpoint, match=r"x\.pth contains 2 models \(one, other\)"):
        vitreous.load(tmp_path / "x.pth")


@pytest.mark.parametrize("own", ["model", "vit"])
def test_transformers_model_with_a_loss_is_read(tmp_path: Path, own: str) -> None:
    """Its tensor names start with `vit.`, and so can the name of the outer module."""
    transformers = import_transformers()
    sizes = {"image_size": 32, "patch_size": 8, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 1}
    config = transformers.ViTConfig(**sizes, intermediate_size=96, num_labels=3)
    model = noisy(transformers.ViTForImageClassification(config)).eval()
    module = Training(**{own: model, "criterion": nn.CrossEntropyLoss(weight=torch.ones(3))})
    torch.save({"state_dict": module.state_dict()}, tmp_path / "x.ckpt")
    loaded = vitreous.load(tmp_path / "x.ckpt")
    with torch.no_grad():
        torch.testing.assert_close(loaded(IMAGES), model(IMAGES).logits, rtol=1e-4, atol=1e-5)
    assert provenance_of(loaded)["left_out"] == ["criterion.weight"]


def test_teacher_of_another_size_is_ambiguous(tmp_path: Path) -> None:
    whole = Training(model=random_timm_model(), teacher=random_timm_model(seed=1, embed_dim=128, num_heads=2))
    torch.save(whole.state_dict(), tmp_path / "x.pth")
    with pytest.raises(BadCheckpoint, match=r"contains 2 models \(model, teacher\). Choose one with part='model'"):
        vitreous.load(tmp_path / "x.pth")
    check_same(tmp_path / "x.pth", whole.model, part="model")


def test_part_chooses_among_several_models(tmp_path: Path) -> None:
    """The averaged weights and the teacher are preferred, but any part can be loaded."""
    plain, averaged = random_timm_model(1), random_timm_model(2)
    torch.save({"state_dict": plain.state_dict(), "state_dict_ema": averaged.state_dict()}, tmp_path / "x.pth")
    check_same(tmp_path / "x.pth", averaged)
    assert check_same(tmp_path / "x.pth", plain, part="state_dict")["inside"] == ["state_dict"]
    both = Training(student=Training(backbone=plain), teacher=Training(backbone=averaged))
    torch.save({"state_dict": both.state_dict(), "epoch": 3}, tmp_path / "y.ckpt")
    for part in ("student", "student.backbone", "state_dict.student", "state_dict.student.backbone"):
        known = check_same(tmp_path / "y.ckpt", plain, part=part)
        assert any(line.startswith("teacher.") for line in known["left_out"])
    with pytest.raises(BadCheckpoint, match=r"has no part 'pupil'; found student\.\* .*teacher\.\*"):
        vitreous.load(tmp_path / "y.ckpt", part="pupil")


def test_part_is_rejected_for_a_vitreous_checkpoint(tmp_path: Path) -> None:
    vitreous.save(vitreous.create("ViT-Ti/4", overrides={"depth": 1}), tmp_path / "m")
    with pytest.raises(ValueError, match="part is 'head', but must be None for a Vitreous checkpoint"):
        vitreous.load(tmp_path / "m", part="head")


@pytest.mark.parametrize("settings", [{"lr": 3}, {"architecture": "vit_tiny_patch16_224"}], ids=str)
@pytest.mark.parametrize("prefix", ["module.", "model.backbone."])
def test_config_json_of_a_run_is_ignored(tmp_path: Path, prefix: str, settings: dict[str, Any]) -> None:
    model = random_timm_model(num_heads=1)
    torch.save({"state_dict": {f"{prefix}{k}": v for k, v in model.state_dict().items()}}, tmp_path / "last.ckpt")
    (tmp_path / "config.json").write_text(json.dumps(settings))
    loaded = vitreous.load(tmp_path, overrides={"num_heads": 1})
    with torch.no_grad():
        torch.testing.assert_close(loaded(IMAGES), model(IMAGES), rtol=1e-4, atol=1e-5)


def test_dinov2_with_a_loss_is_read(tmp_path: Path) -> None:
    """Its blocks are detected under any prefix, and the loss is ignored."""
    reference = build(ViTConfig(**DINO))
    vitreous.save(reference, tmp_path / "dino.pth", format="dinov2")
    tensors = torch.load(tmp_path / "dino.pth", weights_only=True)
    named = {f"backbone.{name}": tensor for name, tensor in tensors.items()}
    torch.save({**named, "criterion.weight": torch.ones(3)}, tmp_path / "x.pth")
    images = torch.linspace(-1, 1, 3 * 28 * 28).view(1, 3, 28, 28)
    loaded = vitreous.load(tmp_path / "x.pth")
    assert torch.equal(loaded(images), reference.eval()(images))
    assert provenance_of(loaded)["left_out"][0] == "criterion.weight"


@pytest.mark.parametrize("name", ["rel_pos." * 25_000, "layers.0.blocks.0." * 12_000, "a." * 300])
def test_long_names_are_rejected_and_truncated(tmp_path: Path, name: str) -> None:
    safetensors.torch.save_file(
        {**random_timm_model().state_dict(), f"{name}\n": torch.ones(1)}, tmp_path / "x.safetensors"
    )
    with pytest.raises(BadCheckpoint, match=r"a tensor name of [\d,]+ characters") as error:
        vitreous.load(tmp_path / "x.safetensors")
    assert len(str(error.value)) < 400


@pytest.mark.slow
def test_thousands_of_models_are_rejected_quickly(tmp_path: Path) -> None:
    """Each model has two tensors; comparing all pairs would be slow."""
    marks = ("patch_embed.proj.weight", "blocks.0.attn.qkv.weight")
    tensor = torch.zeros(4, 4)
    torch.save({f"{'a.' * 4}{at}.{mark}": tensor for at in range(2500) for mark in marks}, tmp_path / "x.pth")
    with pytest.raises(BadCheckpoint, match=r"contains 2500 models \(.*, \.\.\.\)"):
        vitreous.load(tmp_path / "x.pth")


def test_vitreous_state_dict_is_rejected_with_advice(tmp_path: Path) -> None:
    sizes = {"width": 64, "depth": 1, "num_heads": 1, "mlp_width": 64}
    model = vitreous.create("ViT-Ti/16", num_classes=3, overrides=sizes)
    for state in (model.state_dict(), {"model": Training(module=model).state_dict()}):
        torch.save(state, tmp_path / "x.pth")
        with pytest.raises(BadCheckpoint, match=r"state dict of a Vitreous model.*vitreous\.save.*load_state_dict"):
            vitreous.load(tmp_path / "x.pth")
