"""Agreement of an exported file with the predictor, from JPEG bytes to label, at several image sizes.

The file is written once with a dynamic image size. Its runtime gets the pixels that Pillow decodes and nothing else;
resize, crop and normalisation are in the file. The predictor reads the same JPEG files.

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
from vitreous.exporting.runtimes import Session, open_session
from vitreous.inference.predict_images import expand
from vitreous.inference.predictor import Embedder
from vitreous.model.protocol import Model


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
    with tempfile.TemporaryDirectory() as folder:
        exported = vitreous.export(model, folder, to=options.to, dynamic_size=True)
        session = open_session(exported.path)
        results = [measure(session, model.resized(size), paths) for size in options.sizes]
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


def measure(session: Session, model: Model, paths: Sequence[Path]) -> Result:
    """Compare the first output of a file with that of the predictor."""
    predictor, size = Embedder(model, "cpu"), np.array(model.config.image_size)
    classes = model.config.num_classes
    started = time.perf_counter()
    expected = (predictor.logits(paths) if classes else predictor.embed(paths)).numpy()
    torch_seconds, started = time.perf_counter() - started, time.perf_counter()
    found = np.concatenate(
        [session({"images": pixels(path), "size": size})["logits" if classes else "pooled"] for path in paths]
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
