"""Errors for images whose dtype or device differs from the model's."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from every_model import EVERY, every_model, inputs_of
from vitreous.model import inputs as model_inputs
from vitreous.model.vit import ViT

# jaxtyping's checks run only under pytest, so users never see them.
pytestmark = pytest.mark.usefixtures("unchecked")
CASES = [
    *((name, torch.float16, torch.float32) for name in EVERY),
    ("Learned1d", torch.float32, torch.float16),
    ("Learned1d", torch.bfloat16, torch.float64),
]


@pytest.mark.parametrize(("name", "weights", "images"), CASES, ids=str)
def test_dtype_mismatch_error_names_both_dtypes(name: str, weights: torch.dtype, images: torch.dtype) -> None:
    model, inputs = every_model(name).to(weights), [tensor.to(images) for tensor in inputs_of(name)]
    calls: list[Callable[..., Any]] = [model]
    if isinstance(model, ViT):
        calls += [model.features, model.attention, model.intermediate]
    for call in calls:
        with pytest.raises(ValueError, match=rf"{images}.*{weights}.*images\.to\({weights}\)"):
            call(*inputs)


def test_dtype_mismatch_error_in_a_replica_names_both_dtypes() -> None:
    model = every_model("Learned1d").half()
    model.patches.projection.weight = plain(model.patches.projection)
    with pytest.raises(ValueError, match=r"torch\.float32.*torch\.float16"):
        model(torch.zeros(1, 3, 24, 32))


def plain(module: nn.Module) -> Tensor:
    """Convert the weight to a plain tensor, as in `nn.DataParallel` replicas."""
    return module._parameters.pop("weight").detach()  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["Learned1d", "SinCos2d", "stem", "ResNet", "mask decoder"])
def test_autocast_accepts_another_dtype(name: str) -> None:
    model = every_model(name).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        assert model(*inputs_of(name)).isfinite().all()


def test_layers_that_convert_their_weight_work() -> None:
    """With offloading and sharding, the weight has its final dtype only during the call."""
    model = every_model("Learned1d")
    expected = model(images := torch.randn(1, 3, 24, 32))
    projection = model.patches.projection.half()
    projection.register_forward_pre_hook(lambda module, _: module.float() and None)
    torch.testing.assert_close(model(images), expected, atol=1e-2, rtol=1e-2)


def test_device_mismatch_error_names_both_devices() -> None:
    with pytest.raises(ValueError, match=r"images are on cpu.*model is on meta"):
        model_inputs.check_matches(torch.zeros(1), torch.zeros(1, device="meta"))


def test_other_torch_errors_are_not_replaced() -> None:
    model = every_model("Learned1d")
    model.patches.projection.bias = nn.Parameter(torch.zeros(7))
    with pytest.raises(RuntimeError, match="bias"):
        model(torch.zeros(1, 3, 24, 32))


def test_other_torch_errors_are_not_replaced_under_autocast() -> None:
    """Under autocast, dtypes can differ, so they are not the cause of the error."""
    model = every_model("Learned1d").bfloat16()

    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    model.patches.projection.register_forward_pre_hook(fail)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(RuntimeError, match="out of memory"):
        model(torch.zeros(1, 3, 24, 32))
