"""The folder of `vitreous export --to web`, and its graphs in ONNX Runtime."""

import io
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image

import vitreous
from vitreous.explanation.attention_and_logit_lens import capture
from vitreous.explanation.rollout_relevance_occlusion import relevance
from vitreous.exporting.web import export_page
from vitreous.exporting.web.examples import preprocessed
from vitreous.exporting.web.export_page import WebExport, export_web, run
from vitreous.exporting.web.runtime import WASM, WEBGPU
from vitreous.model.build import build, build_segmenter
from vitreous.model.calibration import FRACTIONS, Calibration
from vitreous.model.config import ResNetConfig, SegmenterConfig, ViTConfig
from vitreous.model.familiarity import Familiarity
from vitreous.model.options import AttentionPool, GlobalAverage, MultiLabel, Rotary2d
from vitreous.page import STATIC, results

pytestmark = pytest.mark.slow
Export = Callable[..., WebExport]


@pytest.fixture
def runtime(tmp_path: Path) -> Path:
    """A folder with the names of the runtime's files."""
    folder = tmp_path / "package" / "dist"
    folder.mkdir(parents=True)
    for name in (*WASM, *WEBGPU):
        (folder / name).write_text(name)
    return folder.parent


@pytest.fixture
def export(runtime: Path, tmp_path: Path) -> Export:
    def exported(model: Any, **options: Any) -> WebExport:
        return export_web(model, tmp_path / "site", **{"runtime": runtime, "checkpoint": "runs/birds/best", **options})

    return exported


def random_model(config: ViTConfig) -> vitreous.ViT:
    model = build(config)
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=0.1)
    assert isinstance(model, vitreous.ViT)
    return model.eval()


def outputs_of(folder: Path, graph: str, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return run(onnxruntime.InferenceSession(folder / "model" / graph), feeds)


def facts_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "model" / "model.json").read_text())
    return found


def test_the_folder_contains_the_page_the_model_and_the_runtime(small: ViTConfig, export: Export) -> None:
    result = export(random_model(replace(small, labels=("a", "b", "c", "d", "e"))))
    files = {path.relative_to(result.folder).as_posix() for path in result.folder.rglob("*") if path.is_file()}
    assert {
        "index.html",
        "page/app/main.js",
        "page/browser/worker.js",
        "model/outputs.onnx",
        "model/model.json",
    } <= files
    assert {f"runtime/{name}" for name in WASM} <= files
    assert not any(name.startswith(("page/server/", "page/index", "page/examples")) for name in files)
    assert not any(f"runtime/{name}" in files for name in WEBGPU)
    sizes = result.page_bytes + result.model_bytes + result.runtime_bytes
    assert sizes == sum((result.folder / name).stat().st_size for name in files)
    facts = facts_of(result.folder)
    assert (facts["id"], facts["labels"], facts["classes"]) == ("birds", ["a", "b", "c", "d", "e"], 5)
    assert facts["bytes"] == sum((result.folder / "model" / name).stat().st_size for name in facts["weights"])


def test_no_file_of_the_page_has_an_absolute_address(small: ViTConfig, export: Export) -> None:
    """The folder can be below any path of a host, and no other host is contacted."""
    result = export(random_model(replace(small, num_classes=0)))
    html = (result.folder / "index.html").read_text()
    assert 'src="/' not in html
    assert 'href="/' not in html
    assert "Content-Security-Policy" in html
    assert "connect-src" not in html  # the default, 'self', applies
    sources = [path.read_text() for path in (result.folder / "page").rglob("*.js")]
    assert not any(quote + "/page/" in text or quote + "/v1/" in text for text in sources for quote in "\"'`")


CONFIGS: dict[str, dict[str, Any]] = {
    "class token": {},
    "registers and average": {"class_token": False, "registers": 2, "pool": GlobalAverage()},
    "attention pooling": {"pool": AttentionPool()},
    "distillation": {"distillation_token": True},
    "rotary, several labels": {"position": Rotary2d(), "output": MultiLabel((0.5,) * 5)},
    "grey": {"channels": 1},
    "padded patches": {"image_size": (20, 30), "pad": True},
}


@pytest.mark.parametrize("changes", CONFIGS.values(), ids=CONFIGS)
def test_outputs_equal_pytorch(small: ViTConfig, export: Export, changes: dict[str, Any]) -> None:
    model = random_model(replace(small, **changes))
    folder = export(model).folder
    stored = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(stored, "PNG")
    image = preprocessed(model, stored.getvalue())
    captured = capture(model, image)
    found = outputs_of(folder, "outputs.onnx", {"image": image.numpy()})
    np.testing.assert_allclose(found["attention"], torch.cat(model.attention(image)).detach(), rtol=0, atol=1e-5)
    np.testing.assert_allclose(found["lens"], captured.lens()[:, 0], rtol=0, atol=1e-4)
    np.testing.assert_allclose(found["lens"][-1:], model(image).detach(), rtol=0, atol=1e-4)
    np.testing.assert_allclose(found["pooling"], captured.pooling_weights()[0], rtol=0, atol=1e-6)
    features = [captured.features(layer) for layer in range(model.config.depth)]
    expected = torch.cat([torch.cat([one.prefix, one.patches], dim=1) for one in features])
    np.testing.assert_allclose(found["features"], expected, rtol=0, atol=1e-4)
    for step in results.tour(captured)["steps"]:
        if step["name"] != "attention":
            assert list(found[step["name"]].shape) == step["shape"]
            assert float(found[step["name"]].mean()) == pytest.approx(step["stats"]["mean"], abs=1e-4)
    for target in (0, 3):
        feeds = {"image": image.numpy(), "target": np.array([target])}
        wanted = relevance(captured, target).flatten()
        scale = float(wanted.abs().max())
        np.testing.assert_allclose(outputs_of(folder, "relevance.onnx", feeds)["relevance"], wanted, atol=1e-4 * scale)


