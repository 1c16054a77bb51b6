"""The walk: its tensors are those of the model's forward pass, for every kind of model."""

import dataclasses
from typing import Any, get_args

import pytest
import torch
from safetensors.torch import load
from torch.testing import assert_close

from every_model import VITS, every_model, inputs_of
from inspect_requests import as_given, get, sample_image
from live_server import Live
from vitreous.explanation.attention_and_logit_lens import capture
from vitreous.model.build import build
from vitreous.model.options import Conditional
from vitreous.model.swin import Swin
from vitreous.model.swin_block import PatchMerging
from vitreous.model.swin_config import SwinConfig, SwinV1, SwinV2, SwinVersion, WindowRule
from vitreous.model.vit import ViT
from vitreous.model.windows import Windows
from vitreous.page.walk import PER_HEAD, layer_tensors, shared_tensors, token_of, walk_facts


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
    states = shared["states"].view(3, 32)
    assert_close(model.pre_norm(start), states[0], rtol=1e-5, atol=1e-5)
    assert_close(found["before"], states[layer])
    # Equations 2 and 3.
    weights = captured.weights(layer)[0, :, token]
    assert_close(found["weights"], weights)
    scores = (found["query"][:, None] * found["keys"]).sum(dim=-1) * found["scale"]
    assert_close(found["products"], scores, rtol=1e-4, atol=1e-5)
    assert ("bias" in found) == ("bias" in facts["positions"])
    assert_close((found["products"] + found.get("bias", torch.zeros(()))).softmax(dim=-1), weights)
    assert_close(found["mixed"], (weights[..., None] * found["values"]).sum(dim=1), rtol=1e-4, atol=1e-5)
    assert_close(found["middle"], states[layer] + found["attended"])
    assert_close(found["output"], found["middle"] + found["mlp"])
    convolved = isinstance(model.config.position, Conditional) and layer < model.config.position.blocks
    assert convolved or torch.allclose(found["output"], states[layer + 1], rtol=1e-4, atol=1e-5)
    # Equation 4.
    assert_close(shared["pooled"], model.pooled(captured.images)[0], rtol=1e-4, atol=1e-5)
    assert_close(shared["pooling"].sum(), torch.ones(()))


@pytest.mark.parametrize("version", [SwinV1(), SwinV2()], ids=["V1", "V2"])
@pytest.mark.parametrize("rule", get_args(WindowRule))
@pytest.mark.parametrize("size", [(36, 28), (24, 32)])
def test_the_tensors_of_a_swin_are_those_of_its_forward_pass(
    version: SwinVersion, rule: WindowRule, size: tuple[int, int]
) -> None:
    """Windows of 4 x 4 patches on 9 x 7 and 5 x 4, or on 6 x 8 and 3 x 4: with padding, shifts and masks."""
    torch.manual_seed(0)
    config = SwinConfig(size, width=16, depths=(2, 2), stage_heads=(1, 2), window=(4, 4), num_classes=5)
    model = build(dataclasses.replace(config, version=version, window_rule=rule)).eval()
    assert isinstance(model, Swin)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    captured, (gh, gw), facts = capture(model, torch.randn(1, 3, *size)), config.stage_grids[0], walk_facts(model)
    attention, masked = model.attention(captured.images), 0
    for patch in range(0, gh * gw, 5):
        index = torch.tensor([patch])
        shared = shared_tensors(captured, index)
        assert_close(model.patches.project(shared["pixels"][None, None])[0, 0], shared["projected"])
        states = shared["states"].split([16, 16, 16, 32, 32])
        assert_close(model.patch_norm(shared["projected"]), states[0])
        for layer, step in enumerate(model.walk(captured.images)):
            found, windows = layer_tensors(captured, layer, index), step.terms.windows
            scale, token = layer // 2 + 1, int(token_of(captured, layer, index))
            assert token == (patch // gw // scale) * windows.grid[1] + patch % gw // scale
            assert_close(found["before"], step.before[0, token])
            assert_close(found["output"], states[layer + 1])
            assert_close(found["output"], step.after[0, token], rtol=1e-4, atol=1e-5)
            [[window, place]] = (windows.token_indices() == token).nonzero().tolist()
            assert found["tokens"].tolist() == windows.token_indices()[window].tolist()
            assert_close(found["weights"], attention[layer].weights[0, window, :, place])
            products = (found["query"][:, None] * found["keys"]).sum(dim=-1) * found["scale"]
            assert_close(found["products"], products)
            logits = found["products"] + found["bias"] + found.get("mask", torch.zeros(()))
            assert_close(logits.softmax(dim=-1), found["weights"])
            assert ("mask" in found) == (windows.shift != (0, 0))
            masked += int((found.get("mask", torch.zeros(1)) < 0).any())
            if isinstance(version, SwinV2):
                assert_close(found["query"].norm(dim=-1), torch.ones(layer // 2 + 1))
            check_windows(facts["layers"][layer]["windows"], windows, token)
            if layer == 2:
                merge = model.stages[1].merge
                assert isinstance(merge, PatchMerging)
                last = merge.norm if isinstance(version, SwinV2) else merge.reduction
                assert_close(last(found["merge_between"]), found["before"])
                columns = windows.grid[1]
                corner = 2 * (token // columns) * gw + 2 * (token % columns)
                assert_close(found["merge_tokens"][0], captured.outputs[1][0, corner])
        assert_close(model.head(shared["pooled"]), model(captured.images)[0], rtol=1e-4, atol=1e-5)
    assert masked


def check_windows(facts: dict[str, Any], windows: Windows, token: int) -> None:
    """The page finds the tokens of a window from its size, shift and cycle."""
    (gh, gw), bands = windows.grid, zip(facts["shift"], facts["cycle"], facts["size"], strict=True)
    rows, columns = (
        [(place - shift) % cycle // size for place in range(side)]
        for (shift, cycle, size), side in zip(bands, (gh, gw), strict=True)
    )
    own = (rows[token // gw], columns[token % gw])
    members = [at for at in range(gh * gw) if (rows[at // gw], columns[at % gw]) == own]
    [window] = [tokens for tokens in windows.token_indices().tolist() if token in tokens]
    assert members == sorted(at for at in window if at >= 0)


@pytest.mark.parametrize("id", ["class-token", "registers", "average", "relative", "masks", "swin"])
def test_the_server_sends_the_tensors_of_one_head(live: Live, models: dict[str, Any], id: str) -> None:
    reply = get(live, id, "walk?layer=1&head=1&patch=7")
    assert reply.status == 200
    model = models[id].backbone
    captured = capture(model, as_given(models[id], sample_image()))
    expected = shared_tensors(captured, torch.tensor([7])) | layer_tensors(captured, 1, torch.tensor([7]))
    found = load(reply.body)
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert_close(tensor, expected[name][1] if name in PER_HEAD else expected[name], rtol=1e-4, atol=1e-5)
    facts = {one["id"]: one["walk"] for one in live.request("GET", "/v1/model").json["models"]}
    assert facts[id]["positions"] == (["bias"] if id in ("relative", "swin") else ["added"])
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
