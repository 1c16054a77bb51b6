"""LayerScale and stochastic depth act on both branches of a block."""

import torch
from torch import Tensor, nn

from vitreous.model.attention import AttentionTerms, SelfAttention
from vitreous.model.block import Block, GeluMlp


def noisy_block(layer_scale: float | None = None, stochastic_depth: float = 0.0) -> Block:
    block = Block(SelfAttention(16, 4), GeluMlp(16, 32, "erf"), 16, 1e-6, layer_scale, stochastic_depth)
    for name, parameter in block.named_parameters():
        if "scale" not in name:
            nn.init.normal_(parameter, std=0.3)
    return block.eval()


def branches(block: Block, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Equations 2 and 3 without their sums: what each branch says, the other left alone."""
    return block.attention(block.attention_norm(tokens), AttentionTerms()), block.mlp(block.mlp_norm(tokens))


@torch.no_grad()
def test_layer_scale_acts_on_both_branches() -> None:
    tokens = torch.randn(2, 5, 16)
    for dead, alive, says in [("attention_scale", "mlp_scale", 1), ("mlp_scale", "attention_scale", 0)]:
        block = noisy_block(layer_scale=0.25)
        getattr(block, dead).factor.zero_()
        expected = tokens + 0.25 * branches(block, tokens)[says]
        torch.testing.assert_close(block(tokens, AttentionTerms()), expected)
        assert (expected - tokens).abs().max() > 0.01
        getattr(block, alive).factor.zero_()
        torch.testing.assert_close(block(tokens, AttentionTerms()), tokens, rtol=0, atol=0)


@torch.no_grad()
def test_stochastic_depth_acts_on_both_branches_in_training_only() -> None:
    tokens = torch.randn(8, 5, 16)
    block = noisy_block(layer_scale=1.0, stochastic_depth=0.999999)
    for alive in ("attention_scale", "mlp_scale"):
        for name in ("attention_scale", "mlp_scale"):
            getattr(block, name).factor.fill_(float(name == alive))
        assert (block.eval()(tokens, AttentionTerms()) - tokens).abs().max() > 0.01
        torch.testing.assert_close(block.train()(tokens, AttentionTerms()), tokens, rtol=0, atol=0)


@torch.no_grad()
def test_the_two_branches_are_dropped_independently() -> None:
    block = noisy_block(stochastic_depth=0.5).train()
    for linear, said in ((block.attention.output, 1.0), (block.mlp.down, 10.0)):
        linear.weight.zero_()
        linear.bias.fill_(said)
    heard = block(torch.zeros(400, 3, 16), AttentionTerms())
    assert (heard == heard[:, :1, :1]).all()  # a whole image at a time
    values, counts = heard[:, 0, 0].unique(return_counts=True)
    assert values.tolist() == [0, 2, 20, 22]  # each that is kept counts double
    assert counts.min() > 60
