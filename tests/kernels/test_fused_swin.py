"""Swin blocks with the kernel for window attention compute what plain blocks compute."""

import copy

import pytest
import torch

from gradient_parity import DEVICE, HALF, TOLERANCE
from vitreous.kernels.parity import relative_error
from vitreous.model import swin_block
from vitreous.model.build import build
from vitreous.model.swin import Swin
from vitreous.model.swin_config import SwinConfig


def results(model: Swin, images: torch.Tensor, dtype: torch.dtype) -> list[torch.Tensor]:
    """Return the logits and all gradients."""
    model.zero_grad()
    with torch.autocast(DEVICE.type, HALF, enabled=dtype == HALF):
        logits = model(images)
    (logits.float() if dtype == HALF else logits).square().mean().backward()
    return [
        logits.detach(),
        torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]),
    ]


@pytest.mark.parametrize("size", [32, 36])  # windows fill the grid of 8 x 8 patches, or some of 9 x 9 are padded
def test_fused_windows_equal_plain_windows(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    config = SwinConfig(
        image_size=(size, size),
        patch_size=(4, 4),
        width=16,
        depths=(2, 2),
        stage_heads=(1, 2),
        window=(4, 4),
        num_classes=5,
    )
    model = build(config).to(DEVICE).train()
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.1 * torch.randn_like(weight)
    images = torch.randn(3, 3, size, size, device=DEVICE)
    exact = results(copy.deepcopy(model).double(), images.double(), torch.float64)
    found = {}
    for on in (False, True):
        monkeypatch.setattr(swin_block, "missing", lambda _, dtype, on=on: None if on and dtype == HALF else "off")
        found[on] = results(model, images, HALF)
    assert torch.equal(found[True][1], found[False][1]) == (size == 36)
    for fused, usual, expected in zip(found[True], found[False], exact, strict=True):
        assert relative_error(fused, expected) < max(3 * relative_error(usual, expected), TOLERANCE)
