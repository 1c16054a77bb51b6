"""The files that can be written, and the runtimes that run them."""

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitreous.exporting.graph import trace_images, trace_tensors
from vitreous.exporting.metadata import metadata_of
from vitreous.exporting.options import KEY, ExportPrecision, OptionalOutput, Target
from vitreous.exporting.outputs import output_names
from vitreous.model.protocol import Model
from vitreous.runtimes.sessions import Session, onnxruntime_session, openvino_core, openvino_session, package

DTYPES: dict[ExportPrecision, torch.dtype] = {"fp16": torch.float16, "bf16": torch.bfloat16}  # others: float32


def needs(target: Target) -> None:
    """Raise ValueError if a package for `target` is not installed."""
    if target == "onnx":
        for name in ("onnx", "onnxscript", "onnxruntime"):
            package(name, "export")
    if target == "openvino":
        needs("onnx")  # the ONNX file is converted
        package("openvino", "openvino")


# ---- Writing ---------------------------------------------------------------------------------------------------------


def write(
    model: Model,
    path: Path,
    target: Target,
    outputs: Sequence[OptionalOutput],
    precision: ExportPrecision,
    dynamic_size: bool,
    tensor_input: bool,
) -> dict[str, Any]:
    """Write a model as one file that takes decoded images or, with `tensor_input`, preprocessed images.

    Return the metadata of the file.
    """
    needs(target)
    names = output_names(model, outputs)
    names = names[:1] if tensor_input and model.config.output_kind.per_pixel else names
    metadata = metadata_of(model.config, names, precision, dynamic_size)
    options = (model, outputs, DTYPES.get(precision, torch.float32), dynamic_size)
    match target:
        case "onnx":
            from vitreous.exporting.onnx_file import write_onnx

            write_onnx(*options, path, metadata, tensor_input)
        case "openvino":
            from vitreous.exporting.onnx_file import write_onnx

            openvino = package("openvino", "openvino")
            with tempfile.TemporaryDirectory() as folder:
                source = Path(folder, "model.onnx")
                write_onnx(model, outputs, torch.float32, dynamic_size, source, metadata, tensor_input)
                converted = openvino.convert_model(source)
                converted.set_rt_info(json.dumps(metadata), [KEY])
                openvino.save_model(converted, path, compress_to_fp16=precision in ("fp16", "bf16"))
        case "torch-export":
            program = trace_tensors(*options) if tensor_input else trace_images(*options)
            torch.export.save(program.program, path, extra_files={KEY: json.dumps(metadata)})
    return metadata


# ---- Running ---------------------------------------------------------------------------------------------------------


def open_session(path: str | os.PathLike[str]) -> Session:
    """Open an exported file in its runtime, on the CPU."""
    path = Path(path)
    match path.suffix:
        case ".onnx":
            return onnxruntime_session(path)
        case ".xml":
            return _openvino(path)
        case ".pt2":
            return _torch(path)
    raise ValueError(f"{path} must end in .onnx, .xml or .pt2")


def _openvino(path: Path) -> Session:
    model = openvino_core().read_model(path)
    return openvino_session(path, json.loads(model.get_rt_info([KEY]).astype(str))["precision"] == "bf16")


def _torch(path: Path) -> Session:
    extra = {KEY: ""}
    program = torch.export.load(path, extra_files=extra)
    names, module = list(json.loads(extra[KEY])["outputs"]), program.module()

    def run(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        with torch.inference_mode():
            outputs = module(*(torch.tensor(value) for value in inputs.values()))
        return dict(zip(names, (output.numpy() for output in outputs), strict=True))

    return run
