"""Functions of a batch of images on a CPU, computed by PyTorch, onnxruntime or OpenVINO.

The fastest backend depends on the processor, the model and the precision, so that it is measured on images of the first
large job. The result is stored below VITREOUS_CACHE, and the next start does not measure again.

To write a model for another runtime takes several seconds, which small jobs do not save. A backend is therefore chosen
at the start of a job that, together with earlier ones, needs about as long with PyTorch.
"""

import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import math
import os
import platform
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Generic, Literal, TypeVar, get_args

import numpy as np
import torch
from torch import Tensor, nn

from vitreous.common.atomic_files import atomic_file
from vitreous.common.checks import check_choice, fail
from vitreous.common.untrusted_files import read_json_object
from vitreous.data.sources.download import cache_folder
from vitreous.model.fused_encoder import has_hooks
from vitreous.model.protocol import Model
from vitreous.runtimes.sessions import Session, computes_bf16, onnxruntime_session, openvino_session

Backend = Literal["auto", "torch", "onnxruntime", "openvino"]
NAMES = {"torch": "PyTorch", "onnxruntime": "onnxruntime", "openvino": "OpenVINO"}
EXTRAS = {"onnxruntime": "export", "openvino": "export,openvino"}
# onnxruntime has too few bfloat16 operators, and PyTorch only simulates int8.
SUPPORTED: dict[str, tuple[str, ...]] = {
    "fp32": ("torch", "onnxruntime", "openvino"),
    "bf16": ("torch", "openvino"),
    "int8": ("onnxruntime", "openvino"),
}
WRITING = ("onnx", "onnxscript")  # packages that write the file for both runtimes
# Floating-point operations per thread. PyTorch needs 5 to 20 seconds for a job that is worth a conversion.
WORTH, MEASURED = 5e11, 5e10
ROUNDS = 5
BUSY = 1.5  # load per core
# Largest error relative to the values of PyTorch; a backend with a larger error is not used.
MAX_ERROR = {"fp32": 1e-4, "bf16": 0.1, "int8": 0.1}

Outputs = TypeVar("Outputs", bound=Tensor | tuple[Tensor, ...])


def available(precision: str) -> tuple[str, ...]:
    """Return the backends for a precision whose packages are installed."""
    return tuple(name for name in SUPPORTED[precision] if name == "torch" or not missing(name))


def missing(backend: str) -> str | None:
    """Return the first missing package of a backend, or None."""
    return next((name for name in (*WRITING, backend) if importlib.util.find_spec(name) is None), None)


def check_backend(backend: str, precision: str, device: torch.device) -> None:
    """Raise ValueError if a backend does not support a precision or device, or is not installed."""
    check_choice("backend", backend, get_args(Backend))
    if device.type != "cpu":
        if precision == "int8":
            fail("precision", precision, f"fp32, bf16 or auto on {device}; int8 is for CPUs")
        if backend not in ("auto", "torch"):
            fail("backend", backend, f"auto or torch on {device}")
        return
    if backend != "auto" and backend not in SUPPORTED[precision]:
        fail("backend", backend, f"auto or one of {', '.join(SUPPORTED[precision])} for {precision}")
    wanted = (backend,) if backend not in ("auto", "torch") else () if precision != "int8" else SUPPORTED["int8"]
    if wanted and all(missing(name) for name in wanted):
        name, extra = precision if backend == "auto" else backend, EXTRAS[wanted[-1]]
        raise ValueError(f'{name} needs {missing(wanted[-1])}: pip install "vitreous[{extra}]"')


