"""Losses of semi-supervised tasks against their definitions, and the teacher's gradient of Meta Pseudo Labels."""

import copy
import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from vitreous.common.distributed import World
from vitreous.data.loader import Batch
from vitreous.data.open import open_unlabelled
from vitreous.data.sources.base import ArraySource, DataSet, pick
from vitreous.model.build import build_vit
from vitreous.model.config import ViTConfig
from vitreous.model.options import Dropout, Preprocessing
from vitreous.tasks.all_tasks import SEMI_SUPERVISED, TASKS
from vitreous.tasks.config import Augment, Distillation, SemiSupervised, TrainConfig
from vitreous.tasks.semi import Consistency, MetaPseudoLabels, NoisyStudent, SemiTask, draw_labels, weak_augmentation
from vitreous.training.setup import task_class_of
from vitreous.weights.load import save

ALONE = World(0, 1, torch.device("cpu"))
TINY = ViTConfig(image_size=(8, 8), patch_size=(4, 4), width=16, depth=1, num_heads=2, mlp_width=16, num_classes=3)


def config(semi: Any = "consistency", **changes: Any) -> TrainConfig:
    options = {"unlabelled": "x", "semi": semi, "unlabelled_ratio": 2, "unlabelled_weight": 0.5, "threshold": 0.6}
    augment = Augment(crop="padded", flip=0.5, policy="randaugment")
    return TrainConfig(data="x", augment=augment, semi_supervised=SemiSupervised(**{**options, **changes}))


def model(**changes: Any) -> Any:
    built = build_vit(dataclasses.replace(TINY, **changes))
    with torch.no_grad():
        built.head.weight.normal_()  # zero at first
    return built


def batch(labels: list[int], unlabelled: list[int], targets: Tensor | None = None) -> Batch:
    def images(labels: list[int]) -> Batch:
        where = torch.arange(len(labels))
        pixels = torch.randint(0, 256, (len(labels), 3, 8, 8), dtype=torch.uint8)
        return Batch(pixels, torch.tensor(labels), where, where, 0, [])

    return images(labels)._replace(unlabelled=images(unlabelled)._replace(targets=targets))


# ---- Losses ----------------------------------------------------------------------------------------------------------


def test_consistency_loss_is_that_of_fixmatch() -> None:
    net = model(dropout=Dropout(0.0, 0.3))  # must not affect the pseudo labels
    task = Consistency(config(), net)
    inputs = task.prepare(batch([0, 2, -1], [0, 0, 0, -1, 0, 0]))
    images, targets, weak, strong, _, _, weights = inputs
    threshold = net.eval()(weak).detach().softmax(1).amax(1).median().item()
    task.threshold = threshold
    net.train()
    torch.manual_seed(1)
    loss, used = task.loss(net, inputs)
    assert net.training
    torch.manual_seed(1)
    logits = net(torch.cat([images, strong]))
    net.eval()
    probabilities = net(weak).softmax(1).tolist()
    expected = sum(-(targets[i] * logits[i].log_softmax(0)).sum() * weights[i] for i in range(3))
    count = 0
    for i, row in enumerate(probabilities):
        label = max(range(3), key=row.__getitem__)
        if row[label] >= threshold and i != 3:
            expected = expected - 0.5 / 2 * logits[3 + i].log_softmax(0)[label]
            count += 1
    assert 0 < count < 5
    assert torch.allclose(loss, torch.as_tensor(expected), atol=1e-6)
    assert used == count / 2


def test_pseudo_labels_have_no_gradient() -> None:
    net = model()
    task = Consistency(config(threshold=0.0), net)
    *inputs, weights = task.prepare(batch([0, 1], [0] * 4))
    inputs[2].requires_grad_()
    inputs[3].requires_grad_()
    task.loss(net, (*inputs, weights))[0].backward()
    assert inputs[2].grad is None
    assert inputs[3].grad is not None


def test_views_share_their_crops_and_flips() -> None:
    plain = config()
    task = Consistency(dataclasses.replace(plain, augment=Augment(crop="padded", flip=0.5)), model())
    _, _, weak, strong, *_ = task.prepare(batch([0, 1], [0] * 4))
    assert torch.equal(weak, strong)
    task.augmentation = dataclasses.replace(task.augmentation, policy="randaugment", colour_jitter=0.4, erasing=1.0)
    given = batch([0, 1], [0] * 4)
    _, _, weak, strong, *_ = task.prepare(given)
    assert not torch.equal(weak, strong)
    task.augmentation = weak_augmentation(task.augmentation)
    assert torch.equal(task.prepare(given)[3], weak)


