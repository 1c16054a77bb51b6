"""Options of `vitreous export`. This module does not import torch."""

from typing import Literal

Target = Literal["onnx", "openvino", "torch-export"]
WebPrecision = Literal["fp32", "fp16"]
ExportPrecision = Literal["fp32", "fp16", "bf16", "int8", "int8-weights"]
PrecisionChoice = Literal[ExportPrecision, "auto"]  # auto: the fastest that agrees with the model
OptionalOutput = Literal["pooled", "patches", "rollout"]

KEY = "vitreous"  # of the metadata in a file
FILES: dict[Target, str] = {"onnx": "model.onnx", "openvino": "model.xml", "torch-export": "model.pt2"}
# onnxruntime has too few bfloat16 operators, and PyTorch has no fast int8 layers for exported programs.
PRECISIONS: dict[Target, tuple[ExportPrecision, ...]] = {
    "onnx": ("fp32", "fp16", "int8", "int8-weights"),
    "openvino": ("fp32", "fp16", "bf16", "int8", "int8-weights"),
    "torch-export": ("fp32", "fp16", "bf16"),
}
