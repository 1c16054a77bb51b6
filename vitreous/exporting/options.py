"""Options of `vitreous export`. This module does not import torch."""

from typing import Literal

Target = Literal["onnx", "openvino", "torch-export"]
ExportPrecision = Literal["fp32", "fp16", "bf16"]
OptionalOutput = Literal["pooled", "patches", "rollout"]

KEY = "vitreous"  # of the metadata in a file
FILES: dict[Target, str] = {"onnx": "model.onnx", "openvino": "model.xml", "torch-export": "model.pt2"}
# onnxruntime has too few bfloat16 operators; OpenVINO chooses bfloat16 when it runs a model, not when it stores one.
PRECISIONS: dict[Target, tuple[ExportPrecision, ...]] = {
    "onnx": ("fp32", "fp16"),
    "openvino": ("fp32", "fp16"),
    "torch-export": ("fp32", "fp16", "bf16"),
}
