"""Exported files give the same outputs as the predictors, from JPEG bytes, in their own runtimes."""

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import vitreous
from export_models import MODELS, decoded, small_model, vit
from images import encoded, smooth
from vitreous.exporting import Export, ExportFailed, runtimes
from vitreous.exporting.outputs import Outputs, output_names
from vitreous.exporting.runtimes import open_session
from vitreous.inference.predictor import Embedder, predictor_for
from vitreous.inference.segment_predictor import SegmentPredictor
from vitreous.model.calibration import FRACTIONS, Calibration
from vitreous.model.familiarity import Familiarity
from vitreous.model.options import Numbers
from vitreous.model.protocol import Model
from vitreous.model.segmenter import Segmenter
from vitreous.runtimes.sessions import Session, openvino_session

SIZES = [(71, 99), (131, 67), (3, 5), (1, 1), (64, 64), (40, 33)]  # landscape, portrait, tiny, exact, enlarged
JPEGS = [encoded(smooth(height, width, seed), "JPEG") for seed, (height, width) in enumerate(SIZES)]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Model, Export]]:
    """Export each model to ONNX at most once."""
    known: dict[str, tuple[Model, Export]] = {}

    def export(name: str) -> tuple[Model, Export]:
        if name not in known:
            model, dynamic = small_model(name), name == "registers"
            model = calibrated(model) if name in ("class token", "registers") else model
            folder = tmp_path_factory.mktemp("exported")
            outputs = ["rollout"] if dynamic else []
            done = vitreous.export(model, folder, dynamic_size=dynamic, outputs=outputs, data=[smooth(50, 70)])  # type: ignore[arg-type]
            known[name] = model, done
        return known[name]

    return export


def calibrated(model: Model) -> Model:
    """Add labels, a temperature and the familiarity of images."""
    labels, levels = tuple("abcdefg"), tuple(-200.0 + i for i in range(len(FRACTIONS)))
    calibration = Calibration(2.0, 10_000, levels)
    model.config = dataclasses.replace(model.config, labels=labels, calibration=calibration)  # type: ignore[call-arg]
    features = torch.randn(70, 32, generator=torch.Generator().manual_seed(0))
    model.familiarity = Familiarity.fit(features, torch.arange(70) % 7)
    return model


def expected(model: Model, images: np.ndarray) -> np.ndarray:
    """Return the first output, computed by the predictor."""
    if isinstance(model, Segmenter):
        return SegmentPredictor(model, "cpu").scores(torch.from_numpy(images).permute(0, 3, 1, 2)).numpy()
    predictor = Embedder(model, "cpu", workers=0)
    return (predictor.logits(images) if model.config.num_classes else predictor.embed(images)).numpy()


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MODELS if name != "registers"])
@pytest.mark.parametrize("opened", [open_session, openvino_session], ids=["onnxruntime", "openvino"])
def test_a_runtime_reproduces_the_predictor(
    name: str, opened: Callable[[Path], Session], exported: Callable[[str], tuple[Model, Export]]
) -> None:
    model, done = exported(name)
    session, output = opened(done.path), "logits" if model.config.num_classes else "pooled"
    for jpeg in JPEGS:
        image = decoded(jpeg)
        for images in (image, np.concatenate([image, 255 - image, image[:, ::-1]])):
            found = session({"images": images})
            assert np.abs(found[output] - expected(model, images)).max() < 2e-5, images.shape


