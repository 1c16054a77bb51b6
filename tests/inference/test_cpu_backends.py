"""Backends of predictors on a CPU: the same results as with PyTorch, and the choice of the fastest."""

import copy
import importlib.util
import logging
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch

import vitreous
from predictors import random_model
from vitreous.common.checks import BadValue
from vitreous.inference import Predictor, cpu_backends
from vitreous.model.calibration import FRACTIONS, Calibration
from vitreous.model.familiarity import Familiarity
from vitreous.model.int8 import Int8Scales
from vitreous.model.protocol import Model
from vitreous.model.token_merging import merging
from vitreous.serving.models import serve_model
from vitreous.weights.native import int8_scales, set_int8_scales

IMAGES = np.random.default_rng(0).integers(0, 256, (7, 40, 50, 3), dtype=np.uint8)
BACKENDS = [
    ("fp32", "openvino"),
    ("int8", "openvino"),
    pytest.param("bf16", "openvino", marks=pytest.mark.slow),
    pytest.param("fp32", "onnxruntime", marks=pytest.mark.slow),
    pytest.param("int8", "onnxruntime", marks=pytest.mark.slow),
]


@pytest.fixture(autouse=True)
def _tracing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Use an empty cache. Disable the runtime type checker and torch's trace log, as in the tests of exports."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "propagate", False)
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))


def calibrated(model: Model) -> Model:
    """Attach a calibration and class means, with which predictions have a familiarity."""
    quantiles = {"familiarities": tuple(fraction - 0.5 for fraction in FRACTIONS), "true_probabilities": FRACTIONS}
    model.config = model.config.override({"calibration": Calibration(2.0, 2000, **quantiles)})
    model.familiarity = Familiarity.fit(torch.randn(100, model.config.feature_width), torch.arange(100) % 3)
    return model


def quantised(model: Model) -> Model:
    """Attach scales for the linear layers of all blocks, without smoothing."""
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, torch.nn.Linear)}
    scales = {name: (torch.ones(layer.in_features), (-6.0, 6.0)) for name, layer in layers.items() if "blocks" in name}
    set_int8_scales(model, Int8Scales(scales))
    return model


def scores_of(predictor: Predictor, images: np.ndarray) -> Iterator[torch.Tensor]:
    """Yield the logits and the familiarity of each image."""
    return (one.vector for one in predictor.stream_scores(images) if one.vector is not None)


@pytest.fixture(scope="module")
def model() -> Model:
    torch.manual_seed(0)
    return quantised(calibrated(vitreous.create("ViT-Lite-6/4", num_classes=5, overrides={"depth": 1})))


@pytest.fixture(scope="module")
def fast(model: Model) -> Predictor:
    pytest.importorskip("openvino")
    return Predictor(model, "cpu", backend="openvino", workers=0)


@pytest.mark.parametrize(("precision", "backend"), BACKENDS)
def test_results_are_those_of_pytorch(precision: Any, backend: Any, model: Model, fast: Predictor) -> None:
    pytest.importorskip(backend)
    exact = Predictor(model, "cpu", backend="torch")
    other = Predictor(model, "cpu", precision=precision, backend=backend)
    other = fast if (precision, backend) == ("fp32", "openvino") else other
    tolerance = 1e-4 if precision == "fp32" else 0.1
    scores, found = (torch.stack([*scores_of(one, IMAGES)]) for one in (exact, other))
    assert scores.shape == (7, 6)  # with the familiarity
    torch.testing.assert_close(found, scores, atol=tolerance * scores.std().item(), rtol=tolerance)
    alone = torch.stack([*scores_of(other, IMAGES[3])])
    torch.testing.assert_close(alone, found[3:4], atol=tolerance / 10, rtol=tolerance / 10)
    assert [one.error for one in other(IMAGES)] == [None] * 7
    assert cpu_backends.NAMES[backend] in other.where
    assert precision in other.where


def test_merged_tokens_give_the_results_of_pytorch(model: Model) -> None:
    pytest.importorskip("openvino")
    exact, other = (Predictor(model, "cpu", backend=name, merge_tokens=4) for name in ("torch", "openvino"))  # type: ignore[arg-type]
    torch.testing.assert_close(other.logits(IMAGES), exact.logits(IMAGES), atol=1e-4, rtol=1e-4)
    assert "OpenVINO" in other.where