def test_noisy_student_learns_soft_labels_above_the_threshold() -> None:
    net = model()
    task = NoisyStudent(config("noisy-student"), net)
    pseudo = torch.tensor([[0.7, 0.2, 0.1], [0.5, 0.3, 0.2], [0.0, 0.1, 0.9], [0.0, 0.1, 0.9]])
    inputs = task.prepare(batch([1, 2], [0, 0, 0, -1], pseudo))
    loss, used = task.loss(net, inputs)
    images, targets, more, *_ = inputs
    logits = net(torch.cat([images, more])).log_softmax(1)
    supervised = -(targets * logits[:2]).sum()
    learned = -(pseudo[[0, 2]] * logits[[2, 4]]).sum()
    assert torch.allclose(loss, supervised + 0.5 / 2 * learned)
    assert used == 1


def test_noisy_student_mixes_only_pairs_with_pseudo_labels() -> None:
    task = NoisyStudent(config("noisy-student"), model())
    task.augmentation = dataclasses.replace(task.augmentation, mixup=1.0)
    pseudo = torch.tensor([[0.7, 0.2, 0.1], [0.5, 0.3, 0.2], [0.0, 0.1, 0.9], [1.0, 0.0, 0.0]])
    targets, used = task.prepare(batch([1, 2], [0] * 4, pseudo))[3:5]
    assert torch.equal(targets[:2], pseudo[:2])
    assert not torch.equal(targets[2:], pseudo[2:])
    assert used.tolist() == [1, 0, 1, 1]


# ---- Meta Pseudo Labels ----------------------------------------------------------------------------------------------


def net(*, inputs: int = 3 * 8 * 8, classes: int = 2) -> nn.Module:
    layers = nn.Sequential(nn.Flatten(), nn.Linear(inputs, 3), nn.Tanh(), nn.Linear(3, classes))
    return layers.double()


def student_update(student: nn.Module, loss: Tensor, lr: float) -> None:
    gradients = torch.autograd.grad(loss, list(student.parameters()))
    with torch.no_grad():
        for weight, gradient in zip(student.parameters(), gradients, strict=True):
            weight -= lr * gradient


def expected_gradient(task: MetaPseudoLabels, inputs: tuple[Tensor, ...], lr: float) -> tuple[Tensor, Tensor]:
    """The mean of the teacher's gradient over all possible labels, and the loss of the student for each of them."""
    images, targets, weak, strong, _, readable, weights = inputs
    start, teacher = copy.deepcopy(task.net.student.state_dict()), task.net.teacher
    probabilities = teacher(strong).softmax(1).detach()
    total = torch.zeros(sum(weight.numel() for weight in teacher.parameters()), dtype=torch.float64)
    after = []
    for labels in itertools.product(range(2), repeat=len(strong)):
        probability = torch.stack([probabilities[i, label] for i, label in enumerate(labels)])
        middle = [probabilities[i, :label].sum() + probability[i] / 2 for i, label in enumerate(labels)]
        task.net.student.load_state_dict(start)
        given = (images, targets, weak, strong, torch.stack(middle), readable, weights)
        losses = task.turn_losses([task.net.student, teacher], given, ALONE)
        student_update(task.net.student, next(losses)[0] / len(images), lr)
        (loss,) = next(losses)
        assert next(losses, None) is None
        supervised = -(targets * teacher(images).log_softmax(1)).sum()
        gradients = torch.autograd.grad((loss - supervised) / len(images), list(teacher.parameters()))
        total += probability.prod() * torch.cat([gradient.flatten() for gradient in gradients])
        after.append(-(targets * task.net.student(images).log_softmax(1)).sum() / len(images))
    task.net.student.load_state_dict(start)
    return total, torch.stack(after).detach()


