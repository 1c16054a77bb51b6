import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from vitreous.model.attention import AttentionTerms, PoolingAttention, SelfAttention, rotate

KINDS = {
    "plain": {},
    "no bias": {"qkv_bias": False},
    "qk norm": {"qk_norm_eps": 1e-6},
    "scale": {"qk_scale": 0.7},
}


def reference_attention(attention: SelfAttention, tokens: torch.Tensor, terms: AttentionTerms) -> torch.Tensor:
    """Compute attention from its explicit weights."""
    b, t, d = tokens.shape
    values = attention.v(tokens).reshape(b, t, attention.num_heads, -1).transpose(1, 2)
    gathered = attention.weights(tokens, terms) @ values
    return attention.output(gathered.transpose(1, 2).reshape(b, t, d))


@pytest.mark.slow
@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("with_bias", [False, True])
@settings(max_examples=10, deadline=None)
@given(b=st.integers(1, 3), t=st.integers(1, 40), heads=st.sampled_from([1, 2, 4]), half=st.integers(1, 8))
def test_explicit_weights_equal_fused_attention(options, with_bias, b, t, heads, half) -> None:  # type: ignore[no-untyped-def]
    attention = SelfAttention(heads * 2 * half, heads, **options)
    tokens = torch.randn(b, t, heads * 2 * half)
    terms = AttentionTerms(bias=torch.randn(heads, t, t) if with_bias else None)
    torch.testing.assert_close(
        attention(tokens, terms), reference_attention(attention, tokens, terms), atol=1e-5, rtol=0
    )
    weights = attention.weights(tokens, terms)
    torch.testing.assert_close(weights.sum(-1), torch.ones(b, heads, t))
    torch.testing.assert_close(attention.gather(tokens, weights, terms), attention(tokens, terms), atol=1e-5, rtol=0)
    torch.testing.assert_close(attention.weights(tokens, terms, slice(t // 2, t)), weights[:, :, t // 2 :])


def test_self_attention_equals_torch() -> None:
    attention, torch_attention = SelfAttention(24, 3), nn.MultiheadAttention(24, 3, batch_first=True)
    with torch.no_grad():
        parts = (attention.q, attention.k, attention.v)
        for part in parts:
            part.bias.normal_()
        torch_attention.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        torch_attention.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        torch_attention.out_proj.load_state_dict(attention.output.state_dict())
    tokens = torch.randn(2, 7, 24)
    expected, weights = torch_attention(tokens, tokens, tokens, average_attn_weights=False)
    torch.testing.assert_close(attention(tokens, AttentionTerms()), expected)
    torch.testing.assert_close(attention.weights(tokens, AttentionTerms()), weights)


def test_rotation_preserves_norms_and_is_relative() -> None:
    q, k = torch.randn(2, 1, 1, 1, 8)
    angles = torch.randn(4)
    turn = lambda x, times: rotate(x, ((times * angles).cos()[None], (times * angles).sin()[None]))  # noqa: E731
    torch.testing.assert_close(turn(q, 3).norm(), q.norm())
    torch.testing.assert_close((turn(q, 5) * turn(k, 3)).sum(), (turn(q, 2) * k).sum(), atol=1e-5, rtol=0)


def test_dropout_is_active_only_in_training() -> None:
    attention = SelfAttention(16, 2, attention_dropout=0.5, output_dropout=0.5)
    tokens = torch.randn(1, 5, 16)
    assert not torch.equal(attention(tokens, AttentionTerms()), attention(tokens, AttentionTerms()))
    attention.eval()
    assert torch.equal(attention(tokens, AttentionTerms()), attention(tokens, AttentionTerms()))


def test_pooling_attention_equals_torch_with_one_query() -> None:
    attention, torch_attention = PoolingAttention(24, 3), nn.MultiheadAttention(24, 3, batch_first=True)
    with torch.no_grad():
        parts = (attention.q, attention.k, attention.v)
        for part in parts:
            part.bias.normal_()
        torch_attention.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        torch_attention.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        torch_attention.out_proj.load_state_dict(attention.output.state_dict())
    tokens = torch.randn(2, 7, 24)
    expected, weights = torch_attention(attention.query.expand(2, -1, -1), tokens, tokens, average_attn_weights=False)
    torch.testing.assert_close(attention(tokens), expected)
    torch.testing.assert_close(attention.weights(tokens), weights[:, :, 0])
    torch.testing.assert_close(attention.gather(tokens, attention.weights(tokens)), expected)
