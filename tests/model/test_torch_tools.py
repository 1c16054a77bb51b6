"""The "PyTorch tools" table in docs/en/architecture.md. test_compile.py covers torch.compile."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, jvp, vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import parametrize, prune

import vitreous
from every_model import every_model, inputs_of
from vitreous.model.vit import ViT

# jaxtyping's checks, which run only under pytest, cannot be traced.
pytestmark = pytest.mark.usefixtures("unchecked")
SMOOTH = ["Learned1d", "RelativeBias", "attention pooling", "mask decoder"]  # without ReLU and max pooling
some = pytest.mark.parametrize("name", [*SMOOTH, "stem"])


def set_up(name: str) -> tuple[Any, Tensor]:
    model, (images,) = every_model(name), inputs_of(name, batch=3)
    return model, images


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["RelativeBias", "attention pooling", "mask decoder"]
)  # test_compile.py covers the presets
def test_export_with_a_dynamic_batch_size(name: str) -> None:
    model, images = set_up(name)
    batch = torch.export.Dim("batch")
    exported = torch.export.export(model, (images[:2],), dynamic_shapes=({0: batch},))
    file = io.BytesIO()
    torch.export.save(exported, file)
    again = torch.export.load(io.BytesIO(file.getvalue())).module()
    assert isinstance(again, torch.fx.GraphModule)
    torch.testing.assert_close(again(images), model(images), atol=1e-4, rtol=1e-4)


@some
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # vmap runs fused attention image by image
def test_per_image_gradients_with_vmap(name: str) -> None:
    model, images = set_up(name)
    model, images = model.double(), images.double()
    weights = {key: weight.detach() for key, weight in model.named_parameters()}

    def loss(weights: dict[str, Tensor], images: Tensor) -> Tensor:
        return functional_call(model, weights, (images,)).square().sum()

    each = vmap(grad(loss), (None, 0))(weights, images[:, None])
    for key, whole in grad(loss)(weights, images).items():
        torch.testing.assert_close(each[key].sum(0), whole, msg=key)


@some
def test_forward_mode_with_unfused_attention(name: str) -> None:
    """Forward and reverse mode agree: u (J t) = (u J) t."""
    model, images = set_up(name)
    direction = torch.randn_like(images)
    with sdpa_kernel(SDPBackend.MATH):
        output, along = jvp(model, (images,), (direction,))
    expected, back = vjp(model, images)
    torch.testing.assert_close(output, expected, atol=1e-4, rtol=1e-4)
    weights = torch.randn_like(output)
    (gradient,) = back(weights)
    torch.testing.assert_close((weights * along).sum(), (gradient * direction).sum(), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("name", SMOOTH)
def test_second_derivatives_with_unfused_attention(name: str) -> None:
    model, images = set_up(name)
    model, images = model.double(), images.double()
    direction = torch.randn_like(images)

    def loss(images: Tensor) -> Tensor:
        return model(images).square().sum()

    with sdpa_kernel(SDPBackend.MATH):
        _, product = torch.autograd.functional.hvp(loss, images, direction)
    step = 1e-5
    ahead, behind = (grad(loss)(images + sign * step * direction) for sign in (1, -1))
    torch.testing.assert_close(product, (ahead - behind) / (2 * step), atol=1e-4, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Learned1d", "attention pooling", "stem"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_jit_trace_works_for_one_image_size_and_any_batch_size(name: str) -> None:
    model, images = set_up(name)
    traced = torch.jit.trace(model, (images[:2],))
    torch.testing.assert_close(traced(images), model(images), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("tool", [torch.jit.script, torch.fx.symbolic_trace])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_script_and_symbolic_trace_do_not_work(tool: Callable[..., Any]) -> None:
    """If one of them starts to work, update the table."""
    model, _ = set_up("Learned1d")
    errors = (RuntimeError, OSError, torch.jit.frontend.NotSupportedError, torch.fx.proxy.TraceError)
    with pytest.raises((*errors, AssertionError)):  # script asserts that it knows every annotation
        tool(model)


def test_removed_pruning_and_parametrisation_can_be_saved(tmp_path: Path) -> None:
    model, images = set_up("distillation")
    prune.l1_unstructured(model.prefix, "class_token", amount=0.5)
    parametrize.register_parametrization(model.position, "table", torch.nn.Tanh())
    with pytest.raises(ValueError, match=r"prefix|position"):
        vitreous.save(model, tmp_path / "model")
    prune.remove(model.prefix, "class_token")
    parametrize.remove_parametrizations(model.position, "table")
    vitreous.save(model, tmp_path / "model")
    again = vitreous.load(tmp_path / "model")
    assert isinstance(again, ViT)
    assert torch.equal(again(images), model(images))
