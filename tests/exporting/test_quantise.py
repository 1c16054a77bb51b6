"""int8 layers, their calibration, and the choice of a precision, with a classifier of digits."""

import copy
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import vitreous
from command_line import CommandLine
from vitreous.data import open_data
from vitreous.data.image import fit
from vitreous.exporting import Export, ExportFailed, PrecisionChoice, Target, compare_precisions, export
from vitreous.exporting.compare_precisions import Comparison, calibration_images, recommended
from vitreous.exporting.options import PRECISIONS
from vitreous.exporting.quantise import BATCH, output_errors, quantise, quantise_weights
from vitreous.exporting.quantise import _calibrate as calibrate
from vitreous.inference.forward_pass import model_input
from vitreous.model.int8 import Int8Linear
from vitreous.model.options import ClassToken
from vitreous.model.protocol import Model
from vitreous.weights import save

DIGITS = open_data("digits")


def images_of(model: Model, count: int) -> Tensor:
    config, train = model.config, DIGITS.train
    return torch.stack([fit(train.image(i), config.image_size, config.preprocessing, 1) for i in range(count)])


def inputs_of(model: Model, count: int) -> Tensor:
    return model_input(images_of(model, count), torch.device("cpu"), model.config.preprocessing)


@pytest.fixture(scope="module")
def digits() -> Model:
    """A small classifier of digits with a few seconds of training."""
    torch.manual_seed(0)
    model = vitreous.create(
        "ViT-Lite-6/4",
        num_classes=10,
        image_size=8,
        overrides={"patch_size": 2, "width": 48, "mlp_width": 96, "depth": 2, "num_heads": 4, "channels": 1,
                   "pool": ClassToken(), "labels": DIGITS.classes},
    )  # fmt: skip
    x, y = inputs_of(model, len(DIGITS.train)), torch.from_numpy(DIGITS.train.labels)
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    for step in range(150):
        chosen = torch.randint(0, len(x), (128,), generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[chosen]), y[chosen]).backward()
        optimizer.step()
    return model.eval()


def int8_layers(model: Model) -> set[str]:
    return {name for name, layer in model.named_modules() if isinstance(layer, Int8Linear)}


# ---- Layers ----------------------------------------------------------------------------------------------------------


def test_a_layer_computes_what_its_stored_integers_mean() -> None:
    layer, x = nn.Linear(6, 4), torch.rand(5, 6) * 3 - 1
    int8 = Int8Linear(layer, torch.full((6,), 2.0), (-0.5, 1.0))
    scale = 1.5 / 255
    inputs = ((x / 2 / scale).round() + round(0.5 / scale)).clamp(0, 255) - round(0.5 / scale)
    scales = (layer.weight * 2).abs().amax(dim=1) / 127
    weights = (layer.weight * 2 / scales[:, None]).round()
    expected = (inputs * scale) @ (weights * scales[:, None]).T + layer.bias
    torch.testing.assert_close(int8(x), expected)
    assert int8.weight.dtype == torch.int8
    assert (int8(x) - layer(x)).abs().max() < 0.05


def test_the_estimated_errors_are_those_of_quantising_one_group_at_a_time(digits: Model) -> None:
    batches = list(torch.split(inputs_of(digits, 128), BATCH))
    groups, _ = calibrate(digits, batches)
    quantised = [group.quantised() for group in groups]
    assert [len(group.layers) for group in groups] == [3, 1, 1, 1] * 2  # queries, keys and values share their input
    estimates = output_errors(digits, quantised, batches)
    for layers, estimate in zip(quantised, estimates, strict=True):
        changed = copy.deepcopy(digits)
        for name, layer in layers.items():
            parent, _, child = name.rpartition(".")
            setattr(changed.get_submodule(parent), child, layer)
        x = torch.cat(batches)
        with torch.no_grad():
            expected, found = digits(x), changed(x)
        error = ((found - expected).square().sum() / expected.var(dim=1, correction=0).sum() / 10).sqrt().item()
        assert 0.6 * error < estimate**0.5 < 1.6 * error


