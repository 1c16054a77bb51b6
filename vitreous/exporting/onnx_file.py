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

from vitreous.exporting.graph import Program, quiet, trace_images, trace_preprocessing, trace_tensors
from vitreous.exporting.options import KEY, OptionalOutput
from vitreous.model.options import Preprocessing
from vitreous.model.protocol import Model

OPSET = 18  # onnxruntime, onnxruntime-web and OpenVINO support all its operators
MAX_BYTES = 2**31 - 2**24  # of a file with weights; those of larger models are in a second file
AXES = {"images": {0: "batch", 1: "height", 2: "width"}, "pixels": {0: "batch", 2: "height", 3: "width"}}


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
        graph = _onnx(trace_images(model, outputs, dtype))
    else:
        graph = _onnx(trace_tensors(model, outputs, dtype, dynamic_size))
        if not tensor_input:
            graph = _joined(_preprocessing(config.preprocessing, config.channels), graph)
    if not dynamic_size and not tensor_input and len(graph.graph.inputs) == 2:
        _make_constant(graph.graph, "size", np.array(config.image_size))
    _protect_padding(graph.graph)
    _name_axes(graph.graph)
    onnx_ir.passes.common.RemoveUnusedNodesPass()(graph)
    graph.producer_name = "vitreous"
    graph.metadata_props[KEY] = json.dumps(metadata)
    _save(graph, path)


def _onnx(program: Program) -> onnx_ir.Model:
    with quiet():
        converted = torch.onnx.export(
            program.program,
            dynamo=True,
            opset_version=OPSET,
            input_names=program.inputs,
            output_names=program.outputs,
            verbose=False,
        )
    assert converted is not None
    return converted.model


def _preprocessing(how: Preprocessing, channels: int) -> onnx_ir.Model:
    return onnx_ir.from_proto(onnx.ModelProto.FromString(_serialised_preprocessing(how, channels)))


@functools.cache
def _serialised_preprocessing(how: Preprocessing, channels: int) -> bytes:
    return onnx_ir.to_proto(_onnx(trace_preprocessing(how, channels))).SerializeToString()


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


def _protect_padding(graph: onnx_ir.Graph) -> None:
    """Pad with a tiny number instead of 0 before max pooling.

    Otherwise, onnxruntime merges the two, and then pads with -infinity, which differs from 0 where pixels are negative.
    """
    for node in [node for node in graph if node.op_type == "MaxPool"]:
        pad = node.inputs[0].producer() if node.inputs[0] is not None else None
        value = pad.inputs[2] if pad is not None and pad.op_type == "Pad" and len(pad.inputs) > 2 else None
        zero = onnx_ir.convenience.get_const_tensor(value) if value is not None else None
        if pad is not None and zero is not None and not zero.numpy().any():
            tiny = np.array(np.finfo(zero.numpy().dtype).tiny)
            constant = onnx_ir.Value(name=f"{pad.name}/tiny", const_value=onnx_ir.tensor(tiny))
            graph.register_initializer(constant)
            pad.replace_input_with(2, constant)


def _name_axes(graph: onnx_ir.Graph) -> None:
    """Give the dynamic axes of inputs and outputs readable names, and drop the symbols that torch uses inside."""
    for node in graph:
        for value in node.outputs:
            if value.shape is not None and not value.shape.is_static() and value not in graph.outputs:
                value.shape = None
    for value in [*graph.inputs, *graph.outputs]:
        names = AXES.get(str(value.name), {0: "batch"})
        sides = enumerate(value.shape or ())
        value.shape = onnx_ir.Shape([s if isinstance(s, int) else names.get(i, f"{value.name}_{i}") for i, s in sides])


def _save(model: onnx_ir.Model, path: Path) -> None:
    weights = [value.const_value for value in model.graph.initializers.values() if value.const_value is not None]
    large = sum(weight.nbytes for weight in weights) > MAX_BYTES
    onnx_ir.save(model, path, external_data=f"{path.name}.data" if large else None)
