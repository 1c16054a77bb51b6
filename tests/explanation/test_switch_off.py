"""Heads, layers and positions that are switched off, compared with models whose weights are changed."""

import copy
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from every_model import every_model, inputs_of
from vitreous.explanation.attention_and_logit_lens import capture
from vitreous.explanation.switch_off import SwitchedOff, head_effects, switch_off
from vitreous.model.top_labels import class_probabilities

KINDS = ["Learned1d", "RelativeBias", "Rotary2d", "Conditional", "registers", "attention pooling"]


def changed(model: Any, layer: int, head: int) -> Any:
    """The model with zero weights for the output of a head."""
    other = copy.deepcopy(model)
    attention = other.encoder.blocks[layer].attention
    e = attention.head_dim
    attention.output.weight.data[:, head * e : (head + 1) * e] = 0
    return other


@pytest.mark.parametrize("name", KINDS)
@torch.no_grad()
def test_a_head_without_output_weights_is_switched_off(name: str) -> None:
    torch.manual_seed(0)
    model, images = every_model(name), inputs_of(name)[0]
    before = model(images)
    off = switch_off(model, SwitchedOff(heads=frozenset({(0, 1), (1, 3)})))
    assert_close(off(images), changed(changed(model, 0, 1), 1, 3)(images))
    assert_close(model(images), before)  # the model itself is not changed
    assert next(off.parameters()) is next(model.parameters())  # and its weights are shared
    none = switch_off(model, SwitchedOff(layers=frozenset({0, 1})))
    if name != "Conditional":  # its convolution follows the layer
        states = capture(none, images).states
        assert_close(states[2], states[0])


@pytest.mark.parametrize("name", ["Learned1d", "SinCos2d", "RelativeBias", "Rotary2d", "Conditional"])
@torch.no_grad()
def test_without_positions_the_order_of_patches_does_not_matter(name: str) -> None:
    torch.manual_seed(0)
    model, image = every_model(name), inputs_of(name, batch=1)[0]
    shuffled = image.unflatten(3, (4, 8))[:, :, :, torch.tensor([2, 0, 3, 1])].flatten(3)  # columns of patches
    zero = switch_off(model, SwitchedOff(positions="zero"))
    assert_close(zero(shuffled), zero(image), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(model(shuffled), model(image), atol=1e-4)
    assert not torch.allclose(switch_off(model, SwitchedOff(positions="shuffled"))(image), model(image), atol=1e-4)


@pytest.mark.parametrize("name", KINDS)
@torch.no_grad()
def test_effects_are_differences_of_probabilities(name: str) -> None:
    torch.manual_seed(0)
    model, image = every_model(name), inputs_of(name, batch=1)[0]
    found = head_effects(capture(model, image), target=2, batch_size=3)
    whole = class_probabilities(model(image)[0], model.config)[2]
    for layer in range(2):
        for head in range(4):
            without = class_probabilities(changed(model, layer, head)(image)[0], model.config)[2]
            assert_close(found[layer, head], whole - without, rtol=1e-3, atol=1e-6)
