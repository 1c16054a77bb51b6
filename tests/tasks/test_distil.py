"""Distillation of features without labels (--task distil)."""

import dataclasses
import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import vitreous
from every_family import FAMILIES, small_model
from train_runs import finish, finish_in_two, skip_report, tiny
from vitreous.data.loader import Batch
from vitreous.data.open import open_data
from vitreous.model.build import build
from vitreous.model.inputs import normalise
from vitreous.model.options import Preprocessing
from vitreous.tasks.distil import Distil, normalised
from vitreous.tasks.unlabelled import Losses
from vitreous.training import Augment, Distillation, Optim, TrainConfig
from vitreous.training.run import train
from vitreous.weights.io.safetensors_file import read_tensors

every_family = pytest.mark.parametrize("family", FAMILIES)
PLAIN = Augment(crop="none", flip=0.0)


def task_of(teacher: Path, family: str = "ViT", augment: Augment = PLAIN, size: tuple[int, ...] = ()) -> Distil:
    """The task of distilling a checkpoint into a small model of a family, without a head."""
    torch.manual_seed(1)
    student = build(FAMILIES[family].backbone.with_classes(0))
    return Distil(
        TrainConfig(task="distil", augment=augment, distillation=Distillation(teacher, teacher_size=size)), student
    )


def batch_of(size: tuple[int, int], labels: tuple[int, ...] = (0, 1, 2, 0)) -> Batch:
    torch.manual_seed(2)
    images, where = torch.randint(0, 256, (len(labels), 3, *size), dtype=torch.uint8), torch.arange(len(labels))
    return Batch(images, torch.tensor(labels), where, where, 0, [])


def saved(family: str, folder: Path, **fields: Any) -> Path:
    model = small_model(family)
    model.config = dataclasses.replace(model.config, **fields)
    vitreous.save(model, folder / family)
    return folder / family


@pytest.fixture
def digits_teacher(tmp_path: Path) -> Path:
    """A teacher of another image size, grid, width and preprocessing than the student of `distilling`."""
    torch.manual_seed(0)
    fields = {"channels": 1, "width": 48, "depth": 1, "num_heads": 2, "mlp_width": 48}
    fields["preprocessing"] = Preprocessing(mean=(0.4,), std=(0.3,))
    vitreous.save(vitreous.create("ViT-Ti/4", 7, image_size=12, overrides=fields), tmp_path / "teacher")
    return tmp_path / "teacher"


def distilling(out: Path, teacher: Path, **changes: Any) -> TrainConfig:
    """A small run on digits that needs no labels."""
    distillation = Distillation(teacher)
    return tiny(out, task="distil", distillation=distillation, augment=PLAIN, optim=Optim(lr=3e-3), **changes)


# ---- Loss ------------------------------------------------------------------------------------------------------------


def test_loss_is_that_of_feature_distillation(unchecked: None, tmp_path: Path) -> None:
    """Smooth L1 with beta 2 between linear predictions and whitened features, computed with NumPy in float64."""
    task, batch = task_of(saved("DINOv2", tmp_path)), batch_of((32, 32))
    images, pooled, patches, _ = task.prepare(batch)
    module = task.module().eval()
    features = task.model.features(images)
    expected = np.zeros(4)
    for name, inputs, targets in (
        ("pooled", task.model.pool_features(features), pooled),
        ("patches", features.patches, patches),
    ):
        weight, bias = (getattr(module.get_submodule(f"predict_{name}"), part) for part in ("weight", "bias"))
        x, w, b, y = (tensor.detach().double().numpy() for tensor in (inputs, weight, bias, targets))
        error = np.abs(x @ w.T + b - y)
        loss = np.where(error < 2, error**2 / 4, error - 1)
        expected += loss.reshape(4, -1).mean(1)
    np.testing.assert_allclose(task.losses(module, images, pooled, patches).detach().numpy(), expected, rtol=1e-5)
    assert (expected > 0.1).all()


def test_loss_of_a_student_that_predicts_the_teacher_is_zero(tmp_path: Path) -> None:
    task = task_of(saved("DINOv2", tmp_path), "DINOv2")
    task.model.load_state_dict(task.teacher.state_dict())
    module = task.module().eval()
    with torch.no_grad():
        for layer in (module.get_submodule("predict_pooled"), module.get_submodule("predict_patches")):
            layer.weight.copy_(torch.eye(32))  # type: ignore[union-attr, operator]
        task.model.norm.weight.fill_(1.0), task.model.norm.bias.zero_()
        task.teacher.norm.weight.fill_(1.0), task.teacher.norm.bias.zero_()  # its output is then normalised already
    losses = task.losses(module, *task.prepare(batch_of((32, 32)))[:3])
    torch.testing.assert_close(losses, torch.zeros(4), atol=1e-6, rtol=0)


