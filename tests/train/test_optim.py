import copy

import pytest
import torch
from torch import nn

from vitreous.model.build import build_vit
from vitreous.model.config import ViTConfig
from vitreous.train.config import Optim
from vitreous.train.muon import Muon
from vitreous.train.optim import Optimizers, build_optimizers, decays, layer_of

KINDS = ["adamw", "sgd", "muon"]


def one_step(model: nn.Module, optimizers: Optimizers, skip: float = 0.0) -> None:
    torch.manual_seed(1)
    model(torch.randn(4, 3, 24, 32)).square().sum().backward()
    optimizers.step(torch.tensor(skip))
    optimizers.zero_grad()


@pytest.mark.parametrize("kind", KINDS)
def test_every_weight_is_moved_once(kind: str, small: ViTConfig) -> None:
    model = build_vit(small)
    optimizers = build_optimizers(model, Optim(optimizer=kind, lr=1e-3), small.depth)
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
    ours = [build_optimizers(model, Optim(optimizer=kind, lr=1e-2), small.depth) for model in (plain, skipping)]
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


def test_layer_decay_slows_what_lies_below(small: ViTConfig) -> None:
    model = build_vit(small)
    (part,) = build_optimizers(model, Optim(lr=1.0, layer_decay=0.5), small.depth).parts
    rates = {id(w): group["lr"] for group in part.param_groups for w in group["params"]}
    by_name = {name: rates[id(weight)] for name, weight in model.named_parameters()}
    assert by_name["head.weight"] == by_name["norm.weight"] == 1.0
    assert by_name["encoder.blocks.1.mlp.up.weight"] == 0.5
    assert by_name["encoder.blocks.0.mlp.up.weight"] == 0.25
    assert by_name["patches.projection.weight"] == by_name["position.table"] == 0.125


def test_the_rate_is_a_share_of_each_groups_peak(small: ViTConfig) -> None:
    optimizers = build_optimizers(build_vit(small), Optim(lr=1.0, layer_decay=0.5), small.depth)
    optimizers.set_rate(0.1)
    optimizers.set_rate(0.2)  # of the peak, not of what it was
    rates = sorted({group["lr"] for group in optimizers.parts[0].param_groups})
    assert rates == pytest.approx([0.025, 0.05, 0.1, 0.2])


def test_layers_of_a_wrapped_student() -> None:
    assert layer_of("student.encoder.blocks.2.norm.weight", 4) == 3
    assert layer_of("student.patches.projection.weight", 4) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_state_can_be_created_without_moving(kind: str, small: ViTConfig) -> None:
    model = build_vit(small)
    before = copy.deepcopy(model.state_dict())
    optimizers = build_optimizers(model, Optim(optimizer=kind, lr=1e-2), small.depth)
    optimizers.create_state()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(part.state for part in optimizers.parts)


def test_muon_is_torchs_muon_for_every_matrix() -> None:
    """Packed matrices are taken apart: the gate of a SwiGLU and what it lets through each on their own."""
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
