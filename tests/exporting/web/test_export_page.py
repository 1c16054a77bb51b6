"""The folder of `vitreous export --to web`, and its graphs in ONNX Runtime."""

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from PIL import Image

import vitreous
from page_graphs import check_page_graphs
from vitreous.explanation.attention_and_logit_lens import capture
from vitreous.explanation.rollout_relevance_occlusion import relevance
from vitreous.exporting import ExportFailed
from vitreous.exporting.web import export_page, shared_weights
from vitreous.exporting.web.examples import preprocessed
from vitreous.exporting.web.export_page import WebExport, export_web, run
from vitreous.exporting.web.graphs import export_outputs, export_relevance, export_walk
from vitreous.exporting.web.runtime import WASM, WEBGPU
from vitreous.exporting.web.shared_weights import write_graphs
from vitreous.model.build import build, build_segmenter
from vitreous.model.calibration import FRACTIONS, Calibration
from vitreous.model.config import ResNetConfig, SegmenterConfig, ViTConfig
from vitreous.model.familiarity import Familiarity
from vitreous.model.options import AttentionPool, MultiLabel, SwiGlu
from vitreous.model.protocol import Model, ModelConfig
from vitreous.model.swin_config import SwinConfig
from vitreous.page import STATIC

pytestmark = pytest.mark.slow
Export = Callable[..., WebExport]
QUANTILES = tuple(-100.0 + i for i in range(len(FRACTIONS)))


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the names of the runtime's files."""
    folder = tmp_path_factory.mktemp("runtime") / "package" / "dist"
    folder.mkdir(parents=True)
    for name in (*WASM, *WEBGPU):
        (folder / name).write_text(name)
    return folder.parent


@pytest.fixture
def export(runtime: Path, tmp_path: Path) -> Export:
    return lambda model, **options: export_web(model, tmp_path / "site", **{"runtime": runtime, **options})


def random_model(config: ModelConfig) -> Model:
    model = build(config)
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=0.1)
    return model.eval()


def tiny(**changes: Any) -> ViTConfig:
    options: dict[str, Any] = {"image_size": (24, 32), "patch_size": (8, 8), "num_classes": 5}
    return ViTConfig(**{**options, "width": 32, "depth": 2, "num_heads": 4, "mlp_width": 64, **changes})


@dataclass(frozen=True)
class Folder:
    """An exported folder and its model."""

    path: Path
    result: WebExport
    model: Model

    @property
    def facts(self) -> dict[str, Any]:
        return dict(json.loads((self.path / "model" / "model.json").read_text()))


