import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.common.checks import BadValue
from vitreous.model.options import IGNORED
from vitreous.tasks.config import Segmenting
from vitreous.tasks.segment import dice_loss, segmentation_loss


def example(b: int = 3, k: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(b, k, 6, 5, generator=generator)
    masks = torch.randint(0, k, (b, 6, 5), generator=generator).byte()
    masks[torch.rand(masks.shape, generator=generator) < 0.3] = IGNORED
    return logits, masks


def loop_dice(logits: Tensor, mask: Tensor) -> float:
    """Dice loss of one image, computed class by class and pixel by pixel."""
    probabilities = logits.double().softmax(0)
    known = [(y, x) for y in range(mask.shape[0]) for x in range(mask.shape[1]) if mask[y, x] != IGNORED]
    scores = []
    for c in range(len(logits)):
        truth = [float(mask[y, x] == c) for y, x in known]
        guess = [float(probabilities[c, y, x]) for y, x in known]
        if sum(truth):
            scores.append(2 * sum(t * g for t, g in zip(truth, guess, strict=True)) / (sum(truth) + sum(guess)))
    return 1 - sum(scores) / len(scores)


def test_cross_entropy_is_the_mean_over_labelled_pixels_of_an_image() -> None:
    logits, masks = example()
    ours = segmentation_loss(logits, masks)
    for i in range(3):
        theirs = F.cross_entropy(logits[i : i + 1], masks[i : i + 1].long(), ignore_index=IGNORED)
        assert float(ours[i]) == pytest.approx(float(theirs), rel=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_dice_equals_a_loop(seed: int) -> None:
    logits, masks = example(seed=seed)
    masks[0][masks[0] == 1] = 2  # a class missing in one image
    ours = dice_loss(logits, masks)
    assert ours.tolist() == pytest.approx([loop_dice(x, m) for x, m in zip(logits, masks, strict=True)], rel=1e-5)
    both = segmentation_loss(logits, masks, dice=0.5)
    assert torch.allclose(both, segmentation_loss(logits, masks) + 0.5 * ours)


def test_confident_predictions_have_no_loss_if_correct_and_a_large_one_if_wrong() -> None:
    _, masks = example()
    right = 50 * F.one_hot(masks.long().clamp(max=3), 4).permute(0, 3, 1, 2).float()
    assert segmentation_loss(right, masks, dice=1.0).abs().max() < 1e-5
    assert dice_loss(right.roll(1, 1), masks).min() > 0.999


def test_ignored_pixels_have_no_gradient() -> None:
    logits, masks = example()
    logits.requires_grad_()
    segmentation_loss(logits, masks, dice=1.0).sum().backward()
    assert logits.grad is not None
    ignored = (masks == IGNORED)[:, None].expand_as(logits)
    assert (logits.grad[ignored] == 0).all()
    assert (logits.grad[~ignored] != 0).all()


def test_an_image_without_labels_has_no_loss() -> None:
    logits, masks = example()
    masks[1] = IGNORED
    logits.requires_grad_()
    losses = segmentation_loss(logits, masks, dice=2.0)
    assert losses[1] == 0
    assert (losses[[0, 2]] > 0).all()
    losses.sum().backward()
    assert logits.grad is not None
    assert (logits.grad[1] == 0).all()
    assert logits.grad.isfinite().all()


def test_parts_of_a_batch_add_up_and_masks_may_be_of_any_integer() -> None:
    logits, masks = example()
    whole = segmentation_loss(logits, masks, dice=1.0)
    parts = [segmentation_loss(logits[i : i + 1], masks[i : i + 1].long(), dice=1.0) for i in range(3)]
    assert torch.allclose(torch.cat(parts), whole)
    half = segmentation_loss(logits.bfloat16(), masks, dice=1.0)
    assert half.dtype == torch.float32
    assert torch.allclose(half, whole, atol=0.02)


def test_a_negative_weight_is_rejected() -> None:
    with pytest.raises(BadValue, match="dice is -1, but must be a number from 0 to 100"):
        Segmenting(dice=-1).check()
