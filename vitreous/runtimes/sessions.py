"""Runs ONNX and OpenVINO files on the CPU."""

import functools
import importlib
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

# A function from the inputs of a model, by name, to its outputs. It can be called in several threads.
Session = Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]


def package(name: str, extra: str) -> ModuleType:
    """Import an optional package. The error for a missing package has the command that installs it."""
    if name == "openvino":
        sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # would report every import
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


@functools.cache
def openvino_core() -> Any:
    """Return OpenVINO's device manager, which all models share.

    It must not be deleted: the first compiled model gives its thread a stack for signal handlers, and deleting the
    manager in another thread frees that stack, so the next signal, such as Ctrl-C, would crash the process.
    """
    return package("openvino", "openvino").Core()


def openvino_session(path: Path, bf16: bool = False, threads: int = 0, single: bool = False) -> Session:
    """Open an ONNX or OpenVINO file in OpenVINO. By default, it uses all cores.

    `bf16`: Compute in bfloat16, except for layers that are in int8.
    `single`: Compile the file for one image too, which saves the inference of shapes in every call with one image.
    """
    core = openvino_core()
    # Without the hint, OpenVINO computes in bfloat16 where the processor supports it.
    options: dict[str, str | int] = {"INFERENCE_PRECISION_HINT": "bf16" if bf16 else "f32"}
    options |= {"INFERENCE_NUM_THREADS": threads} if threads else {}
    model = core.read_model(path)
    compiled = [core.compile_model(model, "CPU", options)]
    if single:
        model.reshape({value: [1, *list(value.partial_shape)[1:]] for value in model.inputs})
        compiled.append(core.compile_model(model, "CPU", options))
    local = threading.local()

    def run(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        if not hasattr(local, "requests"):  # a request processes one batch at a time
            local.requests = [one.create_infer_request() for one in compiled]
        request = local.requests[-1 if all(len(value) == 1 for value in inputs.values()) else 0]
        outputs = request.infer(dict(inputs), share_inputs=True)  # reads the arrays without a copy
        return {output.any_name: value for output, value in outputs.items()}

    return run


def computes_bf16() -> bool:
    """Return True if OpenVINO is faster in bfloat16 than in float32 on this processor."""
    return "BF16" in openvino_core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
