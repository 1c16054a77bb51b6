"""Agreement with PyTorch, accuracy, speed and size of the export precisions in onnxruntime and OpenVINO.

Labels are compared on validation images, from decoded pixels to outputs, one at a time. Speed is measured on batches of
one image size, with preprocessing. The systems alternate in each round, so that the load of the machine affects all of
them; compare the ratios. CPU time is more reliable than images per second on a machine with other load.

    python -m benchmarks.quantisation runs/pets/best --data DIR
"""

import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import tyro
from tyro.conf import Positional

from benchmarks.publish_table import publish
from vitreous.common.text import plural
from vitreous.data.image import decode
from vitreous.exporting.compare_precisions import calibration_images, compare, comparison_images, open_splits
from vitreous.exporting.options import FILES, PRECISIONS, ExportPrecision, Target
from vitreous.exporting.quantise import quantise, quantise_weights
from vitreous.exporting.runtimes import open_session, write
from vitreous.inference.predict_images import open_model
from vitreous.model.int8 import Int8Linear
from vitreous.model.protocol import Model
from vitreous.runtimes.sessions import Session

RUNTIMES: dict[Target, str] = {"onnx": "onnxruntime", "openvino": "OpenVINO"}


@dataclass(frozen=True)
class Options:
    """Benchmark options."""

    checkpoint: Positional[Path]
    data: str
    images: int = 1110  # to compare labels
    batch: int = 8
    rounds: int = 9  # of the speed measurement
    side: int = 224  # of the images in a batch
    threads: int = 2
    out: Path = Path("runs/bench/quantisation.json")


@dataclass(frozen=True)
class Result:
    system: str
    agreement: float | None
    accuracy: float | None
    error: float
    images_per_second: float
    speed: float  # relative to PyTorch in float32
    cpu_seconds: float  # per image
    bytes: int


def torch_session(model: Model, dtype: torch.dtype) -> Session:
    """Return a session that computes the logits with PyTorch. Resize and crop are included."""
    from vitreous.data.image import fit
    from vitreous.inference.forward_pass import mixed_precision, model_input

    config, device = model.config, torch.device("cpu")

    @torch.inference_mode()
    def run(inputs: object) -> dict[str, np.ndarray]:
        assert isinstance(inputs, dict)
        size, how = config.image_size, config.preprocessing
        pixels = torch.stack([fit(image, size, how, config.channels) for image in inputs["images"]])
        with mixed_precision(device, dtype):
            logits = model(model_input(pixels, device, how)).float()
        return {"logits": logits.numpy(), "probabilities": logits.softmax(dim=1).numpy()}

    return run


def speeds(sessions: dict[str, Session], batch: np.ndarray, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Return the wall and CPU time of each round. The systems alternate."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in sessions}
    for turn in range(rounds + 1):
        for name, run in sessions.items():
            wall, cpu = time.perf_counter(), time.process_time()
            run({"images": batch})
            if turn:  # skip the warm-up round
                times[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    return times


def main(options: Options) -> None:
    torch.set_num_threads(options.threads)
    model = open_model(options.checkpoint, None).cpu().eval()
    splits = open_splits(model.config, options.data)
    images, labels = comparison_images(model.config, splits.val, options.images)
    models: dict[ExportPrecision, Model] = {"int8-weights": quantise_weights(model)}
    models["int8"] = quantise(model, calibration_images(model.config, splits.train))
    fraction = _int8_fraction(models["int8"], model)
    sessions = {"PyTorch bf16": torch_session(model, torch.bfloat16)}
    sizes = {"PyTorch bf16": 0}
    with tempfile.TemporaryDirectory() as folder:
        for to, runtime in RUNTIMES.items():
            for precision in PRECISIONS[to]:
                path = Path(folder, f"{to}-{precision}", FILES[to])
                path.parent.mkdir()
                write(models.get(precision, model), path, to, (), precision, dynamic_size=False, tensor_input=False)
                name = f"{runtime} {precision}"
                sessions[name] = open_session(path)
                sizes[name] = sum(file.stat().st_size for file in path.parent.iterdir())
        rows = compare(sessions, sizes, model, ("logits", "probabilities"), images, labels)
        first = decode(splits.val.image(0), model.config.channels)[None].float()
        pixels = torch.nn.functional.interpolate(first, (options.side, options.side)).to(torch.uint8)
        batch = pixels.permute(0, 2, 3, 1).repeat(options.batch, 1, 1, 1).numpy()
        times = speeds({"torch": torch_session(model, torch.float32), **sessions}, batch, options.rounds)
    results = []
    for row in rows:
        walls, cpus = zip(*times[row.precision], strict=True)
        ratios = [base / wall for (base, _), wall in zip(times["torch"], walls, strict=True)]
        speed, cpu = statistics.median(ratios), statistics.median(cpus) / options.batch
        rate = options.batch / statistics.median(walls)
        results.append(Result(row.precision, row.agreement, row.accuracy, row.error, rate, speed, cpu, row.bytes))
    setting = (
        f"{model.config.summary}, {plural(len(images), 'image')}, batch {options.batch}, "
        f"{plural(options.threads, 'thread')}, int8: {fraction:.0%} of the multiplications of linear layers"
    )
    table = [_cells(result) for result in results]
    columns = ["system", "same labels", "accuracy", "error", "images/s", "speed", "CPU ms/image", "MB"]
    publish(setting, columns, table, results, options.out)


def _cells(result: Result) -> list[str]:
    values = asdict(result)
    fractions = ["" if values[key] is None else f"{values[key]:.2%}" for key in ("agreement", "accuracy")]
    numbers = [f"{result.error:.4f}", f"{result.images_per_second:.1f}", f"{result.speed:.2f}"]
    return [result.system, *fractions, *numbers, f"{1e3 * result.cpu_seconds:.0f}", f"{result.bytes / 1e6:.1f}"]


def _int8_fraction(quantised: Model, model: Model) -> float:
    names = {name for name, layer in quantised.named_modules() if isinstance(layer, Int8Linear)}
    costs = {name: layer.weight.numel() for name, layer in model.named_modules() if isinstance(layer, torch.nn.Linear)}
    return sum(cost for name, cost in costs.items() if name in names) / sum(costs.values())


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
