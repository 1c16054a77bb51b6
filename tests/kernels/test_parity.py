"""The comparison that decides at run time whether the kernels are used."""

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from gradient_parity import DEVICE, HALF
from vitreous.kernels import bias_gelu, parity
from vitreous.kernels.parity import wrong_kernel


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter is slow."""
    monkeypatch.setattr(parity, "TOKENS", 20)
    monkeypatch.setattr(parity, "HEADS", 1)


def test_correct_kernels_pass_and_random_numbers_continue() -> None:
    state = torch.get_rng_state()
    with torch.inference_mode():
        assert wrong_kernel(DEVICE, HALF, gradients=True) is None
    assert torch.equal(state, torch.get_rng_state())


def replace(monkeypatch: pytest.MonkeyPatch, name: str, change: Callable[..., Any]) -> None:
    """Replace a kernel by `change(kernel, *arguments)`."""
    module = importlib.import_module(f"vitreous.kernels.{name}")
    right = getattr(module, name)
    monkeypatch.setattr(module, name, lambda *all: change(right, *all))


WRONG: dict[str, Callable[..., Any]] = {
    "add_norm": lambda f, x, branch, *rest: f(x, branch._replace(factor=None), *rest),  # stochastic depth
    "bias_gelu": lambda f, x, bias, kind: f(x, bias, "tanh" if kind == "quick" else kind),
    "attention": lambda f, qkv, *rest: f(qkv, *rest) * (1 + 0.1 * (torch.arange(qkv.shape[1]) > 15))[:, None],
    "window_attention": lambda f, qkv, indices, bias, separated, scale: f(qkv, indices, bias, None, scale),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("gradients", [False, True])
def test_wrong_kernel_is_named(name: str, gradients: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    replace(monkeypatch, name, WRONG[name])
    assert str(wrong_kernel(DEVICE, HALF, gradients)).startswith(name)


def test_wrong_gradient_is_found_only_if_gradients_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    replace(monkeypatch, "bias_gelu", lambda f, x, *rest: f(x, *rest) + 0.3 * (x - x.detach()))
    assert wrong_kernel(DEVICE, HALF, gradients=False) is None
    assert "bias_gelu" in str(wrong_kernel(DEVICE, HALF, gradients=True))


def test_nan_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    replace(monkeypatch, "bias_gelu", lambda f, *rest: f(*rest) * torch.nan)
    assert "bias_gelu" in str(wrong_kernel(DEVICE, HALF, gradients=False))


def test_comparison_inside_activation_checkpointing() -> None:
    """The comparison runs once, so that it must not save tensors that the second forward pass does not save."""
    found = []

    def block(x: torch.Tensor) -> torch.Tensor:
        if not found:
            found.append(wrong_kernel(DEVICE, HALF, gradients=True))
        return bias_gelu.plain_bias_gelu(x, x[0], "erf")

    x = torch.randn(3, 8, device=DEVICE, requires_grad=True)
    checkpoint(block, x, use_reentrant=False).sum().backward()
    assert found == [None]