def test_teacher_sees_the_image_at_its_size_with_its_preprocessing(tmp_path: Path) -> None:
    how = Preprocessing(mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    task = task_of(saved("DINOv2", tmp_path, preprocessing=how), size=(48, 40))
    unit = torch.rand(2, 3, 32, 32)
    pooled, patches = task.targets(unit)
    larger = F.interpolate(unit, (48, 40), mode="bicubic", antialias=True).clamp(0, 1)
    teacher = vitreous.load(tmp_path / "DINOv2", image_size=(48, 40))
    with torch.no_grad():
        features = teacher.features(normalise(larger, how))
        torch.testing.assert_close(pooled, normalised(teacher.pool_features(features)))
        assert features.grid == (6, 5)
        maps = features.patches.mT.unflatten(2, (6, 5))
        resized = F.interpolate(maps, (4, 4), mode="bilinear", antialias=True)
    torch.testing.assert_close(patches, normalised(resized.flatten(2).mT))


@pytest.mark.parametrize(
    "augment",
    [PLAIN, Augment(flip=1.0), Augment(policy="trivial"), Augment(mixup=1.0), Augment(cutmix=1.0)],
    ids=lambda augment: str({name: value for name, value in vars(augment).items() if value}),
)
def test_student_and_teacher_see_the_same_view(augment: Augment, tmp_path: Path) -> None:
    task = task_of(saved("Swin", tmp_path), augment=augment)
    images, pooled, patches, _ = task.prepare(batch_of((32, 32)))
    how = task.model.config.preprocessing
    mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (how.mean, how.std))
    again = task.targets(images * std + mean)
    torch.testing.assert_close((pooled, patches), again, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("family", ["ViT", "Swin", "BiT"])
def test_teacher_in_16_bits_has_nearly_the_same_features(family: str, tmp_path: Path) -> None:
    full = task_of(saved(family, tmp_path), size=FAMILIES[family].image_size)
    half = Distil(dataclasses.replace(full.config, precision="bf16"), full.model)
    assert {weight.dtype for weight in half.teacher.parameters()} == {torch.bfloat16}
    unit = torch.rand(2, 3, 32, 32)
    for expected, found in zip(full.targets(unit), half.targets(unit), strict=True):
        assert found.dtype == torch.bfloat16
        assert F.cosine_similarity(expected, found.float(), dim=-1).min() > 0.99
    inputs = half.prepare(batch_of((32, 32)))
    with torch.autocast("cpu", torch.bfloat16):
        assert half.losses(half.module(), *inputs[:-1]).dtype == torch.float32


def test_dropped_patches_have_no_loss(tmp_path: Path) -> None:
    torch.manual_seed(1)
    student = build(dataclasses.replace(FAMILIES["ViT"].with_classes(0), patch_dropout=0.5))  # type: ignore[call-arg]
    task = Distil(TrainConfig(augment=PLAIN, distillation=Distillation(saved("ViT", tmp_path))), student)
    images, pooled, patches, _ = task.prepare(batch_of((32, 32)))
    module: Any = task.module().train()
    torch.manual_seed(3)
    losses = task.losses(module, images, pooled, patches)
    torch.manual_seed(3)
    features = student.features(images)
    assert features.keep_indices is not None
    assert features.keep_indices.shape == (4, 8)
    kept = torch.stack([target[index] for target, index in zip(patches, features.keep_indices, strict=True)])
    expected = F.smooth_l1_loss(module.predict_patches(features.patches), kept, reduction="none", beta=2).mean((1, 2))
    predicted = module.predict_pooled(student.pool_features(features))
    expected += F.smooth_l1_loss(predicted, pooled, reduction="none", beta=2).mean(1)
    torch.testing.assert_close(losses, expected)


# ---- Teachers and students -------------------------------------------------------------------------------------------


@every_family
def test_every_family_can_be_the_teacher(unchecked: None, family: str, tmp_path: Path) -> None:
    task = task_of(saved(family, tmp_path), size=FAMILIES[family].backbone.image_size)
    before = {name: tensor.clone() for name, tensor in task.teacher.state_dict().items()}
    module = task.module().train()
    loss, _ = task.loss(module, task.prepare(batch_of((32, 32), (0, -1, 1, 2))))
    loss.backward()
    assert [name for name, weight in module.named_parameters() if weight.requires_grad and weight.grad is None] == []
    for name, tensor in task.teacher.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert not any(part.training for part in task.teacher.modules())
    assert not any(weight.requires_grad for weight in task.teacher.parameters())
    assert not any(weight is other for weight in module.parameters() for other in task.teacher.parameters())


@every_family
def test_every_family_can_be_the_student(unchecked: None, family: str, tmp_path: Path) -> None:
    task = task_of(saved("ViT", tmp_path), family)
    module = task.module().train()
    task.loss(module, task.prepare(batch_of(task.model.config.image_size)))[0].backward()
    assert [name for name, weight in module.named_parameters() if weight.requires_grad and weight.grad is None] == []


def test_unreadable_images_have_no_weight(tmp_path: Path) -> None:
    task, batch = task_of(saved("ViT", tmp_path)), batch_of((32, 32), (0, -1, 2))
    module = task.module()
    measured = task.evaluate(module, [batch], torch.float32)
    assert measured.losses.isnan().tolist() == [False, True, False]
    loss, _ = task.loss(module.eval(), task.prepare(batch))
    torch.testing.assert_close(loss, measured.losses.nansum())
    parts = [Batch(*(field[i : i + 1] for field in batch[:4]), 0, []) for i in (2, 1, 0)]  # type: ignore[index]
    apart = Losses.join([task.evaluate(module, [part], torch.float32) for part in parts])
    torch.testing.assert_close(apart.losses, measured.losses, equal_nan=True)


@pytest.mark.parametrize(("side", "expected"), [(64, (64, 64)), (256, (256, 256)), (272, (224,))])
def test_large_teachers_are_used_at_a_smaller_size(side: int, expected: tuple[int, ...], tmp_path: Path) -> None:
    fields: dict[str, Any] = {"width": 32, "depth": 1, "num_heads": 2}
    vitreous.save(vitreous.create("ViT-Ti/16", image_size=side, overrides=fields), tmp_path / "teacher")
    config = TrainConfig(distillation=Distillation(tmp_path / "teacher"))
    data = open_data("digits", labelled=False)
    assert [(choice.name, choice.value) for choice in Distil.choose_options(config, data, None)] == [
        ("teacher_size", expected)
    ]
    given = dataclasses.replace(config, distillation=Distillation(tmp_path / "teacher", teacher_size=(32,)))
    assert Distil.choose_options(given, data, None) == []


def test_teacher_with_other_channels_is_rejected(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"channels": 1, "depth": 1}
    vitreous.save(vitreous.create("ViT-Ti/4", overrides=fields), tmp_path / "grey")
    with pytest.raises(ValueError, match="1 input channels, but the student has 3"):
        task_of(tmp_path / "grey")


def test_size_that_does_not_suit_the_teacher_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"teacher .*ViT: an image of 57 x 57 .* use 56 x 56"):
        task_of(saved("ViT", tmp_path), size=(57,))


