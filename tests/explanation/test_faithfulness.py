import pytest
import torch

from planted import KINDS, PLACE, SHOWN, picture, planted
from vitreous.explanation.faithfulness import as_patches, as_pixels, faithfulness, random_faithfulness
from vitreous.explanation.relevance import relevance
from vitreous.model.config import ViTConfig


@pytest.mark.parametrize("kind", KINDS)
def test_the_planted_map_beats_random_ones(small: ViTConfig, kind: str) -> None:
    model, image = planted(small, kind), picture()
    found = faithfulness(model, image, SHOWN, relevance(model, image, SHOWN)[0], steps=12)
    random = random_faithfulness(model, image, SHOWN, draws=4, steps=12)
    assert found.deletion < random.deletion
    assert found.insertion > random.insertion


def test_curves_start_and_end_at_the_same_pictures(small: ViTConfig) -> None:
    model, image = planted(small, "class token"), picture()
    order = torch.rand(3, 4)
    one, other = (faithfulness(model, image, SHOWN, x, insertion_fill="mean") for x in (order, -order))
    assert one.shares.tolist() == pytest.approx([i / 12 for i in range(13)])
    for found in (one, other):
        whole = model(image).softmax(-1)[0, SHOWN].item()
        assert found.deletion_curve[0].item() == pytest.approx(whole)
        assert found.insertion_curve[-1].item() == pytest.approx(whole)
        assert found.insertion_curve[0] == found.deletion_curve[-1]
    # What one takes away first the other shows last.
    torch.testing.assert_close(one.deletion_curve, other.insertion_curve.flip(0))
    assert one.deletion == pytest.approx(other.insertion)


def test_pixels_and_patches() -> None:
    mask = torch.zeros(1, 3, 4, dtype=torch.bool)
    mask[0][PLACE] = True
    pixels = as_pixels(mask, (8, 8), (23, 30))  # an image that was padded
    assert pixels.sum() == 64
    assert pixels[0, 8:16, 16:24].all()
    torch.testing.assert_close(as_patches(pixels[0].float(), (8, 8)), mask[0].float())


def test_a_map_of_another_grid(small: ViTConfig) -> None:
    with pytest.raises(ValueError, match=r"the map has \(4, 3\) places, but the image has \(3, 4\) patches"):
        faithfulness(planted(small, "class token"), picture(), SHOWN, torch.rand(4, 3))


def test_it_can_be_stopped_between_batches(small: ViTConfig) -> None:
    model, image, order = planted(small, "class token"), picture(), torch.rand(3, 4)
    times: list[int] = []
    found = faithfulness(model, image, SHOWN, order, batch_size=5, between=lambda: times.append(1))
    assert len(times) == 3  # 13 steps
    torch.testing.assert_close(found.deletion_curve, faithfulness(model, image, SHOWN, order).deletion_curve)
    random_faithfulness(model, image, SHOWN, draws=2, batch_size=5, between=lambda: times.append(1))
    assert len(times) == 3 + 2 * 3
