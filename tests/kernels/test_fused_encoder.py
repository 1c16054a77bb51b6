"""Blocks with fused kernels compute what plain blocks compute, or say why they are not used."""

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from gradient_parity import DEVICE, HALF, TOLERANCE
from vitreous.inference.fp8 import to_fp8
from vitreous.kernels import missing
from vitreous.kernels.parity import relative_error
from vitreous.model import fused_encoder, options
from vitreous.model.build import build
from vitreous.model.config import ViTConfig
from vitreous.model.tokens import Layout
from vitreous.model.vit import ViT
from vitreous.training.optimizer_step import add_lora

CONFIGS: dict[str, dict[str, Any]] = {
    "paper": {"head_dim": 64, "num_heads": 2},
    "regularised": {"stochastic_depth": 0.5, "layer_scale": 0.3, "registers": 2, "mlp": options.Gelu("quick")},
    "rotary": {"position": options.Rotary2d(), "qk_norm": True, "mlp": options.SwiGlu(), "qkv_bias": False},
    "relative": {"position": options.RelativeBias(), "attention_output_norm": True, "key_bias": False},
}


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Use the kernels or not, also in Triton's interpreter."""

    def switch(on: bool) -> None:
        monkeypatch.setattr(fused_encoder, "missing", lambda _, dtype: None if on and dtype == HALF else "off")

    switch(True)
    return switch


def perturbed(config: ViTConfig) -> ViT:
    model = build(config).to(DEVICE)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.1 * torch.randn_like(weight)
    return model


def results(model: ViT, images: torch.Tensor, dtype: torch.dtype) -> list[torch.Tensor]:
    """Return the logits and all gradients."""
    torch.manual_seed(3)
    model.zero_grad()
    with torch.autocast(DEVICE.type, HALF, enabled=dtype == HALF):
        logits = model(images)
    (logits.float() if dtype == HALF else logits).square().mean().backward()
    return [
        logits.detach(),
        torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]),
    ]


@pytest.mark.parametrize("changes", CONFIGS.values(), ids=CONFIGS.keys())
def test_fused_blocks_equal_plain_blocks(
    changes: dict[str, Any], small: ViTConfig, kernels: Callable[[bool], None]
) -> None:
    model = perturbed(dataclasses.replace(small, **changes)).train()
    assert model.kernels(DEVICE, HALF).scope == "blocks"
    images = torch.randn(2, 3, *model.config.image_size, device=DEVICE)
    exact = results(copy.deepcopy(model).double(), images.double(), torch.float64)
    fused = results(model, images, HALF)
    kernels(False)
    plain = results(model, images, HALF)
    for name, found, usual, expected in zip(("logits", "gradients"), fused, plain, exact, strict=True):
        assert relative_error(found, expected) < max(3 * relative_error(usual, expected), TOLERANCE), name
    assert not torch.equal(fused[1], plain[1])  # it was another computation


def test_small_branches_are_not_lost_in_rounding(small: ViTConfig, kernels: Callable[[bool], None]) -> None:
    """DeiT-III starts with LayerScale factors of 1e-4, at which tokens in bfloat16 would hardly change."""
    model = build(dataclasses.replace(small, layer_scale=1e-4)).to(DEVICE)
    tokens = torch.randn(2, 17, small.width, device=DEVICE)
    layout = Layout(1, (4, 4))
    assert model.encoder.kernels(model.position, DEVICE, HALF).scope == "blocks"
    with torch.no_grad():
        expected = copy.deepcopy(model).double().encoder(tokens.double(), layout, model.position) - tokens.double()
        with torch.autocast(DEVICE.type, HALF):
            added = model.encoder(tokens, layout, model.position) - tokens
    assert relative_error(added, expected) < TOLERANCE


