"""Agreement of an exported file with the predictor, from JPEG bytes to label, at several image sizes.

The file is written once with a dynamic image size, or once per size for a model without dynamic sizes. Its runtime
gets the pixels that Pillow decodes and nothing else; resize, crop and normalisation are in the file. The predictor
reads the same JPEG files.

    python -m benchmarks.export_agreement runs/pets/best images/test --to onnx --count 1000 --sizes 112 224 280
"""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro
from PIL import Image, ImageOps

import vitreous
from benchmarks.publish_table import publish
from vitreous.exporting import Target
from vitreous.exporting.runtimes import open_session
from vitreous.inference.predict_images import expand
from vitreous.inference.predictor import Embedder
from vitreous.model.protocol import Model
from vitreous.runtimes.sessions import Session


@dataclass(frozen=True)
class Options:
    """Benchmark options."""

    checkpoint: Annotated[str, tyro.conf.Positional]
    images: Annotated[str, tyro.conf.Positional]
    to: Target = "onnx"
    count: int = 1000
    sizes: tuple[int, ...] = (112, 224, 280)
    out: Path = Path("runs/bench/export_agreement.json")


@dataclass(frozen=True)
class Result:
    size: int
    images: int
    agreement: float | None  # None for a model without labels
    largest_difference: float
    largest_output: float
    images_per_second: float
    torch_images_per_second: float


def main(options: Options) -> None:
    model = vitreous.load(options.checkpoint)
    paths = expand([options.images])
    paths = [paths[round(place)] for place in np.linspace(0, len(paths) - 1, min(options.count, len(paths)))]
    results = []
    with tempfile.TemporaryDirectory() as folder:
        if dynamic := model.config.same_steps_for_all_sizes:
            file = vitreous.export(model, folder, to=options.to, dynamic_size=True).path
        for size in options.sizes:
            if not dynamic:
                file = vitreous.export(model, f"{folder}/{size}", to=options.to, image_size=size).path
            results.append(measure(open_session(file), model.resized(size), paths, dynamic))
    rows = [
        [
            f"{result.size}",
            f"{result.images}",
            "" if result.agreement is None else f"{result.agreement:.2%}",
            f"{result.largest_difference:.1e}",
            f"{result.largest_output:.1f}",
            f"{result.images_per_second:.1f}",
            f"{result.torch_images_per_second:.1f}",
        ]
        for result in results
    ]
    columns = ["size", "images", "same label", "largest difference", "largest output", "images/s", "torch images/s"]
    publish(f"{options.checkpoint} as {options.to}", columns, rows, results, options.out)


def measure(session: Session, model: Model, paths: Sequence[Path], dynamic: bool) -> Result:
    """Compare the first output of a file with that of the predictor. A `dynamic` file has an input for the size."""
    predictor, size = Embedder(model, "cpu"), np.array(model.config.image_size)
    others = {"size": size} if dynamic else {}
    classes = model.config.num_classes
    started = time.perf_counter()
    expected = (predictor.logits(paths) if classes else predictor.embed(paths)).numpy()
    torch_seconds, started = time.perf_counter() - started, time.perf_counter()
    found = np.concatenate(
        [session({"images": pixels(path), **others})["logits" if classes else "pooled"] for path in paths]
    )
    seconds = time.perf_counter() - started
    return Result(
        size=int(size[0]),
        images=len(paths),
        agreement=float((found.argmax(1) == expected.argmax(1)).mean()) if classes else None,
        largest_difference=float(np.abs(found - expected).max()),
        largest_output=float(np.abs(expected).max()),
        images_per_second=len(paths) / seconds,
        torch_images_per_second=len(paths) / torch_seconds,
    )


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))[None]


if __name__ == "__main__":
    main(tyro.cli(Options))
