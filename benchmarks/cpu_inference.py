"""Speed of inference on a CPU in fp32, bf16 and int8, beside timm in PyTorch, onnxruntime and OpenVINO.

All systems run the same architecture on the same preprocessed images, at their best setting, and alternate in each
round, so that the load of the machine affects all of them; compare the ratios. CPU time is more reliable than wall time
on a machine with other load. No row includes decoding, resizing or normalisation. Ours includes the search for
hooks and changed weights before each batch, and the conversion of tensors to arrays and back. Without
--checkpoint, weights are random, and all linear layers of our int8 model but the head are in int8.
`benchmarks.label_agreement` compares the labels.

    python -m benchmarks.cpu_inference
    python -m benchmarks.cpu_inference --checkpoint runs/pets/best   # real weights

The int8 rows of timm are the quantisation that onnxruntime and PyTorch offer without calibration (dynamic) and, if NNCF
is installed, static quantisation for OpenVINO.
"""

import copy
import dataclasses
import importlib
import importlib.util
import math
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
import tyro
from torch import Tensor, nn

from benchmarks.publish_table import publish
from vitreous.common.text import plural
from vitreous.inference import open_model
from vitreous.inference.cpu_backends import NAMES, CpuFunction
from vitreous.model.build import build
from vitreous.model.config import ViTConfig
from vitreous.model.int8 import Int8Scales
from vitreous.model.options import Gelu
from vitreous.model.presets import preset
from vitreous.model.protocol import Model
from vitreous.runtimes.sessions import computes_bf16, onnxruntime_session, package
from vitreous.weights.native import int8_scales
from vitreous.weights.peers import timm_model

Run = Callable[[], object]
OURS = "vitreous"


@dataclass(frozen=True)
class Options:
    """Benchmark options."""

    models: tuple[str, ...] = ("ViT-S/16", "ViT-B/16")
    batches: tuple[int, ...] = (1, 8)
    precisions: tuple[str, ...] = ("fp32", "bf16", "int8")
    rounds: int = 9
    compiled: bool = True  # also measure timm with torch.compile
    checkpoint: Path | None = None  # a quantised checkpoint, instead of `models`
    out: Path = Path("runs/bench/cpu_inference.json")


@dataclass(frozen=True)
class Result:
    model: str
    batch: int
    precision: str
    system: str
    seconds: float  # per batch, median
    cpu_seconds: float
    images_per_second: float
    ratio: float  # time of this system relative to ours at the same precision, median of the rounds
    cpu_ratio: float


# ---- Systems ---------------------------------------------------------------------------------------------------------


def our_runs(model: Model, images: Tensor, precisions: tuple[str, ...]) -> Iterator[tuple[str, str, Run]]:
    """Yield the precision, the name and the function of our models, with the backend that a predictor chooses."""
    for precision in precisions:
        network, batch = model, images
        if precision == "bf16":
            network, batch = copy.deepcopy(model).bfloat16(), images.bfloat16()
        if precision == "int8":
            network = scales_of(model).applied(model)
        function = CpuFunction(lambda model, images: model(images), network, precision, "auto", lambda: math.inf)
        with torch.inference_mode():
            function(batch)
        yield precision, f"{OURS} ({NAMES[function.backend]})", partial(function, batch)


def scales_of(model: Model) -> Int8Scales:
    """Return the int8 scales of a checkpoint or, for random weights, scales for all linear layers but the head."""
    if "int8" in vars(model):
        return int8_scales(model)
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    return Int8Scales(
        {
            name: (torch.full((layer.in_features,), 1.01), (-4.0, 4.0))
            for name, layer in layers.items()
            if not name.startswith("head")
        }
    )


