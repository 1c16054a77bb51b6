import pytest
import torch
from torch import nn

from vitreous.model.attention import PoolingAttention
from vitreous.model.block import GeluMlp
from vitreous.model.pooling import AttentionPooling, AveragePooling, ClassTokenPooling
from vitreous.model.tokens import Features

FEATURES = Features(torch.randn(2, 3, 8), torch.randn(2, 12, 8), (3, 4))


def test_class_token_pooling() -> None:
    assert torch.equal(ClassTokenPooling()(FEATURES), FEATURES.prefix[:, 0])


def test_average_pooling_uses_patches_then_norm() -> None:
    mean = FEATURES.patches.sum(1) / 12
    torch.testing.assert_close(AveragePooling(nn.Identity())(FEATURES), mean)
    torch.testing.assert_close(AveragePooling(nn.LayerNorm(8))(FEATURES), nn.functional.layer_norm(mean, (8,)))


def test_attention_pooling_uses_every_token() -> None:
    pool = AttentionPooling(PoolingAttention(8, 2), GeluMlp(8, 16, "tanh"), 8, 1e-6)
    prefix, patches = FEATURES.prefix.clone().requires_grad_(), FEATURES.patches.clone().requires_grad_()
    pooled = pool(Features(prefix, patches, (3, 4)))
    assert pooled.shape == (2, 8)
    pooled.square().sum().backward()
    for tokens in (prefix, patches):
        assert tokens.grad is not None
        assert (tokens.grad.abs().amax(-1) > 0).all()


@pytest.mark.parametrize("prefix", [3, 1])
def test_with_weights_equals_forward(prefix: int) -> None:
    features = FEATURES._replace(prefix=FEATURES.prefix[:, :prefix])
    attention = AttentionPooling(PoolingAttention(8, 2), GeluMlp(8, 16, "tanh"), 8, 1e-6)
    for pool in (ClassTokenPooling(), AveragePooling(nn.LayerNorm(8)), attention):
        weights = pool.weights(features)
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:2]))
        torch.testing.assert_close(pool.with_weights(features, weights), pool(features), atol=1e-5, rtol=0)