@pytest.mark.slow
@pytest.mark.parametrize("opened", [open_session, openvino_session], ids=["onnxruntime", "openvino"])
def test_one_file_serves_several_image_sizes(
    opened: Callable[[Path], Session], exported: Callable[[str], tuple[Model, Export]]
) -> None:
    model, done = exported("registers")
    assert len(done.checks) == 3
    session, image = opened(done.path), decoded(JPEGS[0])
    for size in [(64, 64), (32, 80), (112, 96)]:
        found = session({"images": image, "size": np.array(size)})
        assert np.abs(found["logits"] - expected(model.resized(size), image)).max() < 2e-5
        assert found["rollout"].shape == (1, size[0] // 16, size[1] // 16)


@pytest.mark.slow
def test_a_calibration_applies_only_at_its_image_size(exported: Callable[[str], tuple[Model, Export]]) -> None:
    model, done = exported("registers")
    session, (height, width) = open_session(done.path), model.config.image_size
    for size, temperature in (((height, width), 2.0), ((2 * height, width), 1.0)):
        found = session({"images": decoded(JPEGS[0]), "size": np.array(size)})
        probabilities = torch.tensor(found["logits"] / temperature).softmax(dim=1)
        np.testing.assert_allclose(found["probabilities"], probabilities, atol=1e-5)


@pytest.mark.slow
def test_the_mask_of_a_segmenter_has_the_size_of_the_image(exported: Callable[[str], tuple[Model, Export]]) -> None:
    model, done = exported("segmenter")
    found = open_session(done.path)({"images": decoded(JPEGS[0])})["mask"]
    assert found.shape == (1, *SIZES[0])
    assert (found[0] == vitreous.SegmentPredictor(model, "cpu")(JPEGS[0])[0].mask).mean() > 0.999


@pytest.mark.slow
def test_the_metadata_name_labels_and_unknown_images(exported: Callable[[str], tuple[Model, Export]]) -> None:
    model, done = exported("class token")
    session = onnxruntime.InferenceSession(done.path)
    stored = json.loads(session.get_modelmeta().custom_metadata_map["vitreous"])
    assert stored == done.metadata == json.loads((done.path.parent / "export.json").read_text())["metadata"]
    assert stored["preprocessing"]["std"] == list(model.config.preprocessing.std)
    assert [one.name for one in session.get_inputs()] == ["images"]
    assert session.get_inputs()[0].shape == ["batch", "height", "width", 3]
    run = open_session(done.path)
    for jpeg in JPEGS:
        found, [prediction] = run({"images": decoded(jpeg)}), vitreous.Predictor(model, "cpu")([jpeg])
        best = prediction.predictions[0]
        assert stored["labels"][int(found["probabilities"].argmax())] == best.label
        assert float(found["probabilities"].max()) == pytest.approx(best.probability, abs=1e-5)
        assert bool(found["familiarity"][0] < stored["calibration"]["unknown_below"]) == prediction.unknown


@pytest.mark.slow
@pytest.mark.parametrize("to", ["openvino", "torch-export"])
def test_other_formats_contain_the_same_model(to: str, tmp_path: Path) -> None:
    model, image = small_model("average pooling"), decoded(JPEGS[1])
    done = vitreous.export(model, tmp_path, to=to)  # type: ignore[arg-type]
    found = open_session(done.path)({"images": image})
    assert np.abs(found["logits"] - expected(model, image)).max() < 2e-5
    assert {path.name for path in tmp_path.iterdir()} == {*done.files, "export.json"}


@pytest.mark.slow
def test_a_second_file_takes_preprocessed_images_in_half_precision(tmp_path: Path) -> None:
    model = small_model("average pooling")
    done = vitreous.export(model, tmp_path, tensor_input=True, precision="fp16")
    pixels = torch.randn(2, 3, 64, 64)
    found = open_session(tmp_path / "model_tensor.onnx")({"pixels": pixels.numpy()})["logits"]
    assert np.abs(found - model(pixels).detach().numpy()).max() < 0.02
    stored = onnx.load(done.path).graph.initializer
    assert sum(np.prod(one.dims) for one in stored if one.data_type == onnx.TensorProto.FLOAT16) > 40_000


@pytest.mark.slow
def test_a_failing_export_leaves_the_folder_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitreous.exporting.validate.MAX_DIFFERENCE", 0.0)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(ExportFailed, match="logits"):
        vitreous.export(small_model("average pooling"), tmp_path / "out")
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "notes.txt"]


def test_outputs_mean_what_the_predictor_returns() -> None:
    model, image = vit(output=Numbers((3.0,) * 7, (2.0,) * 7)).eval(), decoded(JPEGS[0])
    predictor = predictor_for(model, "cpu", workers=0)
    names = output_names(model, ["rollout", "pooled"])
    assert names == ("logits", "values", "pooled", "rollout")
    found = dict(zip(names, Outputs(model, names)(predictor.input(predictor.decode(image[0])[None])), strict=True))
    [numbers] = predictor(image)
    assert found["values"][0].tolist() == pytest.approx(list(numbers.values.values()), abs=1e-5)  # type: ignore[union-attr]
    explained = vitreous.explain(model, image[0], methods=["rollout"]).maps["rollout"]
    assert np.abs(found["rollout"][0].detach().numpy() - np.asarray(explained)).max() < 1e-5


def test_a_missing_package_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(ValueError, match=r"openvino.*vitreous\[openvino\]"):
        runtimes.needs("openvino")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ValueError, match=r"onnxruntime.*vitreous\[export\]"):
        vitreous.export(small_model("class token"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("options", [{"to": "tflite"}, {"precision": "bf16"}, {"outputs": ["attention"]}])
def test_unsupported_options_are_rejected(options: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=str(next(iter(options)))):
        vitreous.export(small_model("class token"), tmp_path, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["Swin", "segmenter"])
def test_a_model_that_needs_a_file_per_size_has_no_dynamic_size(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="dynamic_size"):
        vitreous.export(small_model(name), tmp_path / "out", dynamic_size=True)
    assert not (tmp_path / "out").exists()
