"""`nn.DataParallel` replicas, and models moved to another dtype or device."""

import importlib
from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor, nn

from every_model import EVERY, VITS, every_model, inputs_of, output_of
from vitreous.explanation.attention_and_logit_lens import capture
from vitreous.model.vit import ViT

replicate = importlib.import_module(
    "torch.nn.parallel.replicate"
)  # the module is shadowed by a function of the same name


@pytest.fixture(autouse=True)
def _replicas_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make torch's `replicate` work on the CPU by replacing its copy between GPUs."""

    def copies(tensors: Sequence[Tensor], devices: Sequence[int], detach: bool = False) -> list[list[Tensor]]:
        return [[tensor.detach().clone() if detach else tensor.clone() for tensor in tensors] for _ in devices]

    monkeypatch.setattr(replicate, "_broadcast_coalesced_reshape", copies)
    monkeypatch.setattr(replicate, "_get_device_index", lambda device, optional: device)


def replicas(model: nn.Module) -> list[nn.Module]:
    return replicate.replicate(model, [0, 1])


@pytest.mark.slow
@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "autocast"])
@pytest.mark.parametrize("name", EVERY)
def test_data_parallel_replicas_equal_the_model(name: str, autocast: bool) -> None:
    model, inputs = every_model(name), inputs_of(name, batch=4)
    halves = list(zip(*(tensor.chunk(2) for tensor in inputs), strict=True))
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        expected = [output_of(model(*half)) for half in halves]
        found = [output_of(replica(*half)) for replica, half in zip(replicas(model), halves, strict=True)]
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", EVERY)
def test_gradients_of_replicas_reach_the_model(name: str) -> None:
    model, inputs = every_model(name), inputs_of(name)
    output_of(model(*inputs)).square().sum().backward()
    expected = {weight: weight.grad for weight in model.parameters()}
    model.zero_grad()
    output_of(replicas(model)[0](*inputs)).square().sum().backward()
    for key, weight in model.named_parameters():
        torch.testing.assert_close(weight.grad, expected[weight], msg=key)


@pytest.mark.parametrize("name", VITS)
@torch.no_grad()
def test_replicas_return_the_same_features_and_attention(name: str) -> None:
    model, (images,) = every_model(name), inputs_of(name)
    assert isinstance(model, ViT)
    replica = replicas(model)[0]
    assert isinstance(replica, ViT)
    pairs = [
        *zip(replica.features(images)[:2], model.features(images)[:2], strict=True),
        *zip(replica.attention(images), model.attention(images), strict=True),
        *zip(capture(replica, images).states, capture(model, images).states, strict=True),
    ]
    assert all(torch.equal(one, other) for one, other in pairs)


# ---- Moving a model --------------------------------------------------------------------------------------------------


def tensors_in(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple | set):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))


@pytest.mark.parametrize("name", EVERY)
def test_every_tensor_is_registered_and_forward_stores_none(name: str) -> None:
    """A tensor in a plain attribute would not be moved with the model."""
    registered = {"_parameters", "_buffers", "_modules"}
    model = every_model(name)
    before = {key: dict(vars(module)) for key, module in model.named_modules()}
    for attributes in before.values():
        assert not list(tensors_in([value for key, value in attributes.items() if key not in registered]))
    model(*inputs_of(name))
    assert {key: dict(vars(module)) for key, module in model.named_modules()} == before


@pytest.mark.parametrize("name", EVERY)
@torch.no_grad()
def test_moved_models_compute_in_the_new_dtype(name: str) -> None:
    model, inputs = every_model(name), inputs_of(name)
    exact = output_of(model.double()(*(tensor.double() for tensor in inputs)))
    rough = output_of(model.bfloat16()(*(tensor.bfloat16() for tensor in inputs)))
    if name not in ("MPP", "MAE"):  # losses are at least float32
        assert (exact.dtype, rough.dtype) == (torch.float64, torch.bfloat16)
    assert (rough.double() - exact).norm() < 0.3 * exact.norm()
