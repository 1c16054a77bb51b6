import copy
import dataclasses
import importlib
from typing import Any

import pytest
import torch
from torch import nn

from optional_imports import import_timm
from vitreous.model.build import build_segmenter, build_vit
from vitreous.model.config import SegmenterConfig, ViTConfig
from vitreous.model.masked import MaskedAutoencoder, MaskedPatchPrediction
from vitreous.model.options import MaskDecoder
from vitreous.model.presets import configure
from vitreous.model.vit import ViT
from vitreous.tasks.classify import TwoHeads
from vitreous.training import Optim
from vitreous.training.optimizer_step import Muon, Optimizers, build_optimizers, decays

KINDS = ["adamw", "sgd", "muon"]


def one_step(model: nn.Module, optimizers: Optimizers, skip: float = 0.0) -> None:
    torch.manual_seed(1)
    model(torch.randn(4, 3, 24, 32)).square().sum().backward()
    optimizers.step(torch.tensor(skip))
    optimizers.zero_grad()


@pytest.mark.parametrize("kind", KINDS)
def test_every_weight_is_in_one_group(kind: str, small: ViTConfig) -> None:
    model = build_vit(small)
    optimizers = build_optimizers(model, Optim(optimizer=kind, lr=1e-3), model)
    held = [id(w) for part in optimizers.parts for group in part.param_groups for w in group["params"]]
    assert sorted(held) == sorted(id(w) for w in model.parameters())
    before = copy.deepcopy(model.state_dict())
    one_step(model, optimizers)
    still = [name for name, value in model.state_dict().items() if torch.equal(value, before[name])]
    assert not still


@pytest.mark.parametrize("kind", KINDS)
def test_a_skipped_step_changes_nothing_now_or_later(kind: str, small: ViTConfig) -> None:
    plain, skipping = build_vit(small), build_vit(small)
    skipping.load_state_dict(plain.state_dict())
    ours = [build_optimizers(model, Optim(optimizer=kind, lr=1e-2), model) for model in (plain, skipping)]
    for weight in skipping.parameters():
        weight.grad = torch.full_like(weight, torch.nan)
    ours[1].step(torch.tensor(1.0))
    ours[1].zero_grad()
    for model, optimizers in zip((plain, skipping), ours, strict=True):
        one_step(model, optimizers)
        one_step(model, optimizers)
    for (name, a), b in zip(plain.named_parameters(), skipping.parameters(), strict=True):
        assert torch.equal(a, b), name


def test_only_matrices_decay(small: ViTConfig) -> None:
    decayed = {name for name, weight in build_vit(small).named_parameters() if decays(name, weight)}
    assert "encoder.blocks.0.attention.q.weight" in decayed
    assert "patches.projection.weight" in decayed
    assert not [name for name in decayed if "norm" in name or "bias" in name or "prefix" in name or "position" in name]


def peak_rates(module: nn.Module, encoder: Any, layer_decay: float, kind: Any = "adamw") -> dict[str, float]:
    """The peak learning rate of every parameter, by its name."""
    optimizers = build_optimizers(module, Optim(optimizer=kind, lr=1.0, layer_decay=layer_decay), encoder)
    groups = [group for part in optimizers.parts for group in part.param_groups]
    rates = {id(weight): group["lr"] for group in groups for weight in group["params"]}
    return {name: rates[id(weight)] for name, weight in module.named_parameters()}


def test_layer_decay_reduces_the_rate_of_lower_layers(small: ViTConfig) -> None:
    model = build_vit(small)
    by_name = peak_rates(model, model, 0.5)
    assert by_name["head.weight"] == by_name["norm.weight"] == 1.0
    assert by_name["encoder.blocks.1.mlp.up.weight"] == 0.5
    assert by_name["encoder.blocks.0.mlp.up.weight"] == 0.25
    assert by_name["patches.projection.weight"] == by_name["position.table"] == 0.125


