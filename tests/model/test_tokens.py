import torch

from vitreous.model.tokens import Layout, PrefixTokens, drop_patches, keep_patches


def test_order_of_prefix_tokens() -> None:
    prefix = PrefixTokens(4, class_token=True, distillation_token=True, registers=3)
    tokens = prefix(torch.zeros(2, 6, 4))
    assert prefix.length == 5
    assert torch.equal(
        tokens[1, :5], torch.cat([prefix.class_token, prefix.distillation_token, prefix.registers], 1)[0]
    )


def test_model_without_prefix_returns_the_patches() -> None:
    patches = torch.randn(2, 6, 4)
    prefix = PrefixTokens(4, class_token=False, distillation_token=False, registers=0)
    assert prefix.length == 0
    assert torch.equal(prefix(patches), patches)


def test_keep_patches_selects_by_index() -> None:
    tokens = torch.randn(2, 1 + 6, 4)
    keep_indices = torch.tensor([[0, 5, 2], [3, 1, 4]])
    fewer, layout = keep_patches(tokens, Layout(1, (2, 3)), keep_indices)
    assert torch.equal(fewer[:, 0], tokens[:, 0])
    assert torch.equal(fewer[1, 1:], tokens[1, [4, 2, 5]])
    assert layout.grid == (2, 3)


def test_selecting_twice_gives_indices_into_the_grid() -> None:
    tokens = torch.randn(1, 1 + 6, 4)
    once = keep_patches(tokens, Layout(1, (2, 3)), torch.tensor([[5, 0, 2]]))
    twice, layout = keep_patches(*once, torch.tensor([[1]]))
    assert torch.equal(layout.keep_indices, torch.tensor([[0]]))  # type: ignore[arg-type]
    assert torch.equal(twice[0, 1], tokens[0, 1])


def test_patch_dropout_keeps_a_fraction_in_order() -> None:
    tokens = torch.randn(8, 2 + 100, 4)
    fewer, layout = drop_patches(tokens, Layout(2, (10, 10)), 0.75)
    assert fewer.shape == (8, 2 + 25, 4)
    assert layout.keep_indices is not None
    assert (layout.keep_indices.diff(dim=1) > 0).all()
    assert len({tuple(row.tolist()) for row in layout.keep_indices}) == 8  # different for every image
    assert torch.equal(fewer[3, 2:], tokens[3, 2:][layout.keep_indices[3]])
