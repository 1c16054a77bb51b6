"""Functions of a batch of images on a CPU, computed by PyTorch, onnxruntime or OpenVINO.

The fastest backend depends on the processor, the model and the precision. It is measured on images of the first large
job. The result is stored below VITREOUS_CACHE, and the next start does not measure again. If a backend was
requested and fails, ValueError is raised; "auto" uses another one.

Writing a model for another runtime takes several seconds, which small jobs do not save. A backend is therefore chosen
when a job, together with earlier ones, takes about as long with PyTorch.
"""

import functools
import hashlib
import importlib.metadata
import importlib.util
import itertools
import json
import math
import operator
import os
import platform
import re
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
from vitreous.common.device import free_memory
from vitreous.common.text import single_spaced
from vitreous.common.untrusted_files import read_json_object
from vitreous.data.sources.download import cache_folder
from vitreous.model.fused_encoder import has_global_hooks, has_hooks, hooks_of
from vitreous.model.protocol import Model
from vitreous.model.token_merging import MergingEncoder
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
COPIES = 5  # of the weights in memory during a conversion
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
    if backend not in ("auto", "torch", *SUPPORTED.get(precision, ())):
        fail("backend", backend, f"auto or one of {', '.join(SUPPORTED[precision])} for {precision}")
    wanted = (backend,) if backend not in ("auto", "torch") else () if precision != "int8" else SUPPORTED["int8"]
    if wanted and all(missing(name) for name in wanted):
        name, extra = precision if backend == "auto" else backend, EXTRAS[wanted[-1]]
        raise ValueError(f'{name} needs {missing(wanted[-1])}: pip install "vitreous[{extra}]"')


class CpuFunction(Generic[Outputs]):
    """A function of a model and a batch of images, computed by the fastest backend.

    Args:
        function: Computes the outputs with a model.
        model: The model. PyTorch computes the outputs after a change of its weights, and while it has hooks.
        precision: "fp32", "bf16" or "int8". The parameters of the model must match it.
        backend: "auto" chooses the fastest backend when a job is large; others are used from the first call.
        expected: Returns the number of images up to the end of the current job.

    Attributes:
        backend: The backend of the latest call.
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

    def __call__(self, images: Tensor) -> Outputs:
        self.calls += 1
        session = self.choice(images)
        self.backend = "torch" if session is None else self.best
        if session is None:
            return self.function(self.model, images)
        outputs = tuple(map(torch.from_numpy, session({"pixels": float_array(images)}).values()))
        return outputs[0] if self.single else outputs  # type: ignore[return-value]

    def choice(self, images: Tensor) -> Session | None:
        """Return the session that computes these images, or None for PyTorch."""
        if self.wanted == "torch":
            return None
        if not self.chosen:
            large = self.wanted != "auto" or is_worth_it(self.model, self.precision, self.expected())
            if not large or any(map(has_hooks, self.model.modules())):
                return None
            with self.lock:
                if not self.chosen:
                    self.choose(images)
                    self.chosen = True
        if self.session is not None and self.snapshot.is_outdated():
            self.use_torch("the weights were changed")
        return None if self.snapshot.has_hooks() else self.session

    @property
    def description(self) -> str:
        """Name and version of the backend."""
        return f"{NAMES[self.backend]} {_version(self.backend)}"

    def use_torch(self, reason: str) -> None:
        self.session, self.reason = None, reason

    # ---- Choice ----

    def choose(self, images: Tensor) -> None:
        """Choose a backend, by measurements on these images unless it is known, and prepare it."""
        self.snapshot = Snapshot(self.model)
        try:
            self.prepare(images[: measured_images(self.model)], len(images) == 1)
        except Exception as error:  # the exporters and runtimes raise many kinds of errors
            if self.wanted != "auto":
                raise ValueError(f"{NAMES[self.wanted]} cannot compute this model: {_cause(error)}") from error
            self.use_torch(_cause(error))

    def prepare(self, images: Tensor, single: bool) -> None:
        """Open the fastest backend. Raise an error if no other backend than PyTorch computes the model.

        `single`: The first batch is one image, so others probably are too.
        """
        names = available(self.precision) if self.wanted == "auto" else (self.wanted,)
        if names == ("torch",):
            return self.use_torch("no other backend is installed")
        key = _cache_key(self.model, self.precision, len(images))
        known = _read_times(key, names) if len(names) > 1 else {}
        if known:
            names = (min(known, key=lambda name: known[name]),)
        if names == ("torch",):
            self.seconds = known
            return self.use_torch("the fastest")
        needed, free = COPIES * sum(one.nbytes for one in self.model.state_dict().values()), free_memory("cpu")
        if needed > free:
            raise MemoryError(f"the conversion needs {needed / 1e9:.1f} GB of memory, but {free / 1e9:.1f} GB are free")
        expected = self.function(self.model, images)
        self.single = isinstance(expected, Tensor)
        inputs = {"pixels": float_array(images)}
        sessions, problems = dict[str, Session](), list[str]()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "model.onnx")
            self.write(path, images)
            for name in names:
                try:
                    if name != "torch":
                        session = self.open(name, path, single)
                        self.check(session(inputs), expected)
                        sessions[name] = session
                except Exception as error:  # the other backends may work
                    if self.wanted != "auto":
                        raise
                    problems.append(f"{NAMES[name]}: {_cause(error)}")
        if not sessions:
            raise ValueError("; ".join(problems))
        runs: dict[str, Callable[[], object]] = {
            name: functools.partial(session, inputs) for name, session in sessions.items()
        }
        runs |= {"torch": lambda: self.function(self.model, images)} if "torch" in names else {}
        self.seconds = known or (measure(runs) if len(runs) > 1 else {})
        if self.seconds and not known:
            _write_times(key, self.seconds)
        self.best = min(runs, key=lambda name: self.seconds.get(name, 0.0))
        self.reason = "the fastest" if self.wanted == "auto" else "it was requested"
        self.session = sessions.get(self.best)
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

    def open(self, name: str, path: Path, single: bool) -> Session:
        threads = torch.get_num_threads()
        if name == "onnxruntime":
            return onnxruntime_session(path, threads)
        # The layers of an int8 model that stay in float are faster in bfloat16.
        bf16 = self.precision == "bf16" or (self.precision == "int8" and computes_bf16())
        return openvino_session(path, bf16, threads, single)

    def check(self, found: Mapping[str, np.ndarray], expected: Outputs) -> None:
        """Raise ValueError if an error is too large: in float32 of any value, otherwise the root mean square."""
        outputs: tuple[Tensor, ...] = (expected,) if isinstance(expected, Tensor) else expected
        for value, one in zip(found.values(), outputs, strict=True):
            difference = torch.from_numpy(value).double() - one.double()
            if self.precision == "fp32":
                error = float(difference.abs().max() / one.abs().max().clamp(min=1))
            else:
                error = float((difference.square().mean() / one.double().square().mean().clamp(min=1e-12)).sqrt())
            if not error <= MAX_ERROR[self.precision]:  # also if NaN
                raise ValueError(f"its error is {error:.1e}, but must be at most {MAX_ERROR[self.precision]:.0e}")


def float_array(images: Tensor) -> np.ndarray:
    """Convert to float32 without PyTorch's threads, which wait busily for more work while a session computes."""
    if images.dtype != torch.bfloat16:
        return images.float().numpy()
    bits = images.view(torch.int16).numpy().astype(np.uint32) << 16
    return bits.view(np.float32)