def test_a_confident_model_is_quantised_and_one_with_tied_classes_is_not(digits: Model) -> None:
    images = images_of(digits, 64)
    assert len(int8_layers(quantise(digits, images))) == 12
    tied = copy.deepcopy(digits)
    head = tied.get_submodule("head")
    assert isinstance(head, nn.Linear)
    with torch.no_grad():
        head.weight[1::2], head.bias[1::2] = head.weight[::2] + 1e-6, head.bias[::2]
    assert not int8_layers(quantise(tied, images))


def test_quantising_leaves_the_model_and_the_random_state_alone(digits: Model) -> None:
    before, state = copy.deepcopy(digits.state_dict()), torch.get_rng_state()
    first, second = quantise(digits, images_of(digits, 16)), quantise(digits, images_of(digits, 16))
    assert all(torch.equal(value, digits.state_dict()[name]) for name, value in before.items())
    assert torch.equal(state, torch.get_rng_state())
    with torch.no_grad():
        assert torch.equal(first(inputs_of(digits, 4)), second(inputs_of(digits, 4)))


def test_an_encoder_without_a_head_is_quantised(digits: Model) -> None:
    encoder = vitreous.create(
        "ViT-Lite-6/4", num_classes=0, image_size=8, overrides={"patch_size": 4, "depth": 1, "channels": 1}
    ).eval()
    quantised = quantise(encoder, images_of(encoder, 16))
    with torch.no_grad():
        expected, found = encoder.pooled(inputs_of(encoder, 16)), quantised.pooled(inputs_of(encoder, 16))
    assert int8_layers(quantised)
    assert (found - expected).norm() < 0.1 * expected.norm()
    assert int8_layers(quantise_weights(encoder)) >= int8_layers(quantised)


# ---- Files -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Int8:
    """An ONNX file in int8, and the images of its calibration."""

    export: Export
    calibration: list[Tensor]


@pytest.fixture(scope="module")
def int8(digits: Model, tmp_path_factory: pytest.TempPathFactory) -> Int8:
    seen: list[Tensor] = []

    def record(model: Model, images: Tensor) -> Model:
        seen.append(images)
        return quantise(model, images)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compare_precisions, "quantise", record)
        out = tmp_path_factory.mktemp("int8") / "out"
        return Int8(export(digits, out, precision="int8", data="digits", max_images=359), seen)