def timm_runs(
    config: ViTConfig, images: Tensor, precisions: tuple[str, ...], compiled: bool, folder: Path
) -> Iterator[tuple[str, str, Run]]:
    """Yield the precision, the name and the function of a timm model in PyTorch, onnxruntime and OpenVINO."""
    model = timm_model(config).eval()
    for precision in set(precisions) & {"fp32", "bf16"}:
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        network, batch = copy.deepcopy(model).to(dtype), images.to(dtype)
        yield precision, "timm", partial(network, batch)
        if compiled:
            yield precision, "timm compiled", partial(torch.compile(network), batch)
    inputs, file = {"pixels": images.numpy()}, folder / "timm.onnx"
    torch.onnx.export(model, (images,), file, input_names=["pixels"], dynamo=True, external_data=False, verbose=False)
    threads = torch.get_num_threads()
    if "fp32" in precisions:
        yield "fp32", "timm in onnxruntime", run_session(file, inputs)
    if "int8" in precisions:
        quantize_dynamic: Any = importlib.import_module("onnxruntime.quantization").quantize_dynamic
        plain = onnx.load(file)
        del plain.graph.value_info[:]  # shapes by the exporter, which the quantiser's transposed weights contradict
        quantize_dynamic(plain, folder / "int8.onnx")
        yield "int8", "timm in onnxruntime", run_session(folder / "int8.onnx", inputs)
        in_torch: Any = torch.ao.quantization.quantize_dynamic
        dynamic = in_torch(model, {nn.Linear}, torch.qint8)
        yield "int8", "timm", partial(dynamic, images)
    openvino = package("openvino", "openvino")
    converted = openvino.convert_model(model, example_input=images, input=[list(images.shape)])
    graphs = dict.fromkeys(set(precisions) & {"fp32", "bf16"}, ("timm in OpenVINO", converted))
    if "int8" in precisions and importlib.util.find_spec("nncf"):
        nncf: Any = importlib.import_module("nncf")
        data, kind = nncf.Dataset([images.numpy()]), nncf.ModelType.TRANSFORMER
        graphs["int8"] = ("timm in OpenVINO, NNCF", nncf.quantize(converted, data, subset_size=1, model_type=kind))
    for precision, (system, graph) in graphs.items():
        bf16 = precision == "bf16" or (precision == "int8" and computes_bf16())  # as our int8 model
        hint = {"INFERENCE_PRECISION_HINT": "bf16" if bf16 else "f32", "INFERENCE_NUM_THREADS": threads}
        yield precision, system, partial(openvino.Core().compile_model(graph, "CPU", hint), [images.numpy()])


def run_session(file: Path, inputs: dict[str, np.ndarray]) -> Run:
    return partial(onnxruntime_session(file, torch.get_num_threads()), inputs)


# ---- Measurement -----------------------------------------------------------------------------------------------------


def measure(runs: dict[Any, Run], rounds: int) -> dict[Any, list[tuple[float, float]]]:
    """Return the wall and CPU time of each round. The systems alternate, in both directions."""
    times: dict[Any, list[tuple[float, float]]] = {name: [] for name in runs}
    with torch.inference_mode():
        for turn in range(-2, rounds):  # two rounds to warm up
            for name, run in list(runs.items())[:: 1 if turn % 2 else -1]:
                wall, cpu = time.perf_counter(), time.process_time()
                run()
                if turn >= 0:
                    times[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    return times


def compare(model: Model, name: str, batch: int, options: Options) -> list[Result]:
    """Measure all systems for a model and a batch size."""
    config = model.config
    assert isinstance(config, ViTConfig)
    images = torch.randn(batch, config.channels, *config.image_size)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runs = {(precision, system): run for precision, system, run in our_runs(model, images, options.precisions)}
        others = timm_runs(config, images, options.precisions, options.compiled, Path(folder))
        runs |= {(precision, system): run for precision, system, run in others}
        times = measure(runs, options.rounds)
    ours = {precision: found for (precision, system), found in times.items() if system.startswith(OURS)}
    results = []
    for (precision, system), found in times.items():
        wall, cpu = (statistics.median(values) for values in zip(*found, strict=True))
        pairs = list(zip(found, ours[precision], strict=True))
        ratios = [statistics.median(one[i] / own[i] for one, own in pairs) for i in (0, 1)]
        results.append(Result(name, batch, precision, system, wall, cpu, batch / wall, *ratios))
    return sorted(results, key=lambda result: options.precisions.index(result.precision))


def main(options: Options) -> None:
    torch.manual_seed(0)
    results: list[Result] = []
    models: dict[str, Model] = {}
    if options.checkpoint is not None:
        models = {str(options.checkpoint): open_model(options.checkpoint).eval()}
    else:
        for name in options.models:
            config = preset(name)
            assert isinstance(config, ViTConfig), f"{name} is not a ViT"
            models[name] = build(dataclasses.replace(config, mlp=Gelu("erf"))).eval()  # as in timm
    for name, model in models.items():
        for batch in options.batches:
            found = compare(model, name, batch, options)
            results += found
            cells = [
                [one.precision, one.system, f"{one.seconds * 1e3:.0f}", f"{one.cpu_seconds * 1e3:.0f}",
                 f"{one.images_per_second:.1f}", f"{one.ratio:.2f}", f"{one.cpu_ratio:.2f}"]
                for one in found
            ]  # fmt: skip
            setting = f"{name}, batch {batch}, {plural(torch.get_num_threads(), 'thread')}"
            columns = ["precision", "system", "ms", "CPU ms", "images/s", "time / ours", "CPU / ours"]
            publish(setting, columns, cells, results, options.out)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