@pytest.fixture(scope="module")
def folder(runtime: Path, tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """The folder of a small calibrated classifier, with one example."""
    torch.manual_seed(0)
    here = tmp_path_factory.mktemp("export")
    labels = ("heron", "otter", "newt", "plover", "stoat")
    model = random_model(tiny(labels=labels, calibration=Calibration(1.7, 500, QUANTILES)))
    model.familiarity = Familiarity(torch.zeros(32), torch.eye(32), torch.randn(5, 32))
    vitreous.save(model, here / "birds" / "best")
    Image.fromarray(np.random.default_rng(1).integers(0, 256, (900, 700, 3), dtype=np.uint8)).save(here / "my cat.png")
    result = export_web(here / "birds" / "best", here / "site", runtime=runtime, examples=[here / "my cat.png"])
    return Folder(here / "site", result, model)


# ---- Files -----------------------------------------------------------------------------------------------------------


def test_the_folder_contains_the_page_the_model_and_the_runtime(folder: Folder) -> None:
    files = {path.relative_to(folder.path).as_posix() for path in folder.path.rglob("*") if path.is_file()}
    assert {"index.html", "page/app/main.js", "page/browser/worker.js", "model/outputs.onnx"} <= files
    assert {f"runtime/{name}" for name in WASM} <= files
    assert not any(name.startswith(("page/server/", "page/index", "page/examples")) for name in files)
    assert not any(f"runtime/{name}" in files for name in WEBGPU)
    sizes = folder.result.page_bytes + folder.result.model_bytes + folder.result.runtime_bytes
    assert sizes == sum((folder.path / name).stat().st_size for name in files)
    facts = folder.facts
    assert (facts["id"], facts["name"], facts["labels"][0]) == ("birds", "birds/best", "heron")
    assert facts["bytes"] == sum((folder.path / "model" / name).stat().st_size for name in facts["weights"])


def test_no_file_of_the_page_has_an_absolute_address(folder: Folder) -> None:
    """The folder can be below any path of a host, and no other host is contacted."""
    html = (folder.path / "index.html").read_text()
    assert 'src="/' not in html
    assert 'href="/' not in html
    assert "default-src 'self'" in html
    sources = [path.read_text() for path in (folder.path / "page").rglob("*.js")]
    assert not any(quote + "/page/" in text or quote + "/v1/" in text for text in sources for quote in "\"'`")


def test_the_switch_is_the_only_file_that_differs_from_the_page_of_the_server(folder: Folder) -> None:
    copies = {path.relative_to(folder.path / "page"): path for path in (folder.path / "page").rglob("*.*")}
    differing = [name.as_posix() for name, path in copies.items() if path.read_bytes() != (STATIC / name).read_bytes()]
    assert differing == ["source.js"]


def test_examples_contain_the_results_of_pytorch(folder: Folder) -> None:
    model, t = folder.model, folder.model.config.num_tokens
    assert folder.facts["examples"] == [{"name": "my-cat", "label": "my cat"}]
    data = (folder.path / "examples" / "my-cat.webp").read_bytes()
    assert max(Image.open(io.BytesIO(data)).size) == 640
    captured = capture(model, preprocessed(model, data))
    floats = np.fromfile(folder.path / "examples" / "my-cat.bin", "<f4")
    np.testing.assert_allclose(floats[: 4 * t * t].reshape(4, t, t), captured.weights(-1)[0], rtol=0, atol=1e-6)
    assert len(floats) == 5 * t * t
    found = json.loads((folder.path / "examples" / "my-cat.json").read_text())["results"]
    target = int(captured.logits()[0].argmax())
    values = relevance(captured)[0].flatten().tolist()
    assert found[f"map/relevance?target={target}"]["values"] == pytest.approx(values, rel=1e-4, abs=1e-7)
    assert {"distance", "lens", "map/rollout?fusion=mean&discard=0", "map/pca?layer=1"} <= found.keys()


def test_calibration_reaches_the_page(folder: Folder) -> None:
    facts = folder.facts
    assert facts["temperature"] == 1.7
    assert facts["unknown_below"] == QUANTILES[FRACTIONS.index(0.05)]
    example = json.loads((folder.path / "examples" / "my-cat.json").read_text())["summary"]
    image = preprocessed(folder.model, (folder.path / "examples" / "my-cat.webp").read_bytes())
    found = run(onnxruntime.InferenceSession(folder.path / "model" / "outputs.onnx"), {"image": image.numpy()})
    assert example["unknown"] == (found["familiarity"][0] < facts["unknown_below"])
    probabilities = torch.from_numpy(found["lens"][-1] / 1.7).softmax(dim=0)
    assert example["predictions"][0]["probability"] == pytest.approx(float(probabilities.max()), abs=1e-4)


# ---- Graphs ----------------------------------------------------------------------------------------------------------


def test_outputs_equal_pytorch(tmp_path: Path) -> None:
    """Test options that no model of `test_web_page` in tests/test_every_family.py has."""
    model = random_model(
        tiny(
            depth=1,
            image_size=(20, 30),
            pad=True,
            channels=1,
            mlp=SwiGlu(norm=True),
            attention_output_norm=True,
            pool=AttentionPool(),
            output=MultiLabel((0.5,) * 5),
        )
    )
    graphs = {
        "outputs.onnx": export_outputs(model),
        "relevance.onnx": export_relevance(model),
        "walk.onnx": export_walk(model),
    }
    write_graphs(graphs, tmp_path, half=False)
    check_page_graphs(tmp_path, model)


def test_graphs_share_their_weights_which_float16_halves(tmp_path: Path) -> None:
    model = random_model(tiny(width=64, mlp_width=256, depth=1))
    image = {"image": np.random.default_rng(0).standard_normal((1, 3, 24, 32), dtype=np.float32)}
    parameters, outputs, sizes = sum(parameter.numel() for parameter in model.parameters()), {}, {}
    graph = export_outputs(model).SerializeToString()
    for half in (False, True):
        folder = tmp_path / str(half)
        folder.mkdir()
        graphs = {name: onnx.ModelProto.FromString(graph) for name in ("first.onnx", "second.onnx")}
        names = write_graphs(graphs, folder, half)
        sizes[half] = sum((folder / name).stat().st_size for name in names)
        outputs[half] = run(onnxruntime.InferenceSession(folder / "second.onnx"), image)["attention"]
    assert 3.5 * parameters < sizes[False] < 4.01 * parameters
    assert sizes[True] == sizes[False] / 2
    assert 0 < np.abs(outputs[True] - outputs[False]).max() < 2e-2


def test_weight_files_are_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_weights, "MAX_FILE_BYTES", 100)
    files = shared_weights.WeightFiles(tmp_path)
    places = [files.place(bytes([number]) * size) for number, size in enumerate((60, 60, 30, 500, 20))]
    assert files.place(bytes([2]) * 30) == places[2]
    assert files.sizes == [60, 90, 500, 20]
    for number, place in enumerate(places):
        start, length = int(place["offset"]), int(place["length"])
        assert (tmp_path / place["location"]).read_bytes()[start : start + length] == bytes([number]) * length