def test_long_sequences_use_other_attention(
    small: ViTConfig, kernels: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = dataclasses.replace(small, head_dim=64)
    model, images = perturbed(small), torch.randn(1, 3, *small.image_size, device=DEVICE)
    first = results(model, images, HALF)
    monkeypatch.setattr("vitreous.kernels.attention.MAX_TOKENS", 8)
    second = results(model, images, HALF)
    for found, expected in zip(first, second, strict=True):
        assert relative_error(found, expected.double()) < TOLERANCE
    assert not torch.equal(first[1], second[1])


@pytest.mark.parametrize("approximation", ["erf", "tanh", "quick"])
def test_converted_model_predicts_the_same(
    approximation: str, small: ViTConfig, kernels: Callable[[bool], None]
) -> None:
    """Predictors convert the weights to 16 bits instead of using autocast."""
    if approximation == "tanh" and DEVICE.type == "cpu":
        pytest.skip("torch._addmm_activation computes ReLU on a CPU")
    model = perturbed(dataclasses.replace(small, mlp=options.Gelu(approximation))).eval()
    assert model.kernels(DEVICE, HALF).scope == "blocks"
    images = torch.randn(2, 3, *small.image_size, device=DEVICE)
    with torch.inference_mode():
        expected = copy.deepcopy(model).double()(images.double())
        assert relative_error(model.to(HALF)(images.to(HALF)), expected) < TOLERANCE


def test_lora_uses_the_kernels(small: ViTConfig, kernels: Callable[[bool], None]) -> None:
    model = perturbed(small).train()
    add_lora(model, 2)
    assert model.kernels(DEVICE, HALF).scope == "blocks"
    images = torch.randn(2, 3, *small.image_size, device=DEVICE)
    fused = results(model, images, HALF)
    kernels(False)
    for found, expected in zip(fused, results(model, images, HALF), strict=True):
        assert relative_error(found, expected.double()) < TOLERANCE


@pytest.mark.parametrize("changes", CONFIGS.values(), ids=CONFIGS.keys())
def test_fused_blocks_in_8_bits_equal_plain_ones(
    changes: dict[str, Any],
    small: ViTConfig,
    kernels: Callable[[bool], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The fused blocks do not round to 16 bits before 8 bits, so a few numbers differ by a step."""
    monkeypatch.setattr("vitreous.inference.fp8.SIMILARITY", 0.9)  # the random weights are large
    model = perturbed(dataclasses.replace(small, **changes)).eval().to(HALF)
    images = torch.randn(2, 3, *small.image_size, device=DEVICE).to(HALF)
    with torch.inference_mode():
        exact = model.pooled(images).double()
        model = to_fp8(model, images)
        assert model.kernels(DEVICE, HALF).scope == "blocks"
        fused = model.pooled(images)
        kernels(False)
        plain = model.pooled(images)
    limit = max(2 * relative_error(plain, exact), TOLERANCE)
    assert relative_error(fused, exact) < limit
    assert relative_error(fused, plain.double()) < limit
    assert not torch.equal(fused, plain)


def hooked(model: ViT) -> None:
    model.encoder.blocks[1].get_submodule("mlp.up").register_forward_hook(lambda *_: None)


def swapped(model: ViT) -> None:
    class Other(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(input)

    block = model.encoder.blocks[0]
    block.attention.output = Other(32, 32).to(DEVICE)


def without_norm(model: ViT) -> None:
    model.encoder.blocks[1].mlp_norm = nn.Identity()


def without_mlp(model: ViT) -> None:
    model.encoder.blocks[0].mlp = nn.Identity()


def other_activation(model: ViT) -> None:
    model.encoder.blocks[0].mlp.activation = nn.GELU()  # the config says tanh


def dropping(model: ViT) -> None:
    model.encoder.blocks[0].mlp.dropout.p = 0.1


def recomputed(model: ViT) -> None:
    model.recompute_blocks()


CHANGES = [hooked, swapped, without_norm, without_mlp, other_activation, dropping, recomputed]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_plain_blocks_are_used_if_kernels_would_ignore_something(
    change: Callable[[ViT], None], small: ViTConfig, kernels: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = perturbed(small).train()
    change(model)
    assert model.kernels(DEVICE, HALF).scope == "none"
    monkeypatch.setattr("vitreous.model.encoder.encode", None)
    images = torch.randn(2, 3, *small.image_size, device=DEVICE)
    with torch.autocast(DEVICE.type, HALF):
        assert model(images).isfinite().all()


def test_hooks_of_all_modules_run(small: ViTConfig, kernels: Callable[[bool], None]) -> None:
    model, called = perturbed(small), []
    with torch.nn.modules.module.register_module_forward_hook(lambda module, *_: called.append(type(module))):
        assert "hooks" in model.kernels(DEVICE, HALF).reason
        with torch.autocast(DEVICE.type, HALF):
            model(torch.randn(1, 3, *small.image_size, device=DEVICE))
    assert nn.GELU in called


def test_other_positions_are_named(small: ViTConfig, kernels: Callable[[bool], None]) -> None:
    conditional = perturbed(dataclasses.replace(small, position=options.Conditional()))
    assert "position" in conditional.kernels(DEVICE, HALF).reason


def test_kernels_need_a_gpu_and_16_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = torch.device("cuda")
    assert missing(torch.device("cpu"), torch.bfloat16)
    assert "float32" in str(missing(cuda, torch.float32))
    reasons = []
    torch.func.vmap(lambda x: x.clone() if reasons.append(missing(cuda, torch.bfloat16)) is None else x)(torch.zeros(2))
    assert "torch.func" in str(reasons[0])
    monkeypatch.setenv("VITREOUS_KERNELS", "off")
    assert "VITREOUS_KERNELS" in str(missing(cuda, torch.bfloat16))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.usefixtures("unchecked")
def test_fused_blocks_can_be_compiled_whole(small: ViTConfig, kernels: Callable[[bool], None]) -> None:
    model = perturbed(small).train()
    images = torch.randn(2, 3, *small.image_size, device=DEVICE)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with torch.autocast(DEVICE.type, HALF):
        assert relative_error(compiled(images), model(images).double()) < TOLERANCE
