"""Converts traced modules to ONNX graphs, and saves the graphs."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir
import torch
from onnxscript import opset18 as op

from vitreous.runtimes.trace import Program, quiet

OPSET = 18  # onnxruntime, onnxruntime-web and OpenVINO support all its operators
MAX_BYTES = 2**31 - 2**24  # of a file with weights; those of larger models are in a second file
AXES = {"images": {0: "batch", 1: "height", 2: "width"}, "pixels": {0: "batch", 2: "height", 3: "width"}}


def to_onnx(program: Program) -> onnx_ir.Model:
    """Convert a traced module."""
    with quiet():
        converted = torch.onnx.export(
            program.program,
            dynamo=True,
            opset_version=OPSET,
            custom_translation_table={torch.ops.aten.scaled_dot_product_attention.default: _attention},
            input_names=program.inputs,
            output_names=program.outputs,
            verbose=False,
        )
    assert converted is not None
    return converted.model


def _attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    dropout: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Write scaled_dot_product_attention with one scale and one transpose of the keys, which OpenVINO fuses.

    The translation of PyTorch reshapes the keys before and after the transpose, and scales both queries and keys.
    """
    assert not any((dropout, is_causal, enable_gqa)), "no model uses them in evaluation mode"
    *first, rows, columns = range(len(key.shape))
    factor: Any = op.Constant(value_float=query.shape[-1] ** -0.5 if scale is None else scale)
    logits = op.MatMul(op.Mul(query, op.CastLike(factor, query)), op.Transpose(key, perm=[*first, columns, rows]))
    return op.MatMul(op.Softmax(logits if bias is None else op.Add(logits, bias), axis=-1), value)


def save_onnx(model: onnx_ir.Model, path: Path) -> None:
    """Write a graph to a file that all runtimes can read."""
    _protect_padding(model.graph)
    _name_axes(model.graph)
    onnx_ir.passes.common.RemoveUnusedNodesPass()(model)
    model.producer_name = "vitreous"
    weights = [value.const_value for value in model.graph.initializers.values() if value.const_value is not None]
    large = sum(weight.nbytes for weight in weights) > MAX_BYTES
    onnx_ir.save(model, path, external_data=f"{path.name}.data" if large else None)


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
