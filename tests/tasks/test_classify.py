"""Classification: its loss and metric against their definitions, and distillation."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.data.augment.config import Augmentation
from vitreous.data.loader import Batch
from vitreous.data.sources.base import ArraySource, DataSet
from vitreous.model.build import build_vit
from vitreous.model.config import ViTConfig
from vitreous.model.inputs import normalise
from vitreous.model.options import IMAGENET
from vitreous.model.vit import ViT
from vitreous.tasks.base import Finished
from vitreous.tasks.classification_metrics import Evaluation
from vitreous.tasks.classify import Classify, TwoHeads, cross_entropy, smooth_targets
from vitreous.tasks.config import Augment, Distillation, TrainConfig


def classify(model: ViT, teacher: ViT | None = None, **distillation: Any) -> Classify:
    """A task without augmentation."""
    config = TrainConfig(augment=Augment(crop="none", flip=0.0), distillation=Distillation(**distillation))
    task = Classify(config, model)
    task.teacher = teacher
    return task


def lively(config: ViTConfig) -> ViT:
    """A model whose head is not zero, so that its logits depend on the image."""
    model = build_vit(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "head" in name:
                weight.normal_()
    return model


def batch_of(labels: list[int]) -> Batch:
    count = len(labels)
    images, where = torch.randint(0, 256, (count, 3, 24, 32), dtype=torch.uint8), torch.arange(count)
    return Batch(images, torch.tensor(labels), where, where, 0, [])


def images_of(labels: list[int], classes: int = 5) -> DataSet:
    """A data set of black images with these labels."""
    images = np.zeros((len(labels), 24, 32, 3), np.uint8)
    source = ArraySource(images, np.array(labels), tuple("abcdefgh"[:classes]), "images")
    return DataSet("images", source, source, None, "")


def losses(task: Classify, batch: Batch) -> tuple[Tensor, Tensor]:
    return task.loss(task.module().train(), task.prepare(batch))


def test_targets_are_smoothed_and_zero_for_unreadable_images() -> None:
    targets = smooth_targets(torch.tensor([1, -1]), 4, 0.2)
    torch.testing.assert_close(targets, torch.tensor([[0.05, 0.85, 0.05, 0.05], [0, 0, 0, 0]]))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_equals_torch_cross_entropy(smoothing: float) -> None:
    logits, labels = 3 * torch.randn(6, 5), torch.tensor([0, 4, 2, 2, 1, 3])
    ours = cross_entropy(logits, smooth_targets(labels, 5, smoothing))
    torch.testing.assert_close(ours, F.cross_entropy(logits, labels, label_smoothing=smoothing, reduction="none"))


def test_prepare_normalises_and_gives_unreadable_images_no_weight(small: ViTConfig) -> None:
    task, batch = classify(lively(small)), batch_of([3, -1, 0])
    images, targets, weights = task.prepare(batch)
    torch.testing.assert_close(images, normalise(batch.images.float() / 255, small.preprocessing))
    assert weights.tolist() == [1, 0, 1]
    assert targets[1].sum() == 0
    readable = Batch(*(part[[0, 2]] for part in batch[:4]), 0, [])
    for ours, theirs in zip(losses(task, batch), losses(task, readable), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_correct_predictions_are_counted(small: ViTConfig) -> None:
    model, batch = lively(small), batch_of([0, 0, 0, -1])
    answers = model(normalise(batch.images.float() / 255, small.preprocessing)).argmax(1)
    labels = torch.stack([answers[0], (answers[1] + 1) % 5, answers[2], torch.tensor(-1)])
    assert losses(classify(model), batch._replace(labels=labels))[1] == 2


@pytest.mark.parametrize("kind", ["hard", "soft"])
@pytest.mark.parametrize("token", [False, True])
def test_distillation_loss_matches_its_definition(kind: str, token: bool, small: ViTConfig) -> None:
    student, teacher = lively(dataclasses.replace(small, distillation_token=token)), lively(small).eval()
    batch = batch_of([1, 4])
    task = classify(student, teacher, distill=kind, distill_weight=0.3, distill_temperature=2.0)
    images = task.prepare(batch)[0]
    taught = teacher(images)
    if token:  # the class token learns from labels, the distillation token from the teacher
        by_label, by_teacher = student.classify_distilled(student.features(images))
    else:
        by_label = by_teacher = student(images)
    if kind == "hard":
        theirs = F.cross_entropy(by_teacher, taught.argmax(1), reduction="sum")
    else:
        goal = (taught / 2).softmax(1)
        theirs = 4 * (goal * (goal.log() - (by_teacher / 2).log_softmax(1))).sum()
    expected = 0.7 * F.cross_entropy(by_label, batch.labels, reduction="sum") + 0.3 * theirs
    torch.testing.assert_close(losses(task, batch)[0], expected)


def test_soft_distillation_from_itself_has_no_loss(small: ViTConfig) -> None:
    model = lively(small)
    task = classify(model, model, distill="soft", distill_weight=1.0)
    loss, _ = losses(task, batch_of([1, 4]))
    assert loss.item() == pytest.approx(0, abs=1e-5)


def test_teacher_gets_its_own_normalisation_and_no_gradient(small: ViTConfig) -> None:
    student, teacher = lively(small), lively(dataclasses.replace(small, preprocessing=IMAGENET)).eval()
    seen: list[Tensor] = []
    teacher.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    task, batch = classify(student, teacher), batch_of([1, 4])
    losses(task, batch)[0].backward()
    torch.testing.assert_close(seen[0], normalise(batch.images.float() / 255, IMAGENET), atol=1e-5, rtol=1e-5)
    assert all(weight.grad is None for weight in teacher.parameters())
    assert all(weight.grad is not None for weight in student.parameters())


def test_two_heads_return_both_logits_in_training_and_their_mean_in_evaluation(small: ViTConfig) -> None:
    student = lively(dataclasses.replace(small, distillation_token=True))
    module = classify(student, lively(small)).module()
    assert isinstance(module, TwoHeads)
    images = torch.randn(2, 3, 24, 32)
    by_label, by_teacher = module.train()(images)
    assert not torch.allclose(by_label, by_teacher)
    torch.testing.assert_close(module.eval()(images), (by_label + by_teacher) / 2)


def test_without_a_teacher_both_heads_are_trained(small: ViTConfig) -> None:
    student = lively(dataclasses.replace(small, distillation_token=True))
    losses(classify(student), batch_of([1, 4]))[0].backward()
    assert not [name for name, weight in student.named_parameters() if weight.grad is None]


@pytest.mark.parametrize("balance", [0.5, 1.0])
def test_balance_adds_the_log_frequencies_to_the_logits(balance: float, small: ViTConfig) -> None:
    task = classify(lively(small))
    mixed = Augmentation(crop="none", flip=0.0, mixup=0.4, cutmix=1.0)
    task.config = dataclasses.replace(task.config, balance=balance, smoothing=0.1)
    task.augmentation = mixed
    task.use_data(images_of([0] * 8 + [1] * 4 + [2, 2, 3, 4]))
    inputs = task.prepare(batch_of([0, 4, 1, 1]))
    logits, targets = task.model(inputs[0]), inputs[1]
    frequencies = torch.tensor([8, 4, 2, 1, 1]) / 16
    expected = F.cross_entropy(logits + balance * frequencies.log(), targets, reduction="sum")
    loss, correct = task.loss(task.module(), inputs)
    torch.testing.assert_close(loss, expected)
    assert correct == (logits.argmax(1) == targets.argmax(1)).sum()


@pytest.mark.parametrize("balance", [None, 0.0])
def test_without_balance_the_loss_is_unchanged(balance: float | None, small: ViTConfig) -> None:
    task, batch = classify(lively(small)), batch_of([1, 4])
    before = losses(task, batch)
    task.config = dataclasses.replace(task.config, balance=balance)
    task.use_data(images_of([0] * 8 + [1, 2, 3, 4]))
    assert losses(task, batch) == before


def test_balance_does_not_favour_classes_without_images(small: ViTConfig) -> None:
    task = classify(lively(small))
    task.config = dataclasses.replace(task.config, balance=1.0)
    task.use_data(images_of([0] * 8 + [1, 3, 4]))
    assert task.logit_adjustment is not None
    assert task.logit_adjustment.isfinite().all()
    assert task.logit_adjustment.argmax() == 0
    assert task.logit_adjustment[2] == task.logit_adjustment[0]


@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_balance_adjusts_hard_labels_of_a_teacher_but_not_its_probabilities(kind: str, small: ViTConfig) -> None:
    student, teacher, batch = lively(small), lively(small).eval(), batch_of([1, 4])
    task = classify(student, teacher, distill=kind, distill_weight=1.0)
    before = losses(task, batch)[0]
    task.config = dataclasses.replace(task.config, balance=1.0)
    task.use_data(images_of([0] * 8 + [1, 2, 3, 4]))
    after, images = losses(task, batch)[0], task.prepare(batch)[0]
    logits = student(images) + (torch.tensor([8, 1, 1, 1, 1]) / 12).log()
    hard = F.cross_entropy(logits, teacher(images).argmax(1), reduction="sum")
    torch.testing.assert_close(after, hard if kind == "hard" else before)


@pytest.mark.parametrize(("classes", "shown"), [(5, False), (6, True)])
def test_top5_is_reported_only_for_more_than_five_classes(
    classes: int, shown: bool, small: ViTConfig, tmp_path: Path
) -> None:
    labels = torch.arange(12) % classes
    names = tuple("abcdef"[:classes])
    results = Evaluation.of(torch.eye(classes)[labels], labels, names)
    source = ArraySource(np.zeros((12, 24, 32, 3), np.uint8), labels.numpy(), names, "images")
    batch = batch_of(labels.tolist())
    data = DataSet("images", source, source, None, "")
    task = classify(lively(dataclasses.replace(small, num_classes=classes, labels=names)))
    report = task.report(Finished(tmp_path, data, "val", source, results, batch, task.module(), draw=False))
    assert ("top-5" in report.summary, "top5" in report.headline) == (shown, shown)
    assert "top5" in results.metrics()
    assert report.headline["balanced_accuracy"] == 1
