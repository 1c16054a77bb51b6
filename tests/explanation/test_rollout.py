import pytest
import torch

from planted import KINDS, PLACE, of_kind, peak, picture, planted
from vitreous.explanation.capture import readout
from vitreous.explanation.rollout import fuse, rollout, rollout_map
from vitreous.model.config import ViTConfig

IMAGES = torch.randn(2, 3, 24, 32)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("fusion", "discard"), [("mean", 0.0), ("max", 0.0), ("min", 0.3), ("mean", 0.9)])
def test_rows_sum_to_1(small: ViTConfig, kind: str, fusion, discard: float) -> None:  # type: ignore[no-untyped-def]
    model = of_kind(small, kind)
    shares = rollout(model, IMAGES, fusion=fusion, discard=discard)
    torch.testing.assert_close(shares.sum(-1), torch.ones(shares.shape[:2]))
    assert (shares >= 0).all()
    pooled = readout(model, model.features(IMAGES))
    row = (pooled[:, None] @ shares)[:, 0, model.config.num_prefix_tokens :].reshape(2, 3, 4)
    torch.testing.assert_close(rollout_map(model, IMAGES, fusion=fusion, discard=discard), row.detach())


def test_it_is_the_product_of_what_layers_do(small: ViTConfig) -> None:
    model = of_kind(small, "class token")
    first, second = (0.5 * weights.mean(1) + 0.5 * torch.eye(13) for weights in model.attention(IMAGES))
    torch.testing.assert_close(rollout(model, IMAGES), second @ first)
    torch.testing.assert_close(rollout(model, IMAGES, layers=[1]), second)
    torch.testing.assert_close(rollout(model, IMAGES, residual=1.0), torch.eye(13).expand(2, 13, 13))
    torch.testing.assert_close(rollout_map(model, IMAGES), (second @ first)[:, 0, 1:].reshape(2, 3, 4))


def test_discarding_keeps_the_largest() -> None:
    weights = torch.tensor([0.5, 0.3, 0.2, 0.0]).expand(1, 1, 1, 4)
    torch.testing.assert_close(fuse(weights, "mean", 0.5)[0, 0], torch.tensor([0.625, 0.375, 0.0, 0.0]))
    silent = torch.stack([torch.eye(4)[0], torch.eye(4)[1]])[None, :, None]  # two heads that agree on nothing
    torch.testing.assert_close(fuse(silent, "min", 0.0)[0, 0], torch.full((4,), 0.25))


@pytest.mark.parametrize("kind", KINDS)
def test_it_finds_where_everyone_looks(small: ViTConfig, kind: str) -> None:
    assert peak(rollout_map(planted(small, kind), picture())[0]) == PLACE


def test_what_cannot_be(unchecked: None, small: ViTConfig) -> None:
    model = of_kind(small, "class token")
    with pytest.raises(ValueError, match="fusion is 'median', but must be one of 'mean', 'max', 'min'"):
        rollout(model, IMAGES, fusion="median")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="discard is 1"):
        rollout(model, IMAGES, discard=1.0)
