"""The walk: its tensors are those of the model's forward pass, for every kind of model."""

from typing import Any

import pytest
import torch
from safetensors.torch import load
from torch.testing import assert_close

from every_model import VITS, every_model, inputs_of
from inspect_requests import as_given, get, sample_image
from live_server import Live
from vitreous.explanation.attention_and_logit_lens import capture
from vitreous.model.options import Conditional
from vitreous.model.vit import ViT
from vitreous.page.walk import PER_HEAD, layer_tensors, shared_tensors, walk_facts


@pytest.mark.parametrize("name", VITS)
def test_the_tensors_are_those_of_the_forward_pass(name: str) -> None:
    torch.manual_seed(0)
    model = every_model(name)
    assert isinstance(model, ViT)
    captured = capture(model, inputs_of(name, batch=1)[0])
    patch, layer, prefix = torch.tensor([5]), 1, model.config.num_prefix_tokens
    shared, found, facts = shared_tensors(captured, patch), layer_tensors(captured, layer, patch), walk_facts(model)
    token = prefix + 5
    # Equation 1: what the patch is before the first layer.
    patches = model.patches
    assert_close(patches.project(shared["pixels"][None, None])[0, 0], shared["projected"], rtol=1e-4, atol=1e-5)
    assert ("position" in shared) == ("added" in facts["positions"]) == (model.position.added is not None)
    start = shared["projected"] + shared.get("position", torch.zeros(()))
    assert_close(model.pre_norm(start), shared["states"][0], rtol=1e-5, atol=1e-5)
    # Equations 2 and 3.
    weights = captured.weights(layer)[0, :, token]
    assert_close(found["weights"], weights)
    scores = (found["query"][:, None] * found["keys"]).sum(dim=-1) * facts["scale"]
    assert_close(found["products"], scores, rtol=1e-4, atol=1e-5)
    assert ("bias" in found) == ("bias" in facts["positions"])
    assert_close((found["products"] + found.get("bias", torch.zeros(()))).softmax(dim=-1), weights)
    assert_close(found["mixed"], (weights[..., None] * found["values"]).sum(dim=1), rtol=1e-4, atol=1e-5)
    assert_close(found["middle"], shared["states"][layer] + found["attended"])
    assert_close(found["output"], found["middle"] + found["mlp"])
    convolved = isinstance(model.config.position, Conditional) and layer < model.config.position.blocks
    assert convolved or torch.allclose(found["output"], shared["states"][layer + 1], rtol=1e-4, atol=1e-5)
    # Equation 4.
    assert_close(shared["pooled"], model.pooled(captured.images)[0], rtol=1e-4, atol=1e-5)
    assert_close(shared["pooling"].sum(), torch.ones(()))


@pytest.mark.parametrize("id", ["class-token", "registers", "average", "relative", "masks"])
def test_the_server_sends_the_tensors_of_one_head(live: Live, models: dict[str, Any], id: str) -> None:
    reply = get(live, id, "walk?layer=1&head=2&patch=7")
    assert reply.status == 200
    model: ViT = models[id].backbone
    captured = capture(model, as_given(models[id], sample_image()))
    expected = shared_tensors(captured, torch.tensor([7])) | layer_tensors(captured, 1, torch.tensor([7]))
    found = load(reply.body)
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert_close(tensor, expected[name][2] if name in PER_HEAD else expected[name], rtol=1e-4, atol=1e-5)
    facts = {one["id"]: one["walk"] for one in live.request("GET", "/v1/model").json["models"]}
    assert facts[id]["positions"] == (["bias"] if id == "relative" else ["added"])
    assert facts["bit"] is None


@pytest.mark.parametrize("query", ["patch=12", "patch=-1", "head=4&patch=0", "layer=2&patch=0", "layer=0"])
def test_parameters_outside_the_model_are_errors(live: Live, query: str) -> None:
    reply = get(live, "class-token", f"walk?{query}")
    assert (reply.status, reply.json["error"]["code"]) == (422, "bad_parameter")


def test_the_schema_promises_a_shape_only_if_the_response_has_one(live: Live) -> None:
    paths = live.request("GET", "/openapi.json").json["paths"]
    for path, request in (("walk", "walk?patch=0"), ("similarity/{layer}", "similarity/0")):
        promised = paths[f"/v1/images/{{id}}/{path}"]["get"]["responses"]["200"].get("headers", {})
        assert ("X-Shape" in promised) == ("x-shape" in get(live, "class-token", request).headers)