# ---- Runs ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_learns_and_saves_an_encoder(
    digits_teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_report(monkeypatch)
    run = train(distilling(tmp_path / "run", digits_teacher, steps=33))
    rows = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["val_loss"] < 0.8 * rows[0]["val_loss"]
    assert run.metrics["loss"] == pytest.approx(rows[-1]["val_loss"], rel=1e-5)
    assert json.loads((run.folder / "config.json").read_text())["distillation"]["teacher_size"] == [12, 12]
    provenance = json.loads((run.folder / "best" / "config.json").read_text())["provenance"]
    assert provenance["teacher"]["name"] == str(digits_teacher)
    encoder = vitreous.load(run.folder / "best")
    assert encoder.config.num_classes == 0
    assert encoder.state_dict().keys() == build(encoder.config).state_dict().keys()
    found = vitreous.evaluate(encoder, "digits", probe="knn", device="cpu", workers=0).to_dict()
    assert found["knn"] > 0.5
    (embedding,) = vitreous.Predictor(encoder, "cpu").embed([np.zeros((8, 8), np.uint8)])
    assert embedding.shape == (32,)


def test_resume_with_another_teacher_is_rejected(
    digits_teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_report(monkeypatch)
    train(distilling(tmp_path / "run", digits_teacher, steps=1))
    again = TrainConfig(out=tmp_path / "run", resume=True, device="cpu")
    train(again)
    teacher = vitreous.load(digits_teacher)
    with torch.no_grad():
        next(teacher.parameters()).mul_(1.001)
    vitreous.save(teacher, digits_teacher)
    with pytest.raises(ValueError, match="teacher has changed since the run started"):
        train(again)


@pytest.mark.slow
def test_resume_after_kill_is_bit_identical(digits_teacher: Path, tmp_path: Path) -> None:
    whole = distilling(tmp_path / "whole", digits_teacher, steps=12)
    killed = distilling(tmp_path / "killed", digits_teacher, steps=12, save_minutes=1e-5)
    assert finish(whole) == 0
    assert finish(killed, die_after=5) == -signal.SIGKILL
    assert finish(dataclasses.replace(killed, resume=True)) == 0
    one, other = (read_tensors(next((tmp_path / run / "last" / "training").iterdir())) for run in ("whole", "killed"))
    assert any("predict_patches" in name for name in one)
    assert not any("teacher" in name for name in one)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_have_the_losses_of_one(parallel: str, digits_teacher: Path, tmp_path: Path) -> None:
    calm = {"dropout": 0.0, "stochastic_depth": 0.0, "steps": 6, "parallel": parallel}
    assert finish(distilling(tmp_path / "one", digits_teacher, **calm)) == 0
    finish_in_two(distilling(tmp_path / "two", digits_teacher, **calm))
    rows = [json.loads((tmp_path / name / "metrics.jsonl").read_text().splitlines()[-1]) for name in ("one", "two")]
    assert rows[0]["train_loss"] == pytest.approx(rows[1]["train_loss"], rel=1e-4)
    assert rows[0]["val_loss"] == pytest.approx(rows[1]["val_loss"], rel=1e-3)
