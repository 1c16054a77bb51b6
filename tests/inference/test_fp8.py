"""Predictors in 8-bit floating point determine scales from the first images, and refuse models that do not suit it."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import vitreous
from vitreous.inference import fp8, predictor
from vitreous.inference.fp8 import check_fp8, to_fp8
from vitreous.kernels.fp8 import LARGEST, quantise
from vitreous.model.build import build
from vitreous.model.config import ResNetConfig, ViTConfig
from vitreous.model.fp8_linear import Fp8Linear
from vitreous.model.vit import ViT

CPU = torch.device("cpu")


def quantised_layers(model: nn.Module) -> list[str]:
    return [name for name, layer in model.named_modules() if isinstance(layer, Fp8Linear)]


@pytest.fixture
def model(small: ViTConfig) -> ViT:
    return build(small).bfloat16().eval()


@pytest.fixture
def images(small: ViTConfig) -> torch.Tensor:
    return torch.randn(6, 3, *small.image_size).bfloat16()


def test_layer_multiplies_rounded_numbers() -> None:
    linear, x = nn.Linear(32, 48), 3 * torch.randn(2, 5, 32)
    scales = x.abs().max() / LARGEST, linear.weight.detach().abs().max() / LARGEST
    found = Fp8Linear(linear.bfloat16(), *scales)(x.bfloat16())
    rounded, weight = (
        quantise(value, scale).double() * scale
        for value, scale in zip((x.bfloat16(), linear.weight), scales, strict=True)
    )
    torch.testing.assert_close(found.double(), rounded @ weight.T + linear.bias.double(), rtol=1e-2, atol=1e-2)
    assert found.dtype == torch.bfloat16


def test_copy_has_similar_features_and_the_model_is_unchanged(model: ViT, images: torch.Tensor) -> None:
    before = copy.deepcopy(model.state_dict())
    quantised = to_fp8(model, images)
    assert len(quantised_layers(quantised)) == 6 * model.config.depth
    assert not quantised_layers(model)
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in before.items())
    assert quantised.head.weight is model.head.weight  # other tensors are shared
    with torch.inference_mode():
        error = (quantised(images) - model(images)).float().norm() / model(images).float().norm()
    assert 0 < error < 0.2
    q, k, v = (quantised.encoder.blocks[0].attention.get_submodule(part) for part in "qkv")
    assert torch.equal(q.weight_scale, k.weight_scale)
    assert torch.equal(q.input_scale, v.input_scale)


def test_models_that_lose_precision_are_refused(model: ViT, images: torch.Tensor) -> None:
    with torch.no_grad():  # one large weight makes all others round to 0
        model.encoder.blocks[0].mlp.down.weight[0, 0] = 1e7
        model.encoder.blocks[0].mlp.up.weight[0] = 0
        model.encoder.blocks[0].mlp.up.bias[0] = -100  # its input is 0
    with pytest.raises(ValueError, match="fp8"):
        to_fp8(model, images)


def test_predictor_switches_after_the_first_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitreous.inference.engine.check_fp8", lambda *_: None)  # it needs a GPU
    monkeypatch.setattr(predictor, "CALIBRATION_IMAGES", 5)
    model = vitreous.create("ViT-Lite-6/4", num_classes=3).eval()
    images = np.random.default_rng(0).integers(0, 256, (8, 32, 32, 3), dtype=np.uint8)
    exact = vitreous.Predictor(model, "cpu", precision="bf16", batch_size=3)
    eight = vitreous.Predictor(model, "cpu", precision="fp8", batch_size=3)
    assert torch.equal(eight.logits(images[:3]), exact.logits(images[:3]))
    assert not quantised_layers(eight.network)
    later, expected = eight.logits(images), exact.logits(images)
    assert quantised_layers(eight.network)
    assert not quantised_layers(model)
    assert 0 < (later - expected).norm() / expected.norm() < 0.2
    assert torch.equal(eight.logits(images), later)  # with the batch that completed the images
    assert torch.equal(eight.embed(images[2:]), eight.embed(images)[2:])  # scales are fixed from now on
    other = vitreous.Predictor(model, "cpu", precision="fp8", batch_size=3)
    assert torch.equal(other.embed(images)[3:], other.embed(images)[3:])


def test_outputs_of_a_predictor_switch_too_and_refused_models_stay_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitreous.inference.engine.check_fp8", lambda *_: None)
    monkeypatch.setattr(predictor, "CALIBRATION_IMAGES", 5)
    model = vitreous.create("ViT-Lite-6/4", num_classes=3).eval()
    eight = vitreous.Predictor(model, "cpu", precision="fp8")
    with torch.inference_mode():
        for expected in (False, True):
            eight.outputs(torch.randn(3, 3, 32, 32).bfloat16())
            assert bool(quantised_layers(eight.network)) == expected
    monkeypatch.setattr(fp8, "SIMILARITY", 2.0)
    refused = vitreous.Predictor(model, "cpu", precision="fp8")
    images = np.zeros((6, 32, 32, 3), dtype=np.uint8)
    for count in (6, 1):
        with pytest.raises(ValueError, match="fp8"):
            refused.logits(images[:count])


def test_unsupported_models_and_devices_are_named(small: ViTConfig) -> None:
    for device, model, word in (
        (CPU, build(small), "GPU"),
        (CPU, build(ResNetConfig(stages=(1, 1), width=32, num_classes=5)), "blocks"),
    ):
        with pytest.raises(ValueError, match=word):
            check_fp8(model, device)
    with pytest.raises(ValueError, match="precision"):
        vitreous.Predictor(build(small), "cpu", precision="fp8")
    assert "fp8" not in predictor.SegmentPredictor.precisions


def test_sizes_that_are_not_multiples_of_16_stay_in_16_bits(small: ViTConfig) -> None:
    model = build(ViTConfig(**{**vars(small), "mlp_width": 40}))
    assert {name.rpartition(".")[2] for name in fp8.linear_layers(model)} == {"q", "k", "v", "output"}


@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < fp8.MIN_CAPABILITY,
    reason="needs a GPU with fp8",
)
def test_predictor_on_a_gpu_agrees_with_bf16() -> None:
    model = vitreous.create("ViT-S/16", num_classes=5)
    images = np.random.default_rng(0).integers(0, 256, (40, 224, 224, 3), dtype=np.uint8)
    exact, eight = (vitreous.Predictor(model, "cuda", precision=name, batch_size=8) for name in ("bf16", "fp8"))
    expected, found = exact.embed(images), eight.embed(images)
    torch.testing.assert_close(found[:24], expected[:24])  # the fourth batch completes the 32 images
    assert torch.nn.functional.cosine_similarity(found[24:], expected[24:]).min() > fp8.SIMILARITY
    assert eight.network.kernels(eight.device, torch.bfloat16).scope == "blocks"