def test_a_predictor_of_one_image_takes_more_images_later(model: Model) -> None:
    pytest.importorskip("openvino")
    exact, other = (Predictor(model, "cpu", backend=name) for name in ("torch", "openvino"))  # type: ignore[arg-type]
    for images in (IMAGES[0], IMAGES, IMAGES[1]):
        torch.testing.assert_close(other.logits(images), exact.logits(images), atol=1e-4, rtol=1e-4)
    assert "OpenVINO" in other.where


@pytest.mark.slow
def test_features_are_those_of_pytorch(model: Model) -> None:
    pytest.importorskip("openvino")
    exact, other = (Predictor(model, "cpu", backend=name, flip=True) for name in ("torch", "openvino"))  # type: ignore[arg-type]
    torch.testing.assert_close(other.embed(IMAGES), exact.embed(IMAGES), atol=1e-4, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bit", "grey", "distilled", "mean", "attention pool"])
def test_other_models_give_the_results_of_pytorch(name: str) -> None:
    pytest.importorskip("openvino")
    network = random_model(name)
    exact, other = (Predictor(network, "cpu", backend=name) for name in ("torch", "openvino"))  # type: ignore[arg-type]
    torch.testing.assert_close(other.logits(IMAGES), exact.logits(IMAGES), atol=1e-3, rtol=1e-3)
    assert "OpenVINO" in other.where


def test_images_in_bfloat16_are_converted_exactly() -> None:
    images = torch.tensor([[0.0, -0.0, 1.5, -3e38], [1e-40, -1e-3, torch.inf, -torch.inf]], dtype=torch.bfloat16).T
    found = torch.from_numpy(cpu_backends.float_array(images))
    assert torch.equal(found, images.float())
    assert torch.equal(found.signbit(), images.signbit())


def test_threads_share_a_backend(fast: Predictor) -> None:
    expected, found = torch.stack([*scores_of(fast, IMAGES)]), dict[int, torch.Tensor]()

    def call(index: int) -> None:
        for _ in range(5):
            found[index] = torch.stack([*scores_of(fast, IMAGES[index : index + 2])])

    threads = [threading.Thread(target=call, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, logits in found.items():
        torch.testing.assert_close(logits, expected[index : index + 2], atol=1e-5, rtol=1e-5)


# ---- Choice ----------------------------------------------------------------------------------------------------------


def faked(monkeypatch: pytest.MonkeyPatch, factor: float = 1.0) -> list[str]:
    """Replace the conversion by PyTorch, and multiply the results. Return the list of opened backends."""
    opened: list[str] = []

    def open_backend(function: cpu_backends.CpuFunction[Any], name: str, path: Path, single: bool) -> Any:
        def run(inputs: Any) -> dict[str, np.ndarray]:
            found = function.function(function.model, torch.from_numpy(inputs["pixels"]))
            return {"y0": (found * factor).numpy()}

        opened.append(name)
        return run

    monkeypatch.setattr(cpu_backends, "missing", lambda name: None)
    monkeypatch.setattr(cpu_backends.CpuFunction, "write", lambda *_: None)
    monkeypatch.setattr(cpu_backends.CpuFunction, "open", open_backend)
    return opened


@pytest.fixture
def classifier() -> Model:
    return vitreous.create("ViT-Lite-6/4", num_classes=5, overrides={"depth": 1})


def test_a_small_job_uses_pytorch_and_a_large_one_the_fastest_backend(
    classifier: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = faked(monkeypatch)
    times = {"torch": 3.0, "onnxruntime": 2.0, "openvino": 1.0}
    monkeypatch.setattr(cpu_backends, "measure", lambda runs: {name: times[name] for name in runs})
    predictor = Predictor(classifier, "cpu", backend="auto")
    predictor.logits(IMAGES)
    assert "PyTorch" in predictor.where
    assert not opened
    predictor.prepare(10**9)
    assert "OpenVINO" in predictor.where
    assert opened == ["onnxruntime", "openvino", "openvino"]  # the features use the same measurement
    many = Predictor(classifier, "cpu", backend="auto")
    monkeypatch.setattr(cpu_backends, "WORTH", 1.0)
    many.logits(IMAGES)
    assert "OpenVINO" in many.where


def test_the_second_predictor_does_not_measure(
    classifier: Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    opened, measured = faked(monkeypatch), list[int]()

    def measure(runs: Any) -> dict[str, float]:
        measured.append(1)
        return {name: float(name != "onnxruntime") for name in runs}

    def prepared(network: Model) -> Predictor:
        predictor = Predictor(network, "cpu", backend="auto")
        predictor.prepare(10**9)
        return predictor

    monkeypatch.setattr(cpu_backends, "measure", measure)
    assert "onnxruntime" in prepared(classifier).where
    other_weights = vitreous.create("ViT-Lite-6/4", num_classes=5, overrides={"depth": 1})
    assert "onnxruntime" in prepared(other_weights).where
    assert len(measured) == 1
    assert opened == ["onnxruntime", "openvino", *["onnxruntime"] * 3]
    prepared(vitreous.create("ViT-Lite-6/4", num_classes=5, overrides={"depth": 2}))  # another shape
    assert len(measured) == 2
    for file in (tmp_path / "cache" / "cpu-backends").iterdir():
        file.write_text("{damaged")
    assert "onnxruntime" in prepared(classifier).where
    assert len(measured) == 3


def test_an_inexact_backend_is_not_used(classifier: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    faked(monkeypatch, factor=1.01)
    exact, other = Predictor(classifier, "cpu"), Predictor(classifier, "cpu", backend="auto")
    other.prepare(10**9)
    assert torch.equal(exact.logits(IMAGES), other.logits(IMAGES))
    assert "PyTorch" in other.where
    with pytest.raises(ValueError, match="error"):
        Predictor(classifier, "cpu", backend="openvino").logits(IMAGES)


@pytest.mark.parametrize("change", ["values", "data", "parameter", "buffer", "module"])
def test_changed_weights_are_computed_with_pytorch(
    change: str, classifier: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    faked(monkeypatch)
    classifier.register_buffer("offset", torch.zeros(()))
    head = classifier.heads[0]
    assert isinstance(head, torch.nn.Linear)
    predictor = Predictor(classifier, "cpu", backend="openvino")
    before = predictor.logits(IMAGES)
    assert "OpenVINO" in predictor.where
    larger = head.bias.detach() + 1
    with torch.no_grad():
        match change:
            case "values":
                head.bias += 1
            case "data":
                head.bias.data = larger
            case "parameter":
                head.bias = torch.nn.Parameter(larger)
            case "buffer":
                classifier.offset = torch.zeros(())
            case "module":
                other = copy.deepcopy(head)
                other.bias += 1
                classifier.head = other
    after = predictor.logits(IMAGES)
    torch.testing.assert_close(after, before + (change != "buffer"))
    assert "PyTorch" in predictor.where


@pytest.mark.parametrize("scope", ["model", "layer", "global"])
def test_a_model_with_hooks_is_computed_with_pytorch(
    scope: str, classifier: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    faked(monkeypatch)
    calls: list[int] = []
    register = {
        "model": classifier.register_forward_hook,
        "layer": classifier.heads[0].register_forward_pre_hook,
        "global": torch.nn.modules.module.register_module_forward_hook,
    }[scope]
    predictor = Predictor(classifier, "cpu", backend="openvino")
    for where in ("OpenVINO", "PyTorch", "OpenVINO"):
        hook = register(lambda *_: calls.append(1)) if where == "PyTorch" else None
        predictor.logits(IMAGES)
        assert where in predictor.where
        if hook is not None:
            hook.remove()
    assert calls


def test_a_failing_backend_is_dropped(classifier: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    faked(monkeypatch)
    working = cpu_backends.CpuFunction.open

    def open_backend(function: cpu_backends.CpuFunction[Any], name: str, path: Path, single: bool) -> Any:
        if name == "openvino":
            raise RuntimeError("\x1b[96mno\x1b[0m\nsuch instruction")
        return working(function, name, path, single)

    monkeypatch.setattr(cpu_backends.CpuFunction, "open", open_backend)
    monkeypatch.setattr(cpu_backends, "measure", lambda runs: {name: float(name == "torch") for name in runs})
    predictor = Predictor(classifier, "cpu", backend="auto")
    predictor.prepare(10**9)
    assert "onnxruntime" in predictor.where
    with pytest.raises(ValueError, match=r"OpenVINO cannot compute this model: no such instruction$"):
        Predictor(classifier, "cpu", backend="openvino").logits(IMAGES)
    monkeypatch.setattr(cpu_backends, "free_memory", lambda device: 10)
    with pytest.raises(ValueError, match="memory"):
        Predictor(classifier, "cpu", backend="onnxruntime").logits(IMAGES)


def test_only_jobs_choose_a_backend_by_default(classifier: Model) -> None:
    assert vitreous.predict(classifier, IMAGES, device="cpu").engine.backend == "auto"  # type: ignore[attr-defined]
    assert serve_model(classifier, device="cpu").predictor.backend == "torch"
    assert Predictor(classifier, "cpu").backend == "torch"
    assert Predictor(quantised(classifier), "cpu", precision="int8").backend == "auto"


def test_prepare_keeps_a_requested_backend(classifier: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    faked(monkeypatch)
    predictor = Predictor(classifier, "cpu", backend="onnxruntime")
    predictor.prepare(1)
    assert len(predictor.functions) == 2  # logits and features
    assert all(function.backend == "onnxruntime" for function in predictor.functions.values())  # type: ignore[attr-defined]


def test_measurements_are_for_a_number_of_merged_tokens(classifier: Model) -> None:
    keys = {cpu_backends._cache_key(merging(classifier, r), "fp32", 8) for r in (0, 2, 2, 3)}
    assert len(keys) == 3


@pytest.mark.parametrize("round_trip", [copy.deepcopy, lambda predictor: pickle.loads(pickle.dumps(predictor))])
def test_copies_of_a_predictor_give_the_same_results(round_trip: Any, model: Model) -> None:
    predictor = Predictor(model, "cpu", backend="auto")
    before = predictor.logits(IMAGES)
    assert torch.equal(round_trip(predictor).logits(IMAGES), before)
    assert not round_trip(predictor).functions


def test_a_model_that_cannot_be_converted_is_computed_with_pytorch(classifier: Model) -> None:
    pytest.importorskip("openvino")

    class Odd(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * float(x.sum() > 0)  # depends on the values

    classifier.heads[0] = Odd()
    classifier.head = Odd()
    predictor = Predictor(classifier, "cpu", backend="auto")
    predictor.prepare(10**9)
    assert predictor.logits(IMAGES).isfinite().all()
    assert "PyTorch" in predictor.where
    with pytest.raises(ValueError, match="OpenVINO cannot compute this model"):
        Predictor(classifier, "cpu", backend="openvino").logits(IMAGES)


# ---- Arguments -------------------------------------------------------------------------------------------------------


def test_missing_packages_are_named_with_the_command_that_installs_them(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for options in ({"precision": "int8"}, {"backend": "openvino"}):
        with pytest.raises(ValueError, match=r'pip install "vitreous\[.*openvino.*\]"'):
            Predictor(model, "cpu", **options)  # type: ignore[arg-type]
    predictor = Predictor(model, "cpu", backend="auto")
    predictor.prepare(10**9)
    assert "PyTorch" in predictor.where


@pytest.mark.usefixtures("unchecked")
def test_invalid_arguments_are_rejected(model: Model, classifier: Model) -> None:
    for options in ({"backend": "tensorrt"}, {"precision": "bf16", "backend": "onnxruntime"}, {"precision": "int4"}):
        with pytest.raises(BadValue):
            Predictor(model, "cpu", **options)  # type: ignore[arg-type]
    for options in ({"precision": "int8"}, {"backend": "openvino"}):
        with pytest.raises(BadValue, match="compile"):
            Predictor(model, "cpu", compile=True, **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="vitreous quantise"):
        Predictor(classifier, "cpu", precision="int8")


def test_int8_scales_belong_to_weights_and_an_image_size(model: Model, tmp_path: Path) -> None:
    vitreous.save(model, tmp_path / "quantised")
    loaded = vitreous.load(tmp_path / "quantised")
    for before, after in zip(int8_scales(model).layers.items(), int8_scales(loaded).layers.items(), strict=True):
        assert before[0] == after[0]
        assert torch.equal(before[1][0], after[1][0])
        assert before[1][1] == after[1][1]
    with torch.no_grad():
        loaded.heads[0].bias += 1  # type: ignore[operator]
    for changed in (loaded, model.resized(48)):
        with pytest.raises(ValueError, match="int8 scales for other weights or another image size"):
            int8_scales(changed)
    vitreous.save(loaded, tmp_path / "changed")
    assert not (tmp_path / "changed" / "int8.safetensors").exists()
