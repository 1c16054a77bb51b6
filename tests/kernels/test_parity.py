"""The comparison that decides at run time whether the kernels are used."""

import pytest
import torch

from gradient_parity import DEVICE, HALF
from vitreous.kernels import bias_gelu
from vitreous.kernels.parity import wrong_kernel


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitreous.kernels.parity.TOKENS", 20)  # the interpreter is slow


@pytest.mark.usefixtures("small")
def test_correct_kernels_pass_and_random_numbers_continue() -> None:
    state = torch.get_rng_state()
    with torch.inference_mode():
        assert wrong_kernel(DEVICE, HALF) is None
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("part", ["output", "gradient"])
def test_wrong_kernel_is_named(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = bias_gelu.bias_gelu

    def wrong(x: torch.Tensor, bias: torch.Tensor, kind: str) -> torch.Tensor:
        found = right(x, bias, kind)
        return found * 1.1 if part == "output" else found + 0.3 * (x - x.detach())

    monkeypatch.setattr(bias_gelu, "bias_gelu", wrong)
    assert "bias_gelu" in str(wrong_kernel(DEVICE, HALF))


@pytest.mark.usefixtures("small")
def test_nan_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    right = bias_gelu.bias_gelu
    monkeypatch.setattr(bias_gelu, "bias_gelu", lambda *inputs: right(*inputs) * torch.nan)
    assert "bias_gelu" in str(wrong_kernel(DEVICE, HALF))