def wrappings(encoder: ViT) -> dict[str, nn.Module]:
    """Modules that tasks train around an encoder; the decoders of two are deeper than the encoder."""
    config = SegmenterConfig(dataclasses.replace(encoder.config, num_classes=0), MaskDecoder(4), 3, ("a", "b", "c"))
    return {
        "mae": MaskedAutoencoder(encoder, width=32, depth=4, num_heads=2),
        "mpp": MaskedPatchPrediction(encoder),
        "segment": build_segmenter(config, encoder),
        "distilled": TwoHeads(encoder),
        "own": nn.Sequential(encoder, nn.Linear(5, 4)),
        "own blocks": nn.ModuleDict(
            {"encoder": nn.Linear(2, 2), "student": encoder, "blocks": nn.ModuleList([nn.Linear(2, 2)] * 9)}
        ),
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wrapping", ["mae", "mpp", "segment", "distilled", "own", "own blocks"])
def test_layer_decay_applies_to_the_encoder_only(wrapping: str, kind: str, small: ViTConfig) -> None:
    encoder = build_vit(small)
    alone = {
        id(dict(encoder.named_parameters())[name]): rate for name, rate in peak_rates(encoder, encoder, 0.75).items()
    }
    module = wrappings(encoder)[wrapping]
    rates = peak_rates(module, encoder, 0.75, kind)
    for name, weight in module.named_parameters():
        assert rates[name] == alone.get(id(weight), 1.0), name  # parameters outside the encoder have the peak rate
    assert max(rates.values()) == 1.0


def test_layer_decay_equals_timm() -> None:
    """Except the final norm, which timm assigns to the last block, unlike BEiT and MAE."""
    timm = import_timm()
    theirs = timm.create_model("vit_tiny_patch16_224", depth=3, embed_dim=32, num_heads=2, num_classes=5, img_size=32)
    groups = importlib.import_module("timm.optim").param_groups_layer_decay(theirs, weight_decay=0.05, layer_decay=0.6)
    names = {id(weight): name for name, weight in theirs.named_parameters()}
    expected = {names[id(weight)]: group["lr_scale"] for group in groups for weight in group["params"]}
    ours = configure("ViT-Ti/16", num_classes=5, image_size=32, overrides={"depth": 3, "width": 32, "num_heads": 2})
    model = build_vit(ours)
    rates = peak_rates(model, model, 0.6)
    for block in range(3):
        there = {rate for name, rate in expected.items() if name.startswith(f"blocks.{block}.")}
        here = {rate for name, rate in rates.items() if name.startswith(f"encoder.blocks.{block}.")}
        assert list(here) == pytest.approx(list(there))
    pairs = [("patch_embed.proj.weight", "patches.projection.weight"), ("pos_embed", "position.table")]
    for there, here in [*pairs, ("head.weight", "head.weight"), ("head.bias", "head.bias")]:
        assert rates[here] == pytest.approx(expected[there])


def test_set_rate_scales_the_peak_of_each_group(small: ViTConfig) -> None:
    model = build_vit(small)
    optimizers = build_optimizers(model, Optim(lr=1.0, layer_decay=0.5), model)
    optimizers.set_rate(0.1)
    optimizers.set_rate(0.2)  # of the peak, not of the current rate
    rates = sorted({group["lr"] for group in optimizers.parts[0].param_groups})
    assert rates == pytest.approx([0.025, 0.05, 0.1, 0.2])


@pytest.mark.parametrize("kind", KINDS)
def test_create_state_does_not_change_weights(kind: str, small: ViTConfig) -> None:
    model = build_vit(small)
    before = copy.deepcopy(model.state_dict())
    optimizers = build_optimizers(model, Optim(optimizer=kind, lr=1e-2), model)
    optimizers.create_state()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(part.state for part in optimizers.parts)


def test_muon_equals_torch_for_every_matrix() -> None:
    """Packed matrices, such as the gate and the value of a SwiGLU, are orthogonalised separately."""
    torch.manual_seed(0)
    weights = [torch.randn(shape) for shape in [(8, 12), (24, 8), (8, 12), (12, 8)]]
    gradients = [[torch.randn_like(weight) for weight in weights] for _ in range(4)]
    ours = [nn.Parameter(weight.clone()) for weight in weights]
    packed = [nn.Parameter(torch.cat([weights[0], weights[2]]))]
    theirs = [nn.Parameter(weight.clone()) for weight in weights]
    options = {"lr": 0.1, "momentum": 0.9}
    mine = Muon([{"params": ours, "weight_decay": 0.2}], **options)
    apart = Muon([{"params": packed, "weight_decay": 0.2, "parts": 2}], **options)
    live = torch.optim.Muon(theirs, weight_decay=0.2, adjust_lr_fn="match_rms_adamw", **options)
    for step in gradients:
        for a, b, gradient in zip(ours, theirs, step, strict=True):
            a.grad, b.grad = gradient.clone(), gradient.clone()
        packed[0].grad = torch.cat([step[0], step[2]])
        for optimizer in (mine, apart, live):
            optimizer.step()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=2e-2, rtol=2e-2)  # bfloat16 products in another order
    torch.testing.assert_close(packed[0], torch.cat([ours[0], ours[2]]))