@pytest.fixture
def meta(unchecked: None, monkeypatch: pytest.MonkeyPatch) -> tuple[MetaPseudoLabels, tuple[Tensor, ...]]:
    """A student and a teacher with two classes, and one batch, in float64. The loss for weak views has weight 0."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    task = MetaPseudoLabels(config("meta-pseudo-labels", unlabelled_weight=0.0), model())
    task.net.student, task.net.teacher = net(), net()
    images, strong, weak = (torch.randn(n, 3, 8, 8, dtype=torch.float64) for n in (2, 4, 4))
    ones, targets = torch.ones(4).double(), torch.eye(2).double()
    return task, (images, targets, weak, strong, ones, ones, ones[:2])


def test_teacher_gradient_is_that_of_the_expected_loss_of_the_updated_student(meta: Any) -> None:
    task, inputs = meta
    found, after = expected_gradient(task, inputs, lr=0.5)
    log_probabilities = task.net.teacher(inputs[3]).log_softmax(1)
    combinations = list(itertools.product(range(2), repeat=4))
    probabilities = torch.stack([log_probabilities[range(4), labels].sum() for labels in combinations]).exp()
    assert torch.isclose(probabilities.sum(), torch.ones(()).double())
    exact = torch.autograd.grad((probabilities * after).sum(), list(task.net.teacher.parameters()))
    exact = torch.cat([gradient.flatten() for gradient in exact])
    assert exact.norm() > 1e-4
    assert torch.allclose(found * 4, exact, rtol=1e-9, atol=1e-12)  # the loss is a mean over four images


def test_teacher_gradient_is_the_second_order_gradient_for_small_steps(meta: Any) -> None:
    task, inputs = meta
    images, targets, _, strong, *_ = inputs
    lr = 1e-5
    found, _ = expected_gradient(task, inputs, lr)
    student, teacher = task.net.student, task.net.teacher
    weights = dict(student.named_parameters())
    soft = -(teacher(strong).softmax(1) * student(strong).log_softmax(1)).sum(1).mean()
    gradients = torch.autograd.grad(soft, list(weights.values()), create_graph=True)
    moved = {name: w - lr * g for (name, w), g in zip(weights.items(), gradients, strict=True)}
    loss = -(targets * torch.func.functional_call(student, moved, images).log_softmax(1)).sum() / len(images)
    exact = torch.autograd.grad(loss, list(teacher.parameters()))
    exact = torch.cat([gradient.flatten() for gradient in exact])
    assert (found * 4 - exact).norm() < 1e-3 * exact.norm()


def test_teacher_learns_from_labels_and_from_weak_views(meta: Any) -> None:
    task, inputs = meta
    images, targets, weak, strong, *_ = inputs
    losses = task.turn_losses([task.net.student, task.net.teacher], inputs, ALONE)
    assert next(losses)[1] >= 0
    (plain,) = next(losses)  # the student was not updated, so there is no feedback
    teacher = task.net.teacher
    assert torch.allclose(plain, -(targets * teacher(images).log_softmax(1)).sum())
    task.unlabelled_weight, task.threshold = 8.0, 0.55
    _, (loss,) = task.turn_losses([task.net.student, teacher], inputs, ALONE)
    sharp = (teacher(weak) / 0.7).softmax(1)
    used = sharp.amax(1) >= 0.55
    consistency = -(sharp * teacher(strong).log_softmax(1)).sum(1)[used].sum()
    assert torch.allclose(loss - plain, 8 * consistency / 2)
    task.start_step(4, 100)
    _, (loss,) = task.turn_losses([task.net.student, teacher], inputs, ALONE)
    assert torch.allclose(loss - plain, 8 * consistency / 2 / 10)


def test_last_steps_train_the_student_on_labels(meta: Any) -> None:
    task, inputs = meta
    task.start_step(79, 100)
    assert len(list(task.turn_losses([task.net.student, task.net.teacher], inputs, ALONE))) == 2
    task.start_step(80, 100)
    [(loss, _)] = task.turn_losses([task.net.student, task.net.teacher], inputs, ALONE)
    assert torch.allclose(loss, -(inputs[1] * task.net.student(inputs[0]).log_softmax(1)).sum())


def test_labels_are_drawn_with_their_probabilities() -> None:
    probabilities = torch.tensor([0.2, 0.0, 0.5, 0.3]).expand(1000, 4)
    drawn = draw_labels(probabilities, (torch.arange(1000) + 0.5) / 1000)
    assert torch.bincount(drawn, minlength=4).tolist() == [200, 0, 500, 300]
    assert draw_labels(torch.tensor([[0.4, 0.5]]), torch.tensor([0.99])) == 1  # rounding: the sum can be less than 1


# ---- Data and options ------------------------------------------------------------------------------------------------


def test_labels_of_unlabelled_images_are_removed(tmp_path: Path) -> None:
    images, labels = np.zeros((6, 4, 4), np.uint8), np.array([0, 1, 2, 0, 1, 2])
    np.savez(tmp_path / "x.npz", x_train=images, y_train=labels, x_test=images[:2], y_test=labels[:2])
    source = open_unlabelled(str(tmp_path / "x.npz"))
    assert len(source) == 6  # not the test split
    for part in (source, pick(source, np.arange(3)), pick(pick(source, np.arange(3)), np.arange(2))):
        assert set(part.labels.tolist()) == {0}
        assert part.classes == ("",)


def test_held_out_images_of_the_same_data_are_not_used() -> None:
    data = NoisyStudent.open_data(dataclasses.replace(config(unlabelled="digits"), data="digits"), None)
    assert data.unlabelled is not None
    held_out = {data.val.name(index) for index in range(len(data.val))}
    used = {data.unlabelled.name(index) for index in range(len(data.unlabelled))}
    assert used == {data.train.name(index) for index in range(len(data.train))}
    assert not used & held_out


@pytest.mark.parametrize("unlabelled", ["images", "images/", "./images", "other/../images", "{root}/images"])
def test_paths_of_the_same_data_are_recognised(
    unlabelled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    for i in range(20):
        file = tmp_path / "images" / "ab"[i % 2] / f"{i}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4), i).save(file)
    given = dataclasses.replace(config(unlabelled=unlabelled.format(root=tmp_path)), data="images")
    data = Consistency.open_data(given, None)
    assert data.unlabelled_is_train
    assert data.unlabelled is not None
    assert len(data.unlabelled) == len(data.train) == 16


def test_pseudo_labels_are_the_predictions_of_the_teacher(tmp_path: Path) -> None:
    whole = Preprocessing(crop_fraction=1.0)
    teacher = model(labels=("a", "b", "c"), preprocessing=whole).eval()
    save(teacher, tmp_path / "teacher" / "best")
    images = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3), np.uint8)
    source = ArraySource(images, np.zeros(5, int), ("a", "b", "c"), "x")
    data = DataSet("x", source, source, None, "", unlabelled=source)
    given = dataclasses.replace(config("noisy-student"), out=tmp_path, workers=0)
    lines: list[str] = []
    complete = NoisyStudent.complete_data(data, given, ALONE, lines.append)
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2) / 255
    expected = teacher((pixels - 0.5) / 0.5).softmax(1)
    assert complete.unlabelled is not None
    assert complete.unlabelled.targets is not None
    assert torch.allclose(torch.from_numpy(complete.unlabelled.targets), expected, atol=1e-5)
    assert f"{int((expected.amax(1) >= 0.6).sum())} of 5 unlabelled images" in lines[-1]
    again = NoisyStudent.complete_data(data, given, ALONE, lines.append).unlabelled
    assert again is not None
    assert np.array_equal(again.targets, complete.unlabelled.targets)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="does not belong to the 4 images"):
        NoisyStudent.complete_data(
            dataclasses.replace(data, unlabelled=pick(source, np.arange(4))), given, ALONE, lines.append
        )
    swapped = dataclasses.replace(data, unlabelled=pick(source, np.array([1, 0, 2, 3, 4])))
    with pytest.raises(ValueError, match="does not belong"):
        NoisyStudent.complete_data(swapped, given, ALONE, lines.append)
    (tmp_path / "pseudo_labels.npz").unlink()
    save(model(labels=("a", "b", "d")), tmp_path / "other")
    other = dataclasses.replace(config("noisy-student", rounds=1), distillation=Distillation(tmp_path / "other"))
    with pytest.raises(ValueError, match="teacher"):
        NoisyStudent.complete_data(data, dataclasses.replace(other, out=tmp_path, workers=0), ALONE, lines.append)


def test_unreadable_images_have_no_pseudo_labels(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    for i in range(3):
        Image.new("RGB", (8, 8), (60 * i, 0, 0)).save(tmp_path / "more" / f"{i}.png")
    (tmp_path / "more" / "1.png").write_bytes(b"")
    save(model(labels=("a", "b", "c")), tmp_path / "teacher" / "best")
    source = ArraySource(np.zeros((3, 8, 8, 3), np.uint8), np.arange(3), ("a", "b", "c"), "x")
    data = DataSet("x", source, source, None, "", unlabelled=open_unlabelled(str(tmp_path / "more")))
    given = dataclasses.replace(config("noisy-student", threshold=0.0), out=tmp_path, workers=0)
    lines: list[str] = []
    complete = NoisyStudent.complete_data(data, given, ALONE, lines.append).unlabelled
    assert complete is not None
    assert complete.targets is not None
    assert complete.targets.sum(1) == pytest.approx([1, 0, 1])
    assert "pseudo labels for 2 of 3 unlabelled images" in lines[-1]
    task = NoisyStudent(given, model())
    assert task.prepare(batch([0], [0] * 3, torch.from_numpy(complete.targets)))[4].tolist() == [1, 0, 1]


def test_each_student_needs_the_run_of_its_teacher(tmp_path: Path) -> None:
    given = dataclasses.replace(config("noisy-student", rounds=2), out=tmp_path)
    first = NoisyStudent.earlier_run(given)
    assert first is not None
    assert (first.out, first.semi_supervised.rounds) == (tmp_path / "teacher", 1)
    supervised = NoisyStudent.earlier_run(first)
    assert supervised is not None
    assert (supervised.out, supervised.semi_supervised) == (tmp_path / "teacher" / "teacher", SemiSupervised())
    assert task_class_of(supervised) is TASKS["classify"]
    taught = dataclasses.replace(first, distillation=Distillation("dinov2-s"))
    assert NoisyStudent.earlier_run(taught) is None


@pytest.mark.parametrize("semi", SEMI_SUPERVISED)
def test_default_options(semi: Any) -> None:
    task = SEMI_SUPERVISED[semi]
    assert issubclass(task, SemiTask)
    given = config(semi, threshold=None)
    source = ArraySource(np.zeros((4, 8, 8, 3), np.uint8), np.arange(4), ("a", "b", "c", "d"), "x")
    chosen = {
        name: value for name, value, *_ in task.choose_options(given, DataSet("x", source, source, None, ""), None)
    }
    assert chosen["threshold"] == task.default_threshold
    given = config(semi, threshold=0.0)
    chosen = {
        name: value for name, value, *_ in task.choose_options(given, DataSet("x", source, source, None, ""), None)
    }
    assert "threshold" not in chosen


INVALID: list[tuple[dict[str, Any], str]] = [
    ({"semi_supervised": SemiSupervised(semi="consistency")}, "no effect without --unlabelled"),
    ({"semi_supervised": SemiSupervised(threshold=0.5)}, "no effect without --unlabelled"),
    ({"semi_supervised": SemiSupervised("x", unlabelled_ratio=0)}, "unlabelled_ratio"),
    ({"semi_supervised": SemiSupervised("x", threshold=1.5)}, "threshold"),
    ({"semi_supervised": SemiSupervised("x", "consistency", rounds=2)}, "rounds is 2.* --semi consistency"),
    ({"semi_supervised": SemiSupervised("x"), "task": "mae"}, "no effect with --task mae"),
    ({"semi_supervised": SemiSupervised("x"), "balance": 0.5}, "no effect with --semi noisy-student"),
    ({"semi_supervised": SemiSupervised("x"), "train_only": "lda", "init": "x"}, "train_only"),
    ({"semi_supervised": SemiSupervised("x", "meta-pseudo-labels"), "accumulate": 2}, "accumulate"),
    ({"semi_supervised": SemiSupervised("x", "meta-pseudo-labels"), "parallel": "fsdp"}, "parallel"),
    ({"semi_supervised": SemiSupervised("x", "meta-pseudo-labels"), "compile": True}, "compile"),
]


@pytest.mark.parametrize(("changes", "message"), INVALID, ids=str)
def test_invalid_options(changes: dict[str, Any], message: str) -> None:
    given = TrainConfig(data="x", **changes)

    def check() -> None:
        given.check()
        task_class_of(given).check(given)

    with pytest.raises(ValueError, match=message):
        check()
