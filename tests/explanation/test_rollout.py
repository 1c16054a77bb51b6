import pytest
import torch

from single_patch_models import KINDS, PLACE, of_kind, peak, planted, sample_image
from vitreous.explanation.attention_and_logit_lens import capture
from vitreous.explanation.rollout_relevance_occlusion import fuse, rollout, rollout_map
from vitreous.model.config import ViTConfig

IMAGES = torch.randn(2, 3, 24, 32)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("fusion", "discard"), [("mean", 0.0), ("max", 0.0), ("min", 0.3), ("mean", 0.9)])
def test_rows_sum_to_1(small: ViTConfig, kind: str, fusion, discard: float) -> None:  # type: ignore[no-untyped-def]
    model = of_kind(small, kind)
    captured = capture(model, IMAGES)
    weights = rollout(captured, fusion=fusion, discard=discard)
    torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:2]))
    assert (weights >= 0).all()
    row = captured.on_map((captured.pooling_weights()[:, None] @ weights)[:, 0])
    torch.testing.assert_close(rollout_map(captured, fusion=fusion, discard=discard), row)


def test_rollout_is_the_product_of_the_layers(small: ViTConfig) -> None:
    model = of_kind(small, "class token")
    first, second = (0.5 * weights.mean(1) + 0.5 * torch.eye(13) for weights in model.attention(IMAGES))
    captured = capture(model, IMAGES)
    torch.testing.assert_close(rollout(captured), second @ first)
    torch.testing.assert_close(rollout(captured, layers=[1]), second)
    torch.testing.assert_close(rollout(captured, residual=1.0), torch.eye(13).expand(2, 13, 13))
    torch.testing.assert_close(rollout_map(captured), (second @ first)[:, 0, 1:].reshape(2, 3, 4))


def test_discarding_keeps_the_largest() -> None:
    weights = torch.tensor([0.5, 0.3, 0.2, 0.0]).expand(1, 1, 1, 4)
    torch.testing.assert_close(fuse(weights, "mean", 0.5)[0, 0], torch.tensor([0.625, 0.375, 0.0, 0.0]))
    silent = torch.stack([torch.eye(4)[0], torch.eye(4)[1]])[None, :, None]  # two heads without a token in common
    torch.testing.assert_close(fuse(silent, "min", 0.0)[0, 0], torch.full((4,), 0.25))


@pytest.mark.parametrize("kind", KINDS)
def test_the_peak_is_the_patch_that_all_tokens_attend_to(small: ViTConfig, kind: str) -> None:
    assert peak(rollout_map(capture(planted(small, kind), sample_image()))[0]) == PLACE


def test_invalid_options_are_errors(unchecked: None, small: ViTConfig) -> None:
    captured = capture(of_kind(small, "class token"), IMAGES)
    with pytest.raises(ValueError, match="'mean', 'max', 'min'"):
        rollout(captured, fusion="median")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="discard"):
        rollout(captured, discard=1.0)
