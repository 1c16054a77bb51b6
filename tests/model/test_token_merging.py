"""Token merging equals the algorithm of the paper, written with loops, and changes nothing for r = 0."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F

import vitreous
from vitreous.model import options
from vitreous.model.build import build
from vitreous.model.config import ResNetConfig, ViTConfig
from vitreous.model.token_merging import Merge, MergingEncoder, merge, merging


def slow_merge(patches: torch.Tensor, groups: list[set[int]], keys: torch.Tensor, r: int) -> list[set[int]]:
    """Merge the groups of one image (ToMe, section 3.2)."""
    pairs = []
    for odd in range(1, len(groups), 2):
        scores = [F.cosine_similarity(keys[odd], keys[even], dim=0) for even in range(0, len(groups), 2)]
        best = max(range(len(scores)), key=lambda number: scores[number])
        pairs.append((float(scores[best]), odd, 2 * best))
    gone = {odd: even for _, odd, even in sorted(pairs, reverse=True)[:r]}
    staying = [groups[odd] for odd in range(1, len(groups), 2) if odd not in gone]
    evens = [
        groups[even].union(*(groups[odd] for odd, other in gone.items() if other == even))
        for even in range(0, len(groups), 2)
    ]
    return staying + evens


@pytest.mark.parametrize(("n", "rounds"), [(12, (2, 3)), (13, (1, 4, 99)), (2, (1,)), (7, (0, 2))])
def test_merged_patches_are_means_of_their_groups(n: int, rounds: tuple[int, ...]) -> None:
    b, patches = 2, torch.randn(2, n, 5, dtype=torch.float64)
    found = Merge(patches, torch.ones(b, n), torch.arange(n).expand(b, -1))
    groups = [[{number} for number in range(n)] for _ in range(b)]
    for r in rounds:
        keys = torch.randn(b, found.patches.shape[1], 4)
        found = merge(found, keys, r)
        groups = [slow_merge(patches[image], groups[image], keys[image], r) for image in range(b)]
    for image in range(b):
        assert found.sizes[image].tolist() == [len(group) for group in groups[image]]
        means = torch.stack([patches[image, sorted(group)].mean(0) for group in groups[image]])
        torch.testing.assert_close(found.patches[image], means, rtol=1e-5, atol=1e-5)
        assert all(number in groups[image][owner] for number, owner in enumerate(found.owners[image].tolist()))


@pytest.mark.parametrize("changes", [{}, {"registers": 2, "layer_scale": 0.3, "qk_norm": True}])
def test_encoder_without_merging_equals_the_plain_one(small: ViTConfig, changes: dict[str, object]) -> None:
    model = build(dataclasses.replace(small, **changes)).eval()
    images = torch.randn(2, 3, *small.image_size)
    assert merging(model, 0) is model
    merged = merging(model, 1)
    merged.encoder = MergingEncoder(model.encoder, 0)
    with torch.inference_mode():
        torch.testing.assert_close(merged(images), model(images))


def test_equal_patches_can_be_merged_without_a_difference(small: ViTConfig) -> None:
    """A token of size s counts like s equal tokens. The four patches of a row are equal."""
    model = build(dataclasses.replace(small, position=options.NoPosition(), pool=options.GlobalAverage())).eval()
    images = torch.randn(2, 3, 24, 8).repeat(1, 1, 1, 4)
    merged = merging(model, 3)
    with torch.inference_mode():
        features, expected = merged.features(images), model.features(images)
        torch.testing.assert_close(features.patches, expected.patches, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(merged(images), model(images), rtol=1e-4, atol=1e-5)


def test_predictor_merges_tokens_of_a_shared_model(small: ViTConfig) -> None:
    model = build(small).eval()
    weights = [*model.parameters()]
    plain, merged = vitreous.Predictor(model, "cpu"), vitreous.Predictor(model, "cpu", merge_tokens=2)
    image = (torch.rand(24, 32, 3) * 255).byte().numpy()
    assert all(mine is yours for mine, yours in zip(merged.network.parameters(), weights, strict=True))
    assert not torch.equal(plain.logits(image), merged.logits(image))
    assert torch.equal(plain.logits(image), vitreous.Predictor(model, "cpu").logits(image))
    assert [tuple(one.shape) for one in merged.network.attention(torch.randn(1, 3, 24, 32))] == [(1, 4, 13, 13)] * 2


def test_unsupported_models_are_named(small: ViTConfig) -> None:
    rotary = build(dataclasses.replace(small, position=options.Rotary2d()))
    resnet = build(ResNetConfig(stages=(1, 1), width=32, num_classes=5))
    for model, word in ((rotary, "Rotary2d"), (resnet, "Vision Transformer")):
        with pytest.raises(ValueError, match=word):
            merging(model, 2)
    with pytest.raises(ValueError, match="merge_tokens"):
        merging(build(small), -1)