# ---- Other models ----------------------------------------------------------------------------------------------------


def test_an_encoder_has_neither_classes_nor_relevance(export: Export, tmp_path: Path) -> None:
    """A second export replaces the files of the first one, and no others."""
    model = random_model(tiny(num_classes=0, depth=1))
    result = export(model, webgpu=True)
    assert not (result.folder / "model" / "relevance.onnx").exists()
    assert (result.probability_difference, result.relevance_difference) == (None, None)
    summary = json.loads((result.folder / "examples" / "balloon.json").read_text())["summary"]
    assert summary["predictions"] is None
    assert all((result.folder / "runtime" / name).exists() for name in WEBGPU)
    (result.folder / "CNAME").write_text("example.org")
    (result.folder / "page" / "old.js").write_text("")
    export(model)
    assert (result.folder / "CNAME").exists()
    assert not (result.folder / "page" / "old.js").exists()
    assert not any((result.folder / "runtime" / name).exists() for name in WEBGPU)


def test_a_model_that_differs_is_not_written(export: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = random_model(tiny(num_classes=0, depth=1))
    monkeypatch.setattr(export_page, "export_outputs", lambda model: export_outputs(other))
    with pytest.raises(ExportFailed, match="differs from PyTorch"):
        export(random_model(tiny(num_classes=0, depth=1)))
    assert not (tmp_path / "site").exists()


def test_unsupported_models_are_refused(export: Export, tmp_path: Path) -> None:
    segmenter = build_segmenter(SegmenterConfig(tiny(num_classes=0), num_classes=3))
    resnet = build(ResNetConfig(image_size=(64, 64), stages=(1, 1), width=32, num_classes=3))
    for model, words in ((segmenter, "segment"), (resnet, "attention")):
        with pytest.raises(ValueError, match=words):
            export(model)
    windows = SwinConfig((512, 512), width=16, depths=(2, 1), stage_heads=(1, 2), window=(2, 2), num_classes=5)
    for config in (tiny(image_size=(1024, 1024)), windows):
        with pytest.raises(ValueError, match="smaller image size"):
            export(build(config))
    assert not (tmp_path / "site").exists()