class CpuFunction(Generic[Outputs]):
    """A function of a model and a batch of images, computed by the fastest backend.

    Args:
        function: Computes the outputs with a model.
        model: The model. If its weights change or it gets hooks, PyTorch computes the outputs.
        precision: "fp32", "bf16" or "int8". The parameters of the model must match it.
        backend: "auto" chooses the fastest backend when a job is large; others are used from the first call.
        expected: Returns the number of images up to the end of the current job.

    Attributes:
        backend: The backend that computes the outputs.
        reason: Why this backend is used.
        seconds: Measured time of each backend.
    """

    def __init__(
        self,
        function: Callable[[Model, Tensor], Outputs],
        model: Model,
        precision: str,
        backend: Backend,
        expected: Callable[[], float],
    ):
        self.function, self.model, self.precision = function, model, precision
        self.wanted, self.expected = backend, expected
        self.backend, self.reason = "torch", "the job is small"
        self.seconds: dict[str, float] = {}
        self.session: Session | None = None
        self.chosen, self.lock, self.calls = False, threading.Lock(), 0
        parameters = sum(parameter.numel() for parameter in model.parameters())
        backbone = model.config.backbone
        # Estimate for layers that are applied to every token or, in a ResNet, to every position of the last map.
        self.operations = 2 * parameters * max(backbone.num_tokens, math.prod(backbone.grid), 1)

    def __call__(self, images: Tensor) -> Outputs:
        if not self.chosen and (self.wanted != "auto" or self.is_worth_it()):
            with self.lock:
                if not self.chosen:
                    self.choose(images)
                    self.chosen = True
        self.calls += 1
        if self.session is None:
            return self.function(self.model, images)
        if self.state() != self.before:
            self.use_torch("the model was changed")
            return self.function(self.model, images)
        outputs = tuple(map(torch.from_numpy, self.session({"pixels": images.float().numpy()}).values()))
        return outputs[0] if self.single else outputs  # type: ignore[return-value]

    def is_worth_it(self) -> bool:
        """Return True if the images take PyTorch longer than it takes to choose and prepare another backend.

        PyTorch only simulates int8, with other rounding than the backends that compute in int8.
        """
        return self.precision == "int8" or self.expected() * self.operations >= WORTH * torch.get_num_threads()

    @property
    def description(self) -> str:
        """Name and version of the backend."""
        return f"{NAMES[self.backend]} {_version(self.backend)}"

    def use_torch(self, reason: str) -> None:
        self.session, self.backend, self.reason = None, "torch", reason

    def state(self) -> tuple[object, ...]:
        """Return values that change if the model gets hooks or other weights."""
        tensors = [*self.model.parameters(), *self.model.buffers()]
        versions = tuple((one.data_ptr(), 0 if one.is_inference() else one._version) for one in tensors)
        return (any(map(has_hooks, self.model.modules())), versions)

    # ---- Choice ----

    def choose(self, images: Tensor) -> None:
        """Choose a backend, by measurements on these images unless it is known, and prepare it."""
        self.before = self.state()
        names = available(self.precision) if self.wanted == "auto" else (self.wanted,)
        if names == ("torch",):
            return self.use_torch("no other backend is installed" if self.wanted == "auto" else "it was requested")
        if self.before[0]:
            return self.use_torch("the model has hooks")
        images = images[: max(int(MEASURED * torch.get_num_threads() / self.operations), 1)]
        key = _cache_key(self.model, self.precision, len(images))
        known = _read_times(key, names) if len(names) > 1 else {}
        if known:
            names = (min(known, key=lambda name: known[name]),)
        with tempfile.TemporaryDirectory() as folder:
            try:
                expected = self.function(self.model, images)
                self.single = isinstance(expected, Tensor)
                path = Path(folder, "model.onnx")
                if names != ("torch",):
                    self.write(path, images)
                sessions = {name: self.open(name, path) for name in names if name != "torch"}
            except Exception as error:  # the exporters raise many kinds of errors
                return self.use_torch(f"the model cannot be converted: {' '.join(str(error).split())[:200]}")
        inputs = {"pixels": images.float().numpy()}
        errors = {name: self.error(session(inputs), expected) for name, session in sessions.items()}
        wrong = {name: error for name, error in errors.items() if not error <= MAX_ERROR[self.precision]}
        runs: dict[str, Callable[[], object]] = {
            name: functools.partial(session, inputs) for name, session in sessions.items() if name not in wrong
        }
        runs |= {"torch": lambda: self.function(self.model, images)} if "torch" in names else {}
        if not runs:
            found = ", ".join(f"{NAMES[name]} {error:.1e}" for name, error in wrong.items())
            return self.use_torch(f"the errors of others are too large: {found}")
        self.seconds = known or (measure(runs) if len(runs) > 1 else {})
        if self.seconds and not known:
            _write_times(key, self.seconds)
        self.backend = min(runs, key=lambda name: self.seconds.get(name, 0.0))
        self.reason = "the fastest" if self.wanted == "auto" else "it was requested"
        self.session = sessions.get(self.backend)
        return None

    def write(self, path: Path, images: Tensor) -> None:
        """Write the function as an ONNX file for batches of any size."""
        from torch.export import Dim  # slow to import, as are the modules below

        from vitreous.runtimes.onnx_graph import save_onnx, to_onnx
        from vitreous.runtimes.trace import exportable, quiet, traced

        module = exportable(_Module(self.function, self.model), torch.float32)
        example = images[:1].float().repeat(2, 1, 1, 1)
        count = 1 if self.single else len(self.function(self.model, images[:1]))
        with torch.inference_mode(False):
            program = traced(module, {"pixels": example.clone()}, ({0: Dim.DYNAMIC},), [f"y{i}" for i in range(count)])
            with quiet():
                save_onnx(to_onnx(program), path)

    def open(self, name: str, path: Path) -> Session:
        threads = torch.get_num_threads()
        if name == "onnxruntime":
            return onnxruntime_session(path, threads)
        # The layers of an int8 model that stay in float are faster in bfloat16.
        bf16 = self.precision == "bf16" or (self.precision == "int8" and computes_bf16())
        return openvino_session(path, bf16, threads)

    def error(self, found: Mapping[str, np.ndarray], expected: Outputs) -> float:
        """Return the largest error of an output: in float32 of any value, otherwise the root mean square."""
        outputs: tuple[Tensor, ...] = (expected,) if isinstance(expected, Tensor) else expected
        errors = []
        for value, one in zip(found.values(), outputs, strict=True):
            difference = torch.from_numpy(value).double() - one.double()
            if self.precision == "fp32":
                errors.append(float(difference.abs().max() / one.abs().max().clamp(min=1)))
            else:
                errors.append(float(difference.square().mean().sqrt() / one.double().std().clamp(min=1e-6)))
        return float(np.max(errors))