def test_an_encoder_has_neither_classes_nor_relevance(small: ViTConfig, export: Export) -> None:
    result = export(random_model(replace(small, num_classes=0)))
    assert not (result.folder / "model" / "relevance.onnx").exists()
    assert (result.probability_difference, result.relevance_difference) == (None, None)
    summary = json.loads((result.folder / "examples" / "balloon.json").read_text())["summary"]
    assert summary["predictions"] is None


def test_float16_halves_the_weights_and_the_graphs_share_them(small: ViTConfig, export: Export) -> None:
    model = random_model(replace(small, width=64, mlp_width=256))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    exact = facts_of(export(model).folder)["bytes"]
    half = export(model, precision="fp16")
    assert 3.5 * parameters < exact < 4.01 * parameters
    assert facts_of(half.folder)["bytes"] == pytest.approx(exact / 2, rel=0.1)
    assert half.attention_difference < 2e-2


def test_calibration_reaches_the_page(small: ViTConfig, export: Export) -> None:
    quantiles = tuple(-100 + i for i in range(len(FRACTIONS)))
    model = random_model(replace(small, calibration=Calibration(1.7, 500, quantiles)))
    model.familiarity = Familiarity(torch.zeros(32), torch.eye(32), torch.randn(5, 32))
    folder = export(model).folder
    facts = facts_of(folder)
    assert facts["temperature"] == 1.7
    assert facts["familiar_from"] == quantiles[FRACTIONS.index(0.05)]
    example = json.loads((folder / "examples" / "oranges.json").read_text())["summary"]
    image = preprocessed(model, (folder / "examples" / "oranges.webp").read_bytes())
    found = outputs_of(folder, "outputs.onnx", {"image": image.numpy()})
    assert example["unknown"] == (found["familiarity"][0] < facts["familiar_from"])
    logits = found["lens"][-1] / 1.7
    assert example["predictions"][0]["probability"] == pytest.approx(
        np.exp(logits - logits.max()).max() / np.exp(logits - logits.max()).sum(), abs=1e-4
    )


def test_examples_contain_the_results_of_pytorch(small: ViTConfig, export: Export, tmp_path: Path) -> None:
    model = random_model(small)
    picture = tmp_path / "my cat.png"
    Image.fromarray(np.random.default_rng(1).integers(0, 256, (900, 700, 3), dtype=np.uint8)).save(picture)
    folder = export(model, examples=[picture]).folder
    assert facts_of(folder)["examples"] == [{"name": "my-cat", "label": "my cat"}]
    data = (folder / "examples" / "my-cat.webp").read_bytes()
    assert max(Image.open(io.BytesIO(data)).size) == 640
    captured = capture(model, preprocessed(model, data))
    floats = np.fromfile(folder / "examples" / "my-cat.bin", "<f4")
    t = small.num_tokens
    np.testing.assert_allclose(floats[: 4 * t * t].reshape(4, t, t), captured.weights(-1)[0], rtol=0, atol=1e-6)
    assert len(floats) == 5 * t * t
    found = json.loads((folder / "examples" / "my-cat.json").read_text())["results"]
    target = int(captured.logits()[0].argmax())
    assert found[f"map/relevance?target={target}"]["values"] == pytest.approx(
        relevance(captured)[0].flatten().tolist(), rel=1e-4
    )
    assert {"distance", "lens", "tour", "map/rollout?fusion=mean&discard=0", "map/pca?layer=1"} <= found.keys()


def test_another_export_replaces_only_its_own_files(small: ViTConfig, export: Export) -> None:
    model = random_model(small)
    folder = export(model, webgpu=True).folder
    (folder / "CNAME").write_text("example.org")
    (folder / "page" / "old.js").write_text("")
    assert all((folder / "runtime" / name).exists() for name in WEBGPU)
    export(model)
    assert (folder / "CNAME").exists()
    assert not (folder / "page" / "old.js").exists()
    assert not any((folder / "runtime" / name).exists() for name in WEBGPU)


def test_a_model_that_differs_is_not_written(
    small: ViTConfig, export: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = random_model(small)
    usual = export_page.export_outputs
    monkeypatch.setattr(export_page, "export_outputs", lambda model: usual(other))
    with pytest.raises(ValueError, match="differs from PyTorch"):
        export(random_model(small))
    assert not (tmp_path / "site").exists()


def test_unsupported_models_are_refused(small: ViTConfig, export: Export, tmp_path: Path) -> None:
    segmenter = build_segmenter(SegmenterConfig(replace(small, num_classes=0), num_classes=3))
    resnet = build(ResNetConfig(image_size=(64, 64), stages=(1, 1), width=32, num_classes=3))
    for model, words in ((segmenter, "segment"), (resnet, "Vision Transformer")):
        with pytest.raises(ValueError, match=words):
            export(model)
    with torch.device("meta"):
        large = build(replace(small, image_size=(1024, 1024)))
    with pytest.raises(ValueError, match="smaller image size"):
        export(large)
    assert not (tmp_path / "site").exists()
    assert math.prod(small.grid) == 12


def test_the_switch_is_the_only_file_that_differs(small: ViTConfig, export: Export) -> None:
    folder = export(random_model(replace(small, num_classes=0))).folder
    copies = {path.relative_to(folder / "page"): path for path in (folder / "page").rglob("*") if path.is_file()}
    differing = [name for name, path in copies.items() if path.read_bytes() != (STATIC / name).read_bytes()]
    assert [name.as_posix() for name in differing] == ["source.js"]
