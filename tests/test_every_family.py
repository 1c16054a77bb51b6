"""Serving, explaining, probing, exporting and segmentation work with a model of every family, or refuse it by name."""

import ast
import json
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, get_args
from urllib.parse import quote

import numpy as np
import pytest
import torch
from safetensors.torch import load
from torch.testing import assert_close

import vitreous
from every_family import FAMILIES, group, small_model
from inspect_requests import as_given, sample_image
from live_server import Live, in_thread
from page_graphs import check_keys, check_page_graphs
from train_runs import skip_report, tiny
from vitreous.explanation.attention_and_logit_lens import capture
from vitreous.explanation.methods import ATTENTION_METHODS, HEAD_METHODS, METHODS
from vitreous.exporting.graph import trace_tensors
from vitreous.exporting.outputs import Outputs, output_names
from vitreous.exporting.web.export_page import export_web
from vitreous.exporting.web.runtime import WASM
from vitreous.model.build import build
from vitreous.model.config import AnyConfig, SegmenterConfig
from vitreous.model.options import LinearDecoder, PyramidDecoder
from vitreous.model.presets import PRESETS
from vitreous.model.protocol import UnsupportedModel
from vitreous.page.walk import token_of
from vitreous.serving.models import serve_model
from vitreous.training import Augment
from vitreous.training.run import train

every_family = pytest.mark.parametrize("family", FAMILIES)
DISTINCT = list({config: name for name, config in reversed(FAMILIES.items())}.values())[::-1]  # without equal configs


def test_no_family_is_missing() -> None:
    """A new preset or config needs a row in tests/helpers/every_family.py."""
    assert {group(name) for name in PRESETS} <= FAMILIES.keys()
    assert {type(config) for config in FAMILIES.values()} == set(get_args(AnyConfig))


