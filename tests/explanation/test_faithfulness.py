import pytest
import torch

from single_patch_models import KINDS, PLACE, SHOWN, planted, sample_image
from vitreous.explanation.attention_and_logit_lens import capture
from vitreous.explanation.rollout_relevance_occlusion import (
    as_patches,
    as_pixels,
    faithfulness,
    fill_image,
    random_faithfulness,
    relevance,
)
from vitreous.model.config import ViTConfig


@pytest.mark.parametrize("kind", KINDS)
def test_the_planted_map_beats_random_ones(small: ViTConfig, kind: str) -> None:
    captured = capture(planted(small, kind), sample_image())
    found = faithfulness(captured, SHOWN, relevance(captured, SHOWN)[0], steps=12)
    random = random_faithfulness(captured, SHOWN, draws=4, steps=12)
    assert found.deletion < random.deletion
    assert found.insertion > random.insertion


def test_curves_start_and_end_at_the_whole_image_and_the_filled_one(small: ViTConfig) -> None:
    model, image = planted(small, "class token"), sample_image()
    order, captured = torch.rand(3, 4), capture(model, image)
    one, other = (faithfulness(captured, SHOWN, x) for x in (order, -order))
    assert one.fractions.tolist() == pytest.approx([i / 12 for i in range(13)])
    whole, mean, blurred = (
        model(x).softmax(-1)[0, SHOWN].item()
        for x in (image, fill_image(captured, "mean"), fill_image(captured, "blur"))
    )
    for found in (one, other):
        assert (found.deletion_curve[0].item(), found.deletion_curve[-1].item()) == pytest.approx((whole, mean))
        assert (found.insertion_curve[0].item(), found.insertion_curve[-1].item()) == pytest.approx((blurred, whole))
    assert not torch.allclose(one.deletion_curve, other.deletion_curve)  # the order counts


def test_pixels_and_patches() -> None:
    mask = torch.zeros(1, 3, 4, dtype=torch.bool)
    mask[0][PLACE] = True
    pixels = as_pixels(mask, (8, 8), (23, 30))  # a padded image
    assert pixels.sum() == 64
    assert pixels[0, 8:16, 16:24].all()
    torch.testing.assert_close(as_patches(pixels[0].float(), (8, 8)), mask[0].float())


def test_a_map_of_another_grid_is_an_error(small: ViTConfig) -> None:
    with pytest.raises(ValueError, match=r"\(3, 4\), got \(4, 3\)"):
        faithfulness(capture(planted(small, "class token"), sample_image()), SHOWN, torch.rand(4, 3))


def test_computation_can_be_stopped_between_batches(small: ViTConfig) -> None:
    captured, order = capture(planted(small, "class token"), sample_image()), torch.rand(3, 4)
    times: list[int] = []
    found = faithfulness(captured, SHOWN, order, batch_size=5, between=lambda: times.append(1))
    assert len(times) == 2 * 3  # 13 steps of deletion, and as many of insertion
    torch.testing.assert_close(found.deletion_curve, faithfulness(captured, SHOWN, order).deletion_curve)
    random_faithfulness(captured, SHOWN, draws=2, batch_size=5, between=lambda: times.append(1))
    assert len(times) == 2 * 3 + 2 * 2 * 3
