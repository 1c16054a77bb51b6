"""Writes ONNX files. Model and preprocessing are traced separately and joined, because most graphs share the latter."""

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir
import torch

from vitreous.exporting.graph import trace_images, trace_preprocessing, trace_tensors
from vitreous.exporting.options import KEY, OptionalOutput
from vitreous.model.options import Preprocessing
from vitreous.model.protocol import Model
from vitreous.runtimes.onnx_graph import save_onnx, to_onnx


def write_onnx(
    model: Model,
    outputs: Sequence[OptionalOutput],
    dtype: torch.dtype,
    dynamic_size: bool,
    path: Path,
    metadata: Mapping[str, Any],
    tensor_input: bool,
) -> None:
    config = model.config
    if config.output_kind.per_pixel and not tensor_input:  # the windows also depend on the size of the image
        graph = to_onnx(trace_images(model, outputs, dtype))
    else:
        graph = to_onnx(trace_tensors(model, outputs, dtype, dynamic_size))
        if not tensor_input:
            graph = _joined(_preprocessing(config.preprocessing, config.channels), graph)
    if not dynamic_size and not tensor_input and len(graph.graph.inputs) == 2:
        _make_constant(graph.graph, "size", np.array(config.image_size))
    graph.metadata_props[KEY] = json.dumps(metadata)
    save_onnx(graph, path)


def _preprocessing(how: Preprocessing, channels: int) -> onnx_ir.Model:
    return onnx_ir.from_proto(onnx.ModelProto.FromString(_serialised_preprocessing(how, channels)))


@functools.cache
def _serialised_preprocessing(how: Preprocessing, channels: int) -> bytes:
    return onnx_ir.to_proto(to_onnx(trace_preprocessing(how, channels))).SerializeToString()


def _joined(first: onnx_ir.Model, second: onnx_ir.Model) -> onnx_ir.Model:
    """Use the output of one graph as the input of another."""
    before, after = first.graph, second.graph
    for value in [*before.initializers.values(), *(value for node in before for value in node.outputs)]:
        value.name = f"preprocess/{value.name}"
    for node in before:
        node.name = f"preprocess/{node.name}"
    onnx_ir.convenience.replace_all_uses_with(after.inputs[0], before.outputs[0])
    nodes, outputs, weights = list(after), list(after.outputs), list(after.initializers.values())
    after.outputs.clear()
    after.initializers.clear()
    after.remove(nodes)
    before.extend(nodes)
    for weight in weights:
        before.register_initializer(weight)
    before.outputs.clear()
    before.outputs.extend(outputs)
    return first


def _make_constant(graph: onnx_ir.Graph, name: str, constant: np.ndarray) -> None:
    """Replace an input by a constant."""
    [value] = [value for value in graph.inputs if value.name == name]
    graph.inputs.remove(value)
    value.const_value = onnx_ir.tensor(constant, name=name)
    graph.register_initializer(value)