def test_no_package_asks_for_the_family() -> None:
    """Packages above `weights` use the protocol; formats and builders depend on a family."""
    families: set[str] = {"ViT", "ViTConfig", "ResNet", "ResNetConfig", "Swin", "SwinConfig"}
    found: list[str] = []
    root = Path(vitreous.__file__).parent
    for path in sorted(root.rglob("*.py")):
        if path.relative_to(root).parts[0] in ("model", "weights"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            asked: ast.AST | None = None
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
                asked = node.args[1]
            elif isinstance(node, ast.MatchClass):
                asked = node.cls
            elif isinstance(node, ast.Attribute) and node.attr == "family":
                found.append(f"{path.relative_to(root)}:{node.lineno} .family")
            names = {name.id for name in ast.walk(asked) if isinstance(name, ast.Name)} if asked else set()
            found += [f"{path.relative_to(root)}:{node.lineno} {name}" for name in sorted(names & families)]
    assert not found


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with in_thread([serve_model(small_model(family), family, family, "cpu") for family in FAMILIES]) as live:
        yield live


@every_family
def test_serve(live: Live, family: str) -> None:
    config, data = FAMILIES[family], sample_image()
    shown = live.request("POST", f"/v1/images?model={quote(family)}", data).json
    path = f"/v1/images/{shown['id']}/{{}}model={quote(family)}"
    task = {"classify": "classify", "segment": "segment", "embed": "embed"}[config.task]
    assert live.request("POST", f"/v1/{task}?model={quote(family)}", data).status == 200
    for what in ("attention/0?", "similarity/0?", "map/rollout?", "map/attention?", "map/pca?", "distance?"):
        reply = live.request("GET", path.format(what))
        assert (reply.status == 200) == config.has_attention, reply
        assert config.has_attention or "BiT" in reply.json["error"]["message"]
    scored = config.has_attention and config.task == "classify"
    answers = dict.fromkeys(("map/relevance?", "map/occlusion?", "lens?"), scored)
    for what, works in (answers | {"effects?": scored and bool(config.num_tokens)}).items():
        reply = live.request("GET", path.format(what))
        assert reply.status == (200 if works else 409), (what, reply)
    if config.has_attention:
        found = live.request("GET", path.format("map/rollout?")).json
        assert tuple(found["grid"]) == tuple(shown["grid"]) == config.backbone.map_grid
        assert len(found["values"]) == math.prod(found["grid"])


@every_family
def test_walk(live: Live, family: str) -> None:
    """The walk ends with the last layer of the model and its logits."""
    model, config, data = small_model(family), FAMILIES[family], sample_image()
    id = live.request("POST", f"/v1/images?model={quote(family)}", data).json["id"]
    captured = capture(model.backbone, as_given(model, data))
    for layer in range(config.backbone.num_layers if config.has_attention else 1):
        reply = live.request("GET", f"/v1/images/{id}/walk?patch=7&head=0&layer={layer}&model={quote(family)}")
        if not config.has_attention:
            assert (reply.status, reply.json["error"]["code"]) == (409, "no_attention")
            return
        found, token = load(reply.body), int(token_of(captured, layer, torch.tensor([7])))
        assert_close(found["weights"].sum(), torch.ones(()))
        assert_close(found["output"], captured.outputs[layer][0, token])
    assert_close(found["states"][-len(found["output"]) :], found["output"])
    with torch.no_grad():
        assert_close(found["pooled"], model.backbone.pooled(captured.images)[0])
        if config.task == "classify" and not config.distillation_token:
            assert_close(model.heads[0](found["pooled"]), model(captured.images)[0])


@pytest.mark.slow
@pytest.mark.parametrize("family", DISTINCT)
def test_web_page(family: str, tmp_path: Path) -> None:
    """The page without a server has the results of PyTorch, or refuses a model by name."""
    model, config = small_model(family), FAMILIES[family]
    for name in WASM:
        (tmp_path / name).write_text(name)
    export = partial(export_web, model, tmp_path / "site", runtime=tmp_path)
    if not config.has_attention or config.task == "segment":
        with pytest.raises(UnsupportedModel, match="segment" if config.task == "segment" else "BiT"):
            export()
        return
    result = export()
    assert (result.probability_difference is None) == (config.num_classes == 0)
    assert result.relevance_difference is None or result.relevance_difference < 1e-2
    facts = json.loads((tmp_path / "site" / "model" / "model.json").read_text())
    assert [len(shapes["weights"]) for shapes in facts["walk_shapes"]] == [2] * config.num_layers
    check_page_graphs(tmp_path / "site" / "model", model)
    check_keys(tmp_path / "site" / "model", model)


@every_family
def test_explain(family: str, tmp_path: Path) -> None:
    model = small_model(family)
    pixels = np.random.default_rng(0).integers(0, 255, (40, 50, 3), dtype=np.uint8)
    config = model.config.backbone
    result = vitreous.explain(model, pixels, device="cpu", batch_size=64)
    expected = set(METHODS) - (set() if config.num_classes else HEAD_METHODS)
    expected -= set() if config.has_attention else ATTENTION_METHODS
    assert set(METHODS) - set(result.skipped) <= expected
    assert expected - set(result.skipped) >= expected - {"position"}  # some position embeddings have none to compare
    assert set(result.maps) == expected & {"relevance", "occlusion", "rollout", "attention"}
    for values in result.maps.values():
        assert values.shape == config.map_grid
        assert np.isfinite(values).all()
    assert set(result.faithfulness) == ({*result.maps, "random"} if config.num_classes else set())


@pytest.fixture(scope="module")
def bright_and_dark(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of two classes, which even random features separate."""
    rng = np.random.default_rng(0)
    labels = np.arange(24) % 2
    images = rng.integers(0, 100, (24, 32, 32, 3)) + 120 * labels[:, None, None, None]
    np.savez(path := tmp_path_factory.mktemp("data") / "data.npz", images=images.astype(np.uint8), labels=labels)
    return path


@every_family
def test_probe(family: str, bright_and_dark: Path) -> None:
    model = small_model(family).backbone
    found = vitreous.evaluate(model, bright_and_dark, probe="knn", neighbours=[1], device="cpu", workers=0)
    assert found.to_dict()["knn"] == 1.0, found


@pytest.mark.slow
@every_family
def test_train(family: str, bright_and_dark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fine-tuning changes the weights from the first layer on."""
    skip_report(monkeypatch)
    model = small_model(family)
    vitreous.save(model, tmp_path / "first")
    segment = model.config.task == "segment"
    config = tiny(
        tmp_path / "run",
        model=None,
        init=str(tmp_path / "first"),
        overrides={},
        task="segment" if segment else "classify",
        data="shapes:size=32,count=16,val=8" if segment else str(bright_and_dark),
        train_only="all",
        image_size=(),
        steps=2,
        batch_size=8,
        dropout=None,
        stochastic_depth=None,
        augment=Augment(policy="none", mixup=0, cutmix=0),
    )
    train(config)
    before, after = model.backbone.image_filters[0], vitreous.load(tmp_path / "run/best").backbone.image_filters[0]
    assert before.shape == after.shape
    assert not torch.equal(before, after)


@every_family
def test_export(family: str) -> None:
    model = small_model(family)
    optional = ("rollout",) if family in ("ViT", "Swin") else ()
    program = trace_tensors(model, optional)
    images = torch.randn(3, 3, *model.config.image_size)
    with torch.no_grad():
        names = output_names(model, optional)[: len(program.outputs)]
        for found, expected in zip(program.program.module()(images), Outputs(model, names)(images), strict=True):
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@every_family
def test_segmentation(unchecked: None, family: str) -> None:
    encoder: Any = FAMILIES[family].backbone.with_classes(0)
    if not encoder.has_attention:
        with pytest.raises(ValueError, match="encoder"):
            SegmenterConfig(encoder, LinearDecoder(2), num_classes=3)
        return
    for decoder in (LinearDecoder(2), PyramidDecoder(16)):
        model = build(SegmenterConfig(encoder, decoder, num_classes=3)).eval()
        with torch.no_grad():
            assert model(torch.randn(2, 3, 30, 45)).shape == (2, 3, 30, 45)
