"""Compares the ONNX graphs of an exported page with PyTorch."""

import json
from pathlib import Path

import numpy as np
import onnxruntime
import torch

from vitreous.explanation.attention_and_logit_lens import capture
from vitreous.explanation.rollout_relevance_occlusion import relevance
from vitreous.exporting.web.export_page import run
from vitreous.exporting.web.graphs import walk_shapes
from vitreous.model.pooling import all_tokens
from vitreous.model.protocol import Model
from vitreous.page.walk import layer_tensors, shared_tensors


def check_page_graphs(folder: Path, model: Model) -> None:
    """Compare all outputs of the graphs in a folder for a random image."""
    image = torch.randn(1, model.config.channels, *model.config.image_size)
    captured = capture(model, image)
    layers = range(len(captured.layers))
    found = run(onnxruntime.InferenceSession(folder / "outputs.onnx"), {"image": image.numpy()})
    weights = torch.cat([captured.weights(layer).flatten() for layer in layers])
    np.testing.assert_allclose(found["attention"], weights, rtol=0, atol=1e-5)
    np.testing.assert_allclose(found["pooling"], captured.pooling_weights()[0], rtol=0, atol=1e-6)
    features = [all_tokens(captured.features(layer)).flatten() for layer in layers]
    np.testing.assert_allclose(found["features"], torch.cat(features), rtol=0, atol=1e-4)
    walk, patch = onnxruntime.InferenceSession(folder / "walk.onnx"), torch.tensor([7])
    tensors = run(walk, {"image": image.numpy(), "patch": patch.numpy()})
    for name, tensor in shared_tensors(captured, patch).items():
        np.testing.assert_allclose(tensors.pop(name), tensor, rtol=0, atol=1e-4)
    for shapes, expected in zip(
        walk_shapes(captured), (layer_tensors(captured, at, patch) for at in layers), strict=True
    ):
        assert shapes.keys() == expected.keys()
        for name, tensor in expected.items():
            assert shapes[name] == list(tensor.shape)
            values, tensors[name] = np.split(tensors[name], [tensor.numel()])
            np.testing.assert_allclose(values.reshape(tensor.shape), tensor, rtol=0, atol=1e-4)
    assert not any(map(len, tensors.values()))
    if not model.config.num_classes:
        assert "lens" not in found
        return
    np.testing.assert_allclose(found["lens"], captured.lens()[:, 0], rtol=0, atol=1e-4)
    np.testing.assert_allclose(found["lens"][-1:], model(image).detach(), rtol=0, atol=1e-4)
    gradients = onnxruntime.InferenceSession(folder / "relevance.onnx")
    for target in (0, 3):
        wanted = relevance(captured, target).flatten()
        values = run(gradients, {"image": image.numpy(), "target": np.array([target])})["relevance"]
        np.testing.assert_allclose(values, wanted, rtol=0, atol=1e-4 * float(wanted.abs().max()))


def check_keys(folder: Path, model: Model) -> None:
    """Compare the files with the tokens that each token attends to."""
    numbers = json.loads((folder / "model.json").read_text())["keys"]
    layers = capture(model, torch.zeros(1, model.config.channels, *model.config.image_size)).layers
    for number, layer in zip(numbers, layers, strict=True):
        assert (number is None) == (layer.keys is None)
        if layer.keys is not None:
            keys = np.fromfile(folder / f"keys-{number}.bin", "<i4")
            np.testing.assert_array_equal(keys.reshape(layer.keys.shape), layer.keys)
