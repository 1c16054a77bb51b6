"""The files that can be written, and the runtimes that run them."""

import importlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from vitreous.exporting.graph import Program, quiet
from vitreous.exporting.options import Target

# A function from the inputs of a model, by name, to its outputs.
Session = Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]

OPSET = 18  # onnxruntime, onnxruntime-web and OpenVINO support all operators of this version
KEY = "vitreous"  # of the metadata
PROTOBUF_LIMIT = 2**31 - 2**20  # bytes of a file, beyond which the weights are in a second file


def needs(target: Target) -> None:
    """Raise ValueError if a package for `target` is not installed."""
    if target == "onnx":
        for name in ("onnx", "onnxscript", "onnxruntime"):
            _package(name, "export")
    if target == "openvino":
        needs("onnx")  # the ONNX file is converted
        _package("openvino", "openvino")


def _package(name: str, extra: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ValueError(f'export needs {name}: pip install "vitreous[{extra}]"') from None


# ---- Writing ---------------------------------------------------------------------------------------------------------


def write(program: Program, path: Path, target: Target, metadata: Mapping[str, Any], half: bool) -> None:
    """Write a traced model to `path`. `half`: store the weights of an OpenVINO model as float16."""
    match target:
        case "onnx":
            write_onnx(program, path, metadata)
        case "openvino":
            write_openvino(program, path, metadata, half)
        case "torch-export":
            extra = {KEY: json.dumps(metadata)}
            torch.export.save(program.program, path, extra_files=extra)


def write_onnx(program: Program, path: Path, metadata: Mapping[str, Any]) -> None:
    with quiet():
        written = torch.onnx.export(
            program.program,
            dynamo=True,
            opset_version=OPSET,
            input_names=program.inputs,
            output_names=program.outputs,
            verbose=False,
        )
    assert written is not None
    model = written.model
    model.producer_name = "vitreous"
    model.metadata_props[KEY] = json.dumps(metadata)
    size = sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None)
    written.save(path, external_data=size > PROTOBUF_LIMIT)


def write_openvino(program: Program, path: Path, metadata: Mapping[str, Any], half: bool) -> None:
    openvino = _package("openvino", "openvino")
    source = path.with_suffix(".onnx")
    write_onnx(program, source, metadata)
    try:
        model = openvino.convert_model(source)
        model.set_rt_info(json.dumps(metadata), [KEY])
        openvino.save_model(model, path, compress_to_fp16=half)
    finally:
        for file in source.parent.glob(f"{source.name}*"):
            file.unlink()


# ---- Running ---------------------------------------------------------------------------------------------------------


def open_session(path: str | os.PathLike[str]) -> Session:
    """Open an exported file in its runtime, on the CPU."""
    path = Path(path)
    match path.suffix:
        case ".onnx":
            return _onnxruntime(path)
        case ".xml":
            return _openvino(path)
        case ".pt2":
            return _torch(path)
    raise ValueError(f"{path} must end in .onnx, .xml or .pt2")


def _onnxruntime(path: Path) -> Session:
    session = _package("onnxruntime", "export").InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(names, dict(inputs)), strict=True))


def _openvino(path: Path) -> Session:
    # Without the hint, OpenVINO computes in bfloat16 where the processor supports it.
    model = _package("openvino", "openvino").Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return lambda inputs: {output.any_name: value for output, value in model(dict(inputs)).items()}


def _torch(path: Path) -> Session:
    extra = {KEY: ""}
    program = torch.export.load(path, extra_files=extra)
    names, module = list(json.loads(extra[KEY])["outputs"]), program.module()

    def run(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        with torch.inference_mode():
            outputs = module(*(torch.from_numpy(value) for value in inputs.values()))
        return dict(zip(names, (output.numpy() for output in outputs), strict=True))

    return run
