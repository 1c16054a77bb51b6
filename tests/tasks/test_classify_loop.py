import numpy as np
import pytest
import torch
from torch import Tensor, nn

from vitreous.data.loader import Batch, BatchSlice, EvalLoader, Reader
from vitreous.data.sources.base import ArraySource
from vitreous.model.inputs import normalise
from vitreous.model.options import Preprocessing
from vitreous.tasks.classify_loop import Answers, answer

CLASSES = ("left", "right", "neither")
PLAIN = Preprocessing(crop_fraction=1.0)


class Sides(nn.Module):
    """Scores the brightness of either half, as normalised; remembers in which mode it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.modes: list[bool] = []

    def forward(self, images: Tensor) -> Tensor:
        self.modes.append(self.training)
        half = images.shape[3] // 2
        sides = [images[..., :half].mean((1, 2, 3)), images[..., half:].mean((1, 2, 3))]
        return torch.stack([*sides, torch.zeros_like(sides[0])], dim=1)


def batches(count: int, rank: int = 0, ranks: int = 1) -> EvalLoader:
    images = np.random.default_rng(0).integers(0, 256, (count, 4, 6, 3), dtype=np.uint8)
    source = ArraySource(images, np.arange(count) % 3, CLASSES, "set")
    return EvalLoader(Reader(source, (4, 6), 3, PLAIN), BatchSlice(4 * ranks, rank, ranks), workers=0)


def asked(loader: EvalLoader, module: nn.Module | None = None, flip: bool = False) -> Answers:
    return answer(module or Sides(), loader, torch.device("cpu"), PLAIN, CLASSES, flip=flip)


def scores(loader: EvalLoader) -> Tensor:
    return torch.cat([Sides()(normalise(batch.images.float() / 255, PLAIN)) for batch in loader])


def test_every_picture_is_answered_in_order() -> None:
    found = asked(batches(10))
    assert found.indices.tolist() == list(range(10))
    assert torch.equal(found.evaluation.predicted, scores(batches(10)).argmax(1))
    losses = nn.functional.cross_entropy(scores(batches(10)), torch.arange(10) % 3, reduction="none")
    torch.testing.assert_close(found.evaluation.losses, losses)


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_in_evaluation_mode_and_back_in_its_own_afterwards(training: bool) -> None:
    module = Sides().train(training)
    asked(batches(10), module)
    assert module.modes == [False] * 3
    assert module.training is training


def test_flip_averages_the_probabilities_of_a_picture_and_its_mirror_image() -> None:
    plain = scores(batches(10))
    mirrored = plain[:, [1, 0, 2]]  # left becomes right
    expected = (plain.softmax(1) + mirrored.softmax(1)) / 2
    found = asked(batches(10), flip=True).evaluation
    torch.testing.assert_close(found.confidence, expected.max(1).values)
    torch.testing.assert_close(found.losses, -expected.log()[torch.arange(10), torch.arange(10) % 3])


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_processes_together_know_what_one_does(ranks: int) -> None:
    """Also the picture that comes twice, so that all have equally many, counts once."""
    alone = asked(batches(10))
    together = Answers.join([asked(batches(10, rank, ranks)) for rank in range(ranks)])
    assert torch.equal(together.indices, alone.indices)
    assert together.evaluation.metrics() == pytest.approx(alone.evaluation.metrics())
    for field in ("labels", "best", "confidence", "losses"):
        torch.testing.assert_close(getattr(together.evaluation, field), getattr(alone.evaluation, field))


def test_unreadable_pictures_are_left_out_and_named_once() -> None:
    whole = list(batches(8))
    labels = whole[1].labels.clone()
    labels[2] = -1
    broken = whole[1]._replace(labels=labels, problems=["c.jpg: the file is empty"])
    parts: list[list[Batch]] = [[whole[0], broken], [broken]]
    found = Answers.join(
        [answer(Sides(), part, torch.device("cpu"), PLAIN, CLASSES) for part in parts]
    )  # the second process had it too
    assert found.problems == ["c.jpg: the file is empty"]
    figures = found.evaluation.metrics()
    assert (figures["count"], figures["unreadable"]) == (7, 1)
    keep = [0, 1, 2, 3, 4, 5, 7]
    right = (scores(batches(8)).argmax(1) == torch.arange(8) % 3)[keep]
    assert figures["top1"] == pytest.approx(right.float().mean().item())


def test_lower_precision_is_near_and_scores_are_kept_in_full() -> None:
    linear = nn.Sequential(nn.Flatten(), nn.Linear(72, 3))
    full, half = (
        answer(linear, batches(10), torch.device("cpu"), PLAIN, CLASSES, precision)
        for precision in (torch.float32, torch.bfloat16)
    )
    assert half.evaluation.losses.dtype == torch.float32
    assert not torch.equal(half.evaluation.losses, full.evaluation.losses)
    torch.testing.assert_close(half.evaluation.losses, full.evaluation.losses, atol=0.05, rtol=0.05)
