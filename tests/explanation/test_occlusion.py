from collections.abc import Callable

import pytest
import torch

from single_patch_models import KINDS, PLACE, SHOWN, of_kind, peak, planted, sample_image
from vitreous.explanation.attention_and_logit_lens import capture
from vitreous.explanation.rollout_relevance_occlusion import as_patches, blurred, fill_image, occlusion
from vitreous.model.config import ViTConfig


@pytest.mark.parametrize("kind", KINDS)
def test_the_peak_is_where_the_signal_was_planted(small: ViTConfig, kind: str) -> None:
    model = planted(small, kind)
    drops = occlusion(capture(model, sample_image()), SHOWN)
    assert drops.shape == (24, 32)
    assert peak(as_patches(drops, (8, 8))) == PLACE


def test_occlusion_equals_the_drop_computed_by_hand(small: ViTConfig) -> None:
    model = of_kind(small, "class token")
    image, hidden = sample_image(), sample_image()
    hidden[:, :, 8:16, 24:32] = image.mean((2, 3), keepdim=True)
    before, after = (model(x).softmax(-1)[0, 2] for x in (image, hidden))
    drops = occlusion(capture(model, image), 2, batch_size=5)
    torch.testing.assert_close(drops[8:16, 24:32], (before - after).detach().expand(8, 8))


def test_windows_overlap_and_reach_the_border(small: ViTConfig) -> None:
    captured = capture(of_kind(small, "class token"), sample_image())
    drops = occlusion(captured, 2, window=(10, 10), stride=(6, 7))
    assert drops.isfinite().all()
    one = occlusion(captured, 2, window=(100, 100))
    torch.testing.assert_close(one, one[0, 0].expand(24, 32))


def test_fills(small: ViTConfig) -> None:
    image = sample_image()
    captured = capture(of_kind(small, "class token"), image)
    torch.testing.assert_close(fill_image(captured, "mean")[..., 3, 5], image.mean((2, 3)))
    assert fill_image(captured, "blur").var() < image.var() / 5
    torch.testing.assert_close(blurred(torch.ones(1, 2, 5, 7), 3.0), torch.ones(1, 2, 5, 7))
    spot = torch.zeros(1, 1, 31, 41)
    spot[..., 15, 20] = 1
    spread = blurred(spot, 2.0)[0, 0]
    assert peak(spread) == (15, 20)
    assert spread[15, 22] / spread[15, 20] == pytest.approx(0.6065, abs=1e-3)


def test_an_unknown_class_is_an_error(small: ViTConfig) -> None:
    with pytest.raises(ValueError, match=r"target .*from 0 to 4"):
        occlusion(capture(of_kind(small, "class token"), sample_image()), 9)


class Enough(Exception):
    """Raised between steps."""


def after(steps: int) -> Callable[[], None]:
    left = [steps]

    def between() -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Enough

    return between


def test_computation_can_be_stopped_between_batches(small: ViTConfig) -> None:
    model = of_kind(small, "class token")
    passes = []
    model.patches.register_forward_hook(lambda *_: passes.append(1))
    with pytest.raises(Enough):
        occlusion(capture(model, sample_image()), 2, batch_size=3, between=after(2))  # 12 windows
    assert len(passes) == 1 + 2  # the captured pass, and two batches
    captured = capture(model, sample_image())
    whole = occlusion(captured, 2)
    torch.testing.assert_close(occlusion(captured, 2, batch_size=3, between=after(4)), whole)