@pytest.mark.slow
@pytest.mark.parametrize("to", ["onnx", "openvino"])
def test_int8_files_keep_the_labels_of_real_images(digits: Model, int8: Int8, tmp_path: Path, to: Target) -> None:
    options: dict[str, Any] = {"precision": "int8", "data": "digits", "max_images": 359}
    result = int8.export if to == "onnx" else export(digits, tmp_path / "out", to=to, **options)
    [check] = result.checks
    assert check.images == len(DIGITS.val)
    assert check.agreement is not None
    assert check.agreement >= 0.985
    assert check.differences["logits"] > 0
    assert result.metadata["precision"] == "int8"


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["int8", "int8-weights"])
def test_int8_weights_are_in_the_file_and_preprocessing_stays_in_float(
    digits: Model, int8: Int8, tmp_path: Path, precision: PrecisionChoice
) -> None:
    import onnx

    options: dict[str, Any] = {"data": "digits", "max_images": 20}
    made = int8.export if precision == "int8" else export(digits, tmp_path / "out", precision=precision, **options)
    graph = onnx.load(made.path).graph
    weights = sum(layer.weight.numel() for name, layer in linear_layers(digits) if name != "head")
    assert sum(np.prod(one.dims) for one in graph.initializer if one.data_type == onnx.TensorProto.INT8) >= weights
    large = sum(np.prod(one.dims) for one in graph.initializer if one.data_type == onnx.TensorProto.FLOAT)
    assert large < weights  # the float weights are gone
    nodes = [node for node in graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")]
    assert not any(name.startswith("preprocess/") for node in nodes for name in [node.name, *node.input])
    assert any(node.op_type == "QuantizeLinear" for node in nodes) == (precision == "int8")


def linear_layers(model: Model) -> list[tuple[str, nn.Linear]]:
    return [(name, layer) for name, layer in model.named_modules() if isinstance(layer, nn.Linear)]


@pytest.mark.slow
def test_calibration_uses_training_images_only(digits: Model, int8: Int8) -> None:
    train = {image.numpy().tobytes() for image in images_of(digits, len(DIGITS.train))}
    [images] = int8.calibration
    assert len(images) == 256
    assert {image.numpy().tobytes() for image in images} <= train


def test_fewer_training_images_than_needed_are_all_used(digits: Model) -> None:
    assert len(calibration_images(digits.config, DIGITS.val)) == 256
    few = vitreous.data.sources.base.pick(DIGITS.train, np.arange(7))
    assert torch.equal(calibration_images(digits.config, few), images_of(digits, 7))


@pytest.mark.slow
def test_a_file_with_other_labels_is_rejected_and_not_left_behind(
    digits: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ruined(model: Model, images: Tensor) -> Model:
        found = quantise(model, images)
        for layer in found.modules():
            if isinstance(layer, Int8Linear):
                layer.scales.zero_()  # type: ignore[operator]
        return found

    monkeypatch.setattr(compare_precisions, "quantise", ruined)
    with pytest.raises(ExportFailed, match=r"agree for \d+"):
        export(digits, tmp_path / "out", precision="int8", data="digits", max_images=50)
    assert list(tmp_path.iterdir()) == []


# ---- Options ---------------------------------------------------------------------------------------------------------


def test_int8_needs_a_data_set_with_the_classes_of_the_model(digits: Model, tmp_path: Path) -> None:
    for data in (None, ["a.jpg", "b.jpg"]):
        with pytest.raises(ValueError, match=r"data .* training images"):
            export(digits, tmp_path / "out", precision="int8", data=data)
    other = vitreous.create("ViT-Lite-6/4", num_classes=3)
    with pytest.raises(ValueError, match="classes of digits differ"):
        export(other, tmp_path / "out", precision="int8", data="digits")
    with pytest.raises(ValueError, match=r"int8.*fp32"):
        export(digits, tmp_path / "out", to="torch-export", precision="int8", data="digits")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_runtime_is_named_with_its_extra(
    digits: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(ValueError, match=r'pip install "vitreous\[openvino\]"'):
        export(digits, tmp_path / "out", to="openvino", precision="int8", data="digits")


def test_the_fastest_precision_that_keeps_the_labels_is_recommended() -> None:
    def row(precision: str, agreement: float | None, speed: float, error: float = 0.01) -> Comparison:
        return Comparison(precision, 1000, agreement, 0.9, error, speed, 10)

    rows = [row("torch", 1, 90), row("fp32", 1, 20), row("bf16", 0.985, 30), row("int8", 0.984, 60)]
    assert recommended(rows).precision == "bf16"
    assert recommended([*rows, row("fp16", None, 40)]).precision == "fp16"  # a model without labels
    assert recommended([*rows, row("fp16", 1, 40, float("nan"))]).precision == "bf16"
    with pytest.raises(ExportFailed, match=r"98\.5"):
        recommended([rows[0], rows[3]])


@pytest.mark.slow
def test_auto_compares_all_precisions_and_writes_the_recommended_one(
    digits: Model, tmp_path: Path, command: CommandLine
) -> None:
    save(digits, tmp_path / "best")
    out = tmp_path / "out"
    done = command("export", tmp_path / "best", "--to", "onnx", "--precision", "auto", "--data", "digits", "--out", out)
    assert done.returncode == 0, done.stderr
    report = json.loads((out / "export.json").read_text())
    rows = {row["precision"]: Comparison(**row) for row in report["comparisons"]}
    assert list(rows) == ["torch", *PRECISIONS["onnx"]]
    assert rows["torch"].agreement == rows["fp32"].agreement == 1
    assert rows["torch"].accuracy == rows["fp32"].accuracy
    assert max(rows["int8"].bytes, rows["fp16"].bytes) < rows["fp32"].bytes  # layers may stay in float32
    assert 0 == rows["torch"].error < rows["fp32"].error < rows["int8"].error < 0.2
    assert report["metadata"]["precision"] == recommended(list(rows.values())).precision
    assert all(name in done.stdout for name in rows)
