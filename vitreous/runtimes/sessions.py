"""Runs ONNX and OpenVINO files on the CPU."""

import importlib
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

import numpy as np

# A function from the inputs of a model, by name, to its outputs. It can be called in several threads.
Session = Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]


def package(name: str, extra: str) -> ModuleType:
    """Import an optional package. The error for a missing package has the command that installs it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ValueError(f'{name} is not installed: pip install "vitreous[{extra}]"') from None


def onnxruntime_session(path: Path, threads: int = 0) -> Session:
    """Open an ONNX file in onnxruntime. By default, it uses all cores."""
    onnxruntime = package("onnxruntime", "export")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # other threads decode images
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(names, dict(inputs)), strict=True))


def openvino_session(path: Path, bf16: bool = False, threads: int = 0) -> Session:
    """Open an ONNX or OpenVINO file in OpenVINO. By default, it uses all cores.

    `bf16`: Compute in bfloat16, except for layers that are in int8.
    """
    core = package("openvino", "openvino").Core()
    # Without the hint, OpenVINO computes in bfloat16 where the processor supports it.
    options: dict[str, str | int] = {"INFERENCE_PRECISION_HINT": "bf16" if bf16 else "f32"}
    options |= {"INFERENCE_NUM_THREADS": threads} if threads else {}
    model = core.compile_model(core.read_model(path), "CPU", options)
    requests = threading.local()  # a request processes one batch at a time

    def run(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        if not hasattr(requests, "request"):
            requests.request = model.create_infer_request()
        return {output.any_name: value for output, value in requests.request.infer(dict(inputs)).items()}

    return run


def computes_bf16() -> bool:
    """Return True if OpenVINO is faster in bfloat16 than in float32 on this processor."""
    core = package("openvino", "openvino").Core()
    return "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
