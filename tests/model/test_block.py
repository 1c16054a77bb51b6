import pytest
import torch
from torch import Tensor, nn

from vitreous.model.attention import AttentionTerms, SelfAttention
from vitreous.model.block import Block, GeluMlp, LayerScale, StochasticDepth, SwiGluMlp


def test_block_equals_torch_pre_norm_layer() -> None:
    torch_layer = nn.TransformerEncoderLayer(
        24, 3, 48, dropout=0.0, activation="gelu", norm_first=True, batch_first=True, layer_norm_eps=1e-6
    )
    block = Block(SelfAttention(24, 3), GeluMlp(24, 48, "erf"), 24, 1e-6)
    with torch.no_grad():
        for parameter in torch_layer.parameters():
            parameter.normal_(std=0.3)
        weights, biases = torch_layer.self_attn.in_proj_weight.chunk(3), torch_layer.self_attn.in_proj_bias.chunk(3)
        for part, weight, bias in zip(
            (block.attention.q, block.attention.k, block.attention.v), weights, biases, strict=True
        ):
            part.weight.copy_(weight)
            part.bias.copy_(bias)
    pairs = [
        (block.attention.output, torch_layer.self_attn.out_proj),
        (block.mlp.up, torch_layer.linear1),
        (block.mlp.down, torch_layer.linear2),
        (block.attention_norm, torch_layer.norm1),
        (block.mlp_norm, torch_layer.norm2),
    ]
    for part, torch_part in pairs:
        part.load_state_dict(torch_part.state_dict())
    tokens = torch.randn(2, 7, 24)
    torch.testing.assert_close(block(tokens, AttentionTerms()), torch_layer(tokens))


def test_with_weights_equals_forward() -> None:
    block = Block(SelfAttention(24, 3), SwiGluMlp(24, 48), 24, 1e-6, layer_scale=0.5)
    tokens, terms = torch.randn(2, 7, 24), AttentionTerms(bias=torch.randn(3, 7, 7))
    weights = block.attention_weights(tokens, terms)
    torch.testing.assert_close(block.with_weights(tokens, weights, terms), block(tokens, terms), atol=1e-5, rtol=0)
    others = torch.eye(7).expand(2, 3, 7, 7)  # every token attends only to itself
    alone = block.with_weights(tokens, others, terms)
    torch.testing.assert_close(block.with_weights(tokens[:, 3:4], others[..., :1, :1], terms), alone[:, 3:4])


def test_gelu_variants_equal_torch() -> None:
    x = torch.linspace(-4, 4, 101)[None, :, None]
    exact, approximate = GeluMlp(1, 1, "erf"), GeluMlp(1, 1, "tanh")
    normal = torch.distributions.Normal(0, 1)
    torch.testing.assert_close(exact.activation(x), x * normal.cdf(x), atol=1e-6, rtol=0)
    difference = (approximate.activation(x) - exact.activation(x)).abs().max()
    assert 1e-5 < difference < 1e-3


def test_swiglu_gates_with_its_first_half() -> None:
    mlp = SwiGluMlp(4, 6)
    tokens = torch.randn(2, 3, 4)
    gate = nn.functional.linear(tokens, mlp.gate_and_up.weight[:6], mlp.gate_and_up.bias[:6])
    up = nn.functional.linear(tokens, mlp.gate_and_up.weight[6:], mlp.gate_and_up.bias[6:])
    torch.testing.assert_close(mlp(tokens), mlp.down(gate * gate.sigmoid() * up))


def test_layer_scale_multiplies_channels() -> None:
    scale = LayerScale(3, 0.1)
    with torch.no_grad():
        scale.factor.copy_(torch.tensor([1.0, 2.0, 3.0]))
    torch.testing.assert_close(scale(torch.ones(1, 1, 3))[0, 0], torch.tensor([1.0, 2.0, 3.0]))


def test_stochastic_depth_drops_whole_images_and_preserves_the_mean() -> None:
    layer = StochasticDepth(0.25)
    out = layer(torch.ones(20_000, 2, 3))
    kept = out.flatten(1)
    assert ((kept == 0).all(1) | torch.isclose(kept, torch.tensor(4 / 3)).all(1)).all()
    assert out.mean() == pytest.approx(1, abs=0.02)
    assert torch.equal(layer.eval()(torch.ones(5, 2, 3)), torch.ones(5, 2, 3))


def noisy_block(layer_scale: float | None = None, stochastic_depth: float = 0.0) -> Block:
    block = Block(SelfAttention(16, 4), GeluMlp(16, 32, "erf"), 16, 1e-6, layer_scale, stochastic_depth)
    for name, parameter in block.named_parameters():
        if "scale" not in name:
            nn.init.normal_(parameter, std=0.3)
    return block.eval()


def branches(block: Block, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Return the outputs of both branches (equations 2 and 3) without the residual."""
    return block.attention(block.attention_norm(tokens), AttentionTerms()), block.mlp(block.mlp_norm(tokens))


@torch.no_grad()
def test_layer_scale_applies_to_both_branches() -> None:
    tokens = torch.randn(2, 5, 16)
    for dead, alive, branch in [("attention_scale", "mlp_scale", 1), ("mlp_scale", "attention_scale", 0)]:
        block = noisy_block(layer_scale=0.25)
        getattr(block, dead).factor.zero_()
        expected = tokens + 0.25 * branches(block, tokens)[branch]
        torch.testing.assert_close(block(tokens, AttentionTerms()), expected)
        assert (expected - tokens).abs().max() > 0.01
        getattr(block, alive).factor.zero_()
        torch.testing.assert_close(block(tokens, AttentionTerms()), tokens, rtol=0, atol=0)


@torch.no_grad()
def test_stochastic_depth_applies_to_both_branches_only_in_training() -> None:
    tokens = torch.randn(8, 5, 16)
    block = noisy_block(layer_scale=1.0, stochastic_depth=0.999999)
    for alive in ("attention_scale", "mlp_scale"):
        for name in ("attention_scale", "mlp_scale"):
            getattr(block, name).factor.fill_(float(name == alive))
        assert (block.eval()(tokens, AttentionTerms()) - tokens).abs().max() > 0.01
        torch.testing.assert_close(block.train()(tokens, AttentionTerms()), tokens, rtol=0, atol=0)


@torch.no_grad()
def test_both_branches_are_dropped_independently() -> None:
    block = noisy_block(stochastic_depth=0.5).train()
    for linear, bias in ((block.attention.output, 1.0), (block.mlp.down, 10.0)):
        linear.weight.zero_()
        linear.bias.fill_(bias)
    outputs = block(torch.zeros(400, 3, 16), AttentionTerms())
    assert (outputs == outputs[:, :1, :1]).all()  # whole images are dropped
    values, counts = outputs[:, 0, 0].unique(return_counts=True)
    assert values.tolist() == [0, 2, 20, 22]  # the remaining branches are doubled
    assert counts.min() > 60
