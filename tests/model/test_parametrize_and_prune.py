"""`torch.nn.utils.prune` and `parametrize` work on every parameter."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune

from every_model import every_model, inputs_of, output_of
from vitreous.explanation.attention_and_logit_lens import capture
from vitreous.explanation.rollout_relevance_occlusion import rollout
from vitreous.model.vit import ViT

# Model, module and tensor name.
TENSORS = [
    ("distillation", "prefix", "class_token"),
    ("distillation", "prefix", "distillation_token"),
    ("distillation", "prefix", "registers"),
    ("Learned1d", "position", "table"),
    ("Learned1d", "position", "prefix"),
    ("Learned2d", "position", "rows"),
    ("Learned2d", "position", "columns"),
    ("RelativeBias", "position", "table"),
    ("RelativeBias", "position", "prefix"),
    ("Conditional", "position.convolutions.0", "weight"),
    ("Learned1d", "patches.projection", "weight"),
    ("linear patches with norms", "patches.projection", "weight"),
    ("Learned1d", "encoder.blocks.0.attention.q", "weight"),
    ("Learned1d", "encoder.blocks.0.attention.k", "weight"),
    ("Learned1d", "encoder.blocks.1.attention.v", "weight"),
    ("SwiGLU, LayerScale, QK norm", "encoder.blocks.0.mlp_scale", "factor"),
    ("attention pooling", "pool.attention", "query"),
    ("stem", "stem.root", "weight"),
    ("ResNet", "root", "weight"),
    ("mask decoder", "decoder", "classes"),
    ("MPP", "", "mask"),
    ("MAE", "", "mask"),
    ("MAE", "encoder.patches.projection", "weight"),
]
each_tensor = pytest.mark.parametrize(("name", "where", "key"), TENSORS)


class Squared(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight * weight


def original(name: str) -> nn.Module:
    torch.manual_seed(1)
    return every_model(name)


def multiplied(name: str, where: str, key: str, factor: Tensor | None = None) -> nn.Module:
    """Copy the model and multiply a tensor by a factor or by itself."""
    model = original(name)
    with torch.no_grad():
        tensor = getattr(model.get_submodule(where), key)
        tensor.mul_(tensor if factor is None else factor)
    return model


def every_output(name: str, model: nn.Module, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    outputs = [output_of(model(*inputs))]
    if isinstance(model, ViT):
        outputs += [*model.features(*inputs)[:2], *model.attention(*inputs), *capture(model, *inputs).states]
        outputs += [rollout(capture(model, *inputs))]
    return outputs


@pytest.mark.slow
@each_tensor
def test_parametrized_tensors_change_the_output(name: str, where: str, key: str) -> None:
    inputs = inputs_of(name)
    model = original(name)
    before = output_of(model(*inputs))
    parametrize.register_parametrization(model.get_submodule(where), key, Squared())
    found, expected = (every_output(name, it, inputs) for it in (model, multiplied(name, where, key)))
    assert not torch.allclose(found[0], before)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.slow
@each_tensor
def test_pruned_tensors_change_the_output(name: str, where: str, key: str) -> None:
    inputs = inputs_of(name)
    model = original(name)
    before = output_of(model(*inputs))
    mask = torch.rand_like(getattr(model.get_submodule(where), key)) < 0.5
    prune.custom_from_mask(model.get_submodule(where), key, mask)
    found, expected = (every_output(name, it, inputs) for it in (model, multiplied(name, where, key, mask)))
    assert not torch.allclose(found[0], before)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@each_tensor
def test_pruned_tensors_are_trained(name: str, where: str, key: str) -> None:
    """Pruning recomputes the tensor in a forward hook; if the hook does not run, the tensor never changes."""
    inputs = inputs_of(name)
    model = original(name)
    mask = torch.rand_like(getattr(model.get_submodule(where), key)) < 0.5
    prune.custom_from_mask(model.get_submodule(where), key, mask)
    models = [model, multiplied(name, where, key, mask)]
    for step in range(3):
        losses = [output_of(model(*inputs)).square().mean() for model in models]
        torch.testing.assert_close(*losses, msg=f"step {step}")
        for model, loss in zip(models, losses, strict=True):
            model.zero_grad()
            loss.backward()
        with torch.no_grad():
            getattr(models[1].get_submodule(where), key).grad.mul_(mask)
            for model in models:
                for weight in model.parameters():
                    weight -= 0.01 * (0 if weight.grad is None else weight.grad)
