"""`vitreous export --to web`: a static folder with the page and a model that runs in the browser."""

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import torch
from jaxtyping import Float

from vitreous.common.atomic_files import atomic_folder
from vitreous.common.checks import check_choice
from vitreous.common.text import clean, json_text
from vitreous.explanation.attention_and_logit_lens import CapturedForward, lens_layers
from vitreous.explanation.pca_and_similarity import filter_components, filter_images
from vitreous.explanation.rollout_relevance_occlusion import relevance
from vitreous.exporting.options import WebPrecision
from vitreous.exporting.runtimes import needs
from vitreous.exporting.validate import ExportFailed
from vitreous.exporting.web.examples import write_example
from vitreous.exporting.web.graphs import IMAGE, TARGET, export_outputs, export_relevance, export_walk, walk_shapes
from vitreous.exporting.web.runtime import runtime_files
from vitreous.exporting.web.shared_weights import write_graphs
from vitreous.inference.forward_pass import evaluation_mode
from vitreous.inference.predict_images import open_model
from vitreous.model.options import AttentionPool, MultiLabel
from vitreous.model.protocol import Model, UnsupportedModel, require_attention
from vitreous.model.top_labels import class_names, class_probabilities
from vitreous.page import STATIC, results
from vitreous.page.examples import load_examples, sample_paths
from vitreous.page.model_facts import model_facts, short_name, unique_ids
from vitreous.runtimes.trace import exportable

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

OURS = ("index.html", "page/*", "model/*", "examples/*", "runtime/*")  # files that an export replaces
MAX_ATTENTION_BYTES = 2**29  # of all layers, or of the similarity of all tokens, in float32
TOLERANCE = {"fp32": 1e-3, "fp16": 2e-2}  # largest accepted difference of attention weights and probabilities
POLICY = (
    "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self' blob:; img-src 'self' blob: data:; "
    "object-src 'none'; base-uri 'none'; form-action 'none'"
)


@dataclass(frozen=True)
class WebExport:
    """Result of an export. Differences are the largest absolute ones between ONNX Runtime and PyTorch."""

    folder: Path
    page_bytes: int  # everything but the model and the runtime
    model_bytes: int
    runtime_bytes: int
    attention_difference: float
    probability_difference: float | None  # None if the model is not a classifier
    relevance_difference: float | None


def export_web(
    model: Model | str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    precision: WebPrecision = "fp32",
    image_size: int | Sequence[int] | None = None,
    examples: Sequence[Path] = (),
    runtime: Path | None = None,
    webgpu: bool = False,
    announce: Callable[[str], None] = print,
) -> WebExport:
    """Write a folder with the page, the model and its runtime. Any static host can serve it.

    The exported model is compared with PyTorch on the example images. If it differs, nothing is written.

    Args:
        model: A model or a checkpoint: a classifier, multi-label classifier or encoder with attention.
        out: Folder. Files of an earlier export are replaced.
        precision: Storage format of the weights. The browser computes in float32.
        image_size: Input size of the model. Default: the image size of the checkpoint.
        examples: Images that replace the samples of the checkpoint or, if it has none, the built-in examples.
        runtime: Unpacked onnxruntime-web package. See `runtime_files`.
        webgpu: Add the files that run the model on a GPU.
        announce: Called with a message before a download.
    """
    check_choice("precision", precision, get_args(WebPrecision))
    needs("onnx")
    name = os.fspath(model) if isinstance(model, str | os.PathLike) else "model"
    backbone = _supported(open_model(model, image_size).cpu())
    files = runtime_files(runtime, webgpu, announce)
    labels = tuple(map(clean, class_names(backbone.config)))
    with atomic_folder(out, ours=OURS) as aside, evaluation_mode(backbone):
        _copy_page(aside)
        for part in ("model", "examples", "runtime"):
            (aside / part).mkdir()
        for file in files:
            shutil.copyfile(file, aside / "runtime" / file.name)
        given = load_examples(examples or sample_paths(name))
        captured = [write_example(backbone, labels, example, aside / "examples") for example in given]
        plain = exportable(backbone, torch.float32)
        graphs = {"outputs.onnx": export_outputs(plain), "walk.onnx": export_walk(plain)}
        if backbone.config.output_kind.classes:
            graphs["relevance.onnx"] = export_relevance(plain)
        weights = write_graphs(graphs, aside / "model", precision == "fp16")
        differences = compare(backbone, aside / "model", captured)
        _check(differences, TOLERANCE[precision], precision)
        facts = {
            **model_facts(backbone, unique_ids([name])[0], clean(short_name(name)), labels),
            **_inference_facts(backbone),
            "examples": [{"name": example.name, "label": example.label} for example in given],
            "weights": weights,
            "bytes": sum((aside / "model" / file).stat().st_size for file in weights),
            "webgpu": webgpu,
            **_write_arrays(backbone, aside / "model"),
            **_write_keys(captured[0], aside / "model"),
            "walk_shapes": walk_shapes(captured[0]),
        }
        (aside / "model" / "model.json").write_text(json_text(facts), encoding="utf-8")
        sizes = {part: _size(aside / part) for part in ("", "model", "runtime")}
    page = sizes[""] - sizes["model"] - sizes["runtime"]
    return WebExport(Path(out), page, sizes["model"], sizes["runtime"], *differences)