class _Module(nn.Module):
    """A function with the model as a submodule, for tracing."""

    def __init__(self, function: Callable[[Model, Tensor], Tensor | tuple[Tensor, ...]], model: Model):
        super().__init__()
        self.function, self.model = function, model

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        outputs = self.function(self.model, pixels)
        return (outputs,) if isinstance(outputs, Tensor) else outputs


def measure(runs: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Return the shortest time of each function. The functions alternate, so that other load affects all of them.

    If other programs occupy the processor, the time on the wall depends on them, and CPU time is measured instead.
    """
    clock = time.process_time if is_busy() else time.perf_counter
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():  # the first run allocates memory
        run()
    for _ in range(ROUNDS):
        for name, run in runs.items():
            started = clock()
            run()
            times[name].append(clock() - started)
    return {name: min(values) for name, values in times.items()}


def is_busy() -> bool:
    """Return True if more threads are running on this machine than this process starts."""
    return hasattr(os, "getloadavg") and os.getloadavg()[0] > BUSY * (os.cpu_count() or 1)


# ---- Cache -----------------------------------------------------------------------------------------------------------


def _cache_key(model: Model, precision: str, batch: int) -> str:
    """Return the name for measurements of models of this shape with these packages on this processor."""
    key = {
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "packages": {name: _version(name) for name in NAMES},
        "model": [model.config.summary, list(model.config.image_size)],
        "tensors": [[name, list(tensor.shape)] for name, tensor in model.state_dict().items()],
        "precision": precision,
        "batch": batch,
    }
    return hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]


def _cache_file(key: str) -> Path:
    return cache_folder("cpu-backends") / f"{key}.json"


def _processor() -> str:
    """Return the model and the instruction sets of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return "\n".join(line for line in lines if line.startswith(("model", "flags", "Features", "CPU part")))


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _read_times(key: str, names: tuple[str, ...]) -> dict[str, float]:
    """Return the stored times of the backends. Return an empty dict if there are none, or the file is damaged."""
    try:
        times = read_json_object(_cache_file(key))
    except (OSError, ValueError):
        return {}
    return {name: value for name, value in times.items() if name in names and isinstance(value, int | float)}


def _write_times(key: str, seconds: Mapping[str, float]) -> None:
    """Store times. Each key has a file of its own, which is replaced in one step, so processes do not interfere."""
    try:
        with atomic_file(_cache_file(key)) as aside:
            aside.write_text(json.dumps(seconds))
    except OSError:  # a read-only home; the next start measures again
        return