class Snapshot:
    """State of a model, to notice later changes.

    Every prediction needs it, so the dicts of all modules are collected once: to iterate over the modules and their
    parameters takes a few percent of the time for an image.
    """

    def __init__(self, model: nn.Module):
        modules = [*model.modules()]
        self.hooks = [hooks for module in modules for hooks in hooks_of(module)]
        self.dicts = [part for one in modules for part in (one._modules, one._parameters, one._buffers)]
        self.parts = self._parts()
        self.tensors = [part for part in self.parts if isinstance(part, Tensor)]
        self.versions = self._versions()

    def has_hooks(self) -> bool:
        """Return True if one of the modules has hooks now."""
        return any(self.hooks) or has_global_hooks()

    def is_outdated(self) -> bool:
        """Return True if the model has other modules or weights now."""
        parts = self._parts()
        same = len(parts) == len(self.parts) and all(map(operator.is_, parts, self.parts))
        return not same or self._versions() != self.versions

    def _parts(self) -> list[nn.Module | Tensor | None]:
        return [*itertools.chain.from_iterable(part.values() for part in self.dicts)]

    def _versions(self) -> list[tuple[int, int]]:
        """Return values that change if the tensors get other values."""
        return [(one.data_ptr(), 0 if one.is_inference() else one._version) for one in self.tensors]


class _Module(nn.Module):
    """A function with the model as a submodule, for tracing."""

    def __init__(self, function: Callable[[Model, Tensor], Tensor | tuple[Tensor, ...]], model: Model):
        super().__init__()
        self.function, self.model = function, model

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        outputs = self.function(self.model, pixels)
        return (outputs,) if isinstance(outputs, Tensor) else outputs


def operations(model: Model) -> int:
    """Estimate the operations for an image: its layers are applied to every token or, in a ResNet, every position."""
    backbone = model.config.backbone
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return 2 * parameters * max(backbone.num_tokens, math.prod(backbone.grid), 1)


def measured_images(model: Model) -> int:
    """Return the number of images to measure with."""
    return max(int(MEASURED * torch.get_num_threads() / operations(model)), 1)


def is_worth_it(model: Model, precision: str, images: float) -> bool:
    """Return True if the images take PyTorch longer than it takes to choose and prepare another backend.

    PyTorch only simulates int8, with other rounding than the backends that compute in int8.
    """
    return precision == "int8" or images * operations(model) >= WORTH * torch.get_num_threads()


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


def _cause(error: BaseException) -> str:
    """Return the first cause of an error, in one line without colours."""
    while error.__cause__ is not None:
        error = error.__cause__
    return single_spaced(re.sub(r"\x1b\[[0-9;]*m", "", str(error) or type(error).__name__), 200)


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
        "merge_tokens": [module.r for module in model.modules() if isinstance(module, MergingEncoder)],
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
    """Store times. There is one file per key, which is replaced in one step, so processes do not interfere."""
    try:
        with atomic_file(_cache_file(key)) as aside:
            aside.write_text(json.dumps(seconds))
    except OSError:  # a read-only home; the next start measures again
        return