def _supported(model: Model) -> Model:
    """Return the model. Raise an error if the page cannot run it."""
    task = model.config.task
    if task not in ("classify", "multilabel", "embed"):
        raise UnsupportedModel(f"the web page runs classifiers and encoders, but this is a model for the task {task!r}")
    backbone = require_attention(model, "the web page")
    shapes = backbone.config.attention_shapes
    sizes = {
        "the attention of all layers": sum(4 * shape.heads * shape.tokens * shape.keys for shape in shapes),
        "the similarity of all tokens": max(4 * shape.tokens**2 for shape in shapes),
    }
    for what, size in sizes.items():
        if size > MAX_ATTENTION_BYTES:
            raise ValueError(
                f"{what} takes {size:,} bytes for {shapes[0].tokens:,} tokens, which is too much for a browser "
                f"(at most {MAX_ATTENTION_BYTES:,}); use a smaller image size"
            )
    return backbone


def _copy_page(folder: Path) -> None:
    """Copy the static files. The switch selects the model in the browser, and a policy forbids other hosts."""
    shutil.copytree(STATIC, folder / "page", ignore=shutil.ignore_patterns("index.html", "server", "examples", "docs"))
    (folder / "page" / "source.js").write_text('export * from "./browser/source.js";\n', encoding="utf-8")
    html = (STATIC / "index.html").read_text(encoding="utf-8")
    charset = '<meta charset="utf-8">'
    policy = f'{charset}\n  <meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    policy += '\n  <script src="page/browser/file-notice.js" defer></script>'
    (folder / "index.html").write_text(html.replace(charset, policy), encoding="utf-8")


def _inference_facts(model: Model) -> dict[str, Any]:
    """Return what the browser needs to preprocess images and to interpret the outputs."""
    config, calibration = model.config, model.config.calibration
    return {
        "channels": config.channels,
        "preprocessing": asdict(config.preprocessing),
        "several_labels": isinstance(config.output, MultiLabel),
        "temperature": 1.0 if calibration is None else calibration.temperature,
        "unknown_below": None if calibration is None else calibration.unknown_below,  # familiarity
        "class_token": config.class_token,
        "attention_pooling": isinstance(config.pool, AttentionPool),
        "lens_layers": lens_layers(config, None),
    }


def _write_arrays(model: Model, folder: Path) -> dict[str, Any]:
    """Write the position similarity and the patch filters, and return their shapes (null if there are none)."""
    position, filters = results.position_bytes(model), filter_images(filter_components(model).patterns)
    for name, array in (("position", position), ("filters", filters)):
        if array is not None:
            (folder / f"{name}.bin").write_bytes(array.tobytes())
    return {
        "position_shape": None if position is None else list(position.shape),
        "filters_shape": list(filters.shape),
    }


def _write_keys(captured: CapturedForward, folder: Path) -> dict[str, Any]:
    """Write the tokens that each token attends to, and return the number of the file of each layer (null: all)."""
    tables: list[bytes] = []
    numbers: list[int | None] = []
    for layer in captured.layers:
        table = None if layer.keys is None else layer.keys.numpy().astype("<i4").tobytes()
        if table is not None and table not in tables:
            (folder / f"keys-{len(tables)}.bin").write_bytes(table)
            tables.append(table)
        numbers.append(None if table is None else tables.index(table))
    return {"keys": numbers}


# ---- Comparison with PyTorch -----------------------------------------------------------------------------------------


def compare(
    model: Model, folder: Path, captured: Sequence[CapturedForward]
) -> tuple[float, float | None, float | None]:
    """Return the largest differences between ONNX Runtime and PyTorch: attention, probabilities and relevance.

    Relevance is divided by its largest value.
    """
    attention, probabilities, relevances = [], [], []
    outputs = _session(folder / "outputs.onnx")
    for one in captured:
        found = run(outputs, {IMAGE: one.images.numpy()})
        expected = torch.cat([one.weights(layer).flatten() for layer in range(len(one.layers))])
        attention.append(_difference(found["attention"], expected))
        if model.config.output_kind.classes:
            logits = torch.from_numpy(found["lens"][-1])
            wanted = class_probabilities(one.logits()[0], model.config)
            probabilities.append(_difference(class_probabilities(logits, model.config).numpy(), wanted))
    if not model.config.output_kind.classes:
        return max(attention), None, None
    gradients = _session(folder / "relevance.onnx")
    for one in captured:
        target = int(one.logits()[0].argmax())
        feeds = {IMAGE: one.images.numpy(), TARGET: np.array([target])}
        expected = relevance(one, target).flatten()
        scale = float(expected.abs().max().clamp_min(1e-12))
        relevances.append(_difference(run(gradients, feeds)["relevance"], expected) / scale)
    return max(attention), max(probabilities), max(relevances)


def _session(path: Path) -> "InferenceSession":
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def run(session: "InferenceSession", feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the outputs of a graph by name."""
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def _difference(found: Float[np.ndarray, "*shape"], expected: Float[torch.Tensor, "*shape"]) -> float:
    return float(np.abs(found - expected.numpy()).max())


def _check(differences: tuple[float, float | None, float | None], tolerance: float, precision: str) -> None:
    for name, value in zip(("attention", "probabilities"), differences[:2], strict=True):
        if value is not None and not value <= tolerance:  # also if it is NaN
            limit = f"at most {tolerance} is accepted with {precision}"
            raise ExportFailed(f"the exported model differs from PyTorch: {name} by {value:.2g}; {limit}")


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
